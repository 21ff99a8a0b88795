"""Communication of each device: its time by kind of collective, and the part that no computation hides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strobe.perf.analysis.device.device_work import EventView, events_by_device, windowed_events
from strobe.perf.analysis.device.distribution import Distribution, distribution
from strobe.perf.analysis.device.intervals import Covered, Intervals, Ints, column, overlaps, union
from strobe.perf.analysis.window import Window
from strobe.perf.trace.events import DEVICE_KINDS, Collective, Trace

_ELEMENT_BYTES: Final = {
    "double": 8, "long": 8, "int64": 8, "float64": 8, "complexfloat": 8, "complexdouble": 16, "float": 4, "int": 4, "int32": 4,
    "float32": 4, "half": 2, "bfloat16": 2, "float16": 2, "short": 2, "int16": 2, "byte": 1, "char": 1, "bool": 1, "int8": 1,
    "uint8": 1,
}  # fmt: skip
_COMM: Final = DEVICE_KINDS.index("comm")
_COMPUTE: Final = (DEVICE_KINDS.index("kernel"), DEVICE_KINDS.index("memset"))


class CollectiveKind(NamedTuple):
    """Properties that equal collectives share: name, group, ranks, sizes, dtype."""

    name: str
    group: str
    ranks: tuple[int, ...]
    in_elements: int
    out_elements: int
    dtype: str

    @property
    def message_bytes(self) -> int | None:
        """Bytes of the larger side, as bandwidths of collectives count them; `None` if the trace lacks the sizes."""
        size = 1 if self.dtype.lower().startswith("float8") else _ELEMENT_BYTES.get(self.dtype.lower())
        elements = max(self.in_elements, self.out_elements)
        return None if size is None or elements < 0 else size * elements


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveTime:
    """The collectives of one kind on one device.

    Args:
        kind: their common properties.
        duration: duration of each, waiting included.
        exposed_ns: time in which one of them ran and neither a kernel nor a memset did.
    """

    kind: CollectiveKind
    duration: Distribution
    exposed_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Communication:
    """The communication of one device of one trace.

    Args:
        trace: position among the given traces.
        device: its number.
        span_ns: from the first event of the device to the last one's end, of any kind; the window's length if there is one.
        n: communication kernels.
        num_cut: of these, how many the window cuts; only their part inside is counted.
        sum_ns: sum of their durations.
        union_ns: time in which at least one of them ran.
        exposed_ns: the part of it in which neither a kernel nor a memset ran.
        kinds: by descending exposed time.
    """

    trace: int
    device: int
    span_ns: int
    n: int
    num_cut: int
    sum_ns: int
    union_ns: int
    exposed_ns: int
    kinds: tuple[CollectiveTime, ...]


class Member(NamedTuple):
    """The collectives of one device in order of start, on the clock of all traces.

    `kind` counts into `kinds`; `whole` is false where the window cuts one, so that its start or end is not its own.
    """

    kinds: tuple[CollectiveKind, ...]
    kind: Ints
    sequence: Ints
    start: Ints
    end: Ints
    whole: NDArray[np.bool_]


def communication(traces: Sequence[Trace], windows: Sequence[Window | None] | None = None) -> tuple[Communication, ...]:
    """Account for the communication of each device that has any, in the order of the traces."""
    return tuple(found for found, _ in members(traces, windows or [None] * len(traces)))


def members(traces: Sequence[Trace], windows: Sequence[Window | None]) -> Iterator[tuple[Communication, Member]]:
    """Yield the communication of each device that has any, and its collectives one by one."""
    for number, (trace, window) in enumerate(zip(traces, windows, strict=True)):
        told = {one.event: one for one in trace.collectives}
        for device, work in events_by_device(trace):
            found = [part.which[part.work.kind == _COMM] for part in windowed_events(work, window)]
            comm = work.at(np.concatenate(found))
            if not len(comm):
                continue
            start, end = comm.start, comm.end
            if window is not None:
                start, end = np.maximum(start, window.start_ns), np.minimum(end, window.end_ns)
            begin, stop = (work.start[0], work.end.max()) if window is None else (window.start_ns, window.end_ns)
            member = _member(trace, told, comm.position, start, end)
            yield _account(member, _computing(trace, work, window), (number, device, int(stop - begin))), member


def _computing(trace: Trace, work: EventView, window: Window | None) -> Iterator[Intervals]:
    """Yield the time in which kernels and memsets ran, on the clock of all traces, in parts."""
    covered = Covered()
    for part in windowed_events(work, window):
        own = np.isin(part.work.kind, _COMPUTE)
        found = covered.add(part.start[own] + trace.base_ns, part.end[own] + trace.base_ns)
        some = found.end > found.start
        yield Intervals(found.start[some], found.end[some])


def _member(trace: Trace, told: Mapping[int, Collective], position: Ints, start: Ints, end: Ints) -> Member:
    names, of_name = trace.device_events.names, trace.device_events.name
    kinds: dict[CollectiveKind, int] = {}
    kind, sequence = [], []
    for event in position.tolist():
        one = told.get(event, Collective(event=event, name=""))
        what = CollectiveKind(
            one.name or names[of_name[event]], one.group, one.ranks, one.in_elements, one.out_elements, one.dtype
        )
        kind.append(kinds.setdefault(what, len(kinds)))
        sequence.append(one.sequence)
    columns = np.array(kind, np.int64), np.array(sequence, np.int64)
    events = trace.device_events
    whole = (column(events.start_ns)[position] == start) & (column(events.end_ns)[position] == end)
    return Member(tuple(kinds), *columns, start + trace.base_ns, end + trace.base_ns, whole)


def _account(member: Member, compute: Iterator[Intervals], where: tuple[int, int, int]) -> Communication:
    order = np.argsort(member.kind, kind="stable")
    of_kind = np.split(order, np.flatnonzero(np.diff(member.kind[order])) + 1)
    everything, *unions = (union(member.start[own], member.end[own]) for own in (np.arange(len(order)), *of_kind))
    exposed, *exposed_of = _exposed((everything, *unions), compute)
    kinds = []
    for kind, own, exposed_ns in zip(member.kinds, of_kind, exposed_of, strict=True):
        duration = distribution(member.end[own] - member.start[own])
        assert duration is not None
        kinds.append(CollectiveTime(kind=kind, duration=duration, exposed_ns=exposed_ns))
    trace, device, span_ns = where
    return Communication(
        trace=trace,
        device=device,
        span_ns=span_ns,
        n=len(member.start),
        num_cut=int((~member.whole).sum()),
        sum_ns=int((member.end - member.start).sum()),
        union_ns=everything.length_ns,
        exposed_ns=exposed,
        kinds=tuple(sorted(kinds, key=lambda row: (-row.exposed_ns, -row.duration.sum_ns, row.kind))),
    )


def _exposed(communicating: Sequence[Intervals], compute: Iterator[Intervals]) -> list[int]:
    """Compute the length of each set of communication intervals outside the compute intervals, ns."""
    exposed = [intervals.length_ns for intervals in communicating]
    for computing in compute:
        for number, (start, end) in enumerate(communicating if len(computing.start) else ()):
            near = slice(
                int(np.searchsorted(end, computing.start[0], "right")), int(np.searchsorted(start, computing.end[-1], "left"))
            )
            shared = overlaps(Intervals(start[near], end[near]), computing)
            exposed[number] -= int((shared.end - shared.start).sum())
    return exposed
