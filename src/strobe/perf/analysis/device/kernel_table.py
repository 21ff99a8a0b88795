"""Kernel table of any trace: device events by the time they own.

Every event that overlaps the window counts, cut to the window. Exclusive times add up to the device's busy time exactly; sums of
durations do not wherever events overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from strobe.perf.analysis.device.device_work import BUSY, DeviceView, EventView
from strobe.perf.analysis.device.distribution import Distribution, grouped
from strobe.perf.analysis.device.intervals import Ints
from strobe.perf.analysis.device.names import kernel_name
from strobe.perf.trace.columns import different
from strobe.perf.trace.events import DEVICE_KINDS


class Member(NamedTuple):
    """One full (demangled) name of a group."""

    name: str
    n: int
    sum_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTableRow:
    """All calls of one group; what its source does not tell is empty or None.

    Args:
        group: normalised name of the kernel or operator.
        calls: their durations; an operator's includes the operators it calls.
        exclusive_ns: time no other row counts: owned on the device's timeline, an operator's self time on a CPU.
        region: the innermost span that they are in.
        shape: input sizes, or grid and block, that all of its calls were launched with; empty unless grouped by shape.
        kind: one of `DEVICE_KINDS`.
        num_unlinked: calls whose launch is not known.
        members: the names that were grouped, those that took most first.
    """

    group: str
    calls: Distribution
    exclusive_ns: int | None = None
    region: str = ""
    shape: str = ""
    kind: str = ""
    num_unlinked: int | None = None
    members: tuple[Member, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTable:
    """The rows of one device by descending exclusive time.

    Args:
        device: its number.
        rows: `exclusive_ns` adds up to `busy_ns`.
        busy_ns: time in which at least one event ran.
        num_cut: calls of which only a part lies in the window.
        num_mangled: names that could not be demangled.
    """

    device: int
    rows: tuple[KernelTableRow, ...]
    busy_ns: int
    num_cut: int
    num_mangled: int


def kernel_table(view: DeviceView, by: Literal["name", "shape"] = "name") -> KernelTable:
    """Tabulate the events of one device by group, or by group and shape."""
    keys = _Keys(view, by)
    calls = grouped(lambda: ((part.length, keys.row_of(part.work)) for part in view.parts()), len(keys.rows))
    exclusive, busy_ns = np.zeros(len(keys.rows), np.int64), 0
    for slices in view.stretches():
        busy = slices.cause == BUSY
        busy_ns += int(slices.length[busy].sum())
        np.add.at(exclusive, keys.row_of(view.work.at(slices.event[busy])), slices.length[busy])
    unlinked = np.zeros(len(keys.rows), np.int64)
    for part in view.parts():
        unlinked += np.bincount(keys.row_of(part.work)[part.work.host < 0], minlength=len(keys.rows))
    members = keys.members(view)
    rows = [
        KernelTableRow(
            group=group, shape=shape, kind=kind, calls=found, exclusive_ns=own, num_unlinked=free, members=members[i]
        )
        for i, ((group, shape, kind), found, own, free) in enumerate(
            zip(keys.rows, calls, exclusive.tolist(), unlinked.tolist(), strict=True)
        )
        if found is not None
    ]  # fmt: skip
    return KernelTable(
        device=view.device,
        rows=tuple(sorted(rows, key=lambda row: (-(row.exclusive_ns or 0), -row.calls.sum_ns, row.group, row.shape, row.kind))),
        busy_ns=busy_ns,
        num_cut=view.num_cut,
        num_mangled=sum(kernel_name(name).mangled for name in keys.names),
    )


class _Keys:
    """Numbering of events by row of the table: by name, kind and, if asked for, shape."""

    def __init__(self, view: DeviceView, by: Literal["name", "shape"]) -> None:
        self._events, self._by_shape = view.trace.device_events, by == "shape"
        used = [different(self._code(part.work)) for part in view.parts()]
        self._codes = different(np.concatenate(used))
        ids: dict[tuple[str, str, str], int] = {}
        rows, self._names = [], []
        for code in self._codes.tolist():
            rest, kind = divmod(code, len(DEVICE_KINDS))
            name, shape = divmod(rest, len(self._events.shapes))
            text = self._events.names[name]
            row = (kernel_name(text).group, self._events.shapes[shape] if self._by_shape else "", DEVICE_KINDS[kind])
            rows.append(ids.setdefault(row, len(ids)))
            self._names.append(text)
        self._row = np.array(rows, np.int64)
        self.rows = tuple(ids)

    @property
    def names(self) -> frozenset[str]:
        """Names of the events inside the window."""
        return frozenset(self._names)

    def _code(self, work: EventView) -> Ints:
        code = work.name.astype(np.int64) * len(self._events.shapes)
        if self._by_shape:
            code += work.shape
        return code * len(DEVICE_KINDS) + work.kind

    def row_of(self, work: EventView) -> Ints:
        """Return the row of each event."""
        return self._row[np.searchsorted(self._codes, self._code(work))]

    def members(self, view: DeviceView) -> list[tuple[Member, ...]]:
        """Return the names of each row, longest time first."""
        count, total = (np.zeros(len(self._codes), np.int64) for _ in range(2))
        for part in view.parts():
            place = np.searchsorted(self._codes, self._code(part.work))
            count += np.bincount(place, minlength=len(count))
            np.add.at(total, place, part.length)
        found: list[dict[str, tuple[int, int]]] = [{} for _ in self.rows]
        for row, name, n, took in zip(self._row.tolist(), self._names, count.tolist(), total.tolist(), strict=True):
            full = kernel_name(name).full
            before = found[row].get(full, (0, 0))
            found[row][full] = (before[0] + n, before[1] + took)
        return [
            tuple(sorted((Member(full, *sums) for full, sums in of_row.items()), key=lambda m: (-m.sum_ns, m.name)))
            for of_row in found
        ]
