"""The kernel table of any trace: which device events took the time.

Every event that overlaps the window counts, cut to the window. Exclusive times add up to the device's busy time exactly; sums of
durations do not wherever events overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strobe.perf.analysis.device.distribution import Distribution, distributions
from strobe.perf.analysis.device.intervals import Ints
from strobe.perf.analysis.device.names import kernel_name
from strobe.perf.analysis.device.views import BUSY, DeviceView
from strobe.perf.trace.events import DEVICE_KINDS


class Member(NamedTuple):
    """One full (demangled) name of a group."""

    name: str
    n: int
    sum_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class HotRow:
    """All calls of one group on one device.

    Args:
        group: normalised name.
        shape: input sizes, or grid and block, that all of its calls were launched with; empty unless grouped by shape.
        kind: one of `DEVICE_KINDS`.
        calls: their durations.
        exclusive_ns: time no other row counts.
        num_unlinked: calls whose launch is not known.
        members: the names that were grouped, those that took most first.
    """

    group: str
    shape: str
    kind: str
    calls: Distribution
    exclusive_ns: int
    num_unlinked: int
    members: tuple[Member, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HotTable:
    """The rows of one device by descending exclusive time.

    Args:
        device: its number.
        rows: `exclusive_ns` adds up to `busy_ns`.
        busy_ns: time in which at least one event ran.
        num_cut: calls of which only a part lies in the window.
        num_mangled: names that could not be demangled.
    """

    device: int
    rows: tuple[HotRow, ...]
    busy_ns: int
    num_cut: int
    num_mangled: int


def hot_table(view: DeviceView, by: Literal["name", "shape"] = "name") -> HotTable:
    """Tabulate the events of one device by group, or by group and shape."""
    keys = _Keys(view, by)
    events = view.clipped()
    length = events.end - events.start
    key = keys.of_event[view.inside]
    calls = distributions(length, key, len(keys.rows))
    busy = view.slices.cause == BUSY
    exclusive = np.zeros(len(keys.rows), np.int64)
    np.add.at(exclusive, keys.of_event[view.slices.event[busy]], view.slices.length[busy])
    unlinked = np.bincount(key[view.work.host[view.inside] < 0], minlength=len(keys.rows))
    members = keys.members(view, length)
    rows = [
        HotRow(
            group=group, shape=shape, kind=kind, calls=found, exclusive_ns=own, num_unlinked=free, members=members[i]
        )
        for i, ((group, shape, kind), found, own, free) in enumerate(
            zip(keys.rows, calls, exclusive.tolist(), unlinked.tolist(), strict=True)
        )
        if found is not None
    ]  # fmt: skip
    return HotTable(
        device=view.device,
        rows=tuple(sorted(rows, key=lambda row: (-row.exclusive_ns, -row.calls.sum_ns, row.group, row.shape, row.kind))),
        busy_ns=int(view.slices.length[busy].sum()),
        num_cut=view.num_cut,
        num_mangled=sum(kernel_name(keys.names[name]).mangled for name in np.unique(view.work.name[view.inside]).tolist()),
    )


class _Keys:
    """The row each event of a device belongs to."""

    def __init__(self, view: DeviceView, by: Literal["name", "shape"]) -> None:
        work, stored = view.work, view.trace.device_events
        self.names = stored.names
        shape = work.shape if by == "shape" else np.zeros(len(work), np.int32)
        self.of_event, first = _compact(work.name, shape, work.kind)
        ids: dict[tuple[str, str, str], int] = {}
        rows = []
        for i in first.tolist():
            group = kernel_name(self.names[work.name[i]]).group
            row = (group, stored.shapes[shape[i]] if by == "shape" else "", DEVICE_KINDS[work.kind[i]])
            rows.append(ids.setdefault(row, len(ids)))
        self.of_event = np.array(rows, np.int64)[self.of_event]
        self.rows = tuple(ids)

    def members(self, view: DeviceView, length: Ints) -> list[tuple[Member, ...]]:
        """The names of each row, those that took most first."""
        key, name = self.of_event[view.inside], view.work.name[view.inside]
        pair, first = _compact(key, name)
        total = np.zeros(len(first), np.int64)
        np.add.at(total, pair, length)
        found: list[dict[str, tuple[int, int]]] = [{} for _ in self.rows]
        counts = np.bincount(pair, minlength=len(first))
        for i, n, took in zip(first.tolist(), counts.tolist(), total.tolist(), strict=True):
            of_row, full = found[key[i]], kernel_name(self.names[name[i]]).full
            before = of_row.get(full, (0, 0))
            of_row[full] = (before[0] + n, before[1] + took)
        return [
            tuple(sorted((Member(full, *sums) for full, sums in of_row.items()), key=lambda m: (-m.sum_ns, m.name)))
            for of_row in found
        ]


def _compact(*columns: NDArray[np.integer]) -> tuple[Ints, Ints]:
    """Number the different rows of some columns: the number of each row, and the position of the first row of each number."""
    order = np.lexsort(columns)
    fresh = np.zeros(len(order), np.bool_)
    fresh[:1] = True
    for values in columns:
        ranked = values[order]
        fresh[1:] |= ranked[1:] != ranked[:-1]
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(fresh) - 1
    return number, order[fresh]
