"""Gaps between kernels of a device, by the kernels before and after.

A gap is a stretch in which no kernel (compute or communication) runs on any stream of the device, between one that ended and one
that starts. Memory copies and memsets do not end a gap: what they take of it is listed beside the idle causes, so that

    sum of gaps = idle in them + copies in them + memsets in them

exactly, and `kernels + gaps + head + tail = span`, where `kernels` is the union of kernel time, `head` what lies before the first
kernel and `tail` what lies after the last one. Of several kernels that end together, the one that started last gives the gap its
name, of several that start together the longest. Where copies and memsets overlap inside a gap, the priority of the view decides
what owns the time. At the edge of a window a gap is cut.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from strobe.perf.analysis.device.device_work import BUSY, DeviceView, EventView, Slices, joined
from strobe.perf.analysis.device.distribution import Distribution, Grouped, grouped
from strobe.perf.analysis.device.idle import CAUSES
from strobe.perf.analysis.device.intervals import Covered, Intervals, Ints, overlaps
from strobe.perf.analysis.device.names import kernel_name
from strobe.perf.trace.events import DEVICE_KINDS

_DEVICE_TO_DEVICE: Final = re.compile(r"DtoD|Device -> Device|DeviceToDevice")
_PEER: Final = re.compile(r"PtoP|Peer")
_COLUMNS: Final = (*CAUSES, "memset", "dtod", "other_copies")


@dataclass(frozen=True, kw_only=True, slots=True)
class GapRow:
    """All gaps between a kernel of one group and a kernel of another.

    Args:
        before: group of the kernel that ended.
        after: group of the kernel that starts.
        gaps: their lengths.
        idle: time in them by cause, one for each of `idle.CAUSES`.
        num_dtod: device-to-device copies that ran in them.
        dtod_ns: time of these, inside the gaps.
        other_copy_ns: time of other copies, inside the gaps.
        memset_ns: time of memsets, inside the gaps.
    """

    before: str
    after: str
    gaps: Distribution
    idle: Mapping[str, int]
    num_dtod: int
    dtod_ns: int
    other_copy_ns: int
    memset_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GapTable:
    """The gaps of one device.

    Args:
        device: its number.
        rows: by descending sum.
        span_ns: length of the window.
        kernel_ns: union of kernel time, compute and communication.
        gap_ns: sum of all gaps.
        head_ns: from the start of the window to the first kernel.
        tail_ns: from the end of the last kernel to the end of the window.
    """

    device: int
    rows: tuple[GapRow, ...]
    span_ns: int
    kernel_ns: int
    gap_ns: int
    head_ns: int
    tail_ns: int


def gap_table(view: DeviceView) -> GapTable:
    """Tabulate the gaps between the kernels of one device."""
    begin, stop = view.begin_ns, view.end_ns
    groups, of_name = _groups(view)
    found = _Found(view, of_name, len(groups))
    found.search()
    pairs = np.array(sorted(found.spent), np.int64)
    lengths = grouped(lambda: found.lengths(pairs), len(pairs))
    rows, sums_ns = [], 0
    for number, gaps in zip(pairs.tolist(), lengths, strict=True):
        columns = found.spent[number].tolist()
        assert gaps is not None and gaps.sum_ns == sum(columns), "a gap does not add up"
        took = dict(zip(_COLUMNS, columns, strict=True))
        sums_ns += gaps.sum_ns
        rows.append(
            GapRow(
                before=groups[number // len(groups)],
                after=groups[number % len(groups)],
                gaps=gaps,
                idle={cause: took[cause] for cause in CAUSES},
                num_dtod=found.copies[number],
                dtod_ns=took["dtod"],
                other_copy_ns=took["other_copies"],
                memset_ns=took["memset"],
            )
        )
    head = stop - begin if found.first_ns is None else min(max(found.first_ns - begin, 0), stop - begin)
    return GapTable(
        device=view.device,
        rows=tuple(sorted(rows, key=lambda row: (-row.gaps.sum_ns, row.before, row.after))),
        span_ns=stop - begin,
        kernel_ns=found.kernel_ns,
        gap_ns=sums_ns,
        head_ns=head,
        tail_ns=stop - begin - found.kernel_ns - sums_ns - head,
    )


def _groups(view: DeviceView) -> tuple[list[str], Ints]:
    """Return the groups, and the group of each name."""
    ids: dict[str, int] = {}
    of_name = [ids.setdefault(kernel_name(name).group, len(ids)) for name in view.trace.device_events.names]
    return list(ids), np.array(of_name, np.int64)


class _Gaps(NamedTuple):
    """Gaps with their pair of groups: number of the group before times the number of groups, plus that of the group after."""

    start: Ints
    end: Ints
    pair: Ints


class _Found:
    """Totals of the gaps of a device, collected in parts.

    `spent` is the time in the gaps of each pair of groups by `_COLUMNS`, `copies` the number of device-to-device copies in them.
    """

    def __init__(self, view: DeviceView, of_name: Ints, num_groups: int) -> None:
        self._view, self._of_name, self._num_groups = view, of_name, num_groups
        names = view.trace.device_events.names
        inner = [bool(_DEVICE_TO_DEVICE.search(name)) and not _PEER.search(name) for name in names]
        self._inner = np.array(inner, np.bool_)
        self.spent: dict[int, Ints] = {}
        self.copies: Counter[int] = Counter()
        self.first_ns: int | None = None
        self.kernel_ns = 0

    def search(self) -> None:
        """Collect the totals of every gap."""
        slices = _Ahead(self._view.stretches())
        for gaps in self.gaps():
            if len(gaps.start):
                self._add(gaps, slices.until(int(gaps.end[-1])))
        covered = Covered()
        for _, kernels in self._kernels():
            if self.first_ns is None and len(kernels):
                self.first_ns = int(kernels.start[0])
            begin, stop = self._view.begin_ns, self._view.end_ns
            covered.add(np.clip(kernels.start, begin, stop), np.clip(kernels.end, begin, stop))
        self.kernel_ns = covered.total_ns

    def lengths(self, pairs: Ints) -> Iterator[Grouped]:
        """Yield the lengths of the gaps, and the position of each one's pair in `pairs`."""
        for gaps in self.gaps():
            yield gaps.end - gaps.start, np.searchsorted(pairs, gaps.pair)

    def _kernels(self) -> Iterator[tuple[int, EventView]]:
        for at, work in self._view.work.parts():
            kind = work.kind
            is_kernel = (kind == DEVICE_KINDS.index("kernel")) | (kind == DEVICE_KINDS.index("comm"))
            yield at, work.at(np.flatnonzero(is_kernel & (work.end > work.start)))

    def gaps(self) -> Iterator[_Gaps]:
        """Yield the gaps inside the window."""
        reached: int | None = None
        before = 0  # group of the kernel that reached so far
        for _, kernels in self._kernels():
            if not len(kernels):
                continue
            start, end, group = kernels.start, kernels.end, self._of_name[kernels.name]
            if reached is None:
                reached = int(start[0])
            ends, of_end = np.append(reached, end), np.append(before, group)
            far = np.maximum.accumulate(ends)
            latest = np.maximum.accumulate(np.where(ends == far, np.arange(len(ends)), 0))
            left, right = np.maximum(far[:-1], self._view.begin_ns), np.minimum(start, self._view.end_ns)
            some = (start > far[:-1]) & (right > left)
            pair = of_end[latest[:-1]] * self._num_groups + group
            yield _Gaps(left[some], right[some], pair[some])
            reached, before = int(far[-1]), int(of_end[latest[-1]])

    def _add(self, gaps: _Gaps, slices: Slices) -> None:
        found = overlaps(Intervals(slices.start, slices.end), Intervals(gaps.start, gaps.end))
        busy = slices.cause == BUSY
        column = slices.cause.astype(np.int64)
        copy = self._view.work.at(slices.event[busy])
        is_dtod = self._inner[copy.name] & (copy.kind == DEVICE_KINDS.index("memcpy"))
        other = np.where(copy.kind == DEVICE_KINDS.index("memset"), _COLUMNS.index("memset"), _COLUMNS.index("other_copies"))
        column[busy] = np.where(is_dtod, _COLUMNS.index("dtod"), other)
        pairs, row = np.unique(gaps.pair, return_inverse=True)
        spent = np.zeros((len(pairs), len(_COLUMNS)), np.int64)
        np.add.at(spent.reshape(-1), row[found.b] * len(_COLUMNS) + column[found.a], found.end - found.start)
        copying = column[found.a] == _COLUMNS.index("dtod")
        ran = np.unique(np.stack((slices.event[found.a][copying], found.b[copying])), axis=1)
        copies = np.bincount(row[ran[1]], minlength=len(pairs))
        for pair, took, n in zip(pairs.tolist(), spent, copies.tolist(), strict=True):
            self.spent[pair] = self.spent[pair] + took if pair in self.spent else took
            self.copies[pair] += n


class _Ahead:
    """Buffer over slices that are read in parts, in order of time."""

    def __init__(self, parts: Iterator[Slices]) -> None:
        self._parts, self._rest = parts, joined(())

    def until(self, moment: int) -> Slices:
        """Return the slices not yet returned whole, up to the one that reaches the moment."""
        held = [self._rest]
        while not len(held[-1].end) or held[-1].end[-1] < moment:
            part = next(self._parts, None)
            if part is None:
                break
            held.append(part)
        found = joined(held)
        self._rest = found.between(int(np.searchsorted(found.end, moment, "right")), None)
        return found
