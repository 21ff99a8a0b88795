"""The decoder of the ranks other than 0: rank 0 alone makes frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from strobe.engine.arena import Arena
from strobe.engine.decode import Decoded, DecoderState, FrameDecoder


class FramesElsewhere(FrameDecoder):
    """A decoder that returns no frames and holds no memory.

    Args:
        frame_size: height and width of the frames that there are not, in pixels.
    """

    def __init__(self, frame_size: tuple[int, int]) -> None:
        self._frame_size = frame_size

    def warm_up(self, pieces: Sequence[tuple[int, ...]]) -> None:
        """Do nothing."""

    def place(self, arena: Arena) -> None:
        """Do nothing."""

    def start(self, latents: Tensor, state: DecoderState) -> Iterator[Decoded]:
        """Return no frames: uint8 [B, 0, Y, X, 3]."""
        none = torch.empty(latents.shape[0], 0, *self._frame_size, 3, dtype=torch.uint8)
        return iter([Decoded(none, latents.shape[1], state, None)])

    def state(self) -> DecoderState:
        """Return a state without memories."""
        return False, ()

    def adopt(self, state: DecoderState) -> DecoderState:
        """Return the state of this decoder."""
        return self.state()

    def share(self) -> FramesElsewhere:
        """Return this decoder."""
        return self

    def close(self) -> None:
        """Do nothing."""
