"""Named regions of time. Free when nothing records: one global read and a shared null context.

A span has a name from `NAMES` (our own code) or any other text (a user's code) and an optional index, e.g. the number of the
frame block. What a span means is decided by the recorder in the slot: `perf/measure` puts a timing recorder there for a timed
run and a profiler recorder for a traced run; nobody else sets it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

from strobe.core.errors import unknown_choice

E2E: Final = "e2e"
FRAME_BLOCK: Final = "frame_block"
DRAW: Final = "draw"
TEXT: Final = "text"
RECACHE: Final = "recache"
DENOISE_STEP: Final = "denoise_step"
COMMIT: Final = "commit"
DIT_FORWARD: Final = "dit_forward"
VAE_DECODE: Final = "vae_decode"
ATTENTION: Final = "attention"
ATTENTION_KERNEL: Final = "attention_kernel"
ATTENTION_TILE: Final = "attention_tile"
ATTENTION_SELECT: Final = "attention_select"
ATTENTION_FINISH: Final = "attention_finish"
CROSS_ATTENTION: Final = "cross_attention"
FFN: Final = "ffn"

NAMES: Final[dict[str, str]] = {
    E2E: "one clip: from the call to the last pixel frame handed over",
    FRAME_BLOCK: "one frame block: noise, denoise steps, commit pass, decode, frames handed over",
    DRAW: "initial and renoise tensors of one frame block",
    TEXT: "text encoder and the text keys and values of one prompt",
    RECACHE: "keys and values of the window derived again under a new prompt",
    DENOISE_STEP: "one transformer pass of the few-step schedule with its renoise",
    COMMIT: "the clean-context pass that writes a finished block's keys and values",
    DIT_FORWARD: "all layers of one transformer pass, without embedding and output head",
    VAE_DECODE: "latents of one frame block to uint8 pixel frames",
    ATTENTION: "self-attention section: norm, QKV, RoPE, cache write, kernel, output projection, gated residual",
    ATTENTION_KERNEL: "the attention kernel (operator on CPU) alone; of video-sparse attention its fine stage",
    ATTENTION_TILE: "video-sparse attention: RoPE, tokens into tiles, tiles pooled",
    ATTENTION_SELECT: "video-sparse attention: scores of the tiles, coarse attention, selection",
    ATTENTION_FINISH: "video-sparse attention: coarse output weighed and added, tokens back in their order",
    CROSS_ATTENTION: "cross-attention to the text, with its norm and residual",
    FFN: "feed-forward, with its norm and gated residual",
}


TRACEABLE: Final = tuple(name for name in NAMES if name != E2E)
"""Regions that a traced run can mark; a whole clip is never inside one."""


def check_regions(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of regions to mark in a trace, each once, as given.

    Raises:
        ConfigError: a name is none of `TRACEABLE`; lists them.
    """
    chosen = tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in TRACEABLE:
            raise unknown_choice("region", name, TRACEABLE)
    return chosen


class Recorder(Protocol):
    """What `perf/measure` puts into the slot."""

    def region(self, name: str, index: int | None) -> AbstractContextManager[object]:
        """Return a context manager that marks the region."""
        ...


_NULL: Final[AbstractContextManager[None]] = nullcontext()
_recorder: Recorder | None = None


def span(name: str, index: int | None = None) -> AbstractContextManager[object]:
    """Mark a named region of time: ``with span("frame_block", 3): ...``."""
    if _recorder is None:
        return _NULL
    return _recorder.region(name, index)


def set_recorder(recorder: Recorder | None) -> Recorder | None:
    """Put a recorder into the slot and return the previous one. Called by `perf/measure` alone."""
    global _recorder
    previous, _recorder = _recorder, recorder
    return previous
