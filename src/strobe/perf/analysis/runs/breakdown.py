"""Breakdown of a frame block and of a denoise step: pieces, kernels, operations, and idle time; all accounts add up."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from strobe.core.costs import Cost
from strobe.core.spans import ATTENTION, CROSS_ATTENTION, DIT_FORWARD, FFN, FRAME_BLOCK, NAMES, OUTPUT_PROJECTION, STAGES
from strobe.perf.analysis.device.intervals import distribution
from strobe.perf.analysis.device.kernels import KernelRow, kernel_row
from strobe.perf.analysis.runs.timeline import (
    NOT_LINKED,
    OUTSIDE,
    Partition,
    Passes,
    Path,
    Replays,
    RunTimeline,
    block_slices,
    layer_of,
    partition_of,
    relabelled,
    timeline_of,
)
from strobe.perf.measure.stats import percentile
from strobe.perf.records.record import SpanCost, Variant
from strobe.perf.table.rows import gathered
from strobe.perf.trace.events import Trace

# Breakdown of a frame block's time by piece: by kind of pass, by layer, and idle time by the pieces around it.
#
# A piece is the innermost of our regions (`strobe.core.spans`) that is open when work is launched; on a CPU, when time passes.
# Every nanosecond of the traced frame blocks belongs to one piece, so the pieces add up to them.

_ORDER: Final = {
    name: place
    for place, name in enumerate(
        each for name in NAMES if name not in STAGES for each in ((*STAGES, name) if name == OUTPUT_PROJECTION else (name,))
    )
}
"""Names in the order of a pass."""


class Place(NamedTuple):
    """Place of work in a frame block: stage, path and layer.

    `stage` is the outermost region of the frame block (`FRAME_BLOCK` if there is none); `path` what lies between it and the work,
    without `dit_forward`; `layer` the number of the layer, from 0.
    """

    stage: str
    path: Path
    layer: int | None = None

    @property
    def name(self) -> str:
        """Name of the piece: `attention / kv_write`; for a stage by itself, its name."""
        return " / ".join(self.path) or self.stage

    @property
    def piece(self) -> Place:
        return Place(self.stage, self.path)


@lru_cache(maxsize=1 << 16)  # a trace has hundreds of thousands of events on few paths
def place_of(path: Path) -> Place:
    """Parse a path of regions, with numbers of layers, as a place."""
    if path in (OUTSIDE, NOT_LINKED):
        return Place(path[0], ())
    layer, inner = None, []
    for name in path[1:]:
        number = layer_of(name)
        if number is not None:
            layer = number
        elif name != DIT_FORWARD:
            inner.append(name)
    return Place(path[0] if path else FRAME_BLOCK, tuple(inner), layer)


@dataclass(kw_only=True, slots=True)
class Amount:
    """Calls, events and time of a piece; amounts add.

    Args:
        calls: regions entered; 0 for work that lies in a stage outside of its regions.
        events: kernels and other device events; operators on a CPU.
        busy_ns: time that these own.
        idle_ns: time in which nothing ran, before the next of these could; on a CPU time of Python and framework.
        sum_ns: sum of the durations of device events, which may overlap; on a CPU `busy_ns`.
    """

    calls: int = 0
    events: int = 0
    busy_ns: int = 0
    idle_ns: int = 0
    sum_ns: int = 0

    @property
    def total_ns(self) -> int:
        return self.busy_ns + self.idle_ns

    def __add__(self, other: Amount) -> Amount:
        return Amount(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


class Gap(NamedTuple):
    """Idle stretches between the work of two pieces.

    Args:
        before, after: the pieces; equal for gaps inside one.
        sum_ns, p50_ns, max_ns: sum, median and largest of their lengths.
        causes: time by cause, see `strobe.perf.analysis.device.activity`; on a CPU all of it is `gap`.
    """

    before: Place
    after: Place
    n: int
    sum_ns: int
    p50_ns: int
    max_ns: int
    causes: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """Traced frame blocks of one trace, by place.

    Args:
        device: `cpu` or `cuda:N`.
        amounts: by place; they add up to `total_ns`.
        stages: how often each stage was entered.
        gaps: the longest sum first.
        beside_ns: busy time of other host threads meanwhile, by stage (CPU only); no part of `total_ns`.
        replays: how the passes that ran as graphs were taken apart; None if there were none.
    """

    device: str
    blocks: int
    total_ns: int
    amounts: Mapping[Place, Amount]
    stages: Mapping[str, int]
    gaps: tuple[Gap, ...]
    beside_ns: Mapping[str, int]
    replays: Replays | None = field(default=None)
    _sums: Mapping[tuple[Path, bool], Mapping[tuple[str, int | None], Amount]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sums", _sums(self.amounts))

    @property
    def pieces(self) -> tuple[Place, ...]:
        """Every place without its layer, in the order of a pass."""
        return tuple(sorted({place.piece for place in self.amounts}, key=lambda place: order((place.stage, *place.path))))

    def of(self, stages: Iterable[str] | None, path: Path, *, deep: bool = False, layers: range | None = None) -> Amount:
        """Add up the amounts of a piece.

        Args:
            stages: in these; None: in all.
            deep: with the pieces inside it. `calls` are its own.
            layers: in these layers; None: wherever it is.
        """
        chosen, sums = None if stages is None else frozenset(stages), self._sums.get((path, deep), {})
        found = (
            amount
            for (stage, layer), amount in sums.items()
            if (chosen is None or stage in chosen) and (layers is None or layer in layers)
        )
        return sum(found, Amount())


def _sums(amounts: Mapping[Place, Amount]) -> dict[tuple[Path, bool], dict[tuple[str, int | None], Amount]]:
    """Add up amounts once for all that is asked of them: by path, with the pieces inside it or without, by stage and layer."""
    found: defaultdict[tuple[Path, bool], defaultdict[tuple[str, int | None], Amount]] = defaultdict(lambda: defaultdict(Amount))
    for place, amount in amounts.items():
        key = place.stage, place.layer
        found[place.path, False][key] += amount
        found[place.path, True][key] += amount
        inner = replace(amount, calls=0)
        for size in range(len(place.path)):
            found[place.path[:size], True][key] += inner
    return {path: dict(sums) for path, sums in found.items()}


def order(path: Path) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts pieces in the order of a pass, outer pieces before inner ones."""
    return tuple((_ORDER.get(name, len(_ORDER)), name) for name in path)


def breakdown(trace: Trace, passes: Passes = ()) -> Breakdown:
    """Break down the time of a trace's frame blocks.

    Args:
        trace: with `frame_block` regions; the more of `strobe.core.spans.PIECES` are marked, the finer.
        passes: passes of the same configuration, without graphs. Passes run as CUDA graphs have no regions inside; they are taken
            apart by the order of their kernels, which is that of these. Without any, such a pass is one piece.

    Raises:
        DataError: no frame blocks, or frame blocks that cannot be told apart.
    """
    timeline, replays = relabelled(timeline_of(trace, layers=True), passes, layers=True)
    calls = _entered(timeline) if replays is None else _entered(timeline) + replays.entered
    parts = partition_of(timeline)
    amounts: defaultdict[Place, Amount] = defaultdict(Amount)
    on_host = parts.device == "cpu"
    for label, ns in parts.owned.items():
        own = Amount(busy_ns=ns, sum_ns=ns if on_host else 0) if label.busy else Amount(idle_ns=ns)
        amounts[place_of(label.path)] += own
    for call in parts.calls:
        amounts[place_of(call.label.path)] += Amount(events=1, sum_ns=0 if on_host else call.duration_ns)
    stages: Counter[str] = Counter()
    for path, number in calls.items():
        place = place_of(path)
        amounts[place] += Amount(calls=number)
        stages[place.stage] += number if len(path) == 1 else 0
    beside: Counter[str] = Counter()
    for _, path, busy_ns in parts.overlap:
        beside[place_of(path).stage] += busy_ns
    return Breakdown(
        device=parts.device,
        blocks=len(parts.tiles),
        total_ns=parts.total_ns,
        amounts=dict(amounts),
        stages=stages,
        gaps=tuple(_gaps(timeline)),
        beside_ns=beside,
        replays=replays,
    )


def _entered(timeline: RunTimeline) -> Counter[Path]:
    """Count the entries into each region inside the frame blocks, by path."""
    blocks = sorted((region.start_ns, region.end_ns) for region in timeline.trace.regions if region.name == FRAME_BLOCK)
    starts = [start for start, _ in blocks]
    found: Counter[Path] = Counter()
    for region, number in zip(timeline.trace.regions, timeline.of, strict=True):
        path = timeline.paths[number]
        position = bisect_right(starts, region.start_ns) - 1
        if path and path != OUTSIDE and path[-1] != DIT_FORWARD and position >= 0 and region.start_ns < blocks[position][1]:
            found[path] += 1
    return found


def _gaps(timeline: RunTimeline) -> Iterator[Gap]:
    """Yield the idle stretches inside the frame blocks, by the pieces at their ends."""
    stretches: defaultdict[tuple[Place, Place], list[Counter[str]]] = defaultdict(list)
    before = end = Place(FRAME_BLOCK, ())
    waited = Counter[str]()
    for piece in block_slices(timeline):
        if not piece.label.busy:
            waited[piece.label.activity] += piece.end_ns - piece.start_ns
            continue
        after = place_of(piece.label.path).piece
        if waited:
            stretches[before, after].append(waited)
            waited = Counter()
        before = after
    if waited:
        stretches[before, end].append(waited)
    found = [(ends, sorted(each.total() for each in own), sum(own, Counter[str]())) for ends, own in stretches.items()]
    for (first, last), lengths, causes in sorted(found, key=lambda one: (-sum(one[1]), one[0])):
        yield Gap(first, last, len(lengths), sum(lengths), percentile(lengths, 0.5), lengths[-1], causes)


def layers_of(found: Breakdown) -> Sequence[int]:
    """Return the numbers of the layers that occur."""
    return sorted({layer for _, layer in found._sums.get(((), True), {}) if layer is not None})


# Cost of a region in the traced frame blocks: early blocks of a stream attend to a window that is not full yet.


def cost_in_blocks(cost: SpanCost, settings: Variant, blocks: Sequence[int]) -> SpanCost:
    """Compute the mean cost of one call of a region over frame blocks, each with the keys that it attends to.

    ``flops - attended_flops * (1 - mean(keys) / keys of a full window)``, and so for the bytes read. Frame blocks differ in
    nothing else; a recache is no call of a region that has a cost.

    Args:
        cost: once the cache is full.
        settings: say how many keys each frame block attends to; if they do not, all count as full.
        blocks: numbers of frame blocks with equally many calls.
    """
    keys = settings.attended_keys
    if not keys or not blocks or not cost.attended_flops:
        return cost
    missing = sum(keys[-1] - keys[min(index, len(keys) - 1)] for index in blocks)
    whole = keys[-1] * len(blocks)
    return msgspec.structs.replace(
        cost,
        flops=cost.flops - round(cost.attended_flops * missing / whole),
        read_bytes=cost.read_bytes - round(cost.attended_read_bytes * missing / whole),
    )


# Kernel table of a run (operators on a CPU): calls by span and name, with the time they own.


def region_kernels(partition: Partition) -> tuple[tuple[str, KernelRow], ...]:
    """Tabulate the calls of the partition's frame blocks by span and name, descending by exclusive time.

    Only `exclusive_ns` adds up over rows: to the busy time of the frame blocks.
    """
    calls = gathered(((call.label.region, call.name), call) for call in partition.calls)
    exclusive = {key: sum(call.exclusive_ns for call in own) for key, own in calls.items()}
    return tuple(
        (region, kernel_row(found, kernel=name, exclusive_ns=exclusive[region, name]))
        for region, name in sorted(calls, key=lambda key: (-exclusive[key], *key))
        if (found := distribution(np.array([call.duration_ns for call in calls[region, name]], np.int64))) is not None
    )


# Budget of one denoise step: operations timed by themselves against the step as it runs. All accounts add up exactly.

REGIONS: Final = (ATTENTION, CROSS_ATTENTION, FFN)
"""Regions of a layer; they tile it."""
REST: Final = "rest of the step"
"""Name of the time of a step outside `REGIONS`: embedding, head, renoise, conditions."""


def mean(times_ns: Sequence[int]) -> Fraction:
    """Return the exact mean."""
    return Fraction(sum(times_ns), len(times_ns))


BudgetName = Literal[
    "attention kernels", "attention projections", "feed-forward", "key-value cache", "norms, modulation, RoPE",
    "gated residuals", "embedding, head, schedule", "decoder",
]  # fmt: skip
"""Lines of a denoise step's budget."""
KERNELS: Final = "attention kernels"
PROJECTIONS: Final = "attention projections"
FEED_FORWARD: Final = "feed-forward"
CACHE: Final = "key-value cache"
NORMS: Final = "norms, modulation, RoPE"
RESIDUALS: Final = "gated residuals"
EDGES: Final = "embedding, head, schedule"
DECODER: Final = "decoder"


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """An operation timed by itself.

    Args:
        what: its work in words.
        kind: the line of the budget that it belongs to.
        inside: one of `REGIONS`, or `REST`; empty if it is no part of a step.
        calls: calls in one step; 0 if it is no part of one.
        times_ns: times of single calls by itself.
        cost: FLOPs and bytes of one call; None where they are not known.
        waits: the call waits for the device, so that launch gaps lie in its times.
    """

    name: str
    what: str
    kind: BudgetName
    inside: str
    calls: int
    times_ns: tuple[int, ...]
    cost: Cost | None = None
    waits: bool = False

    @property
    def mean_ns(self) -> Fraction:
        return mean(self.times_ns)

    @property
    def p50_ns(self) -> int:
        return percentile(self.times_ns, 0.5)

    @property
    def step_ns(self) -> Fraction:
        """Time of all calls in one step at the mean time of a call, ns."""
        return self.calls * self.mean_ns


BudgetLine: TypeAlias = tuple[str, Fraction | None, Fraction]
"""Name of a line, the sum of its operations by themselves (None: it has none), and its time in the running step, ns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """A whole that is timed as it runs, with its operations timed by themselves."""

    name: str
    times_ns: tuple[int, ...]
    operations: tuple[Operation, ...]

    @property
    def mean_ns(self) -> Fraction:
        return mean(self.times_ns)

    @property
    def isolated_ns(self) -> Fraction:
        return sum((operation.step_ns for operation in self.operations), Fraction(0))

    @property
    def difference_ns(self) -> Fraction:
        """Whole minus sum of its parts, ns: launches, framework, other cache contents, fusion (which makes it negative)."""
        return self.mean_ns - self.isolated_ns

    def by_kind(self) -> tuple[tuple[str, Fraction], ...]:
        """Return the sum of the parts by kind, in order of first appearance. With the difference they add up to the whole."""
        found: dict[str, Fraction] = {}
        for operation in self.operations:
            if operation.calls:
                found[operation.kind] = found.get(operation.kind, Fraction(0)) + operation.step_ns
        return tuple(found.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelProfile:
    """Measurements of a kernel profile; one denoise step is the unit.

    Args:
        step: denoise steps of a steady stream without timers inside, and the operations of a step.
        fine_ns: steps of the same stream with timers around the regions of every layer, frame blocks of both kinds interleaved.
        regions_ns: by region, its time in each of those steps.
        decode: decoder calls of a frame block, and the decoder's stages.
        stages_ns: other stages of a frame block and of a prompt switch, as they run, by name.
        reference: operations that are no part of a step of this preset, for comparison.
    """

    step: Whole
    fine_ns: tuple[int, ...]
    regions_ns: Mapping[str, tuple[int, ...]]
    decode: Whole
    stages_ns: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    reference: tuple[Operation, ...] = ()

    def by_region(self) -> tuple[BudgetLine, ...]:
        """Return the step by region. The times in the running step add up to the mean of the plain steps exactly.

        The regions come from steps with timers inside, the rest of such a step is what no region has, and the last line is what
        the timers cost: plain steps minus those with timers, below 0 as a rule.
        """
        known = [(name, self._inside(name), mean(self.regions_ns[name])) for name in REGIONS]
        fine = mean(self.fine_ns)
        rest = fine - sum(in_situ for *_, in_situ in known)
        timers = "plain steps - steps with timers (observer effect, noise)"
        return (*known, (REST, self._inside(REST), rest), (timers, None, self.step.mean_ns - fine))

    def _inside(self, region: str) -> Fraction:
        return sum((each.step_ns for each in self.step.operations if each.inside == region), Fraction(0))
