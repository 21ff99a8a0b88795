"""The decoder of a rank that has none: rank 0 makes the frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from strobe.engine.arena import Arena
from strobe.engine.decode import Decoded, DecoderState, FrameDecoder


class FramesElsewhere(FrameDecoder):
    """Gives no frames, and holds nothing.

    Args:
        frame_size: height and width of the frames that there are not, in pixels.
    """

    def __init__(self, frame_size: tuple[int, int]) -> None:
        self._frame_size = frame_size

    def warm_up(self, pieces: Sequence[tuple[int, ...]]) -> None:
        """Nothing to compile."""

    def place(self, arena: Arena) -> None:
        """Nothing to allocate."""

    def start(self, latents: Tensor, state: DecoderState) -> Iterator[Decoded]:
        """No frames: uint8 [B, 0, Y, X, 3]."""
        none = torch.empty(latents.shape[0], 0, *self._frame_size, 3, dtype=torch.uint8)
        return iter([Decoded(none, latents.shape[1], state)])

    def state(self) -> DecoderState:
        """Nothing to remember."""
        return False, ()

    def adopt(self, state: DecoderState) -> DecoderState:
        """Nothing to remember."""
        return self.state()

    def share(self) -> FramesElsewhere:
        """Itself."""
        return self

    def close(self) -> None:
        """Nothing to let go."""
