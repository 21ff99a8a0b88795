"""The gaps between kernels of a device, by what ran before and after.

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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strobe.perf.analysis.device.distribution import Distribution, distributions
from strobe.perf.analysis.device.idle import CAUSES
from strobe.perf.analysis.device.intervals import Intervals, Ints, overlaps, reach, union
from strobe.perf.analysis.device.names import kernel_name
from strobe.perf.analysis.device.views import BUSY, DeviceView, Slices
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
    work, begin, stop = view.work, view.begin_ns, view.end_ns
    is_kernel = (work.kind == DEVICE_KINDS.index("kernel")) | (work.kind == DEVICE_KINDS.index("comm"))
    kernel = np.flatnonzero(is_kernel & (work.end > work.start))
    ran = union(np.clip(work.start[kernel], begin, stop), np.clip(work.end[kernel], begin, stop)).length_ns
    gaps, before, after = _gaps(view, kernel)
    groups, of_name = _groups(view)
    pair = of_name[work.name[before]] * len(groups) + of_name[work.name[after]]
    pairs, row = np.unique(pair, return_inverse=True)
    spent, copies = _spent(view, gaps, row, len(pairs))
    found = distributions(gaps.end - gaps.start, row, len(pairs))
    rows = []
    for number, lengths, columns, num_dtod in zip(pairs.tolist(), found, spent.tolist(), copies.tolist(), strict=True):
        assert lengths is not None and lengths.sum_ns == sum(columns), "a gap does not add up"
        took = dict(zip(_COLUMNS, columns, strict=True))
        rows.append(
            GapRow(
                before=groups[number // len(groups)],
                after=groups[number % len(groups)],
                gaps=lengths,
                idle={cause: took[cause] for cause in CAUSES},
                num_dtod=num_dtod,
                dtod_ns=took["dtod"],
                other_copy_ns=took["other_copies"],
                memset_ns=took["memset"],
            )
        )
    head = min(max(int(work.start[kernel[0]]) - begin, 0), stop - begin) if len(kernel) else stop - begin
    return GapTable(
        device=view.device,
        rows=tuple(sorted(rows, key=lambda row: (-row.gaps.sum_ns, row.before, row.after))),
        span_ns=stop - begin,
        kernel_ns=ran,
        gap_ns=gaps.length_ns,
        head_ns=head,
        tail_ns=stop - begin - ran - gaps.length_ns - head,
    )


def _gaps(view: DeviceView, kernel: Ints) -> tuple[Intervals, Ints, Ints]:
    """The gaps inside the window, and which events they lie between."""
    start, end = view.work.start[kernel], view.work.end[kernel]
    reached = reach(start, end)
    at = np.flatnonzero(start > reached)
    latest = np.maximum.accumulate(np.where(end == np.maximum.accumulate(end), np.arange(len(end)), 0))
    gap_start, gap_end = np.maximum(reached[at], view.begin_ns), np.minimum(start[at], view.end_ns)
    some = gap_end > gap_start
    at = at[some]
    return Intervals(gap_start[some], gap_end[some]), kernel[latest[at - 1]], kernel[at]


def _groups(view: DeviceView) -> tuple[list[str], Ints]:
    """The groups, and the group of each name."""
    ids: dict[str, int] = {}
    of_name = [ids.setdefault(kernel_name(name).group, len(ids)) for name in view.trace.device_events.names]
    return list(ids), np.array(of_name, np.int64)


def _spent(view: DeviceView, gaps: Intervals, row: Ints, num_rows: int) -> tuple[Ints, Ints]:
    """Time in the gaps of each row by `_COLUMNS`, and the number of device-to-device copies in them."""
    slices = view.slices
    found = overlaps(Intervals(slices.start, slices.end), gaps)
    column, is_dtod = _column_of(view, slices), _is_dtod(view)
    spent = np.zeros((num_rows, len(_COLUMNS)), np.int64)
    np.add.at(spent, (row[found.b], column[found.a]), found.end - found.start)
    copying = (slices.cause[found.a] == BUSY) & is_dtod[slices.event[found.a]]
    ran = np.unique(np.stack((slices.event[found.a][copying], found.b[copying])), axis=1)
    return spent, np.bincount(row[ran[1]], minlength=num_rows)


def _column_of(view: DeviceView, slices: Slices) -> Ints:
    kind = view.work.kind[slices.event]
    busy = np.where(kind == DEVICE_KINDS.index("memset"), _COLUMNS.index("memset"), _COLUMNS.index("other_copies"))
    busy[_is_dtod(view)[slices.event]] = _COLUMNS.index("dtod")
    return np.where(slices.cause == BUSY, busy, slices.cause)


def _is_dtod(view: DeviceView) -> NDArray[np.bool_]:
    """Whether each event of the device copies inside the memory of the device."""
    names = view.trace.device_events.names
    inner = [bool(_DEVICE_TO_DEVICE.search(name)) and not _PEER.search(name) for name in names]
    found: NDArray[np.bool_] = np.array(inner, np.bool_)[view.work.name] & (view.work.kind == DEVICE_KINDS.index("memcpy"))
    return found
