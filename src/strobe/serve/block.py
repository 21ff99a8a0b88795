"""Outputs of a stream on the device: frame blocks, and branches to return to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from strobe.engine.session import Session
from strobe.engine.snapshot import Snapshot
from strobe.serve.prompt_log import Origin
from strobe.serve.protocol import PromptEntry

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


def layout(session: Session, index: int, log: Sequence[PromptEntry]) -> dict[str, int]:
    """Return what a frame block attends, in latent frames, and how much room there is.

    These are sink, window, how much of it is filled, and the frame block itself. Of a stream in shots they are also how many have
    begun after the first, whether the frame block begins one, the first frame that is pinned behind the sink, and how many are.
    """
    config, policy = session.config, session.config.policy
    own = config.latents_of(index)
    shots = [entry.frame_block for entry in log if entry.mode == "shot" and 0 < entry.frame_block <= index]
    begins = index in shots
    before = shots[: len(shots) - begins]
    pins = config.latents_of(before[-1]) if before else range(0)
    pinned = range(max(pins.start, policy.sink), pins.start + min(len(pins), policy.sink))
    return {
        "sink": policy.sink,
        "window": policy.window,
        "filled": min(own.stop, policy.window),
        "end": own.stop,
        "frame_block": len(own),
        "sparsity_percent": round(100 * config.sparsity),
        "shots": len(shots),
        "begins": int(begins),
        "pinned": len(pinned),
        "pinned_first": pinned.start if pinned else 0,
    }
