"""Breakdown of a frame block's time by piece: by kind of pass, by layer, and idle time by the pieces around it.

A piece is the innermost of our regions (`strobe.core.spans`) that is open when work is launched; on a CPU, when time passes.
Every nanosecond of the traced frame blocks belongs to one piece, so the pieces add up to them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple

from strobe.core.spans import (
    ATTENTION_FINISH,
    ATTENTION_KERNEL,
    ATTENTION_SELECT,
    ATTENTION_TILE,
    DIT_FORWARD,
    FRAME_BLOCK,
    NAMES,
    OUTPUT_PROJECTION,
)
from strobe.perf.analysis.runs.partition import partition_of
from strobe.perf.analysis.runs.replays import Passes, Replays, layer_of, relabelled
from strobe.perf.analysis.runs.timeline import NOT_LINKED, OUTSIDE, DeviceTimeline, HostTimeline, Path, timeline_of
from strobe.perf.measure.stats import percentile
from strobe.perf.trace.events import Trace

_KERNELS: Final = (ATTENTION_TILE, ATTENTION_SELECT, ATTENTION_KERNEL, ATTENTION_FINISH)
_ORDER: Final = {
    name: place
    for place, name in enumerate(
        each for name in NAMES if name not in _KERNELS for each in ((*_KERNELS, name) if name == OUTPUT_PROJECTION else (name,))
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
        """The same place without its layer."""
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
        """Busy and idle time, ns."""
        return self.busy_ns + self.idle_ns

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            calls=self.calls + other.calls,
            events=self.events + other.events,
            busy_ns=self.busy_ns + other.busy_ns,
            idle_ns=self.idle_ns + other.idle_ns,
            sum_ns=self.sum_ns + other.sum_ns,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """Idle stretches between the work of two pieces.

    Args:
        before, after: the pieces; equal for gaps inside one.
        n: number of stretches.
        sum_ns, p50_ns, max_ns: sum, median and largest of their lengths.
        causes: time by cause, see `strobe.perf.analysis.device.idle`; on a CPU all of it is `gap`.
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
        blocks: number of frame blocks.
        total_ns: their length.
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
            path: path of the piece.
            deep: with the pieces inside it. `calls` are its own.
            layers: in these layers; None: wherever it is.
        """
        sums = self._sums.get((path, deep), {})
        if stages is not None and layers is not None:
            keys: Iterable[tuple[str, int | None]] = product(frozenset(stages), layers)
        else:
            chosen = None if stages is None else frozenset(stages)
            keys = (
                (stage, layer)
                for stage, layer in sums
                if (chosen is None or stage in chosen) and (layers is None or (layer is not None and layer in layers))
            )
        return sum((sums[key] for key in keys if key in sums), Amount())


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
    timeline, replays = timeline_of(trace, None, layers=True), None
    calls = _entered(timeline)
    if isinstance(timeline, DeviceTimeline):
        timeline, replays = relabelled(timeline, passes, layers=True)
        if replays is not None:
            calls += replays.entered
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
    for overlap in parts.overlap:
        beside[place_of(overlap.path).stage] += overlap.busy_ns
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


def _entered(timeline: HostTimeline | DeviceTimeline) -> Counter[Path]:
    """Count the entries into each region inside the frame blocks, by path."""
    blocks = sorted((region.start_ns, region.end_ns) for region in timeline.trace.regions if region.name == FRAME_BLOCK)
    starts = [start for start, _ in blocks]
    found: Counter[Path] = Counter()
    for region, path in timeline.regions:
        position = bisect_right(starts, region.start_ns) - 1
        if path and path != OUTSIDE and path[-1] != DIT_FORWARD and position >= 0 and region.start_ns < blocks[position][1]:
            found[path] += 1
    return found


def _gaps(timeline: HostTimeline | DeviceTimeline) -> Iterator[Gap]:
    """Yield the idle stretches inside the frame blocks, by the pieces at their ends."""
    lengths: defaultdict[tuple[Place, Place], list[int]] = defaultdict(list)
    causes: defaultdict[tuple[Place, Place], Counter[str]] = defaultdict(Counter)
    before, waited = Place(FRAME_BLOCK, ()), Counter[str]()
    for piece in timeline.slices():
        if not piece.label.busy:
            waited[piece.label.activity] += piece.end_ns - piece.start_ns
            continue
        after = place_of(piece.label.path).piece
        if waited:
            lengths[before, after].append(waited.total())
            causes[before, after].update(waited)
            waited = Counter()
        before = after
    if waited:
        end = Place(FRAME_BLOCK, ())
        lengths[before, end].append(waited.total())
        causes[before, end].update(waited)
    for ends, found in sorted(lengths.items(), key=lambda item: (-sum(item[1]), item[0])):
        ordered = sorted(found)
        yield Gap(
            before=ends[0],
            after=ends[1],
            n=len(found),
            sum_ns=sum(found),
            p50_ns=percentile(ordered, 0.5),
            max_ns=ordered[-1],
            causes=causes[ends],
        )


def layers_of(found: Breakdown) -> Sequence[int]:
    """Return the numbers of the layers that occur."""
    return sorted({layer for _, layer in found._sums.get(((), True), {}) if layer is not None})
