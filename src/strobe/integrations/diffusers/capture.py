"""`capture`: q, k and v of a pipeline's own attention calls, as attention receives them, into a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from threading import get_ident
from typing import Any, Final

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from strobe.core.device import uncompiled
from strobe.core.errors import ConfigError
from strobe.integrations.diffusers.families import Facts, Layer, TransformerFamily, find_transformers
from strobe.integrations.diffusers.forward import name_of, numbers_of, step_of
from strobe.models.captured import CapturedCall, Operands, write_calls
from strobe.models.wan import CausalWan

_NAMES: Final = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_USUAL: Final = {"dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}


@contextmanager
def capture(
    pipe: Any,
    file: str | Path,
    *,
    steps: int | Iterable[int],
    layers: int | Iterable[int],
    dtype: torch.dtype = torch.bfloat16,
    most_bytes: int = 8 << 30,
) -> Iterator[None]:
    """Record q, k and v of a diffusers pipeline's video attention while the body calls the pipeline, and write them to a file.

    They are what attention receives: after norm and rotary embedding, video first, then the text without its padding. The
    pipeline computes as without it, uncompiled. Of a step the first forward of each transformer counts, and of its batch the last
    sample; in diffusers both are those of the prompt. If the body raises, nothing is written. Calls of other threads are not
    recorded; they compute as without it, uncompiled too.

    Args:
        pipe: a pipeline, or a transformer whose caller tells the step; not sparse, with torch's own attention as its backend.
        file: a `.safetensors`, with model, layer, step, grid and text tokens of every call in its metadata.
        steps: denoise steps, counted from 0: the first so many, or those listed.
        layers: layers of each transformer, likewise.
        dtype: of the numbers in the file; they wait on the host in it.
        most_bytes: of the file; more is refused at the first call.

    Raises:
        ConfigError: no supported transformer, an attention that cannot be recorded, too many bytes, or no call to record.
    """
    if not dtype.is_floating_point:
        raise ConfigError(f"capture: got dtype={dtype}, expected one of floating point")
    if isinstance(pipe, CausalWan) or type(pipe).__module__.startswith("strobe.engine."):
        raise ConfigError(
            f"capture: got a {type(pipe).__name__} of strobe, whose frame blocks attend to a longer past; a call in the file has "
            "one grid for queries and keys; capture a pipeline of diffusers"
        )
    path, wanted = Path(file), numbers_of("steps", steps)
    watches = []
    for name, (transformer, family) in find_transformers(pipe, "capture").items():
        chosen = family.layers(transformer)
        numbers = numbers_of("layers", layers, len(chosen))
        most_calls = max(1, len(wanted) * len(numbers))
        own = tuple(chosen[number] for number in sorted(numbers))
        watches.append(_Watch(name, transformer, family, own, wanted, name_of(pipe), dtype, most_bytes // most_calls))
    hooks = [hook for watch in watches for hook in watch.hooks()]
    try:
        with uncompiled():
            yield
    finally:
        for hook in hooks:
            hook.remove()
    calls = sorted((each for watch in watches for each in watch.calls), key=lambda each: each[0].step)
    if not calls:
        seen = ", ".join(map(str, sorted({step for watch in watches for step in watch.seen}))) or "none"
        raise ConfigError(
            f"capture: steps {', '.join(map(str, sorted(wanted)))} were not taken (taken: {seen}); nothing is written"
        )
    write_calls(path, calls)


class _Watch(TorchFunctionMode):
    """What is recorded of one transformer in the thread that makes this: torch's attention in the chosen `layers`, at most
    `most_bytes` of q, k and v of one call. `kind` is the name of the class of the pipeline."""

    def __init__(
        self, component: str, transformer: nn.Module, family: TransformerFamily, layers: tuple[Layer, ...],
        steps: frozenset[int], kind: str, dtype: torch.dtype, most_bytes: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.component, self.transformer, self.family, self.layers = component, transformer, family, layers
        self.steps, self.kind, self.dtype, self.most_bytes = steps, kind, dtype, most_bytes
        self.names, self.seen = family.names(), set[int]()
        self.thread = get_ident()  # no other one reads or writes the following
        self.running: tuple[int, Facts] | None = None  # step and facts of a forward that is recorded
        self.found: list[dict[str, Any]] | None = None  # attention that the running layer called
        self.calls: list[tuple[CapturedCall, Operands]] = []

    def hooks(self) -> Iterator[Any]:
        """Add the hooks of the transformer and of its chosen layers."""
        yield self.transformer.register_forward_pre_hook(self.before, with_kwargs=True)
        yield self.transformer.register_forward_hook(self.after, always_call=True)
        for layer in self.layers:
            yield layer.attn.register_forward_pre_hook(self.open)
            yield layer.attn.register_forward_hook(partial(self.close, layer), always_call=True)

    def before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Decide whether a forward is recorded."""
        if get_ident() != self.thread:
            return
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        step, _ = step_of(module, given.get("attention_kwargs"), kind=self.kind, option="capture")
        first = step not in self.seen
        self.seen.add(step)
        self.running = (step, self.family.facts(module.config, given)) if first and step in self.steps else None

    def after(self, module: Any, args: Any, output: Any) -> None:
        """End a forward: a layer that gradients compute again is not recorded again."""
        if get_ident() == self.thread:
            self.running = None

    def open(self, module: nn.Module, args: Any) -> None:
        """Begin to look, where the forward is recorded."""
        if get_ident() == self.thread and self.running is not None:
            self.found = []
            super().__enter__()  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        if func is nn.functional.scaled_dot_product_attention and self.found is not None:
            self.found.append(dict(zip(_NAMES, args, strict=False)) | (kwargs or {}))
        return func(*args, **(kwargs or {}))

    def close(self, layer: Layer, module: Any, args: Any, output: Any) -> None:
        """Stop looking, also after an error, and record what was seen."""
        if get_ident() != self.thread or self.found is None:
            return
        found, self.found = self.found, None
        super().__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if output is None:  # the layer raised
            return
        if len(found) != 1:
            raise ConfigError(
                f"capture: {layer.name} is a {type(module.processor).__name__} that called torch's attention {len(found)} times, "
                "expected once; restore() a sparse pipeline, and call set_attention_backend('native')"
            )
        self.record(layer.name.removesuffix(".processor"), found[0])

    def record(self, name: str, given: Mapping[str, Any]) -> None:
        """Keep q, k and v of a call of attention, on the host."""
        assert self.running is not None
        step, (grid, text_lengths) = self.running
        text = text_lengths[-1] if text_lengths else 0
        q, k, v = (given[each][-1:].detach().transpose(1, 2) for each in ("query", "key", "value"))  # [1, S, H, D]
        rows, mask = prod(grid) + text, given.get("attn_mask")
        odd = [f"{option}={given[option]}" for option, usual in _USUAL.items() if given.get(option, usual) != usual]
        if mask is not None and not (text_lengths and mask.dtype == torch.bool):
            odd.append("a mask of pairs of tokens")
        else:  # a mask hides the text's padding
            keys = torch.ones(k.shape[1]) if mask is None else mask[-1, 0, 0]
            if q.shape != k.shape or not keys[:rows].all() or keys.sum() != rows:
                odd.append(f"{q.shape[1]} queries and {int(keys.sum())} keys for a grid of {grid} and {text} text tokens")
        if odd:
            how = " and ".join(odd)
            raise ConfigError(f"capture: {name} attends with {how}, which a file cannot say; capture it on one device, unmasked")
        taken = 3 * rows * q[0, 0].numel() * self.dtype.itemsize
        if taken > self.most_bytes:
            raise ConfigError(
                f"capture: one call takes {taken:,} bytes, and most_bytes leaves {self.most_bytes:,} for each of the chosen; "
                "choose fewer steps or layers, or give more"
            )
        layer, model = f"{self.component}.{name}".lstrip("."), type(self.transformer).__name__
        call = CapturedCall(model=model, layer=layer, step=step, grid=grid, text_tokens=text)
        one, two, three = (torch.empty(each[:, :rows].shape, dtype=self.dtype).copy_(each[:, :rows]) for each in (q, k, v))
        self.calls.append((call, (one, two, three)))
