"""Whether two sides may be compared: what is known of each, where they differ, what nobody recorded.

A fact that neither the artefacts nor the user state is unknown, and is called so: unknown is never equal. The axis that is meant
to vary is declared and exempt; any other difference is a finding.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

import numpy as np

from strobe.core.errors import ConfigError, unknown_choice
from strobe.perf.records.record import Header, Variant
from strobe.perf.trace.events import Trace

Verdict = Literal["same", "differs", "varied", "unknown"]
Weight = Literal["must", "should", "told"]
"""`must`: a difference makes the sides not comparable; `should`: it weakens the comparison; `told`: only shown."""

FACTS: Final[dict[str, tuple[str, Weight]]] = {
    "date": ("date and time", "told"),
    "commit": ("git commit", "should"),
    "model": ("model", "must"),
    "checkpoint": ("model checkpoint", "must"),
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
    "shapes": ("input shapes of the focal kernel", "should"),
    "seed": ("seed", "should"),
    "gpu": ("GPU", "must"),
    "gpus": ("GPUs in the trace", "must"),
    "world": ("world size, SP, TP", "must"),
    "torch": ("torch", "should"),
    "cuda": ("CUDA or ROCm", "should"),
    "driver": ("driver", "should"),
    "clocks": ("clocks", "should"),
    "compiled": ("compiled kernels (Inductor)", "must"),
    "graphs": ("CUDA or HIP graphs", "must"),
    "launch_blocking": ("launches are serialised (CUDA_LAUNCH_BLOCKING)", "must"),
    "capture": ("what the profiler recorded", "should"),
}
"""What a comparison depends on, by the word that `--vary` and `--fact` take, in the order of the table."""

_ENOUGH: Final = 20
_INDUCTOR: Final = re.compile(r"^triton_(?:poi|red|per|tem|for|mm|unk|bmm)_")
_GRAPH: Final = re.compile(r"GraphLaunch")
_VERSIONS: Final = {
    "cuda": ("cuda_runtime_version", "hip_runtime_version"),
    "driver": ("cuda_driver_version", "hip_driver_version"),
    "torch": ("torch_version", "pytorch_version"),
}
_CAPTURE: Final = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")

Facts = Mapping[str, str]
"""What is known of one side, by the words of `FACTS`; what is not known is not there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One fact of both sides.

    Args:
        name: a word of `FACTS`.
        title: the same in words.
        baseline: `None` where it is not known.
        candidate: likewise.
        verdict: what that means.
        weight: how much a difference would matter.
    """

    name: str
    title: str
    baseline: str | None
    candidate: str | None
    verdict: Verdict
    weight: Weight

    def __str__(self) -> str:
        sides = (f"{self.title}: {self.baseline or 'not recorded'} against {self.candidate or 'not recorded'}",)
        return sides[0] if self.verdict == "differs" else f"{sides[0]} ({self.verdict})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparability:
    """All checks, in the order of `FACTS`."""

    checks: tuple[Check, ...]

    def _with(self, verdict: Verdict, weight: Weight) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if (check.verdict, check.weight) == (verdict, weight))

    @property
    def obstacles(self) -> tuple[Check, ...]:
        """Why the sides are not comparable. Serialised launches are compared with nothing, not even with each other."""
        serial = (each for each in self.checks if each.name == "launch_blocking" and "yes" in (each.baseline, each.candidate))
        return (*(each for each in self._with("differs", "must") if each.name != "launch_blocking"), *serial)

    @property
    def doubts(self) -> tuple[Check, ...]:
        """What differs and weakens the comparison."""
        return self._with("differs", "should")

    @property
    def unknown(self) -> tuple[Check, ...]:
        """What must agree and is not known of both sides."""
        return self._with("unknown", "must")

    @property
    def varied(self) -> tuple[Check, ...]:
        """What is meant to differ, and does."""
        return tuple(check for check in self.checks if check.verdict == "varied")


def compare_facts(baseline: Facts, candidate: Facts, vary: Sequence[str] = ()) -> Comparability:
    """Check every fact of two sides.

    Args:
        vary: the facts that are meant to differ.

    Raises:
        ConfigError: a fact of that name does not exist.
    """
    for name in (*vary, *baseline, *candidate):
        if name not in FACTS:
            raise unknown_choice("fact", name, FACTS)
    checks = []
    for name, (title, weight) in FACTS.items():
        b, c = baseline.get(name), candidate.get(name)
        verdict: Verdict = "unknown" if b is None or c is None else "same" if b == c else "varied" if name in vary else "differs"
        checks.append(Check(name=name, title=title, baseline=b, candidate=c, verdict=verdict, weight=weight))
    return Comparability(checks=tuple(checks))


def given_facts(texts: Iterable[str]) -> dict[str, str]:
    """Read facts that a user states: `frames=121`.

    Raises:
        ConfigError: not `NAME=VALUE`, a name that does not exist, or one given twice.
    """
    facts: dict[str, str] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (equals and value):
            raise ConfigError(f"fact {text!r}: write NAME=VALUE, such as frames=121; names: {', '.join(FACTS)}")
        if name not in FACTS:
            raise unknown_choice("fact", name, FACTS)
        if facts.get(name, value) != value:
            raise ConfigError(f"fact {name!r} is given as {facts[name]!r} and as {value!r}; give it once")
        facts[name] = value
    return facts


def trace_facts(traces: Sequence[Trace]) -> dict[str, str]:
    """What the traces of one side say: device, versions, how they were recorded, whether launches were serialised."""
    facts: dict[str, str] = {}
    names = [_used_devices(trace) for trace in traces]
    gpus = Counter(name for each in names for name in each)
    if gpus:
        facts["gpu"] = " and ".join(sorted(gpus))
        facts["gpus"] = str(gpus.total())
    worlds = {str(trace.world_size) for trace in traces if trace.world_size is not None}
    if worlds:
        facts["world"] = " and ".join(sorted(worlds))
    for fact, keys in _VERSIONS.items():
        said = {trace.metadata[key] for trace in traces for key in keys if trace.metadata.get(key)}
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
    started = [_started_ns(trace) for trace in traces if len(trace.device_events)]
    if started and min(started) > 1_000_000_000 * 10**9:
        facts["date"] = datetime.fromtimestamp(min(started) // 10**9, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return facts


def _used_devices(trace: Trace) -> list[str]:
    """Products that ran something; the trace's number of a device may be another than that of the list."""
    used = sorted(set(trace.device_events.device))
    by_index = {device.index: device.name for device in trace.devices}
    listed = {device.name for device in trace.devices}
    only = listed.pop() if len(listed) == 1 else ""
    return [name for device in used if (name := by_index.get(device) or only)]


def _says_capture(trace: Trace) -> bool:
    """Kineto names what it recorded beside the times, and nothing else."""
    return "schemaVersion" in trace.metadata or any(key in trace.metadata for key in _CAPTURE)


def _launch_blocking(trace: Trace) -> bool | None:
    """Whether kernels end before the calls that launched them return; `None` if too few tell."""
    events = trace.device_events
    host = np.asarray(events.host)
    own = np.flatnonzero((host >= 0) & (np.asarray(events.ordinal) == 0) & (np.asarray(events.kind) == 0))
    if len(own) < _ENOUGH:
        return None
    waited = np.asarray(events.end_ns)[own] <= np.asarray(events.hosts.end_ns)[host[own]]
    return bool(waited.mean() > 0.95)


def _started_ns(trace: Trace) -> int:
    return trace.base_ns + trace.device_events.start_ns[0]


def _call_facts(sizes: Mapping[str, int]) -> dict[str, object]:
    """What the sizes of one attention call say; nothing, if the records are of something else."""
    tokens = dict.fromkeys(sizes[key] for key in ("q_tokens", "kv_tokens") if key in sizes)
    found = {"batch": sizes.get("batch"), "tokens": " queries, ".join(map(str, tokens)) + (" keys" if len(tokens) > 1 else "")}
    return {name: value for name, value in found.items() if value}


def record_facts(header: Header, variant: Variant | None) -> dict[str, str]:
    """What the records of a run of ours say."""
    machine, work = header.machine, header.workload
    known: dict[str, object] = {
        "date": header.date,
        "commit": header.git.commit,
        "gpu": machine.device_name,
        "gpus": header.world_size if machine.gpu_count else None,
        "world": f"{header.world_size}, {header.sp_degree}, {header.tp_degree}",
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
        known |= _call_facts(variant.sizes)
    return {name: str(value) for name, value in known.items() if value not in (None, "")}
