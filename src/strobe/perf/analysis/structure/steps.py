"""Steps and layers: repetitions in the work of a device, and its time cut into them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated as A
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strobe.core.spans import FRAME_BLOCK
from strobe.perf.analysis.device.activity import EventView, events_by_device
from strobe.perf.analysis.device.intervals import (
    Covered,
    Distribution,
    Intervals,
    Ints,
    Window,
    column,
    distributions,
    marked,
    overlaps,
    reach,
    totals,
    union,
)
from strobe.perf.analysis.steady import SteadyState, find_steady
from strobe.perf.analysis.structure.ranges import (
    NOWHERE,
    WORK,
    Cuts,
    GraphPaths,
    Launched,
    Paths,
    base_of,
    before,
    graph_paths,
    launched_in,
    linked,
    nest,
    ranges_and_modules,
    unnumbered,
)
from strobe.perf.analysis.structure.sections import pattern
from strobe.perf.table.model import Code, Count, ExactTime, Text
from strobe.perf.table.rows import OnDevice, col, micros
from strobe.perf.trace.columns import code_for
from strobe.perf.trace.events import Trace

# Finds repetitions in a sequence of kernel names: an anchor that occurs once in every period.
#
# A name (or a name right after another one) that occurs at even distances cuts the sequence into candidates for a period. They
# are one if the kernels in them are the same: the counts of every name are compared with the median over all periods. Of the
# anchors that explain the sequence about equally well the one with the longest period is the best, because the layers of a step
# repeat too.

PERIODS_FEWEST: Final = 3
"""Fewest occurrences of an anchor in a repetition."""
ALIKE: Final = 0.9
"""Least mean likeness of periods of the same work."""
_MANY: Final = 5
_TOLERANCE: Final = 0.03
"""Largest deficit in likeness of a period against a shorter one, if it occurs `_MANY` times."""
_TOLERANCE_OF_FEW: Final = 0.005
"""Largest such deficit of a period that occurs less often: any two long stretches look somewhat alike."""
_EVEN: Final = 0.75
"""Least share of an anchor's distances that lie within `_NEAR` of their median."""
_NEAR: Final = 0.15
_REACH: Final = 0.5
"""Least share of the sequence between the first and the last anchor."""
_SPARE_ONE: Final = 10
"""Fewest periods of which one may be dropped for an anchor after longer pauses."""
_TRIED: Final = 48
_SAMPLED: Final = 256

Numbers: TypeAlias = NDArray[np.integer]
Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Period:
    """A repetition in a sequence of kernels.

    Args:
        anchor: name of the kernel that occurs once in every period and starts it here.
        after: name of the kernel right before it, where the anchor's own name occurs more often; else empty.
        starts: position of each anchor in the sequence.
        kernels: kernels in each complete period: from every anchor to the next, and after the last one if a whole period follows.
        likeness: mean over the periods of 1 - (kernels that differ from the median period) / (kernels of the median period), of
            256 periods evenly chosen if there are more (times n / (n - 1): each has a part in the median).
        identical: share of those periods whose names are, in order, those of the most frequent one.
        head: kernels before the first period.
        rest: kernels after the last complete one.
        anchors: names that occur as often (give or take one) at the same distance, this one included.
    """

    anchor: str
    after: str
    starts: tuple[int, ...]
    kernels: tuple[int, ...]
    likeness: float
    identical: float
    head: int
    rest: int
    anchors: int

    @property
    def periods(self) -> int:
        return len(self.kernels)

    @property
    def covered(self) -> float:
        """Share of the sequence that lies in complete periods."""
        inside = sum(self.kernels)
        return inside / (self.head + inside + self.rest)

    @property
    def confidence(self) -> Confidence:
        """Confidence that the period is a step.

        `high`: at least 5 periods, 97 % alike, 80 % of the sequence. `medium`: at least 3, 95 % alike, 60 % of it. `low`: less,
        or a whole period or more of other kernels before or after, as it is around the layers of a single pass.
        """
        if max(self.head, self.rest) >= max(self.kernels):
            return "low"
        if self.periods >= 5 and self.likeness >= 0.97 and self.covered >= 0.8:
            return "high"
        return "medium" if self.periods >= 3 and self.likeness >= 0.95 and self.covered >= 0.6 else "low"


_Anchor: TypeAlias = tuple[NDArray[np.int32], int]
"""Positions of a name that occurs evenly, or of the second one of such a pair, and their distance."""
Repetitions: TypeAlias = tuple[NDArray[np.int32], tuple[Period, ...]]
"""Positions of kernels among a device's events, and the periods that repeat in them, the longest first."""


def repetitions(work: EventView, texts: tuple[str, ...]) -> Repetitions:
    """Find the repetitions of a device's kernels, on the stream that has most of them."""
    is_kernel = np.isin(work.kind, WORK)
    numbers, counts = np.unique(work.stream[is_kernel], return_counts=True)
    if not len(numbers):
        return np.empty(0, np.int32), ()
    place = np.flatnonzero(is_kernel & (work.stream == numbers[counts.argmax()])).astype(np.int32)
    own = work.at(place)
    pause = np.maximum(0, own.start - reach(own.start, own.end))
    return place, find_periods(own.name, texts, pause)


def find_periods(name: Numbers, texts: tuple[str, ...], pause_ns: Numbers) -> tuple[Period, ...]:
    """Find the repetitions in a sequence, the longest period first; empty if nothing repeats.

    Args:
        name: number of each kernel's name, in order.
        texts: the names.
        pause_ns: how long nothing ran before each kernel: of several possible anchors, the one after the longest pauses starts
            the period.
    """
    if len(name) < 2 * PERIODS_FEWEST:
        return ()
    cuts: dict[int, tuple[int, Period]] = {}
    for is_pair in (False, True):
        classes: dict[int, list[_Anchor]] = {}
        for first, distance in _even(*_pairs(name, len(texts))) if is_pair else _even(name, len(texts)):
            classes.setdefault(round(math.log(distance) / _NEAR), []).append((first + np.int32(is_pair), distance))
        for key in sorted(classes.keys() - cuts.keys(), reverse=True)[:_TRIED]:
            # a last period that fits without a next anchor is one too
            periods = [len(places) - (int(places[-1]) + distance > len(name)) for places, distance in classes[key]]
            least = max(periods) - (max(periods) >= _SPARE_ONE)
            alike = [anchor for anchor, count in zip(classes[key], periods, strict=True) if count >= least]
            best = max(alike, key=lambda anchor: (int(pause_ns[anchor[0]].sum(dtype=np.int64)), -int(anchor[0][0])))
            as_often = sum(abs(len(places) - len(best[0])) <= 1 for places, _ in classes[key])
            period = _period(name, texts, best, as_often, is_pair=is_pair)
            if period is not None:
                cuts[key] = best[1], period
    return tuple(_longest_first(list(cuts.values())))


def loop_of_one(name: Numbers, texts: tuple[str, ...], start_ns: Ints) -> tuple[Period, ...]:
    """Return the period of a sequence of one kernel alone whose calls start at even distances; empty for any other sequence."""
    if len(name) <= PERIODS_FEWEST or (name != name[0]).any():
        return ()
    apart = np.diff(start_ns)
    middle = float(np.median(apart))
    if middle <= 0 or np.count_nonzero(np.abs(apart - middle) <= _NEAR * middle) < _EVEN * len(apart):
        return ()
    return (
        Period(
            anchor=texts[name[0]], after="", starts=tuple(range(len(name))), kernels=(1,) * len(name), likeness=1.0,
            identical=1.0, head=0, rest=0, anchors=1,
        ),
    )  # fmt: skip


def _pairs(name: Numbers, num_names: int) -> tuple[Numbers, int]:
    """Number the pairs of neighbours; return the number of each pair and the count of distinct ones."""
    known, found = np.unique(name[:-1].astype(np.int64) * num_names + name[1:], return_inverse=True)
    return found.astype(np.dtype(code_for(0, len(known)))), len(known)


def _longest_first(found: list[tuple[int, Period]]) -> list[Period]:
    """Drop periods clearly less alike than a shorter one and, of two at about one distance, the less alike; longest first."""
    kept: list[tuple[int, Period]] = []
    best = 0.0
    for distance, period in sorted(found, key=lambda one: one[0]):
        missing = _TOLERANCE if period.periods >= _MANY else _TOLERANCE_OF_FEW
        if period.likeness < best - missing:
            continue
        if kept and distance - kept[-1][0] <= _NEAR * distance:
            if period.likeness <= kept[-1][1].likeness:
                continue
            kept.pop()
        kept.append((distance, period))
        best = max(best, period.likeness)
    return [period for _, period in reversed(kept)]


def _even(ids: Numbers, num: int) -> list[_Anchor]:
    """Return the anchors: names that occur often enough, over enough of the sequence, mostly at equal distances."""
    count = np.bincount(ids, minlength=num)
    first = np.cumsum(count) - count
    order = np.argsort(ids, kind="stable").astype(np.int32)
    found = []
    for row in np.flatnonzero(count >= PERIODS_FEWEST).tolist():
        rows = order[first[row] : first[row] + count[row]]
        reached = int(rows[-1]) - int(rows[0])
        if reached < _REACH * len(ids) or reached < 2 * count[row]:
            continue
        gaps = np.diff(rows)
        distance = int(np.partition(gaps, len(gaps) // 2)[len(gaps) // 2])
        if np.count_nonzero(np.abs(gaps - distance) <= _NEAR * distance) >= _EVEN * len(gaps):
            found.append((rows, distance))
    return found


def _period(name: Numbers, texts: tuple[str, ...], anchor: _Anchor, anchors: int, *, is_pair: bool) -> Period | None:
    """Compare the kernels between the anchors; `None` if they are not the same work."""
    places, distance = anchor
    lengths = np.diff(places)
    chosen = np.unique(np.linspace(0, len(lengths) - 1, min(len(lengths), _SAMPLED)).astype(np.int64))
    parts = [name[place : place + length] for place, length in zip(places[chosen], lengths[chosen], strict=True)]
    counts = np.stack([np.bincount(part, minlength=int(name.max()) + 1) for part in parts])
    middle = np.median(counts, axis=0)
    whole = max(1.0, float(middle.sum()))
    differs = np.abs(counts - middle).sum(axis=1) * (len(parts) / (len(parts) - 1))  # each period has a part in the median
    likeness = float(np.maximum(0, 1 - differs / whole).mean())
    tail = name[places[-1] : places[-1] + distance]
    if len(tail) == distance:
        unlike = np.abs(np.bincount(tail, minlength=len(middle)) - middle).sum() / whole
        lengths = np.append(lengths, distance) if unlike <= 1 - ALIKE else lengths
    if likeness < (ALIKE if len(lengths) >= PERIODS_FEWEST else 1.0):
        return None
    orders, first = [part.tobytes() for part in parts], int(places[0])
    return Period(
        anchor=texts[name[first]],
        after=texts[name[first - 1]] if is_pair else "",
        starts=tuple(places.tolist()),
        kernels=tuple(lengths.tolist()),
        likeness=likeness,
        identical=max(map(orders.count, set(orders))) / len(orders),
        head=first,
        rest=len(name) - first - int(lengths.sum()),
        anchors=anchors,
    )


# Cuts the time of a device into steps: each lasts from the first device event of a step to the first one of the next.
#
# The tiles, with what lies before the first and after the last step, add up to the span of the device's events exactly. A step
# starts with a range of the host (`ProfilerStep#N`, our frame blocks, or one that the user names), with a kernel that the user
# names, or with the anchor of a period that the kernels repeat.

LAST: Final = "the last one: no next step bounds it"
OVERTAKEN: Final = "overtaken on the device by another step"
COMPILED: Final = "compiled"
HELD_UP: Final = "the profiler at work"
UNEVEN: Final = 1.5
"""Ratio of a long to a short steady step from which on they are not one kind of step."""
_HELD_UP_SHARE: Final = 0.05
"""Largest share of profiler overhead in a step that is compared with others."""
_NAMED: Final = {
    "ProfilerStep#N": re.compile(r"^ProfilerStep\s*#\s*\d+$"),
    f"strobe::{FRAME_BLOCK}#N": re.compile(rf"^strobe::{FRAME_BLOCK}(#\d+)?$"),
}
_COMPILATION: Final = re.compile(r"\(dynamo_timed\)")
_NUMBER: Final = re.compile(r"#\s*(\d{1,18})$")
_LONGEST_NAME: Final = 80


class TraceStepRow(OnDevice, frozen=True, kw_only=True):
    """One step of one device, of the whole trace: from its first device event to that of the next step."""

    step: A[str, col("name of the range that marks the step, or `step N`", "step", Code)]
    number: A[int, col("number of the step", "number", Count)]
    start_ns: A[int, col("start on the clock of the trace")]
    end_ns: A[int, col("end on the clock of the trace")]
    length_ns: A[int, col("time from start to end", "length", ExactTime, total=sum)]
    busy_ns: A[int, col("time in which at least one event ran", "busy", ExactTime, total=sum)]
    idle_ns: A[int, col("time in which no event ran", "idle", ExactTime, total=sum)]
    kernels: A[int, col("number of kernels that started in the step, communication included", "kernels", Count, total=sum)]
    host_ns: A[int | None, col("duration of the step's range on the host; null if it has none", "host", ExactTime, total=sum)]
    left_out: A[str, col("why the step is not steady; empty if it is", "not steady because", partial(Text, tone="muted"))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """The steps of one device: `before_ns`, the steps and `after_ns` add up to `end_ns - start_ns`.

    Args:
        source: kind of event that starts a step: a range of the host, a kernel the user named, or the anchor of a period.
        starts: that event in words.
        start_ns: start of the first event of the device.
        end_ns: end of its last one.
        steps: in order, at least one.
        period: the repetition that was found, where `source` is `period`.
        steady: selection of the steady steps; its indices count into `steps`.
    """

    source: Literal["range", "kernel", "period"]
    starts: str
    start_ns: int
    end_ns: int
    steps: tuple[TraceStepRow, ...]
    period: Period | None
    steady: SteadyState
    notes: tuple[str, ...]

    @property
    def before_ns(self) -> int:
        return self.steps[0].start_ns - self.start_ns

    @property
    def after_ns(self) -> int:
        return self.end_ns - self.steps[-1].end_ns

    def kept(self) -> tuple[TraceStepRow, ...]:
        return tuple(self.steps[index] for index in self.steady.kept)

    @property
    def uneven(self) -> tuple[TraceStepRow, TraceStepRow] | None:
        """A short and a long steady step if they differ by more than `UNEVEN`, without the shortest and longest tenth."""
        ordered = sorted(self.kept(), key=lambda step: step.length_ns)
        inner = ordered[len(ordered) // 10 : len(ordered) - len(ordered) // 10]
        return (inner[0], inner[-1]) if inner and inner[-1].length_ns > UNEVEN * inner[0].length_ns else None


class _Cuts(NamedTuple):
    """Starts of the steps of a device. `end` is the end of the last one, the start of another if it is `bounded`; `host` is the
    range of each on the host."""

    source: Literal["range", "kernel", "period"]
    starts: str
    start: Ints
    end: int
    labels: Sequence[str]
    host: Intervals | None = None
    period: Period | None = None
    bounded: bool = False
    notes: tuple[str, ...] = ()


def find_steps(trace: Trace, starts: str | None = None) -> dict[int, Steps | str]:
    """Cut the time of each device that has events into steps, or say why it has none; empty for a trace of a CPU.

    Without a pattern the steps are the `ProfilerStep#N` ranges, else our frame blocks, else a period that the kernels repeat. A
    single range is the step only if nothing repeats.

    Args:
        starts: regular expression, searched in the names of ranges and, if none that launched work has it, of kernels.
    """
    chosen = None if starts is None else pattern(starts)
    found: dict[int, Steps | str] = {}
    for device, work in events_by_device(trace):
        cuts = _named_cuts(trace, work) if chosen is None else _chosen_cuts(trace, work, chosen)
        found[device] = cuts if isinstance(cuts, str) else _tiled(trace, device, work, cuts)
    return found


def names_step(name: str, starts: str | None = None) -> bool:
    """Return whether a range of this name starts a step: it matches the pattern, or without one a usual name."""
    chosen = _NAMED.values() if starts is None else (pattern(starts),)
    return any(named.search(name) for named in chosen)


def _chosen_cuts(trace: Trace, work: EventView, chosen: re.Pattern[str]) -> _Cuts | str:
    by_range = _by_range(trace, work, chosen, f"ranges that match {chosen.pattern!r}")
    if by_range is not None:
        return by_range
    names = trace.device_events.names
    of_name = np.array([chosen.search(name) is not None for name in names], np.bool_)
    places = np.flatnonzero(of_name[work.name] & np.isin(work.kind, WORK))
    if not len(places):
        return f"no range that launched work and no kernel matches {chosen.pattern!r}"
    labels = [names[name] for name in work.name[places].tolist()]
    return _Cuts("kernel", f"kernels that match {chosen.pattern!r}", work.start[places], int(work.end.max()), labels)


def _named_cuts(trace: Trace, work: EventView, repeated: Repetitions | None = None) -> _Cuts | str:
    """Return the steps that are found without a pattern; repetitions of the kernels are searched for if not given."""
    single = None
    for spoken, named in _NAMED.items():
        cuts = _by_range(trace, work, named, f"{spoken} ranges")
        if cuts is not None and len(cuts.start) > 1:
            return cuts
        single = single or cuts
    by_period = _by_period(trace, work, repeated or repetitions(work, trace.device_events.names))
    if single is None:
        return by_period
    if isinstance(by_period, str):
        return single._replace(notes=(*single.notes, by_period))
    assert by_period.period is not None
    note = f"in the only step, {_spoken(by_period.period)}: layers, or the steps of a loop; name that kernel to cut there"
    return single._replace(notes=(*single.notes, note))


def _spoken(period: Period) -> str:
    after = f" after {_short(period.after)}" if period.after else ""
    return f"the kernels repeat {period.periods} times, from {_short(period.anchor)}{after} on"


def _short(name: str) -> str:
    return repr(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}...")


def _by_range(trace: Trace, work: EventView, named: re.Pattern[str], spoken: str) -> _Cuts | None:
    """Return steps from ranges: the outermost that match, on the thread whose ranges launched most of the device's work."""
    which = np.flatnonzero(marked(trace.ranges, named.search))
    if not len(which):
        return None
    begin, stop, thread = (column(values)[which] for values in (trace.ranges.start_ns, trace.ranges.end_ns, trace.ranges.thread))
    cuts = Cuts.at(thread, begin, stop)
    launched = launched_in(trace, work, None, cuts)
    first, last = cuts.within(thread, begin, stop)
    before_each = before(launched.events)
    main = int(np.argmax(np.bincount(thread, weights=before_each[last] - before_each[first])))
    mine = np.flatnonzero(thread == main)
    if not len(mine):
        return None
    mine = mine[begin[mine] >= reach(begin[mine], stop[mine])]
    begin, stop, which, first, last = begin[mine], stop[mine], which[mine], first[mine], last[mine]
    anywhere = _launched_anywhere(trace, work, begin, stop)
    if not (before_each[last] > before_each[first]).any():  # another thread launches for this one
        launched, first, last = anywhere
        before_each = before(launched.events)
    some = before_each[last] > before_each[first]
    if not some.any():
        return None
    earliest, _ = launched.bounds(first[some], last[some])
    final = np.flatnonzero(some)[-1:]
    end = int(anywhere[0].bounds(anywhere[1][final], anywhere[2][final])[1][0])
    names = trace.ranges.names
    labels = [names[name] for name in column(trace.ranges.name)[which[some]].tolist()]
    idle = int((~some).sum())
    notes = (f"{idle} of the {len(some)} ranges launched nothing on this device and are no steps",) if idle else ()
    return _Cuts("range", spoken, earliest, end, labels, Intervals(begin[some], stop[some]), notes=notes)


def _launched_anywhere(trace: Trace, work: EventView, begin: Ints, stop: Ints) -> tuple[Launched, Ints, Ints]:
    """Return the work launched during ranges of one thread, on any thread, and the segments `[first, last)` of each range."""
    thread, hosts = np.zeros(len(begin), np.int64), trace.device_events.hosts
    cuts = Cuts.at(thread, begin, stop)
    found = Launched(cuts.num)
    for part in linked(work, None):
        found.add(part, cuts.segment(0, column(hosts.start_ns)[part.work.host]))
    return found, *cuts.within(thread, begin, stop)


def _by_period(trace: Trace, work: EventView, repeated: Repetitions) -> _Cuts | str:
    """Return steps from the repetitions of the busiest stream's kernels, or the reason why there are none."""
    place, periods = repeated
    periods = periods or loop_of_one(work.name[place], trace.device_events.names, work.start[place])
    if not periods:
        return "no repeating step found: no kernel occurs at even distances with the same kernels between"
    period = periods[0]
    starts = place[np.array(period.starts, np.int64)].astype(np.int64)
    single = _single_call(trace, work, starts)
    if single:
        return f"no repeating step found: {_spoken(period)}, but all in one call of {single}"
    end = int(work.start[starts[-1]])
    bounded = len(period.kernels) < len(period.starts)
    if not bounded:
        end = int(work.end[place[period.starts[-1] : period.starts[-1] + period.kernels[-1]]].max())
    else:
        starts = starts[:-1]
    labels = [f"period {number}" for number in range(len(starts))]
    return _Cuts("period", _spoken(period), work.start[starts], end, labels, None, period, bounded)


def _single_call(trace: Trace, work: EventView, places: Ints) -> str:
    """Name the one launch or module call that all of these events come from, if there is one."""
    events = trace.device_events
    host = work.at(places).host
    if (host < 0).any():
        return ""
    if (host == host[0]).all():
        return events.hosts.names[events.hosts.name[int(host[0])]]
    nesting = nest(trace.modules)
    owner = nesting.of_calls(events.hosts, host)
    if (owner == NOWHERE).any() or len(top := np.unique(nesting.roots()[owner])) > 1:
        return ""
    return trace.modules.names[trace.modules.name[int(top[0])]]


def _tiled(trace: Trace, device: int, work: EventView, cuts: _Cuts) -> Steps:
    start = np.maximum.accumulate(cuts.start)
    end = np.append(start[1:], max(cuts.end, int(start[-1])))
    busy, covered, edges = np.zeros(len(start), np.int64), Covered(), np.append(start, end[-1])
    started = np.zeros(len(edges), np.int64)  # kernels before each edge
    for _, part in work.parts():
        _, step, shared = overlaps(covered.add(part.start, part.end), Intervals(start, end))
        np.add.at(busy, step, shared.length)
        started += np.searchsorted(part.start[np.isin(part.kind, WORK)], edges, "left")
    host = [None] * len(start) if cuts.host is None else (cuts.host.end - cuts.host.start).tolist()
    named = [int(found[1]) for label in cuts.labels if (found := _NUMBER.search(label))]
    numbers = named if len(set(named)) == len(start) else range(len(start))
    length = end - start
    steady = find_steady(length.astype(np.float64).tolist(), _causes(trace, cuts, start, end))
    columns = {
        "number": numbers, "step": cuts.labels, "start_ns": start.tolist(), "end_ns": end.tolist(), "length_ns": length.tolist(),
        "busy_ns": busy.tolist(), "idle_ns": (length - busy).tolist(), "kernels": np.diff(started).tolist(), "host_ns": host,
        "left_out": [steady.excluded.get(place, "") for place in range(len(start))],
    }  # fmt: skip
    steps = tuple(
        TraceStepRow(trace=trace.label, device=device, **dict(zip(columns, values, strict=True)))
        for values in zip(*columns.values(), strict=True)
    )
    return Steps(
        source=cuts.source,
        starts=cuts.starts,
        start_ns=int(work.at(slice(0, 1)).start[0]),
        end_ns=int(work.end.max()),
        steps=steps,
        period=cuts.period,
        steady=steady,
        notes=cuts.notes,
    )


def _causes(trace: Trace, cuts: _Cuts, start: Ints, end: Ints) -> dict[int, str]:
    """Return the steps that differ from others, each with its first cause: compilation, profiler overhead, overtaken, last."""
    causes: dict[int, str] = {}
    at_work = Intervals(start, end) if cuts.host is None else cuts.host
    compiling = np.sort(column(trace.ranges.start_ns)[marked(trace.ranges, _COMPILATION.search)])
    found = np.searchsorted(compiling, at_work.start) < np.searchsorted(compiling, at_work.end)
    causes |= dict.fromkeys(np.flatnonzero(found).tolist(), COMPILED)
    of_step, _, shared = overlaps(at_work, union(column(trace.overheads.start_ns), column(trace.overheads.end_ns)))
    held = totals(shared.length, of_step, len(start))
    for step in np.flatnonzero(held > _HELD_UP_SHARE * at_work.length).tolist():
        causes.setdefault(step, HELD_UP)
    raised = np.flatnonzero(np.maximum.accumulate(cuts.start)[:-1] > cuts.start[1:])
    causes |= dict.fromkeys((*raised.tolist(), *(raised + 1).tolist()), OVERTAKEN)
    if not cuts.bounded:
        causes[len(start) - 1] = LAST
    return causes


# Repeated parts of one call: the layers of a model or the steps of a loop; the first against the later ones.
#
# Layers are calls of equal name (numbers aside: `WanBlock_0` to `WanBlock_29`, `attention` 30 times) in one call of the same
# range or module; in a graph launch, kernels whose paths differ in the number of one part. Where no names repeat, they are what
# the kernels of a step repeat.

LAYERS_FEWEST: Final = 3
"""Fewest calls of one name in an enclosing call that count as layers."""
MOST_GROUPS: Final = 16
"""Most groups that are described: those with the most device time."""
MOST_PLACES: Final = 512
"""Most places that are described one by one; `later` counts all of them."""
_STEP: Final = "ProfilerStep"
NO_CALL: Final = "no call of its own"
_NO_NAME: Final = "differs from call to call, or there is none"


class LayerRow(OnDevice, frozen=True, kw_only=True):
    """Calls of one layer: the calls in one place of what encloses layers of its kind; layers may lie inside others."""

    layers: A[str, col("name of the layers of the kind: that of range or module, or of the kernel that starts each")]
    inside: A[str, col("names of the enclosing calls, the outermost first; empty: none")]
    place: A[int, col("place among them in one enclosing call, from 0", "place", Count)]
    name: A[str, col("its own name; empty: differs from call to call", "name", Code, where="name", missing=_NO_NAME)]
    calls: A[int, col("number of calls", "calls", Count)]
    device_p50_ns: A[int, col("summed durations of the events of a call, median", "device p50", micros)]
    device_max_ns: A[int, col("summed durations of the events of a call, largest", "device max", micros)]
    span_p50_ns: A[int, col("first start to last end of the events of a call, median", "span p50", micros)]
    host_p50_ns: A[int | None, col("call on the host, median; null: no call of its own", "host p50", micros, missing=NO_CALL)]
    kernels: A[int, col("kernels of a call, median", "kernels", Count)]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerGroup:
    """Layers of one kind.

    Args:
        name: common name: `WanBlock`, or the kernel that starts each.
        path: names of the enclosing calls, from the outermost on, without numbers.
        by_kernels: found in the order of kernels, not by name.
        sum_ns: sum of the durations of all device events in them.
        layers: calls at each place in the enclosing calls.
        later: all calls that are not the first of their enclosing call, as one row without a name.
        inside: they lie in the layers of another group.
    """

    name: str
    path: tuple[str, ...]
    by_kernels: bool
    sum_ns: int
    layers: tuple[LayerRow, ...]
    later: LayerRow
    inside: bool


def layer_groups(trace: Trace, window: Window | None = None) -> tuple[tuple[int, tuple[LayerGroup, ...]], ...]:
    """Return number and layers of each device that has events, the group with the most device time first."""
    found = []
    for device, work in events_by_device(trace):
        where = {"trace": trace.label, "device": device}
        named = (*_by_paths(where, graph_paths(trace, work, window)), *_by_calls(where, trace, work, window))
        groups = tuple(sorted(named, key=lambda group: -group.sum_ns))
        if not len(trace.modules) and not any(group.path for group in groups):
            groups = (*groups, *_by_kernels(trace, device, work, window))
        found.append((device, groups))
    return tuple(found)


def _times(calls: NDArray[Any], group: Ints, num: int) -> Iterator[dict[str, Any]]:
    """Yield the times of the calls of each group, as `LayerRow` names them; every group has some."""
    device, span, kernels, host = (_described(calls[name], group, num) for name in ("device", "span", "kernels", "host"))
    for i in range(num):
        of_device = {"calls": device[i].n, "device_p50_ns": device[i].p50_ns, "device_max_ns": device[i].max_ns}
        host_ns = None if host[i].p50_ns == NOWHERE else host[i].p50_ns
        yield {**of_device, "span_p50_ns": span[i].p50_ns, "host_p50_ns": host_ns, "kernels": kernels[i].p50_ns}


def _calls(place: Ints, device: Ints, span: Ints, kernels: Ints, host: Ints | None = None) -> NDArray[Any]:
    """Return the calls of one group, by place in their enclosing call."""
    of_host = np.full(len(place), NOWHERE) if host is None else host
    dtype = [(name, np.int64) for name in ("place", "device", "span", "kernels", "host")]
    return np.rec.fromarrays([place, device, span, kernels, of_host], dtype=dtype)


def _described(values: Ints, group: Ints, num: int) -> list[Distribution]:
    return [found for found in distributions(values, group, num) if found is not None]


def _by_calls(where: dict[str, Any], trace: Trace, work: EventView, window: Window | None) -> Iterator[LayerGroup]:
    """Yield layers by the names of calls that mostly repeat in one enclosing call."""
    scopes, paths = ranges_and_modules(trace), Paths()
    nesting = nest(scopes)
    path_of = np.array(paths.of(unnumbered(scopes), nesting), np.int64)
    parent_of = np.where(nesting.parent == NOWHERE, -1 - column(scopes.thread), nesting.parent)
    launched, (first, last) = launched_in(trace, work, window, nesting.cuts), nesting.cuts.of(scopes)
    events, sums, kernels = (before(values) for values in (launched.events, launched.sum_ns, launched.kernels))
    taken = np.arange(len(scopes)) if window is None else np.flatnonzero(events[last] > events[first])
    order = taken[np.lexsort((taken, parent_of[taken], path_of[taken]))]
    if not len(order):
        return
    path, parent = path_of[order], parent_of[order]
    heads = np.flatnonzero(np.append(True, (path[1:] != path[:-1]) | (parent[1:] != parent[:-1])))
    count = np.diff(heads, append=len(order))
    place, device = np.arange(len(order)) - np.repeat(heads, count), (sums[last] - sums[first])[order]
    host = (column(scopes.end_ns) - column(scopes.start_ns))[order]
    calls = _calls(place, device, launched.spans(first, last)[order], (kernels[last] - kernels[first])[order], host)
    total = totals(device, path, len(paths.names))
    numbers, starts = np.unique(path[heads], return_index=True)
    several = [
        number
        for number, repeats in zip(numbers.tolist(), np.split(count, starts[1:]), strict=True)
        if int(np.median(repeats)) >= LAYERS_FEWEST and total[number] and paths.names[number] != _STEP
    ]
    chosen = sorted(several, key=lambda number: (-int(total[number]), number))[:MOST_GROUPS]
    for number in chosen:
        left, right = np.searchsorted(path, (number, number + 1)).tolist()
        names = [scopes.names[name] for name in column(scopes.name)[order[left:right]].tolist()]
        inside = any(each in chosen for each in paths.around(paths.above[number]))
        yield _group(where, calls[left:right], names, paths.spelled(number), inside=inside)


def _group(
    where: dict[str, Any],
    calls: NDArray[Any],
    names: Sequence[str],
    path: tuple[str, ...],
    *,
    inside: bool = False,
    by_kernels: bool = False,
) -> LayerGroup:
    num = min(MOST_PLACES, int(calls["place"].max()) + 1)
    shown = np.flatnonzero(calls["place"] < num)
    later = np.flatnonzero(calls["place"] > 0)
    labels: list[set[str]] = [set() for _ in range(num)]
    for call in shown.tolist():
        labels[int(calls["place"][call])].add(names[call])
    told = {**where, "layers": path[-1], "inside": " / ".join(path[:-1])}
    (rest,) = _times(calls[later], np.zeros(len(later), np.int64), 1)
    return LayerGroup(
        name=path[-1],
        path=path[:-1],
        by_kernels=by_kernels,
        sum_ns=int(calls["device"].sum()),
        layers=tuple(
            LayerRow(**told, place=place, name=min(label) if len(label) == 1 else "", **times)
            for place, (label, times) in enumerate(zip(labels, _times(calls[shown], calls["place"][shown], num), strict=True))
        ),
        later=LayerRow(**told, place=1, name="", **rest),
        inside=inside,
    )


def _by_paths(where: dict[str, Any], carried: GraphPaths) -> Iterator[LayerGroup]:
    """Yield layers inside graphs: the outermost numbered part of the paths that kernels carry, within one launch."""
    texts, part, of_event = carried
    groups: dict[tuple[str, ...], int] = {}
    found = [_numbered(text.split(".")) for text in texts]
    of_text = np.array([groups.setdefault(one[0], len(groups)) if one else NOWHERE for one in found], np.int64)
    number = np.array([one[1] if one else 0 for one in found], np.int64)
    labels = {one[:2]: one[2] for one in found if one}
    is_kernel = np.isin(part.work.kind, WORK).astype(np.int64)
    for path, group in groups.items():
        mine = np.flatnonzero(of_text[of_event] == group)
        layer, launch = number[of_event[mine]], part.work.host[mine]
        order = np.lexsort((layer, launch))
        mine, layer, launch = mine[order], layer[order], launch[order]
        heads = np.flatnonzero((np.diff(launch, prepend=-3) != 0) | (np.diff(layer, prepend=-1) != 0))
        first = np.flatnonzero(np.diff(launch[heads], prepend=-3))
        count = np.diff(first, append=len(heads))
        if not len(heads) or np.median(count) < LAYERS_FEWEST:
            continue
        start, end = np.minimum.reduceat(part.start[mine], heads), np.maximum.reduceat(part.end[mine], heads)
        place = np.arange(len(heads)) - np.repeat(first, count)
        sums, kernels = (np.add.reduceat(values[mine], heads) for values in (part.length, is_kernel))
        calls = _calls(place, sums, end - start, kernels)
        yield _group(where, calls, [labels[path, one] for one in layer[heads].tolist()], path)


def _numbered(parts: Sequence[str]) -> tuple[tuple[str, ...], int, str] | None:
    """Return the path of the first part with a number, the number, and its label: `layers.3`, `Layer_3`."""
    for at, part in enumerate(parts):
        if at and part.isdecimal():
            return tuple(parts[:at]), int(part), f"{parts[at - 1]}.{part}"
        if (base := base_of(part)) != part and not part.startswith("triton_"):
            return (*parts[:at], base), int(part[len(base) :].lstrip("#_ \t")), part
    return None


def _by_kernels(trace: Trace, device: int, work: EventView, window: Window | None) -> Iterator[LayerGroup]:
    """Yield layers found in the order of kernels: the longest period that repeats three times inside a step."""
    place, periods = repeated = repetitions(work, trace.device_events.names)
    if not periods:
        return
    cuts = _named_cuts(trace, work, repeated)
    bounds = np.empty(0, np.int64) if isinstance(cuts, str) else np.maximum.accumulate(cuts.start)
    start, end = work.at(place).start, work.at(place).end
    for period in periods:
        anchors = np.array(period.starts, np.int64)
        if window is not None:
            anchors = anchors[(start[anchors] >= window.start_ns) & (start[anchors] < window.end_ns)]
        step = np.searchsorted(bounds, start[anchors], side="right")
        heads = np.flatnonzero(np.diff(step, prepend=-1))
        count = np.diff(heads, append=len(anchors))
        if not len(heads) or np.median(count) < LAYERS_FEWEST:
            continue
        size = int(np.median(np.array(period.kernels, np.int64)))
        stop = np.minimum(np.append(anchors[1:], len(place)), anchors + size)
        edges = np.stack((anchors, stop), axis=1).ravel()
        reached = np.maximum.reduceat(np.append(end, 0), edges)[::2]
        sums = before(end - start)
        order = np.arange(len(anchors)) - np.repeat(heads, count)
        calls = _calls(order, sums[stop] - sums[anchors], reached - start[anchors], stop - anchors)
        where = {"trace": trace.label, "device": device}
        yield _group(where, calls, [""] * len(anchors), (period.anchor,), by_kernels=True)
        return
