"""Probe of a sparse diffusers pipeline: time and recall of every attention layer, in separate runs.

Timed runs measure nothing else: the recall is taken in one run, the times in others, dense and sparse in the order A B B A.
Compiled layers run uncompiled throughout: no hook sees a layer within a graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import exp, log, sqrt
from statistics import fmean, median
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from strobe.core import spans
from strobe.core.device import resolve_device, uncompiled
from strobe.core.errors import ConfigError
from strobe.core.notebook import html_table
from strobe.perf.measure.stats import judge, paired_interval
from strobe.perf.measure.timing import TimingRecorder
from strobe.perf.table.model import Ratio, ratio_text, speedup_words

if TYPE_CHECKING:
    from strobe.integrations.diffusers import SparseHandle


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerProbe:
    """Recall and times of one layer in one call of the pipeline, all its denoise steps together.

    Args:
        recall: share of the dense attention's mass that the selected tiles hold, mean over heads, samples and calls; None for a
            layer that is dense throughout.
        worst_recall: recall of the head and call where it is least; None likewise.
        sparse_ns: time in the attention module, projections included; median over calls.
        dense_ns: the same by diffusers' own processor.
    """

    layer: str
    recall: float | None
    worst_recall: float | None
    sparse_ns: int
    dense_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineProbe:
    """Times and recalls of a sparse pipeline and of the same one dense.

    Args:
        sparse_ns: a whole call; median.
        dense_ns: the same, dense.
        call_ratios: dense time / sparse time of a whole call, one for each round: of the geometric means of its two calls.
        attention_ratios: the same of the attention modules together.
        compiled: the pipeline is compiled; the times are of uncompiled layers.
    """

    layers: tuple[LayerProbe, ...]
    sparse_ns: int
    dense_ns: int
    call_ratios: tuple[float, ...]
    attention_ratios: tuple[float, ...]
    compiled: bool

    def rows(self) -> list[dict[str, object]]:
        """Return one dictionary per layer."""
        return [
            {
                "layer": each.layer,
                "recall": each.recall,
                "worst recall": each.worst_recall,
                "diffusers (ms)": each.dense_ns / 1e6,
                "strobe (ms)": each.sparse_ns / 1e6,
                "speedup": each.dense_ns / each.sparse_ns,
            }
            for each in self.layers
        ]

    def __str__(self) -> str:
        sparse, dense = (sum(getattr(each, name) for each in self.layers) for name in ("sparse_ns", "dense_ns"))
        lines = [
            f"{what}: {before / 1e6:.3f} ms dense by diffusers, {after / 1e6:.3f} ms by strobe; {_judged(ratios, before, after)}"
            for what, before, after, ratios in (
                ("call", self.dense_ns, self.sparse_ns, self.call_ratios),
                ("attention modules", dense, sparse, self.attention_ratios),
            )
        ]
        if self.compiled:
            lines.append("times of uncompiled layers: the pipeline is compiled, and a probe cannot see into its graphs")
        found = [each for each in self.layers if each.recall is not None and each.worst_recall is not None]
        if found:
            mean = sum(each.recall or 0 for each in found) / len(found)
            worst = min(found, key=lambda each: each.worst_recall or 0)
            lines.append(f"recall: {mean:.3f} in the mean, {worst.worst_recall:.3f} at worst, in {worst.layer}")
        else:
            lines.append("every step of the call was dense: nothing sparse was measured")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_table("Layers, dense and sparse", self.rows())


def _judged(ratios: tuple[float, ...], dense_ns: float, sparse_ns: float) -> str:
    """Return the mean ratio of the rounds with its interval and verdict; of one round the ratio of the times."""
    logs = [log(ratio) for ratio in ratios]
    ratio, interval = exp(fmean(logs)), paired_interval(logs)
    if interval is None:
        return f"{ratio_text(Ratio(dense_ns / sparse_ns))}: not proven, one round has no interval; give rounds=2 or more"
    return speedup_words(Ratio(ratio, interval.low, interval.high), judge(ratio, interval, dense_ns - sparse_ns))


def probe(
    handle: SparseHandle,
    call: Callable[[], object],
    *,
    queries: int = 64,
    rounds: int = 3,
    device: str | torch.device | None = None,
) -> PipelineProbe:
    """Measure a sparse pipeline against the same one dense.

    Args:
        handle: sparse pipeline, as `sparsify` returns it.
        call: runs the pipeline once, such as `lambda: pipe("a red circle")`, or its transformer.
        queries: queries of every head that the recall is measured with.
        rounds: rounds in the order dense, sparse, sparse, dense, after one warm-up of each; an interval needs 2.
        device: where the pipeline runs; by default a GPU where there is one.

    Raises:
        ConfigError: fewer than one round or query, a call that reaches no layer, or a handle that was restored.

    A compiled pipeline is measured uncompiled, and the result says so. Fewer than two rounds judge nothing.
    """
    if rounds < 1 or queries < 1:
        raise ConfigError(f"probe: got rounds={rounds} and queries={queries}, expected at least 1 of each")
    place = resolve_device(("cuda" if torch.cuda.is_available() else "cpu") if device is None else device)
    recorder = TimingRecorder(place, fine=True)
    took: dict[bool, list[dict[str, int]]] = {True: [], False: []}
    with uncompiled():
        with handle.recalls(queries) as recalls:
            call()
        with handle.dense():
            call()
        with ExitStack() as stack:
            for name, module in handle.layers.items():
                stack.enter_context(hooked(module, partial(recorder, name, None)))
            for dense in (True, False, False, True) * rounds:
                with handle.dense() if dense else nullcontext():
                    took[dense].append(_timed(call, recorder))
    layers = tuple(_layer(name, took, recalls.get(name, [])) for name in handle.layers)
    calls = {dense: [each[spans.E2E] for each in clips] for dense, clips in took.items()}
    attention = {dense: [sum(each[name] for name in handle.layers) for each in clips] for dense, clips in took.items()}
    return PipelineProbe(
        layers=layers,
        sparse_ns=round(median(calls[False])),
        dense_ns=round(median(calls[True])),
        call_ratios=_ratios(calls),
        attention_ratios=_ratios(attention),
        compiled=handle.compiled,
    )


def _ratios(took: dict[bool, list[int]]) -> tuple[float, ...]:
    """Divide dense by sparse time in each round of two calls each."""
    dense, sparse = ([sqrt(a * b) for a, b in zip(took[way][::2], took[way][1::2], strict=True)] for way in (True, False))
    return tuple(before / after for before, after in zip(dense, sparse, strict=True))


def _layer(name: str, took: dict[bool, list[dict[str, int]]], recalls: list[Tensor]) -> LayerProbe:
    if any(name not in each for clips in took.values() for each in clips):
        raise ConfigError(f"probe: the call never reached {name}; give a call that runs every transformer that was made sparse")
    found = torch.stack([each.float() for each in recalls]) if recalls else None
    return LayerProbe(
        layer=name,
        recall=None if found is None else found.mean().item(),
        worst_recall=None if found is None else found.min().item(),
        sparse_ns=round(median(each[name] for each in took[False])),
        dense_ns=round(median(each[name] for each in took[True])),
    )


def _timed(call: Callable[[], object], recorder: TimingRecorder) -> dict[str, int]:
    recorder.start_clip()
    with recorder(spans.E2E, None):
        call()
        recorder.synchronize()
    sums: dict[str, int] = defaultdict(int)
    for region in recorder.finish_clip():
        sums[region.name] += region.value_ns
    return sums


@contextmanager
def hooked(module: nn.Module, region: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """Run every call of a module in a region of its own, inside the context."""
    running: list[AbstractContextManager[object]] = []

    def enter(*_: object) -> None:
        running.append(region())
        running[-1].__enter__()

    def leave(*_: object) -> None:
        running.pop().__exit__(None, None, None)

    hooks = module.register_forward_pre_hook(enter), module.register_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
