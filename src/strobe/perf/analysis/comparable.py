"""Checks whether two sides may be compared, from facts of their records and traces."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated as A
from typing import Final, Literal, TypeAlias

import numpy as np

from strobe.core.errors import ConfigError, unknown_choice
from strobe.core.printable import first_of
from strobe.perf.analysis.device.activity import events_by_device
from strobe.perf.analysis.device.intervals import column, totals
from strobe.perf.analysis.device.kernels import kernel_name
from strobe.perf.analysis.device.roofline import operator_cost
from strobe.perf.analysis.structure.ranges import NOWHERE, nest
from strobe.perf.analysis.structure.sections import matching
from strobe.perf.records.record import Header, Variant
from strobe.perf.table.rows import DocumentPart, col
from strobe.perf.trace.events import DEVICE_KINDS, Trace

# Checks whether two sides may be compared: known facts of each, facts that differ, facts that are not recorded.
#
# A fact that neither the artefacts nor the user state is unknown, and is called so: unknown is never equal. A difference that
# matters is an obstacle, unless the user says that it is meant.

Verdict = Literal["same", "differs", "allowed", "unknown"]
"""`allowed`: it differs, and the user named it as meant."""
Weight = Literal["must", "should", "told"]
"""`must`: a difference makes the sides not comparable; `should`: it weakens the comparison; `told`: only shown."""

FACTS: Final[dict[str, tuple[str, Weight]]] = {
    "date": ("date and time", "told"),
    "commit": ("git commit", "should"),
    "model": ("model", "must"),
    "checkpoint": ("model checkpoint", "must"),
    "weights": ("weights of matrix products", "must"),
    "kernel": ("focal kernel", "told"),
    "backend": ("attention backend", "must"),
    "sparsity": ("sparsity", "must"),
    "tokens": ("sequence length (effective tokens)", "must"),
    "frames": ("frames", "must"),
    "resolution": ("resolution", "must"),
    "batch": ("batch size", "must"),
    "steps": ("denoising steps", "must"),
    "calls": ("focal calls in a stage", "must"),
    "calls_per_step": ("focal calls in a traced step", "should"),
    "dtype": ("dtype", "must"),
    "shapes": ("input sizes of the focal kernel", "must"),
    "seed": ("seed", "should"),
    "device": ("device", "must"),
    "devices": ("devices in the trace", "must"),
    "world": ("world size", "must"),
    "sharding": ("SP and TP degrees", "must"),
    "torch": ("torch", "should"),
    "cuda": ("CUDA or ROCm", "should"),
    "driver": ("driver", "should"),
    "clocks": ("clocks", "should"),
    "compiled": ("compiled kernels (Inductor)", "must"),
    "graphs": ("CUDA or HIP graphs", "must"),
    "launch_blocking": ("launches are serialised (CUDA_LAUNCH_BLOCKING)", "must"),
    "capture": ("what the profiler recorded", "should"),
}
"""Facts that a comparison depends on, by the name that `--allow-different` and `--fact` take, in the order of the table."""

SEVERAL: Final = ("weights", "kernel", "shapes")
"""Facts that hold several values, of which two sides may share some."""
ALLOWABLE: Final = tuple(name for name, (_, weight) in FACTS.items() if weight != "told")
"""Facts that the user may allow to differ."""
_SHOWN: Final = 4

Value: TypeAlias = str | frozenset[str]
Facts: TypeAlias = Mapping[str, Value]
"""Known facts of one side, by the names of `FACTS`; unknown ones are left out. Those of `SEVERAL` are sets."""


class FactPart(DocumentPart, frozen=True, kw_only=True):
    """One fact that the comparison depends on."""

    name: A[str, col("name of the fact, as --fact and --allow-different take it")]
    title: A[str, col("title of the fact in words")]
    baseline: A[str | tuple[str, ...] | None, col("value or values of the baseline; null: not known")]
    candidate: A[str | tuple[str, ...] | None, col("value or values of the candidate; null: not known")]
    verdict: A[Verdict, col("result of the check; `allowed`: the values differ and --allow-different permits it")]
    weight: A[Weight, col("effect of a difference: `must`: prevents the comparison; `should`: weakens it; `told`: is only shown")]

    def __str__(self) -> str:
        return f"{self.title}: {shown(self.baseline)} against {shown(self.candidate)}"


Checks: TypeAlias = tuple[FactPart, ...]
"""All checks of two sides, in the order of `FACTS`."""


def _with(checks: Checks, verdict: Verdict, weight: Weight) -> Checks:
    return tuple(check for check in checks if (check.verdict, check.weight) == (verdict, weight))


def obstacles(checks: Checks) -> Checks:
    """Return the facts that differ and must not. Serialised launches on both sides are one too, since such times are not
    comparable with anything."""
    launches = [check for check in checks if check.name == "launch_blocking" and check.verdict != "allowed"]
    serial = (check for check in launches if "yes" in (check.baseline, check.candidate))
    return (*(check for check in _with(checks, "differs", "must") if check.name != "launch_blocking"), *serial)


def doubts(checks: Checks) -> Checks:
    """Return the facts that differ and weaken the comparison."""
    return _with(checks, "differs", "should")


def unknown(checks: Checks) -> Checks:
    """Return the facts that must agree and are not known of both sides."""
    return _with(checks, "unknown", "must")


def refusal(checks: Checks) -> str:
    """Return why there is no speedup, with the flag that allows it; empty if the sides are comparable."""
    found = obstacles(checks)
    names, because = " ".join(each.name for each in found), "; ".join(map(str, found))
    return f"not comparable ({because}); if that is meant, say so: --allow-different {names}" if names else ""


def check_allowed(names: Sequence[str]) -> None:
    """Raise for names that are not facts which may be allowed to differ."""
    for name in names:
        if name not in ALLOWABLE:
            raise unknown_choice("fact in --allow-different", name, ALLOWABLE)


def compare_facts(baseline: Facts, candidate: Facts, allow_different: Sequence[str] = ()) -> Checks:
    """Check every fact of two sides.

    A fact of several values differs if the sides do not have the same ones. With some in common it weakens the comparison; with
    none it is an obstacle. Input sizes are one only where both sides ran the same kernel: another kernel may take its inputs
    in another layout.

    Args:
        allow_different: the facts that are meant to differ.
    """
    check_allowed(allow_different)
    for name in (*baseline, *candidate):
        if name not in FACTS:
            raise unknown_choice("fact", name, FACTS)
    one_kernel = _common(baseline.get("kernel"), candidate.get("kernel"))
    checks = []
    for name, (title, weight) in FACTS.items():
        b, c = baseline.get(name), candidate.get(name)
        if _common(b, c) or (name == "shapes" and not one_kernel):
            weight = "told" if weight == "told" else "should"
        verdict: Verdict = "unknown" if b is None or c is None else "same" if b == c else "differs"
        if name in allow_different and (verdict == "differs" or name == "launch_blocking"):
            verdict = "allowed"
        sides = [tuple(sorted(each)) if isinstance(each, frozenset) else each for each in (b, c)]
        checks.append(FactPart(name=name, title=title, baseline=sides[0], candidate=sides[1], verdict=verdict, weight=weight))
    return tuple(checks)


def _common(baseline: Value | None, candidate: Value | None) -> bool:
    return isinstance(baseline, frozenset) and isinstance(candidate, frozenset) and not baseline.isdisjoint(candidate)


def shown(value: Value | tuple[str, ...] | None) -> str:
    """Format a fact on one line: the first of several values and the number of others."""
    if value is None or isinstance(value, str):
        return value or "not recorded"
    return first_of(sorted(value), _SHOWN, between="; ")


def given_facts(texts: Iterable[str]) -> dict[str, Value]:
    """Parse facts that a user states: `frames=121`; several values have `;` between them.

    Raises:
        ConfigError: not `NAME=VALUE`, a name that does not exist, or one given twice.
    """
    facts: dict[str, Value] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (equals and value):
            raise ConfigError(f"fact {text!r}: write NAME=VALUE, such as frames=121; names: {', '.join(FACTS)}")
        if name not in FACTS:
            raise unknown_choice("fact", name, FACTS)
        read: Value = frozenset(part.strip() for part in value.split(";")) if name in SEVERAL else value
        if facts.get(name, read) != read:
            raise ConfigError(f"fact {name!r} is given as {shown(facts[name])!r} and as {value!r}; give it once")
        facts[name] = read
    return facts


# Facts of one variant from the records of our own run.

VARIED: Final = ("backend", "sparsity", "steps", "dtype")
"""Facts in which the variants of one run may differ, as they are compared for that."""


def record_facts(header: Header, variant: Variant | None) -> dict[str, str]:
    """Return the facts that a run's records hold: machine, model, workload and, if given, the variant."""
    machine, work = header.machine, header.workload
    known: dict[str, object] = {
        "date": header.date,
        "commit": header.git.commit,
        "device": machine.device_name,
        "devices": header.world_size if machine.gpu_count else None,
        "world": header.world_size,
        "sharding": f"{header.sp_degree}, {header.tp_degree}",
        "torch": machine.torch,
        "cuda": machine.cuda,
        "driver": machine.driver,
        "launch_blocking": "yes" if machine.launch_blocking else "no",
    }
    if machine.clocks.sm_mhz is not None:
        known["clocks"] = f"{machine.clocks.sm_mhz} MHz SM, {machine.clocks.memory_mhz} MHz memory"
    if header.model is not None:
        known |= {"model": header.model.name, "checkpoint": header.model.weights_sha256[:16]}
    if work is not None:
        known |= {"frames": work.frames, "resolution": f"{work.width}x{work.height}", "batch": work.batch, "seed": work.seed}
    if variant is not None:
        known |= {"backend": variant.attention_impl, "sparsity": variant.sparsity, "tokens": variant.tokens_per_block}
        known |= {"steps": variant.steps, "dtype": variant.dtype}
        tokens = dict.fromkeys(variant.sizes[key] for key in ("q_tokens", "kv_tokens") if key in variant.sizes)
        if tokens:  # of one attention call
            known["tokens"] = " queries, ".join(map(str, tokens)) + (" keys" if len(tokens) > 1 else "")
        known["batch"] = variant.sizes.get("batch") or known.get("batch")
    return {name: str(value) for name, value in known.items() if value not in (None, "")}


def compare_variants(header: Header, reference: Variant, candidate: Variant, allow_different: Sequence[str] = ()) -> Checks:
    """Check the facts of two variants in the records of one run.

    Args:
        allow_different: facts that are meant to differ, beside `VARIED`.
    """
    return compare_facts(record_facts(header, reference), record_facts(header, candidate), (*VARIED, *allow_different))


# Facts of one side from its traces: model, dtype, device, versions, capture settings; and kernels that both sides ran.

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
    for calls, sum_ns in (each for trace in traces for each in trace.operators):
        sizes = calls.sizes[_WEIGHTS[calls.name] :][:1] if calls.name in _WEIGHTS else ()
        weights.update("x".join(map(str, size)) for size in sizes if len(size) == 2)
        cost = operator_cost(calls)
        if not isinstance(cost, str):
            spent[cost[1]] += sum_ns
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
    kernels, sizes = set[str](), set[str]()
    for trace in traces if focal is not None else ():
        events = trace.device_events
        for _, work in events_by_device(trace):
            position = work.position[matching(trace, work, focal or "")]
            kernels.update(kernel_name(events.names[name]) for name in np.unique(np.asarray(events.name)[position]))
            sizes.update(events.shapes[shape] for shape in np.unique(np.asarray(events.shape)[position]))
    sizes = {size for size in sizes if size and not _GEOMETRY.fullmatch(size)}
    if kernels:
        yield "kernel", frozenset(kernels)
    if sizes:
        yield "shapes", frozenset(sizes)


def _machine_facts(traces: Sequence[Trace]) -> Iterator[tuple[str, Value]]:
    devices = list[str]()  # products that ran something; an event's device number may differ from that of the list
    for trace in traces:
        products = set(trace.devices.values())
        only = products.pop() if len(products) == 1 else ""
        devices += (name for device in set(trace.device_events.device) if (name := trace.devices.get(device) or only))
    if devices:
        yield "device", " and ".join(sorted(set(devices)))
        yield "devices", str(len(devices))
    worlds = {str(trace.world_size) for trace in traces if trace.world_size is not None}
    if len(traces) == 1 and not worlds and _says_capture(traces[0]) and len(traces[0].device_events):
        communicates = traces[0].collectives or DEVICE_KINDS.index("comm") in set(traces[0].device_events.kind)
        worlds = set() if communicates else {"1"}
    if worlds:
        yield "world", " and ".join(sorted(worlds))


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


class CommonPart(DocumentPart, frozen=True, kw_only=True):
    """Kernels that both sides ran, without copies and memsets."""

    baseline_share: A[float, col("share of the baseline's kernel time in common kernels, 0 to 1")]
    candidate_share: A[float, col("share of the candidate's kernel time in common kernels, 0 to 1")]
    names: A[tuple[str, ...], col("normalised names of the common kernels")]


def common_kernels(baseline: Sequence[Trace], candidate: Sequence[Trace]) -> CommonPart | None:
    """Return the kernels that both sides ran; `None` if one of them ran none."""
    sides = [_kernel_times(traces) for traces in (baseline, candidate)]
    if not all(side.total() for side in sides):
        return None
    names = sorted(sides[0].keys() & sides[1].keys())
    shares = [sum(side[name] for name in names) / side.total() for side in sides]
    return CommonPart(names=tuple(names), baseline_share=shares[0], candidate_share=shares[1])


def _kernel_times(traces: Sequence[Trace]) -> Counter[str]:
    times: Counter[str] = Counter()
    for trace in traces:
        events = trace.device_events
        chosen = np.flatnonzero(np.isin(np.asarray(events.kind), _COMPUTES))
        length = column(events.end_ns) - column(events.start_ns)
        sums = totals(length[chosen], column(events.name)[chosen], len(events.names))
        for name, ns in zip(events.names, sums.tolist(), strict=True):
            if ns:
                times[kernel_name(name)] += ns
    return times
