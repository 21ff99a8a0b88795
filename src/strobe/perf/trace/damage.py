"""Device events whose times cannot be right: found, left out or cut short, and named.

Work of one stream runs in order, and nothing runs before its launch call. What a profiler wrote against that is no measurement:
an event written twice, one that lasts over later events of its own stream, one that lies outside all time of the host. Every
check looks through a trace once; only what looks wrong is looked at again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from strobe.core.printable import first_of
from strobe.perf.trace.columns import Flags, Ids, Integers, blocks, view
from strobe.perf.trace.events import DEVICE_KINDS, HostEvents
from strobe.perf.trace.tables import EventKind

SLACK_NS: Final = 20_000
"""Most by which the clocks of a host and a device that belong together differ."""
_OUTSIDE_NS: Final = 1_000_000
_WAIT_NS: Final = 300_000
_LEAST_SHARE: Final = 0.01
"""Least share of the span that is worth a word."""
_LONG: Final = 10
"""Times its median from which on an event that covers a later one of its stream has no true end."""
_TOO_LONG: Final = 100
"""Times its median (of few: the longest other) from which on an event is named although nothing shows where it ended."""
_FEWEST: Final = 4
"""Fewest events with a usual time, or in which the others ran."""
_FEW: Final = 8
"""At most one in so many events, and so much of the work, is a stray one."""
_NESTED: Final = 20
"""With more than one in so many, the rows of a stream hold one another by design."""
_NAMED: Final = 4
_LONGEST_NAME: Final = 60
_COMM: Final = DEVICE_KINDS.index("comm")


class _Events(NamedTuple):
    """Device events in order of start, as columns; `key` numbers the streams by kind of work."""

    start: Integers
    duration: Integers
    work: Integers
    host: Integers
    works: Sequence[EventKind]
    hosts: HostEvents

    def name(self, row: int) -> str:
        found = self.works[self.work[row]].name
        return found if len(found) <= _LONGEST_NAME else f"{found[:_LONGEST_NAME]}..."

    def of(self, what: Sequence[int]) -> Ids:
        """A number of each kind of work as one of each event."""
        return np.asarray(what, np.int32)[self.work]


def mend(
    columns: tuple[Integers, Integers, Integers, Integers], works: Sequence[EventKind], hosts: HostEvents
) -> tuple[Flags, tuple[str, ...], bool]:
    """Cut the durations that are too long; return which events to keep, what was wrong, and whether some were written twice.

    Args:
        columns: start, duration (changed in place), kind of work and launch call of each event, in order of start.
    """
    events = _Events(*columns, works, hosts)
    keep = np.ones(len(events.start), np.bool_)
    if not len(keep):
        return keep, (), False
    doubled = tuple(_doubled(events, keep))
    checks = (_clipped, _misplaced, _strays, _waiting, _out_of_order, _too_long)
    return keep, (*doubled, *(line for check in checks for line in check(events, keep))), bool(doubled)


def _doubled(events: _Events, keep: Flags) -> Iterator[str]:
    """Leave out what is written twice: the same work at the same time from the same call."""
    same = (events.host[1:] >= 0) | (events.duration[1:] > 0)
    for column in events[:4]:
        same &= column[1:] == column[:-1]
    keep[1:][same] = False
    if twice := int(np.count_nonzero(~keep)):
        yield f"{twice} of {len(keep)} device events are exact duplicates of another and count once"


def _clipped(events: _Events, keep: Flags) -> Iterator[str]:
    """Cut an event short that lasts over later ones of its stream which other calls launched."""
    start, duration, _, host = events[:4]
    key, order = _by_stream(events, keep)
    for found, size in _covering(events, key, order):
        if found.size > max(_FEWEST, size // _NESTED):
            continue
        for place in found.tolist():
            row, behind = int(order[place]), order[place + 1 :]
            end = int(start[row]) + int(duration[row])
            inside = behind[: int(np.searchsorted(start[behind], end))]
            inside = inside[(key[inside] == key[row]) & ((host[inside] != host[row]) | (host[row] < 0))]
            later = inside[start[inside] > start[row]]
            whole = int(np.count_nonzero(start[later] + duration[later] <= end))
            usual, times = _usual(events, keep, row)
            if not whole or (whole < 2 and not (usual and times >= _LONG)):
                continue
            said = f", {int(times):,} times its median" if usual and times >= 2 else ""
            yield (
                f"1 {events.name(row)} lasts {_spoken(int(duration[row]))}{said}, over {whole} later "
                f"event{'' if whole == 1 else 's'} of its own stream: cut at the start of the next one"
            )
            duration[row] = int(start[later[0]]) - int(start[row])


def _by_stream(events: _Events, keep: Flags) -> tuple[Ids, Ids]:
    """Return the number of each event's stream, and the events to keep in order of stream and start."""
    streams = {place: number for number, place in enumerate(dict.fromkeys((one.device, one.stream) for one in events.works))}
    key = events.of([streams[one.device, one.stream] for one in events.works])
    order = np.argsort(key, kind="stable").astype(np.int32) if len(streams) > 1 else np.arange(len(key), dtype=np.int32)
    return key, order if keep.all() else order[keep[order]]


def _covering(events: _Events, key: Ids, order: Ids) -> Iterator[tuple[Integers, int]]:
    """Yield, for each stream, the places in `order` of events that end after the next one does, and how many events it has."""
    start, duration, _, host = events[:4]
    found: list[Integers] = []
    for block in blocks(len(order) - 1):
        a, b = order[block], order[block.start + 1 : block.stop + 1]
        over = (start[a] + duration[a] > start[b] + duration[b]) & (start[b] > start[a]) & (key[a] == key[b])
        over &= (host[a] != host[b]) | (host[a] < 0)
        if over.any():
            found.append(block.start + np.flatnonzero(over))
    if not found:
        return
    places = np.concatenate(found)
    for stream in np.unique(key[order[places]]).tolist():
        yield places[key[order[places]] == stream], int(np.count_nonzero(key == stream))


def _usual(events: _Events, keep: Flags, row: int) -> tuple[int, float]:
    """Return the median duration of the events of this name (0 for too few of them) and how many times it this one lasts."""
    name = events.works[events.work[row]].name
    alike = np.flatnonzero(events.of([one.name == name for one in events.works]).astype(np.bool_) & keep)
    if len(alike) < _FEWEST:
        return 0, 0.0
    median = int(np.median(events.duration[alike]))
    return median, int(events.duration[row]) / max(1, median)


def _misplaced(events: _Events, keep: Flags) -> Iterator[str]:
    """Leave out what starts before its call and before all launches; name what starts before its call."""
    start, duration, _, host = events[:4]
    calls, early = view(events.hosts.start_ns), np.zeros(len(keep), np.bool_)
    linked = negative = 0
    for block in blocks(len(keep)):
        rows = block.start + np.flatnonzero((host[block] >= 0) & keep[block])
        delay = start[rows] - calls[host[rows]]
        early[rows] = delay < -SLACK_NS
        linked, negative = linked + len(rows), negative + int(np.count_nonzero(delay < 0))
    if not early.any():
        return
    if 2 * negative > linked:
        yield f"{negative} of {linked} device events start before their launch calls: the clocks of host and device differ"
        return
    first = int(calls.min())
    margin = max(_OUTSIDE_NS, (int(calls.max()) - first) // 10)
    before = early & (start + duration < first - margin)
    for rows, where in (
        (np.flatnonzero(before), "and before all work of the host, left out"),
        (np.flatnonzero(early & ~before), "so their times are wrong"),
    ):
        if len(rows):
            far = _spoken(int((calls[host[rows]] - start[rows]).max()))
            yield f"{_lie(rows)} up to {far} before their launch calls, {where}: {_names(events, rows)}"
    keep[before] = False


_DeviceEvents: TypeAlias = tuple[Integers, Integers, Integers]
"""Some events of one device: their rows, the end of all before each, and the end of all up to each."""


def _devices(events: _Events, keep: Flags) -> Iterator[tuple[int, Callable[[], Iterator[_DeviceEvents]]]]:
    """Yield the number of each device, and a function that yields its events in parts."""
    device = events.of([one.device for one in events.works])
    for number in sorted({one.device for one in events.works}):
        yield number, partial(_parts, events, keep & (device == number))


def _parts(events: _Events, mine: Flags) -> Iterator[_DeviceEvents]:
    reached: int | None = None
    for block in blocks(len(mine)):
        rows = block.start + np.flatnonzero(mine[block])
        if len(rows):
            start = events.start[rows]
            ends = np.concatenate(([start[0] if reached is None else reached], start + events.duration[rows]))
            ends = np.maximum.accumulate(ends)
            reached = int(ends[-1])
            yield rows, ends[:-1], ends[1:]


def _strays(events: _Events, keep: Flags) -> Iterator[str]:
    """Leave out the few events that lie farther from all others of their device than those reach."""
    for number, parts in _devices(events, keep):
        pause, first, last = 0, None, 0
        for rows, free, end_of in parts():
            first = int(events.start[rows[0]]) if first is None else first
            pause, last = max(pause, int((events.start[rows] - free).max())), int(end_of[-1])
        if first is None or 2 * pause <= last - first:
            continue
        rows = np.concatenate([rows for rows, _, _ in parts()])
        low, high = _core(events.start[rows], events.duration[rows])
        out = np.concatenate((rows[:low], rows[high + 1 :]))
        if not len(out):
            continue
        keep[out] = False
        begin = int(events.start[rows[low]])
        end = int((events.start[rows[low : high + 1]] + events.duration[rows[low : high + 1]]).max())
        far = max(begin - first, last - end)
        yield (
            f"{_lie(out)} up to {_spoken(far)} away from the {_spoken(end - begin)} in which all others of device {number} ran, "
            f"left out: {_names(events, out)}"
        )


def _core(start: Integers, duration: Integers) -> tuple[int, int]:
    """Return the first and the last of the events that are not far away from the others."""
    end = np.maximum.accumulate(start + duration)
    pause, work = start[1:] - end[:-1], np.concatenate(([0], np.cumsum(duration, dtype=np.int64)))
    low, high = 0, len(start) - 1
    while high > low:
        cut = low + 1 + int(np.argmax(pause[low:high]))
        if 2 * int(pause[cut - 1]) <= int(end[high] - start[low]):
            break
        sides = (cut - low, int(work[cut] - work[low])), (high + 1 - cut, int(work[high + 1] - work[cut]))
        few, many = sorted(sides)
        if many[0] < 2 * _FEWEST or few[0] * _FEW > many[0] + few[0] or few[1] * _FEW > many[1]:
            break
        low, high = (cut, high) if few == sides[0] else (low, cut - 1)
    return low, high


def _waiting(events: _Events, keep: Flags) -> Iterator[str]:
    """Name what starts long after its call returned although its device did nothing."""
    ends = view(events.hosts.end_ns)
    for number, parts in _devices(events, keep):
        waits, usual, count = list[tuple[Integers, Integers]](), list[float](), 0
        first = last = None
        for every, before, end_of in parts():
            host = events.host[every]
            linked = every[host >= 0]
            first = int(events.start[every[0]]) if first is None else first
            last, count = int(end_of[-1]), count + len(linked)
            free = before[host >= 0].copy()
            if len(linked) and linked[0] == every[0] and events.start[linked[0]] == first:
                free[0] = 0  # nothing ran before the first one
            wait = events.start[linked] - np.maximum(free, ends[host[host >= 0]])
            usual += [float(np.median(wait[wait > 0]))] if (wait > 0).any() else []
            waits.append((linked[wait > _WAIT_NS], wait[wait > _WAIT_NS]))
        if first is None or last is None or not usual or count < 4 * _FEWEST:
            continue
        rows, wait = (np.concatenate(columns) for columns in zip(*waits, strict=True))
        far = wait > max(_LEAST_SHARE * (last - first), _LONG * float(np.median(usual)))
        if far.any() and np.count_nonzero(far) <= max(_FEWEST, count // _NESTED):
            yield (
                f"{_lie(rows[far])} up to {_spoken(int(wait[far].max()))} after their launch calls while device {number} did "
                f"nothing, so times are wrong or work is missing: {_names(events, rows[far])}"
            )


def _out_of_order(events: _Events, keep: Flags) -> Iterator[str]:
    """Name what starts after other work of its stream that was launched after it."""
    host, calls, ends = events.host, view(events.hosts.start_ns), view(events.hosts.end_ns)
    key, order = _by_stream(events, keep)
    late, stream, reached = list[Ids](), -1, 0
    for block in blocks(len(order)):
        rows = order[block][host[order[block]] >= 0]
        for part in np.split(rows, np.flatnonzero(np.diff(key[rows])) + 1) if len(rows) else ():
            reached = reached if key[part[0]] == stream else int(calls[host[part[0]]])
            before = np.maximum.accumulate(np.append(reached, calls[host[part]]))
            late.append(part[ends[host[part]] + SLACK_NS < before[:-1]])
            stream, reached = int(key[part[0]]), int(before[-1])
    rows = np.concatenate(late) if late else order[:0]
    if 0 < len(rows) <= max(_FEWEST, len(order) // _NESTED):
        yield (f"{_lie(rows)} behind work of the same stream that was launched later, so times are wrong: {_names(events, rows)}")


def _too_long(events: _Events, keep: Flags) -> Iterator[str]:
    """Name an event that lasts much longer than others of the same work, where nothing shows when it ended."""
    duration, work, kinds = events.duration, events.work, np.array([one.kind for one in events.works])
    span = 0
    for _, parts in _devices(events, keep):
        bounds = [(int(events.start[rows[0]]), int(end_of[-1])) for rows, _, end_of in parts()]
        span = max(span, bounds[-1][1] - bounds[0][0]) if bounds else span
    long = np.flatnonzero((duration > max(_LEAST_SHARE * span, 1)) & keep)
    for row in long[kinds[work[long]] != _COMM].tolist() if len(long) * _LEAST_SHARE <= 1 else ():
        own = events.works[work[row]]
        alike = events.of([(one.name, one.shape) == (own.name, own.shape) for one in events.works]).astype(np.bool_)
        others = np.sort(duration[alike & keep])[:-1]
        if not len(others):
            continue
        times, longest = (int(duration[row]) / max(1.0, float(other)) for other in (np.median(others), others[-1]))
        if longest >= _TOO_LONG or (len(others) >= _FEWEST and (times >= _TOO_LONG or longest >= _LONG)):
            said = f"{_spoken(int(duration[row]))}, {int(times):,} times its median"
            yield f"1 {events.name(row)} lasts {said}; no later event shows when it ended"


def _names(events: _Events, rows: Integers | Ids) -> str:
    found = Counter(events.name(row) for row in rows.tolist()).most_common()
    return first_of([f"{count} {name}" for name, count in found], _NAMED, "names")


def _lie(rows: Integers | Ids) -> str:
    return "1 event lies" if len(rows) == 1 else f"{len(rows)} events lie"


def _spoken(time_ns: int) -> str:
    for unit, size in (("days", 86_400 * 10**9), ("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if time_ns >= size:
            return f"{time_ns / size:,.4g} {unit}" if time_ns < 10_000 * size else f"{time_ns / size:,.0f} {unit}"
    return f"{time_ns} ns"
