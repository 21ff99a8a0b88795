"""Facts of one side from its traces: model, dtype, device, versions, capture settings; and kernels that both sides ran."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from itertools import chain
from typing import Final

import numpy as np

from strobe.perf.analysis.comparable.checks import Value
from strobe.perf.analysis.device.device_work import events_by_device
from strobe.perf.analysis.device.intervals import column
from strobe.perf.analysis.device.names import kernel_name
from strobe.perf.analysis.device.operator_costs import operator_cost
from strobe.perf.analysis.structure.scopes import NOWHERE, nest
from strobe.perf.analysis.structure.sections import matching
from strobe.perf.trace.events import DEVICE_KINDS, Trace

_ENOUGH: Final = 20
_INDUCTOR: Final = re.compile(r"^triton_(?:poi|red|per|tem|for|mm|unk|bmm)_")
_GRAPH: Final = re.compile(r"GraphLaunch")
_VERSIONS: Final = {
    "cuda": ("cuda_runtime_version", "hip_runtime_version"),
    "driver": ("cuda_driver_version", "hip_driver_version"),
    "torch": ("torch_version", "pytorch_version"),
}
_CAPTURE: Final = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")
_NUMBER: Final = re.compile(r"_\d+$")
_WRAPPERS: Final = {"OptimizedModule", "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"}
"""Modules of torch around a model."""
_WEIGHTS: Final = {"aten::mm": 1, "aten::addmm": 2}
"""Position of the weights among the operands of matrix products."""
_GEOMETRY: Final = re.compile(r"grid \S+(?: block \S+)?|\d+ B")
"""Shapes of device events without recorded operator sizes: grid and block, or the bytes of a copy."""
_COMPUTES: Final = [DEVICE_KINDS.index(kind) for kind in ("kernel", "comm")]


def trace_facts(traces: Sequence[Trace], focal: str | None = None) -> dict[str, Value]:
    """Return the facts in the traces of one side, by the names of `FACTS`.

    Args:
        traces: traces of one side, read with operator sizes if dtype, weights and input sizes are needed.
        focal: regular expression of the focal kernel.
    """
    facts = dict(chain(_model_facts(traces), _focal_facts(traces, focal), _machine_facts(traces)))
    for fact, keys in _VERSIONS.items():
        said = {_version(trace.metadata[key]) for trace in traces for key in keys if trace.metadata.get(key)}
        if said:
            facts[fact] = " and ".join(sorted(said))
    said = {
        " ".join(key for key in _CAPTURE if trace.metadata.get(key) in ("1", "true")) for trace in traces if _says_capture(trace)
    }
    if said:
        facts["capture"] = " and ".join(sorted(each or "times alone" for each in said))
    kernels = {name for trace in traces for name in trace.device_events.names}
    if kernels:
        facts["compiled"] = "yes" if any(map(_INDUCTOR.search, kernels)) else "none seen"
    if any(trace.launched for trace in traces):
        facts["graphs"] = "yes" if any(_GRAPH.search(name) for trace in traces for name in trace.launched) else "none seen"
    blocking = {_launch_blocking(trace) for trace in traces} - {None}
    if blocking:
        facts["launch_blocking"] = "yes" if True in blocking else "no"
    started = [trace.base_ns + trace.device_events.start_ns[0] for trace in traces if len(trace.device_events)]
    if started and min(started) > 1_000_000_000 * 10**9:
        facts["date"] = datetime.fromtimestamp(min(started) // 10**9, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return facts


def _version(said: str) -> str:
    """Return a version as people write it; CUDA's libraries say 12040 for 12.4, and ROCm's 60443483 for 6.4.43483."""
    number = int(said) if said.isdigit() and len(said) < 10 else 0
    if number >= 10_000_000:
        return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"
    return f"{number // 1000}.{number % 1000 // 10}" if number >= 1000 else said


def _model_facts(traces: Sequence[Trace]) -> Iterator[tuple[str, Value]]:
    """Yield classes of the outermost modules, weights of the matrix products, and the dtype with the most time."""
    models = {name for trace in traces for name in _outermost(trace)}
    if models:
        yield "model", " and ".join(sorted(models))
    weights, spent = set[str](), Counter[str]()
    for calls in (calls for trace in traces for calls in trace.operators):
        sizes = calls.sizes[_WEIGHTS[calls.name] :][:1] if calls.name in _WEIGHTS else ()
        weights.update("x".join(map(str, size)) for size in sizes if len(size) == 2)
        cost = operator_cost(calls)
        if not isinstance(cost, str):
            spent[cost.dtype] += calls.sum_ns
    if weights:
        yield "weights", frozenset(weights)
    if spent:
        yield "dtype", max(sorted(spent), key=spent.__getitem__)


def _outermost(trace: Trace) -> set[str]:
    """Return the classes of modules that no other module called, without torch's wrappers around a model."""
    modules = trace.modules
    found, inside = set[str](), nest(modules).parent.tolist()
    wrapper = [False] * len(modules)
    for scope, parent in enumerate(inside):
        if parent == NOWHERE or wrapper[parent]:
            name = _NUMBER.sub("", modules.names[modules.name[scope]])
            wrapper[scope] = name in _WRAPPERS
            if not wrapper[scope]:
                found.add(name)
    return found


def _focal_facts(traces: Sequence[Trace], focal: str | None) -> Iterator[tuple[str, Value]]:
    """Yield names and input sizes of the focal kernels."""
    kernels, sizes = set[str](), set[str]()
    for trace in traces if focal is not None else ():
        events = trace.device_events
        for _, work in events_by_device(trace):
            position = work.position[matching(trace, work, focal or "")]
            kernels.update(kernel_name(events.names[name]).group for name in np.unique(np.asarray(events.name)[position]))
            sizes.update(events.shapes[shape] for shape in np.unique(np.asarray(events.shape)[position]))
    sizes = {size for size in sizes if size and not _GEOMETRY.fullmatch(size)}
    if kernels:
        yield "kernel", frozenset(kernels)
    if sizes:
        yield "shapes", frozenset(sizes)


def _machine_facts(traces: Sequence[Trace]) -> Iterator[tuple[str, Value]]:
    """Yield devices and processes."""
    devices = Counter(name for trace in traces for name in _used_devices(trace))
    if devices:
        yield "device", " and ".join(sorted(devices))
        yield "devices", str(devices.total())
    worlds = {str(trace.world_size) for trace in traces if trace.world_size is not None}
    if len(traces) == 1 and not worlds and _says_capture(traces[0]) and _is_alone(traces[0]):
        worlds = {"1"}
    if worlds:
        yield "world", " and ".join(sorted(worlds))


def _is_alone(trace: Trace) -> bool:
    """Return whether a trace without process groups holds no communication either."""
    events = trace.device_events
    return len(events) > 0 and not trace.collectives and DEVICE_KINDS.index("comm") not in set(events.kind)


def _used_devices(trace: Trace) -> list[str]:
    """Return the products that ran something; an event's device number may differ from that of the list."""
    used = sorted(set(trace.device_events.device))
    by_index = {device.index: device.name for device in trace.devices}
    listed = {device.name for device in trace.devices}
    only = listed.pop() if len(listed) == 1 else ""
    return [name for device in used if (name := by_index.get(device) or only)]


def _says_capture(trace: Trace) -> bool:
    """Return whether Kineto wrote the trace: it lists the capture settings that were on, and no others."""
    return "schemaVersion" in trace.metadata or any(key in trace.metadata for key in _CAPTURE)


def _launch_blocking(trace: Trace) -> bool | None:
    """Return whether kernels end before their launch calls return (serialised launches); `None` with too few kernels."""
    events = trace.device_events
    host = np.asarray(events.host)
    own = np.flatnonzero((host >= 0) & (np.asarray(events.ordinal) == 0) & (np.asarray(events.kind) == 0))
    if len(own) < _ENOUGH:
        return None
    waited = column(events.end_ns)[own] <= column(events.hosts.end_ns)[host[own]]
    return bool(waited.mean() > 0.95)


# ---------------------------------------------------------------------------------------------------------------- kernels


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonKernels:
    """Kernels that both sides ran, copies and memsets left out.

    Args:
        names: normalised names of the kernels that both sides ran, sorted.
        baseline_share: part of the baseline's kernel time that was spent in them.
        candidate_share: part of the candidate's.
    """

    names: tuple[str, ...]
    baseline_share: Fraction
    candidate_share: Fraction


def common_kernels(baseline: Sequence[Trace], candidate: Sequence[Trace]) -> CommonKernels | None:
    """Return the kernels that both sides ran; `None` if one of them ran none."""
    sides = [_kernel_times(traces) for traces in (baseline, candidate)]
    if not all(side.total() for side in sides):
        return None
    names = sorted(sides[0].keys() & sides[1].keys())
    shares = [Fraction(sum(side[name] for name in names), side.total()) for side in sides]
    return CommonKernels(names=tuple(names), baseline_share=shares[0], candidate_share=shares[1])


def _kernel_times(traces: Sequence[Trace]) -> Counter[str]:
    """Sum the durations of each kernel, by its normalised name."""
    times: Counter[str] = Counter()
    for trace in traces:
        events = trace.device_events
        chosen = np.flatnonzero(np.isin(np.asarray(events.kind), _COMPUTES))
        sums = np.zeros(len(events.names), np.int64)
        np.add.at(sums, np.asarray(events.name)[chosen], (column(events.end_ns) - column(events.start_ns))[chosen])
        for name, ns in zip(events.names, sums.tolist(), strict=True):
            if ns:
                times[kernel_name(name).group] += ns
    return times
