"""Outputs of a stream on the device: frame blocks, and branches to return to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from strobe.engine.session import Session
from strobe.engine.snapshot import Snapshot
from strobe.serve.prompt_log import Origin, PromptEntry

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Branch:
    """A stream's state between two frame blocks, to which it can return."""

    number: int
    name: str
    snapshot: Snapshot
    origin: Origin
    log: tuple[PromptEntry, ...]
    frame_block: int
    frame: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Block:
    """Frames of a frame block that was made.

    Args:
        frames: uint8 [F, Y, X, 3].
        first_frame: number of the first of them.
        entered: the prompt that took effect with it, if one did.
        block_ms: time that the device worked for it.
        phases: ms of denoising, the clean-context pass and decoding; on a GPU, where they overlap, they are not taken apart.
        woken_ms: time that the device was held to bring the stream back from main memory before it; 0: it was there.
    """

    frames: NDArray[np.uint8]
    index: int
    first_frame: int
    generation: int
    epoch: int
    entered: PromptEntry | None
    block_ms: float
    phases: dict[str, float]
    made_s: float
    cache: dict[str, int]
    woken_ms: float = 0.0


class GpuClock:
    """Time that a GPU works for each frame block of a stream, however far the host is ahead of it and whatever else it does.

    Args:
        device: the GPU.
        late: a frame block is handed out by the call after the one that made it (`Knobs.late_frames`).
    """

    def __init__(self, device: torch.device, *, late: bool) -> None:
        self._device, self._late = device, late
        self._before: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    def timed(self, work: Callable[[], T]) -> tuple[T, float]:
        """Run `work`, which returns a frame block; return it and the ms that the GPU worked for it.

        Of a stream's first late frame block those of the next one stand for it.
        """
        marks = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        queue = torch.cuda.current_stream(self._device)
        marks[0].record(queue)
        found = work()
        marks[1].record(queue)
        own = self._before if self._late and self._before is not None else marks
        self._before = marks
        own[1].synchronize()
        return found, own[0].elapsed_time(own[1])


def layout(session: Session, index: int) -> dict[str, int]:
    """Return the cache's layout for a frame block in latent frames: sink, window, ring rows and how many are filled."""
    config, policy = session.config, session.config.policy
    end = config.latents_of(index).stop
    return {
        "sink": policy.sink,
        "window": policy.window,
        "filled": min(end, policy.window),
        "end": end,
        "frame_block": len(config.latents_of(index)),
        "sparsity_percent": round(100 * config.sparsity),
    }
