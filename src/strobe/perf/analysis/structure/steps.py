"""Cuts the time of a device into steps: each lasts from the first device event of a step to the first one of the next.

The tiles, with what lies before the first and after the last step, add up to the span of the device's events exactly. A step
starts with a range of the host (`ProfilerStep#N`, our frame blocks, or one that the user names), with a kernel that the user
names, or with the anchor of a period that the kernels repeat.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from strobe.core.spans import FRAME_BLOCK
from strobe.perf.analysis.device.device_work import EventView, events_by_device
from strobe.perf.analysis.device.intervals import Covered, Intervals, Ints, column, counts_before, overlaps, reach
from strobe.perf.analysis.steady import SteadyState, find_steady
from strobe.perf.analysis.structure.periods import Period, Repetitions, loop_of_one, repetitions
from strobe.perf.analysis.structure.scopes import NOWHERE, WORK, Cuts, Launched, before, launched_in, linked, nest
from strobe.perf.analysis.structure.sections import pattern
from strobe.perf.trace.events import Trace

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of a device.

    Args:
        number: number of the step: the one in its name where the names differ in it, else counted from 0.
        label: name of the range, or `step N`.
        start_ns: start of its first device event.
        end_ns: start of the next step's first one; of the last step, the end of what it launched.
        busy_ns: time in which at least one event ran.
        kernels: kernels (communication too) that started in it.
        host_ns: length of its range on the host; `None` if it has none.
    """

    number: int
    label: str
    start_ns: int
    end_ns: int
    busy_ns: int
    kernels: int
    host_ns: int | None

    @property
    def length_ns(self) -> int:
        """Time from its start to the start of the next step, ns."""
        return self.end_ns - self.start_ns

    @property
    def idle_ns(self) -> int:
        """Time in which nothing ran, ns."""
        return self.length_ns - self.busy_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """The steps of one device: `before_ns`, the steps and `after_ns` add up to `end_ns - start_ns`.

    Args:
        device: its number.
        source: kind of event that starts a step: a range of the host, a kernel the user named, or the anchor of a period.
        starts: that event in words.
        start_ns: start of the first event of the device.
        end_ns: end of its last one.
        steps: in order, at least one.
        period: the repetition that was found, where `source` is `period`.
        steady: selection of the steady steps; its indices count into `steps`.
        notes: notes for the reader.
    """

    device: int
    source: Literal["range", "kernel", "period"]
    starts: str
    start_ns: int
    end_ns: int
    steps: tuple[Step, ...]
    period: Period | None
    steady: SteadyState
    notes: tuple[str, ...]

    @property
    def before_ns(self) -> int:
        """Time before the first step, ns."""
        return self.steps[0].start_ns - self.start_ns

    @property
    def after_ns(self) -> int:
        """Time after the last step, ns."""
        return self.end_ns - self.steps[-1].end_ns

    def kept(self) -> tuple[Step, ...]:
        """Return the steady steps."""
        return tuple(self.steps[index] for index in self.steady.kept)

    @property
    def uneven(self) -> tuple[Step, Step] | None:
        """A short and a long steady step if they differ by more than `UNEVEN`, without the shortest and longest tenth."""
        ordered = sorted(self.kept(), key=lambda step: step.length_ns)
        inner = ordered[len(ordered) // 10 : len(ordered) - len(ordered) // 10]
        return (inner[0], inner[-1]) if inner and inner[-1].length_ns > UNEVEN * inner[0].length_ns else None


@dataclass(frozen=True, kw_only=True, slots=True)
class NoSteps:
    """A device without steps, and the reason."""

    device: int
    reason: str


class _Cuts(NamedTuple):
    """Starts of the steps of a device.

    `end` is the end of the last one, the start of another if it is `bounded`; `host` is the range of each on the host.
    """

    source: Literal["range", "kernel", "period"]
    starts: str
    start: Ints
    end: int
    labels: Sequence[str]
    host: Intervals | None = None
    period: Period | None = None
    bounded: bool = False
    notes: tuple[str, ...] = ()


def find_steps(trace: Trace, starts: str | None = None) -> tuple[Steps | NoSteps, ...]:
    """Cut the time of each device that has events into steps; empty for a trace of a CPU.

    Without a pattern the steps are the `ProfilerStep#N` ranges, else our frame blocks, else a period that the kernels repeat. A
    single range is the step only if nothing repeats.

    Args:
        trace: the trace.
        starts: regular expression, searched in the names of ranges and, if none that launched work has it, of kernels.

    Raises:
        ConfigError: not a regular expression.
    """
    chosen = None if starts is None else pattern(starts)
    if chosen is None:
        return tuple(device_steps(trace, device, work) for device, work in events_by_device(trace))
    return tuple(_cut_at(trace, device, work, _chosen_cuts(trace, work, chosen)) for device, work in events_by_device(trace))


def device_steps(trace: Trace, device: int, work: EventView, repeated: Repetitions | None = None) -> Steps | NoSteps:
    """Cut the time of one device into the steps that `find_steps` finds without a pattern.

    Args:
        trace: the trace.
        device: number of the device.
        work: its events.
        repeated: repetitions of its kernels; they are searched for if not given.
    """
    return _cut_at(trace, device, work, _named_cuts(trace, work, repeated))


def _cut_at(trace: Trace, device: int, work: EventView, cuts: _Cuts | str) -> Steps | NoSteps:
    return NoSteps(device=device, reason=cuts) if isinstance(cuts, str) else _tiled(trace, device, work, cuts)


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


def _named_cuts(trace: Trace, work: EventView, repeated: Repetitions | None) -> _Cuts | str:
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
    of_name = np.array([named.search(name) is not None for name in trace.ranges.names], np.bool_)
    which = np.flatnonzero(of_name[column(trace.ranges.name)]) if len(of_name) else np.zeros(0, np.int64)
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
    anywhere = _Anywhere(trace, work, begin, stop)
    if not (before_each[last] > before_each[first]).any():  # another thread launches for this one
        launched, first, last = anywhere.launched, anywhere.first, anywhere.last
        before_each = before(launched.events)
    some = before_each[last] > before_each[first]
    if not some.any():
        return None
    earliest, _ = launched.bounds(first[some], last[some])
    end = anywhere.end_of(int(np.flatnonzero(some)[-1]))
    names = trace.ranges.names
    labels = [names[name] for name in column(trace.ranges.name)[which[some]].tolist()]
    idle = int((~some).sum())
    notes = (f"{idle} of the {len(some)} ranges launched nothing on this device and are no steps",) if idle else ()
    return _Cuts("range", spoken, earliest, end, labels, Intervals(begin[some], stop[some]), notes=notes)


class _Anywhere:
    """Work launched during ranges of one thread, on any thread."""

    def __init__(self, trace: Trace, work: EventView, begin: Ints, stop: Ints) -> None:
        thread, hosts = np.zeros(len(begin), np.int64), trace.device_events.hosts
        cuts = Cuts.at(thread, begin, stop)
        self.first, self.last = cuts.within(thread, begin, stop)
        self.launched = Launched(cuts.num)
        for part in linked(work, None):
            launch_ns = column(hosts.start_ns)[part.work.host]
            self.launched.add(part, cuts.first[0] + np.searchsorted(cuts.moments[0], launch_ns, "right"))

    def end_of(self, place: int) -> int:
        """Return the end of the last event of a range, ns."""
        _, end = self.launched.bounds(self.first[place : place + 1], self.last[place : place + 1])
        return int(end[0])


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
    busy, covered = np.zeros(len(start), np.int64), Covered()
    for _, part in work.parts():
        shared = overlaps(covered.add(part.start, part.end), Intervals(start, end))
        np.add.at(busy, shared.b, shared.end - shared.start)
    kernel_starts = (part.start[np.isin(part.kind, WORK)] for _, part in work.parts())
    kernels = np.diff(counts_before(kernel_starts, np.append(start, end[-1])))
    host = [None] * len(start) if cuts.host is None else (cuts.host.end - cuts.host.start).tolist()
    named = [int(found[1]) for label in cuts.labels if (found := _NUMBER.search(label))]
    numbers = named if len(set(named)) == len(start) else range(len(start))
    columns = (start.tolist(), end.tolist(), busy.tolist(), kernels.tolist(), host)
    steps = tuple(
        Step(number=number, label=label, start_ns=first, end_ns=last, busy_ns=ran, kernels=n, host_ns=held)
        for number, label, first, last, ran, n, held in zip(numbers, cuts.labels, *columns, strict=True)
    )
    return Steps(
        device=device,
        source=cuts.source,
        starts=cuts.starts,
        start_ns=int(work.at(slice(0, 1)).start[0]),
        end_ns=int(work.end.max()),
        steps=steps,
        period=cuts.period,
        steady=find_steady([float(step.length_ns) for step in steps], _causes(trace, cuts, start, end)),
        notes=cuts.notes,
    )


def _causes(trace: Trace, cuts: _Cuts, start: Ints, end: Ints) -> dict[int, str]:
    """Return the steps that differ from others, each with its first cause: compilation, profiler overhead, overtaken, last."""
    causes: dict[int, str] = {}
    at_work = Intervals(start, end) if cuts.host is None else cuts.host
    ranges = trace.ranges
    of_name = np.array([_COMPILATION.search(name) is not None for name in ranges.names], np.bool_)
    if of_name.any():
        compiling = np.sort(column(ranges.start_ns)[of_name[column(ranges.name)]])
        found = np.searchsorted(compiling, at_work.start) < np.searchsorted(compiling, at_work.end)
        causes |= dict.fromkeys(np.flatnonzero(found).tolist(), COMPILED)
    if trace.overhead:
        overhead = np.array(trace.overhead, np.int64)
        shared = overlaps(at_work, Intervals(overhead[:, 0], overhead[:, 1]))
        held = np.zeros(len(start), np.int64)
        np.add.at(held, shared.a, shared.end - shared.start)
        for step in np.flatnonzero(held > _HELD_UP_SHARE * (at_work.end - at_work.start)).tolist():
            causes.setdefault(step, HELD_UP)
    raised = np.flatnonzero(np.maximum.accumulate(cuts.start)[:-1] > cuts.start[1:])
    causes |= dict.fromkeys((*raised.tolist(), *(raised + 1).tolist()), OVERTAKEN)
    if not cuts.bounded:
        causes[len(start) - 1] = LAST
    return causes
