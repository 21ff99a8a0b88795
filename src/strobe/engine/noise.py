"""Noise as a pure function of seed, sample, frame block and step, so that devices, presets and resumed streams agree."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from strobe.core.device import upload


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockNoise:
    """All noise of one frame block.

    Args:
        initial: pure noise [B, F, C, Y, X], float32.
        renoise: what is mixed in after each denoise step but the last.
    """

    initial: Tensor
    renoise: tuple[Tensor, ...]


def draw(seed: int, sample: int, frame_block: int, step: int, out: Tensor) -> Tensor:
    """Fill a tensor on the CPU, float32, with standard normal noise that depends on its shape and on nothing but the arguments.

    Args:
        seed: of the stream.
        sample: number of the stream in its batch.
        frame_block: number of the frame block.
        step: 0 for the initial noise, i + 1 for what is mixed in after denoise step i.
        out: written in place, and returned.
    """
    key = hashlib.blake2b(f"{seed}/{sample}/{frame_block}/{step}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key, "little", signed=True))
    return out.normal_(generator=generator)


def draw_block(
    seed: int, samples: Sequence[int], frame_block: int, num_steps: int, shape: Sequence[int], device: torch.device
) -> BlockNoise:
    """Draw all noise of one frame block for `samples`; `shape` is [F, C, Y, X]. Drawn on the CPU, then moved to `device`.

    For a GPU it is drawn where it is sent from: a copy would wake torch's threads, and whichever is late makes frames late.
    """

    def drawn(step: int) -> Tensor:
        noise = torch.empty(len(samples), *shape, pin_memory=device.type == "cuda")
        for sample, out in zip(samples, noise, strict=True):
            draw(seed, sample, frame_block, step, out)
        return upload(noise, device)

    initial, *renoise = (drawn(step) for step in range(num_steps))
    return BlockNoise(initial=initial, renoise=tuple(renoise))
