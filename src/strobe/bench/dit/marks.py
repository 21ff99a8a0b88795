"""Marks regions inside the forward pass of a diffusers transformer while a recorder listens.

Sections are marked by forward hooks. The attention kernel has no module of its own: the function that calls it is replaced in the
modules that call it, and put back. In a timed clip on a GPU none of it is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Final

from torch import nn

from strobe.bench.dit import fastvideo
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL, CROSS_ATTENTION, CROSS_ATTENTION_KERNEL, FFN, span
from strobe.integrations.diffusers import joint, processors
from strobe.integrations.diffusers.families import family_of

OTHERS: Final = {
    "attn2": CROSS_ATTENTION, "audio_attn1": CROSS_ATTENTION, "audio_attn2": CROSS_ATTENTION,
    "audio_to_video_attn": CROSS_ATTENTION, "video_to_audio_attn": CROSS_ATTENTION,
    "ffn": FFN, "ff": FFN, "audio_ff": FFN, "ff_context": FFN,
}  # fmt: skip
"""Sections of a block beside the video's self-attention, by the name of their module. Audio and cross-modal attention count as
cross-attention."""
_DISPATCH: Final = "dispatch_attention_fn"
_OURS: Final = "dense_attention"
_FASTVIDEO: Final = "block_sparse_attn"


def listened() -> bool:
    """Return whether a recorder records regions inside a pass now."""
    return not isinstance(span(ATTENTION), nullcontext)


@contextmanager
def marked(transformer: Any) -> Iterator[None]:
    """Mark the sections of every block and the attention kernels in them."""
    family = family_of(transformer)
    assert family is not None, "checked when it was loaded"
    layers = family.layers(transformer)
    inside: list[str] = []
    named = {layer.attn: ATTENTION for layer in layers}
    for layer in layers:
        named |= {child: OTHERS[name] for name, child in layer.block.named_children() if name in OTHERS and child not in named}
    with ExitStack() as stack:
        for module, name in named.items():
            _hook(stack, module, name, inside)
        callers: dict[Any, str] = {sys.modules[type(transformer).__module__]: _DISPATCH, processors: _OURS, joint: _OURS}
        if fastvideo.OPERATORS in sys.modules:
            callers[sys.modules[fastvideo.OPERATORS]] = _FASTVIDEO
        for caller, attribute in callers.items():
            if hasattr(caller, attribute):
                _wrap(stack, caller, attribute, inside)
        yield


def _hook(stack: ExitStack, module: nn.Module, name: str, inside: list[str]) -> None:
    opened: list[AbstractContextManager[object]] = []

    def enter(*_: object) -> None:
        region = span(name)
        region.__enter__()
        opened.append(region)
        inside.append(name)

    def leave(*_: object) -> None:
        inside.pop()
        opened.pop().__exit__(None, None, None)

    stack.callback(module.register_forward_pre_hook(enter).remove)
    stack.callback(module.register_forward_hook(leave, always_call=True).remove)


def _wrap(stack: ExitStack, caller: Any, attribute: str, inside: list[str]) -> None:
    stock: Callable[..., Any] = getattr(caller, attribute)

    def within(*args: Any, **kwargs: Any) -> Any:
        of_video = bool(inside) and inside[-1] == ATTENTION
        with span(ATTENTION_KERNEL if of_video else CROSS_ATTENTION_KERNEL):
            return stock(*args, **kwargs)

    setattr(caller, attribute, within)
    stack.callback(setattr, caller, attribute, stock)
