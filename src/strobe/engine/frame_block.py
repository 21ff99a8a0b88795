"""The frame block, the value that a stream yields."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from strobe.core.errors import ShapeError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class FrameBlock:
    """Pixel frames of every sample with their latents and prompts.

    Args:
        index: number of the frame block, from 0.
        samples: pixel frames of every sample, uint8 [B, F, Y, X, 3] on the CPU.
        latents: clean latents [B, F, C, Y, X], float32 on the stream's device.
        prompts: one per sample.
        elapsed_ns: work of the stream from the frame block before until these frames were there. With knob `late_frames` that is
            mostly the next frame block's: the sum over a stream is all its work either way.
    """

    index: int
    samples: Tensor
    latents: Tensor
    prompts: tuple[str, ...]
    elapsed_ns: int

    @property
    def frames(self) -> Tensor:
        """Pixel frames of the only sample, uint8 [F, Y, X, 3].

        Raises:
            ShapeError: there are several samples.
        """
        if self.samples.shape[0] != 1:
            raise ShapeError(f"this frame block has {self.samples.shape[0]} samples; use .samples[i]")
        return self.samples[0]

    @property
    def prompt(self) -> str:
        """The prompt of the only sample; several samples: each different prompt once, one per line."""
        return "\n".join(dict.fromkeys(self.prompts))

    def __repr__(self) -> str:
        tensors = ", ".join(
            f"{name}={str(each.dtype).removeprefix('torch.')} {list(each.shape)} on {each.device}"
            for name, each in (("samples", self.samples), ("latents", self.latents))
        )
        return f"FrameBlock(index={self.index}, {tensors}, prompts={self.prompts}, elapsed_ns={self.elapsed_ns})"
