"""From the columns as they were read to the frozen columns of a trace: sorts them and joins device events to their launch calls.

Columns are permuted, widened and handed over one at a time, so that at no moment more than 64 bytes per device event are held,
its launch call included. Where several events are equally good the choice does not depend on the order of the file.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from strobe.core.errors import TraceFormatError
from strobe.core.printable import first_of
from strobe.perf.trace.columns import (
    Flags,
    Ids,
    Integers,
    blank,
    blocks,
    code_for,
    distinct,
    looked_up,
    ranks,
    renumber,
    taken,
    time_order,
    view,
)
from strobe.perf.trace.damage import mend
from strobe.perf.trace.events import NO_CORRELATION, OF_KERNEL, DeviceEvents, HostEvents, OperatorFacts, OperatorInputs, Trace
from strobe.perf.trace.tables import NOTHING, DeviceTable, HostTable, InputTable, LaunchTable, OperatorTable, Threads

_LAUNCH: Final = re.compile(r"launch|memcpy|memset", re.IGNORECASE)
_CAPTURE: Final = re.compile(r"launch(?!hostfunc)|memcpy|memset|stream(?:begin|end)capture", re.IGNORECASE)
_NAMED: Final = 4
T = TypeVar("T")


def host_events(table: HostTable, threads: Threads, *, once: bool = False) -> HostEvents:
    """Freeze host events, in order of start; the table is empty then.

    Args:
        once: what is written twice counts once.
    """
    calls = Calls(table, threads)
    calls.sort(once=once)
    return calls.freeze()


def join(
    path: Path, devices: DeviceTable, launches: LaunchTable, sizes: InputTable, threads: Threads
) -> tuple[Trace, array[int], bool]:
    """Freeze the device events, in order of start; the tables are empty then.

    Args:
        sizes: the input sizes of operators, which take the place of grid and block.

    Returns:
        A trace with the device events and the tables that refer to them, nothing of the host; the operator of each event, if
        kept; and whether events were written twice.
    """
    works = tuple(devices.works)
    work, start, duration = devices.work.release(), devices.start.release(), devices.duration.release()
    correlation, operator = devices.correlation.release(), devices.operator.release()
    order = time_order(view(start), view(duration), (view(correlation),), (view(work), ranks(works)))
    collectives, module_paths = _moved(devices.collectives(), order), _moved(devices.paths, order)
    start = taken(start, order)
    duration = taken(duration, order)
    correlation = taken(correlation, order)
    work = taken(work, order)
    operator = taken(operator, order[: len(operator)])
    del order
    host, hosts, launched, unanswered = _answer(correlation, launches, threads)
    del correlation
    keep, damage, doubled = mend((view(start), view(duration), view(work), view(host)), works, hosts)
    if not keep.all():
        order = np.flatnonzero(keep).astype(np.int32)
        start, duration, work, host = (taken(one, order) for one in (start, duration, work, host))
        operator = taken(operator, order[: len(operator)])
        collectives, module_paths = _moved(collectives, order), _moved(module_paths, order)
    ordinal = _ordinals(view(host), len(hosts))
    end = _ends(start, duration)
    del duration
    shapes, numbers = distinct([*(one.shape for one in works), *(one.text for one in sizes.distinct)])
    shape = looked_up(numbers[: len(works)], work, len(shapes))
    operators = tuple(_by_inputs(sizes, (view(operator), view(start), view(end)), view(shape), numbers[len(works) :]))
    names, name_of = distinct([one.name for one in works])
    stream = looked_up([one.stream for one in works], work)
    device = looked_up([one.device for one in works], work)
    kind = looked_up([one.kind for one in works], work)
    name = looked_up(name_of, work)
    events = DeviceEvents(
        names=names, shapes=shapes, hosts=hosts, name=name, kind=kind, start_ns=start, end_ns=end,
        device=device, stream=stream, ordinal=ordinal, host=host, shape=shape,
    )  # fmt: skip
    joined = Trace(
        path=path, threads=tuple(sorted(set(threads.values()))), ops=HostEvents.empty(), regions=(), device_events=events,
        launched=launched, unanswered=unanswered, module_paths=module_paths, collectives=collectives, operators=operators,
        damage=damage,
    )  # fmt: skip
    return joined, operator, doubled


class Calls:
    """Host calls as columns, in any order; the table that they were read into is empty then."""

    def __init__(self, table: HostTable, threads: Threads) -> None:
        self.names = [call[0] for call in table.calls]
        number = {text: at for at, text in enumerate(sorted(set(threads.values())))}
        self.threads = [number[threads[call[1:]]] for call in table.calls]
        self.ranks = ranks(list(zip(self.names, self.threads, strict=True)))
        self.call, self.start, self.duration = table.call.release(), table.start.release(), table.duration.release()

    def take(self, places: Ids) -> None:
        """Keep the calls at these places, in their order."""
        self.call = taken(self.call, places)
        self.start = taken(self.start, places)
        self.duration = taken(self.duration, places)

    def sort(self, *, once: bool = False) -> Ids:
        """Sort the calls by start, without those that equal another if asked for; return the previous position of each."""
        order = time_order(view(self.start), view(self.duration), (view(self.call), self.ranks))
        if once and len(order):
            same = np.ones(len(order) - 1, np.bool_)
            for column in (self.start, self.duration, self.call):
                same &= np.diff(view(column)[order]) == 0
            order = order[np.append(True, ~same)]
        self.take(order)
        return order

    def matching(self, rows: Ids, pattern: re.Pattern[str]) -> HostEvents:
        """Return copies of some of the calls, those whose name speaks of something, in order of start."""
        speaks = np.array([pattern.search(name) is not None for name in self.names] or [False])
        found = copy(self)
        found.take(rows[speaks[view(self.call)[rows]]])
        found.sort()
        return found.freeze()

    def freeze(self) -> HostEvents:
        """Return the columns as frozen events; none are left here."""
        end = _ends(self.start, self.duration)
        del self.duration
        used = np.flatnonzero(np.bincount(np.unique(view(self.call)), minlength=len(self.names))).tolist()
        names, name_of = distinct(self.names, used)
        thread = looked_up(self.threads, self.call)
        name = looked_up(name_of, self.call)
        return HostEvents(names=names, name=name, start_ns=self.start, end_ns=end, thread=thread)


def _answer(
    correlation: array[int], launches: LaunchTable, threads: Threads
) -> tuple[array[int], HostEvents, Mapping[str, tuple[int, int]], HostEvents]:
    """Find the launch call of each device event.

    Return the calls' positions (negative: reason), those calls, counts by name, and, if kernels were kept, the launches that no
    event answers to with the begin and end of captures.
    """
    number, calls = launches.correlation.release(), Calls(launches, threads)
    _check_processes(number, calls, [str(call[1]) for call in launches.calls])
    rows = _outermost(number, calls)
    known = view(taken(number, rows))
    del number
    host, answers = blank("i", len(correlation)), np.zeros(len(rows), np.bool_)
    for block in blocks(len(host)):
        places = places_of(known, view(correlation)[block])
        view(host)[block] = places
        answers[places[places >= 0]] = True
    del known
    unanswered = calls.matching(rows[~answers], _CAPTURE) if launches.kernels else HostEvents.empty()
    calls.names = [name.partition(OF_KERNEL)[0] for name in calls.names]
    launched = _count(calls, rows, answers)
    calls.take(rows[answers])
    del rows
    moved = np.cumsum(answers, dtype=np.int32) - np.int32(1)
    del answers
    renumber(host, moved)
    del moved
    order = calls.sort()
    moved = np.empty(len(order), np.int32)
    moved[order] = np.arange(len(order), dtype=np.int32)
    del order
    renumber(host, moved)
    for block in blocks(len(host)):
        view(host)[block][view(correlation)[block] < 0] = NO_CORRELATION
    return host, calls.freeze(), launched, unanswered


def _check_processes(number: array[int], calls: Calls, process: Sequence[str]) -> None:
    """Raise TraceFormatError if two processes number their calls alike: which of them launched an event could not be told
    then."""
    processes, of_call = distinct(process)
    if len(processes) < 2:
        return
    numbers, owner = view(number), np.asarray(of_call)[view(calls.call)]
    order = np.lexsort((owner, numbers))
    alike = (np.diff(numbers[order]) == 0) & (np.diff(owner[order]) != 0)
    if alike.any():
        both = sorted({*owner[order[:-1][alike]].tolist(), *owner[order[1:][alike]].tolist()})
        named = first_of([processes[one] for one in both], _NAMED)
        raise TraceFormatError(
            f"processes {named} give {int(alike.sum())} launch calls the same numbers, as where the traces of several ranks were "
            "put into one file: which of them a device event belongs to is lost; give each process a trace of its own"
        )


def _outermost(number: array[int], calls: Calls) -> Ids:
    """Return the places of the calls in order of correlation, one each: a driver call inside a runtime call is left out."""
    order = np.argsort(view(number), kind="stable").astype(np.int32)
    fresh = np.ones(len(order), np.bool_)
    for block in blocks(len(order) - 1):
        ordered = view(number)[order[block.start : block.stop + 1]]
        fresh[block.start + 1 : block.stop + 1] = ordered[1:] != ordered[:-1]
    if fresh.all():
        return order
    keys = calls.ranks[view(calls.call)], -view(calls.duration).astype(np.int64), view(calls.start), view(number)
    return np.lexsort(keys).astype(np.int32)[fresh]


def places_of(known: Integers, wanted: Integers) -> Integers:
    """Return the position of each wanted value among the sorted known ones, or -1."""
    if not len(known):
        return np.full(len(wanted), NOTHING)
    place = np.searchsorted(known, wanted)
    np.minimum(place, len(known) - 1, out=place)
    place[known[place] != wanted] = NOTHING
    return place


def _count(calls: Calls, rows: Ids, answers: Flags) -> Mapping[str, tuple[int, int]]:
    """Count calls and unanswered calls by name. Calls that never launch anything are left out."""
    total, answered = (np.zeros(len(calls.names), np.int64) for _ in range(2))
    for block in blocks(len(rows)):
        kinds = view(calls.call)[rows[block]]
        total += np.bincount(kinds, minlength=len(total))
        answered += np.bincount(kinds[answers[block]], minlength=len(total))
    counts: dict[str, tuple[int, int]] = {}
    for name, here, good in zip(calls.names, total.tolist(), answered.tolist(), strict=True):
        known = counts.get(name, (0, 0))
        counts[name] = (known[0] + here, known[1] + here - good)
    return {name: (n, bad) for name, (n, bad) in sorted(counts.items()) if n and (bad < n or _LAUNCH.search(name))}


def of_several(host: Integers, num_hosts: int) -> NDArray[np.bool_]:
    """Mark the launch calls that several device events name.

    Args:
        host: call of each event, negative for none.
    """
    seen, several = np.zeros(num_hosts, np.bool_), np.zeros(num_hosts, np.bool_)
    for block in blocks(len(host)):
        some, counts = np.unique(host[block], return_counts=True)
        some, counts = some[some >= 0], counts[some >= 0]
        several[some[(counts > 1) | seen[some]]] = True
        seen[some] = True
    return several


def _ordinals(host: Integers, num_hosts: int) -> array[int]:
    """Return the number of each event among the events of its call; 0 where there is no call."""
    shared = of_several(host, num_hosts)
    if not shared.any():
        return blank("b", len(host))
    rows = np.flatnonzero((host >= 0) & shared[np.maximum(host, 0)]).astype(np.int32)
    rows = rows[np.argsort(host[rows], kind="stable")]
    ordered = host[rows]
    number = (np.arange(len(rows)) - np.searchsorted(ordered, ordered)).astype(np.int32)
    ordinal = blank(code_for(0, int(number.max())), len(host))
    view(ordinal)[rows] = number
    return ordinal


def _by_inputs(
    sizes: InputTable, events: tuple[Integers, ...], shape: Integers, number_of: Sequence[int]
) -> Iterator[tuple[OperatorInputs, int]]:
    """Call the shapes of events after the inputs of their operator; yield inputs of known cost with the time of their events.

    `sizes`, inputs by operator, are empty then, and `shape` of each event is changed. `events` are operator, start and end of
    each; `number_of` is the number that each of the inputs has among the shapes.
    """
    inputs, number, text = tuple(sizes.distinct), sizes.operator.release(), sizes.text.release()
    order = np.argsort(view(number), kind="stable").astype(np.int32)
    known, kinds = view(taken(number, order)), view(taken(text, order))
    del number, text, order
    operator, start, end = events
    seen, sum_ns = np.zeros(len(inputs), np.bool_), np.zeros(len(inputs), np.int64)
    for block in blocks(len(operator)):
        place = places_of(known, operator[block])
        hit = place >= 0
        kind = kinds[place[hit]]
        shape[block][hit] = np.array(number_of, shape.dtype)[kind]
        seen[kind] = True
        np.add.at(sum_ns, kind, (end[block] - start[block])[hit])
    yield from ((inputs[kind], int(sum_ns[kind])) for kind in np.flatnonzero(seen).tolist() if inputs[kind].name)


def _moved(said: Mapping[int, T], order: Ids) -> dict[int, T]:
    """Return what is said of some rows by their new places, ascending; rows that have no place are left out."""
    mark = np.zeros(1 + max(max(said, default=0), int(order.max(initial=0))), np.bool_)
    mark[list(said)] = True
    places = np.flatnonzero(mark[order])
    return {place: said[row] for place, row in zip(places.tolist(), order[places].tolist(), strict=True)}


def _ends(start: array[int], duration: array[int]) -> array[int]:
    end = blank("q", len(start))
    np.add(view(start), view(duration), out=view(end))
    return end


def freeze_operators(
    table: OperatorTable, threads: Threads, of_event: array[int], *, once: bool = False
) -> tuple[HostEvents, OperatorFacts]:
    """Freeze operators in order of start; the table is empty then.

    Args:
        of_event: number of the operator of each device event.
        once: what is written twice counts once.
    """
    calls = Calls(table, threads)
    order = calls.sort(once=once)
    number, given = taken(table.number.release(), order), taken(table.given.release(), order)
    sequence, backward = taken(table.sequence.release(), order), taken(table.backward.release(), order)
    facts = OperatorFacts(
        inputs=tuple(table.inputs.distinct), given=given, sequence=sequence,
        backward=array("b", view(backward).astype(np.int8).tobytes()), of_event=_positions(number, of_event),
    )  # fmt: skip
    return calls.freeze(), facts


def _positions(number: array[int], of_event: array[int]) -> array[int]:
    """The operator of each device event, or -1; of several with one number the first."""
    order: Ids = np.argsort(view(number), kind="stable").astype(np.int32)
    known = view(taken(number, order))
    found = blank("i", len(of_event))
    for block in blocks(len(of_event)):
        wanted = view(of_event)[block]
        places = places_of(known, wanted)
        view(found)[block] = np.where((places >= 0) & (wanted >= 0), order[places] if len(order) else NOTHING, NOTHING)
    return found
