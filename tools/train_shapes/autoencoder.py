"""Stage 1: the tiny autoencoder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import l1_loss, mse_loss

from strobe.models.vae.tiny import TinyVAE
from train_shapes.clips import draw_clips, measure
from train_shapes.state import Progress, Trainer
from train_shapes.world import renderer

STEPS = 20000
SECONDS = 320
BATCH = 48
SAVE_EVERY = 30.0  # seconds
LATENTS = 4
LATENT_NOISE = 0.1
"""Noise added to latents in training. It makes them smooth: small errors of the transformer stay small in the picture."""


def gradient_loss(a: Tensor, b: Tensor) -> Tensor:
    """Compute the L1 error of differences between horizontal and vertical neighbours, for sharp outlines."""
    return l1_loss(a.diff(dim=-1), b.diff(dim=-1)) + l1_loss(a.diff(dim=-2), b.diff(dim=-2))


def _loss(vae: TinyVAE, clips: Tensor) -> Tensor:
    latents = vae.encode_groups(clips)
    noisy = latents + LATENT_NOISE * torch.randn_like(latents)
    out = vae.decode_groups(noisy)[0].float()
    return (
        l1_loss(out, clips) + 4 * mse_loss(out, clips) + 0.2 * gradient_loss(out, clips) + 1e-3 * latents.float().square().mean()
    )


def train(vae: TinyVAE, folder: Path, *, scale: float = 1.0, seed: int = 0) -> Iterator[Progress]:
    """Train in place, then set the latent statistics. Resumes from `folder/autoencoder.safetensors`."""
    device = next(vae.parameters()).device
    vae.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks this form
    trainer = Trainer(vae, total=max(1, int(STEPS * scale)), seconds=SECONDS * scale, peak=1.5e-3)
    checkpoint = folder / "autoencoder.safetensors"
    if checkpoint.exists():
        trainer.load(checkpoint)
    measure_loss = torch.compile(_loss) if device.type == "cuda" else _loss
    trained = trainer.done() < 1
    while trainer.done() < 1:
        torch.manual_seed(seed * 1_000_003 + trainer.step)
        clips = draw_clips(BATCH, LATENTS, device, renderer(device.type))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = measure_loss(vae, clips)
        trainer.update(loss)
        if trainer.step % 200 == 0 or trainer.done() == 1:
            yield trainer.progress("autoencoder", {"loss": loss.item()})
        if trainer.due(SAVE_EVERY):
            trainer.save(checkpoint)
    trainer.use_average()
    set_statistics(vae, device)
    trainer.save(checkpoint)
    if trained:
        yield trainer.progress("autoencoder", {"psnr": measure(vae, device)})


@torch.no_grad()
def set_statistics(vae: TinyVAE, device: torch.device, *, batches: int = 16) -> None:
    """Measure each latent channel's mean and deviation, so that latents become standard."""
    torch.manual_seed(1)
    vae.mean.zero_()
    vae.std.fill_(1)
    latents = torch.cat([vae.encode_groups(draw_clips(BATCH, LATENTS, device)) for _ in range(batches)])
    vae.mean.copy_(latents.mean(dim=(0, 1, 3, 4)))
    vae.std.copy_(latents.std(dim=(0, 1, 3, 4)))
