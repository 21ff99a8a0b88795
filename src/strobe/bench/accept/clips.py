"""Clips that a model is judged on, and how presets differ from `quality` on them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from strobe.bench.accept.verdict import judged, reported
from strobe.bench.cases.scoring import readable
from strobe.bench.gate import relative_error
from strobe.core.errors import StrobeError
from strobe.core.tolerances import tolerance
from strobe.engine.config import EngineConfig, ResolvedConfig
from strobe.engine.load import Model
from strobe.engine.presets import quality
from strobe.engine.session import Session
from strobe.models.shapes import oracle
from strobe.models.shapes.grammar import parse
from strobe.models.vae.taew import Taew
from strobe.perf.records.checks import Check
from strobe.quality.psnr import decibels, squared_error

SHORT: Final = 6
"""Frame blocks of the clips that compare prompts, seeds and presets."""
ACCURACY: Final = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """A clip: latents [F, C, Y, X] on the CPU, frames uint8 [F', Y, X, 3], and the configuration that made it."""

    latents: Tensor
    frames: Tensor
    config: ResolvedConfig


def make(model: Model, config: EngineConfig, prompt: str, device: torch.device, seed: int, blocks: int) -> Made:
    """Stream a clip."""
    with Session(prompt, preset=config, model=model, device=device, seed=seed) as session:
        made = [(block.latents[0].cpu(), block.frames) for block in session.stream(blocks)]
        return Made(
            latents=torch.cat([one for one, _ in made]), frames=torch.cat([two for _, two in made]), config=session.config
        )


def check_oracle(clips: Sequence[tuple[str, Tensor]], skipped: int) -> Iterator[Check]:
    """Read the bundled model's clips from their pixels: does each show its prompt?

    Args:
        clips: prompts with frames uint8 [F, Y, X, 3].
        skipped: first frames that do not count.
    """
    prompts, size = [prompt for prompt, _ in clips], tuple(clips[0][1].shape[1:3])
    if not readable(size, prompts):
        return
    shares = []
    for prompt, frames in clips:
        found = oracle.detect(frames[skipped:].permute(0, 3, 1, 2).float()[None] / 255)
        shares.append(oracle.accuracy(found, torch.tensor([parse(prompt).attributes])).every)
    yield judged(
        "prompt",
        "prompt_accuracy",
        min(shares),
        "share of frames whose colour, shape, direction, speed and background are as prompted, the first frame block left out; "
        "the lowest of the clips",
        "measured: 1.000 over 64 streams, where 0.95 was the target (docs/shapes.md)",
        bounds=(ACCURACY, None),
        detail=", ".join(f"{share:.3f}" for share in shares),
    )


@torch.inference_mode()
def check_autoencoder(model: Model, frames: Tensor, config: ResolvedConfig) -> Iterator[Check]:
    """Encode frames and decode them again; only where the autoencoder encodes.

    Args:
        frames: uint8 [1 + stride n, Y, X, 3] of a clip.
    """
    if isinstance(model.vae, Taew):
        return
    vae = copy.deepcopy(model.vae).to(config.decode_device)
    prepared = model.shelf.take(model, config)
    dit, decoder = prepared.parts()
    try:
        latents = vae.encode(frames.permute(0, 3, 1, 2).unsqueeze(0).to(config.decode_device).float() / 255)
        (made,) = decoder.start(latents.to(config.device), decoder.state())
    finally:
        decoder.close()
        prepared.release(dit)
    value = decibels(squared_error(made.frames[0], frames).mean()).item()
    meaning = "PSNR of the first frame blocks' frames, encoded and decoded again, against themselves"
    yield reported("frames", "autoencoder", value, meaning, unit="dB")


def check_presets(
    model: Model,
    configs: Sequence[EngineConfig],
    prompt: str,
    device: torch.device,
    seed: int,
    progress: Callable[[str], object],
) -> Iterator[Check]:
    """Compare a short clip of each preset with the one of `quality` from the same noise.

    A preset of the same schedule, window, formats and dtype must make the same latents; others are reported.
    """
    like = configs[0]
    own = replace(quality(), simulate=like.simulate, positions=like.positions, dtype=like.dtype)
    progress("preset quality")
    reference = make(model, own, prompt, device, seed, SHORT)
    limit = tolerance("latents", reference.config.dtype)
    for config in configs:
        progress(f"preset {config.name}")
        name = f"preset_{config.name}"
        try:
            made = make(model, config, prompt, device, seed, SHORT)
        except (StrobeError, torch.OutOfMemoryError) as error:
            yield reported("presets", name, None, "clip against that of quality", why=" ".join(str(error).split()))
            continue
        off = relative_error(made.latents, reference.latents)
        distance = squared_error(made.frames, reference.frames).mean()
        told = f"PSNR {decibels(distance).item():.1f} dB" if distance else "frames equal"
        meaning = f"relative error of the latents of {SHORT} frame blocks against those of quality"
        if _computes(made.config) == _computes(reference.config):
            source = f"fact: the same computation; rounding in {made.config.dtype} is within {limit:g}".replace("torch.", "")
            yield judged("presets", name, off, meaning, source, bounds=(None, limit), detail=told)
        else:
            why = "another computation, after which a stream goes its own way: reported, not judged"
            finite = bool(made.latents.isfinite().all())
            yield (
                reported("presets", name, off, meaning, why=why, detail=told)
                if finite
                else judged("presets", name, float("nan"), meaning, "fact: latents are finite", bounds=(None, None))
            )


def _computes(config: ResolvedConfig) -> tuple[object, ...]:
    """Return the settings that decide the values."""
    formats = config.linear_format, config.kv_format, config.attention_format
    return config.schedule, config.policy, config.positions, config.sparsity, config.keep_sink, config.dtype, formats
