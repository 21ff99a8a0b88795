"""What a stream on the device hands out: frame blocks, and branches to return to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strobe.engine.session import Session
from strobe.engine.snapshot import Snapshot
from strobe.serve.prompt_log import Origin, PromptEntry


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
        block_ms: time that the device was held.
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
