"""Named regions of time; without a recorder a region costs one read of a global and a shared null context.

A span has a name from `NAMES` (our own code) or any other text (a user's code) and an optional index, e.g. the number of the
frame block. What a span means is decided by the recorder in the slot: `perf/measure` puts a timing recorder there for a timed
run and a profiler recorder for a traced run; nobody else sets it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from threading import Lock
from typing import Final, ParamSpec, TypeAlias, TypeVar

from strobe.core.errors import unknown_choice

P = ParamSpec("P")
T = TypeVar("T")
E2E: Final = "e2e"
FRAME_BLOCK: Final = "frame_block"
DRAW: Final = "draw"
TEXT: Final = "text"
RECACHE: Final = "recache"
DENOISE_STEP: Final = "denoise_step"
COMMIT: Final = "commit"
DIT_FORWARD: Final = "dit_forward"
VAE_DECODE: Final = "vae_decode"
DECODE_WAIT: Final = "decode_wait"
ATTENTION: Final = "attention"
ATTENTION_KERNEL: Final = "attention_kernel"
ATTENTION_TILE: Final = "attention_tile"
ATTENTION_SELECT: Final = "attention_select"
ATTENTION_FINISH: Final = "attention_finish"
CROSS_ATTENTION: Final = "cross_attention"
FFN: Final = "ffn"
PATCH_EMBEDDING: Final = "patch_embedding"
CONDITIONS: Final = "conditions"
MODULATED_NORM: Final = "modulated_norm"
QKV_PROJECTION: Final = "qkv_projection"
QK_NORM_ROPE: Final = "qk_norm_rope"
KV_WRITE: Final = "kv_write"
KV_CLONE: Final = "kv_clone"
KV_ROLL: Final = "kv_roll"
KV_UPDATE: Final = "kv_update"
KV_SINK: Final = "kv_sink"
KV_OPEN: Final = "kv_open"
QUANTISE: Final = "quantise"
DEQUANTISE: Final = "dequantise"
OUTPUT_PROJECTION: Final = "output_projection"
GATED_RESIDUAL: Final = "gated_residual"
CROSS_NORM: Final = "cross_norm"
CROSS_PROJECTION: Final = "cross_projection"
CROSS_ATTENTION_KERNEL: Final = "cross_attention_kernel"
CROSS_RESIDUAL: Final = "cross_residual"
FFN_UP: Final = "ffn_up"
FFN_ACTIVATION: Final = "ffn_activation"
FFN_DOWN: Final = "ffn_down"
HEAD: Final = "head"
RENOISE: Final = "renoise"
TEXT_KV: Final = "text_kv"

ATTENTION_OPERATOR: Final = frozenset({ATTENTION_TILE, ATTENTION_SELECT, ATTENTION_KERNEL, ATTENTION_FINISH})
"""Regions of an attention operator: the kernel, and what it needs around it."""
PIECES: Final[dict[str, str]] = {
    PATCH_EMBEDDING: "latents to tokens",
    CONDITIONS: "modulation and rotations, as far as a pass works them out",
    MODULATED_NORM: "layer norm, scale and shift; with what is fused into it",
    QKV_PROJECTION: "queries, keys and values of self-attention",
    QK_NORM_ROPE: "RMS norms of queries and keys, RoPE; with what is fused into it",
    KV_WRITE: "new keys and values into the cache, and what attention is given of it",
    KV_CLONE: "a temporary copy of the cached keys and values, and the copy that attention is given",
    KV_ROLL: "the window shifted, new keys and values inserted, in the temporary copy",
    KV_UPDATE: "the same update once more, of the stored keys and values",
    KV_SINK: "keys of the sink turned to their place",
    KV_OPEN: "once per frame block: slots chosen, sink turned, coarse keys of finished frames",
    QUANTISE: "values into fewer bits, where no other kernel does it on the way",
    DEQUANTISE: "values out of fewer bits, where no other kernel does it on the way",
    OUTPUT_PROJECTION: "output projection of self-attention",
    CROSS_NORM: "norms of cross-attention",
    CROSS_PROJECTION: "query and output projections of cross-attention",
    CROSS_ATTENTION_KERNEL: "attention to the text alone",
    CROSS_RESIDUAL: "x + y of cross-attention; with what is fused into it",
    FFN_UP: "first matrix of the feed-forward",
    FFN_ACTIVATION: "GELU; with what is fused into it",
    FFN_DOWN: "second matrix of the feed-forward",
    GATED_RESIDUAL: "x + y * gate; with what is fused into it",
    HEAD: "modulated norm and projection back to latents",
    RENOISE: "flow to clean latents, fresh noise mixed in",
    TEXT_KV: "cross-attention keys and values of a prompt: appended once, dropped with the prompt",
}
"""Pieces of a pass and of a cache, a dozen in a layer. They are marked in a traced run that asks for them and nowhere else.

Where their cost follows from the shapes they have the names of `strobe.core.costs.transformer_pass`.
"""

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
    DECODE_WAIT: "the stream waits for frames that are decoded beside it",
    ATTENTION: "self-attention section: norm, QKV, RoPE, cache write, kernel, output projection, gated residual",
    ATTENTION_KERNEL: "the attention kernel (operator on CPU) alone; of video-sparse attention its fine stage",
    ATTENTION_TILE: "video-sparse attention: RoPE, tokens into tiles, tiles pooled",
    ATTENTION_SELECT: "video-sparse attention: scores of the tiles, coarse attention, selection",
    ATTENTION_FINISH: "video-sparse attention: coarse output weighed and added, tokens back in their order",
    CROSS_ATTENTION: "cross-attention to the text, with its norm and residual",
    FFN: "feed-forward, with its norm and gated residual",
    **PIECES,
}
STAGES: Final = (ATTENTION_TILE, ATTENTION_SELECT, ATTENTION_KERNEL, ATTENTION_FINISH)
"""Regions of a call of video-sparse attention, in their order."""
FINE: Final = frozenset({DIT_FORWARD, ATTENTION, *STAGES, CROSS_ATTENTION, FFN, DECODE_WAIT})
"""Regions inside a pass, and waits of the host. On a GPU they and `PIECES` are left to the traced run, so that timing does not
change what it times; on a CPU the clip's own thread adds up what it spends in them."""
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


Recorder: TypeAlias = Callable[[str, int | None], AbstractContextManager[object]]
"""Marks regions: from the name and the index of one to the context manager around it. `perf/measure` installs it."""


_NULL: Final[AbstractContextManager[None]] = nullcontext()
_recorder: Recorder | None = None
_installed: list[tuple[Recorder | None]] = []
_lock = Lock()
_compiling: Callable[[], bool] = getattr(sys.modules.get("torch.compiler"), "is_dynamo_compiling", lambda: False)


def span(name: str, index: int | None = None) -> AbstractContextManager[object]:
    """Mark a named region of time: ``with span("frame_block", 3): ...``.

    Inside code that torch.compile compiles it marks nothing, because the compiled code runs without it. torch.compile guards on
    what the code reads, so the recorder is not read there: a recorder that comes or goes compiles nothing again.
    """
    if _compiling() or _recorder is None:
        return _NULL
    return _recorder(name, index)


def marked(names: Iterable[str]) -> bool:
    """Whether a recorder marks any of these regions."""
    return _recorder is not None and not all(isinstance(_recorder(name, None), nullcontext) for name in names)


def spanned(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Mark every call of a function as a named region of time: ``@strobe.spanned("attention")``."""

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def within(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(name):
                return function(*args, **kwargs)

        return within

    return decorated


@contextmanager
def recording(recorder: Recorder | None) -> Iterator[None]:
    """Install a recorder for the length of a `with` block.

    The recorder is the whole process's, for threads work on one clip together. Of several, the one that was installed last and is
    not yet taken away hears the regions, whatever the order in which threads take theirs away.
    """
    global _recorder
    mine = (recorder,)
    with _lock:
        _installed.append(mine)
        _recorder = recorder
    try:
        yield
    finally:
        with _lock:
            _installed[:] = [each for each in _installed if each is not mine]
            _recorder = _installed[-1][0] if _installed else None


def set_compiling(check: Callable[[], bool]) -> None:
    """Tell `span` how to know compiled code; called by the modules that import torch and mark regions within operators."""
    global _compiling
    _compiling = check


def silenced() -> AbstractContextManager[None]:
    """Switch recording off inside this context, because regions inside work that is recorded for replay have no time."""
    return recording(None)
