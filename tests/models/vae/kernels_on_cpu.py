"""The decoder's Triton kernels against the reference: `TRITON_INTERPRET=1 python kernels_on_cpu.py cpu`, or `... cuda`.

A process of its own, because the interpreter must be chosen before Triton is imported. New memory is full of NaN.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from strobe.core.tolerances import tolerance
from strobe.models.vae.kernels import api
from strobe.models.vae.stream import StreamingDecoder
from strobe.models.vae.wan.config import WAN22, WanVAEConfig
from strobe.models.vae.wan.weights import random_wan_vae

DEVICE = torch.device(sys.argv[1])
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
LIMIT = tolerance("element", "bfloat16" if DEVICE.type == "cuda" else "float32")
CHAIN = tolerance("latents", "bfloat16" if DEVICE.type == "cuda" else "float32")
"""Root mean square, relative, after many layers, of which the plain ones round more often."""
SHAPES = [(2, 2, 5, 7, 16, 24), (1, 1, 15, 17, 8, 16), (1, 1, 4, 6, 24, 96), (1, 1, 3, 5, 8, 384), (1, 1, 1, 1, 96, 192)]
"""Samples, frames, rows, columns, channels in and out."""
LARGE = [(1, 3, 63, 100, 96, 96), (1, 2, 33, 64, 192, 192), (1, 1, 20, 31, 384, 384), (2, 2, 9, 9, 256, 256)]


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(DTYPE)


def bordered(batch: int, frames: int, height: int, width: int, channels: int) -> Tensor:
    made = torch.zeros(batch, frames, height + 2, width + 2, channels, device=DEVICE, dtype=DTYPE)
    made[:, :, 1:-1, 1:-1] = drawn(batch, frames, height, width, channels)
    return made


def near(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    for got, want in zip(found, expected, strict=True):
        assert (got is None) == (want is None)
        if got is not None and want is not None:
            torch.testing.assert_close(got.float(), want.float(), rtol=LIMIT, atol=LIMIT * want.abs().max().item())


def check_kernels(batch: int, frames: int, height: int, width: int, channels: int, out: int) -> None:
    seen, weight, bias = bordered(batch, 2 + frames, height, width, channels), drawn(out, channels, 3, 3, 3), drawn(out)
    weight = weight.mul_((27 * channels) ** -0.5).contiguous(memory_format=torch.channels_last_3d)
    source = drawn(batch, frames, height + 3, width + 1, channels)[:, :, 1:-2, :-1]
    few, gamma = drawn(3, channels, 3, 3, 3), drawn(channels)
    for skip in (None, bordered(batch, frames, height, width, out)):
        near(*([api.convolve(seen, weight, bias, skip, impl=impl)] for impl in api.IMPLS))
    for before in (None, drawn(batch, 2, height, width, out)):
        if out <= api.WHOLE:
            near(*(api.convolve_norm(seen, weight, bias, bias + 1, before, impl=impl) for impl in api.IMPLS))
    for before, added in ((None, None), (drawn(batch, 2, height, width, channels), drawn(channels))):
        near(*(api.norm(source, added, gamma, before, copied=added is not None, impl=impl) for impl in api.IMPLS))
    near(*([api.leave(seen, few, bias[:3], impl=impl)] for impl in api.IMPLS))


def check_far() -> None:
    """Frames of 20 lie more than 2^31 numbers apart: what is between them is a hole in a file, or memory of a GPU."""
    step, frames, channels = 352 * 640 * 512, 20, 8
    size = step * (frames - 1) + channels
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(2 * size)
        mapped = torch.from_file(file.name, shared=True, size=size, dtype=torch.float16)
        lies = mapped if DEVICE.type == "cpu" else torch.empty(size, device=DEVICE, dtype=torch.float16)
        x = lies.as_strided((1, frames, 1, 1, channels), (size, step, channels, channels, 1))
        x.copy_(torch.randn(x.shape))
        near(*(api.norm(x, None, torch.ones_like(x[0, 0, 0, 0]), None, impl=impl) for impl in api.IMPLS))


def check_decoder(config: WanVAEConfig, latents: Tensor) -> None:
    """A stream in kernels, and one taken over from a stream without after its first piece."""
    vae = random_wan_vae(config, 0).to(DEVICE, DTYPE).channels_last()
    plain, fused, later = (StreamingDecoder(vae) for _ in range(3))
    for number, piece in enumerate(latents.split([1, 2, 1], dim=1)):
        vae.fused = None
        expected = plain.push(piece)
        vae.fused = "triton"
        for decoder in (fused, later) if number else (fused,):
            torch.testing.assert_close(decoder.push(piece), expected, rtol=0, atol=LIMIT)
            for got, want in zip(decoder.memories, plain.memories, strict=True):
                assert got is not None and want is not None and got.stride() == want.stride()
                assert (got.float() - want.float()).norm() <= CHAIN * want.float().norm()
        if not number:
            later.load_state(plain.state())


torch.manual_seed(0)
torch.backends.cudnn.allow_tf32 = False
torch.use_deterministic_algorithms(True, warn_only=True)  # new memory is filled with NaN
assert torch.empty(3, device=DEVICE).isnan().all()
with torch.inference_mode():
    for shape in SHAPES + (LARGE if DEVICE.type == "cuda" else []):
        check_kernels(*shape)
    check_far()
    small = WanVAEConfig(
        width=8, latent_channels=4, multipliers=(1, 2), halve_time=(True,), num_blocks=1, mean=(0.0,) * 4, std=(1.0,) * 4
    )
    large = replace(WAN22, width=8, decoder_width=16)
    for config in (small, large) if DEVICE.type == "cuda" else (small,):
        check_decoder(config, torch.randn(2, 4, config.latent_channels, 1, 2, device=DEVICE))
