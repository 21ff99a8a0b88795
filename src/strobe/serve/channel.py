"""The event loop's part of a stream: frames that were made but not painted, and how far its viewer is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from strobe.serve.block import Block
from strobe.serve.protocol import Codec, FromServer


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WaitingFrame:
    """A frame that was made and not yet painted."""

    number: int
    epoch: int
    pixels: NDArray[np.uint8]
    block: Block | None


@dataclass(kw_only=True, eq=False)
class Channel:
    """The event loop's part of a stream.

    Args:
        name: of the stream.
        secret: opens it again.
        frames: made and not painted, in order.
        cursor: number of the frame that is sent next.
        received: number of the first frame that the viewer has not received.
        painted: number of the first frame that it has not painted.
        epochs: when the prompt of each epoch arrived that the viewer has not seen yet, by the monotonic clock.
    """

    name: str
    secret: str
    codec: Codec
    preset: str
    generation: int = 0
    frames: deque[WaitingFrame] = field(default_factory=deque)
    cursor: int = 0
    received: int = 0
    painted: int = 0
    playing: bool = True
    asleep: bool = False
    send: Callable[[FromServer], None] | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    left_s: float = 0.0
    quiet_s: float = 0.0
    epochs: dict[int, float] = field(default_factory=dict)
    stalls: int = 0
    stall_ms: float = 0.0
    encode_ms: float = 0.0
    differs: str = ""
    """What differs from where the stream was made before it was taken over; empty: nothing, its bits are the same."""

    def tell(self, message: FromServer) -> None:
        """Send a message to the viewer, if there is one."""
        if self.send is not None:
            self.send(message)

    def flush(self, generation: int, frame: int) -> None:
        """Drop all frames; the next one has number `frame`."""
        self.frames.clear()
        self.generation, self.cursor, self.received, self.painted = generation, frame, frame, frame
        self.epochs.clear()
        self.changed.set()
