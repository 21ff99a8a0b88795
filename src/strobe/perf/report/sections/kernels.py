"""The table of kernels (operators on a CPU) of every traced variant."""

from __future__ import annotations

from typing import Final

from strobe.perf.analysis.runs.kernels import KernelRow, KernelTable, kernel_table
from strobe.perf.report.model import Block, Cell, Code, Column, Count, Missing, Notes, Row, Section, Share, Table, Text, Time
from strobe.perf.report.study import Profile, Study, Subject
from strobe.perf.report.text import time_text

MAX_ROWS: Final = 20
MAX_CANDIDATE_ROWS: Final = 12


def kernels_section(study: Study) -> Section:
    """One table per variant; the reference's is open."""
    blocks: list[Block] = []
    missing = []
    for subject in study.subjects:
        if isinstance(subject.profile, Profile):
            blocks.append(_table(subject, subject.profile, kernel_table(subject.profile.partition)))
        else:
            missing.append(f"{subject.label}: {subject.profile}")
    if missing:
        blocks.append(Notes(tuple(missing)))
    lead = (
        "Calls inside the traced frame blocks by section and name. Only the exclusive column adds up: it counts every nanosecond "
        "once."
    )
    return Section("kernels", "Kernels and operators", lead, tuple(blocks))


def _table(subject: Subject, profile: Profile, found: KernelTable) -> Table:
    columns = (
        Column("section"),
        Column(found.kind),
        Column("calls", numeric=True),
        Column("exclusive", "ms", True, "time no other row counts"),
        Column("share", numeric=True, hint="of the exclusive time of all rows"),
        Column("min", "µs", True),
        Column("p50", "µs", True),
        Column("mean", "µs", True),
        Column("p99", "µs", True, "from 459 calls on; below that the maximum is all that can be said"),
        Column("max", "µs", True),
        Column("sum", "ms", True, "of durations; an operator's includes the operators it calls"),
    )
    limit = MAX_ROWS if subject.is_reference else MAX_CANDIDATE_ROWS
    rows = [_row(row, found.exclusive_ns) for row in found.rows[:limit]]
    rest = found.rows[limit:]
    if rest:
        rows.append(_rest(rest, found.exclusive_ns))
    blocks = profile.partition.indices
    caption = (
        f"{found.kind.capitalize()}s of {subject.label}: {len(found.rows)} rows over frame blocks {blocks[0]} to {blocks[-1]}, "
        f"on {profile.partition.device}."
    )
    beside = tuple(
        f"Beside, thread {item.thread}, {' / '.join(item.path) or 'no section'}: {time_text(item.busy_ns)} ms busy, not counted."
        for item in profile.partition.overlap
    )
    return Table(caption, columns, tuple(rows), beside, sortable=True, collapsed=not subject.is_reference)


def _share(part: int, whole: int) -> Cell:
    return Share(part / whole) if whole else Missing("no busy time", "-")


def _row(row: KernelRow, whole: int) -> Row:
    times = (Time(row.min_ns), Time(row.p50_ns), Time(row.mean_ns))
    p99 = Missing("", "-") if row.p99_ns is None else Time(row.p99_ns)
    head = (Text(row.region), Code(row.name), Count(row.n), Time(row.exclusive_ns), _share(row.exclusive_ns, whole))
    return Row((*head, *times, p99, Time(row.max_ns), Time(row.sum_ns)))


def _rest(rows: tuple[KernelRow, ...], whole: int) -> Row:
    exclusive = sum(row.exclusive_ns for row in rows)
    head = (
        Text(""),
        Text(f"{len(rows)} more rows"),
        Count(sum(row.n for row in rows)),
        Time(exclusive),
        _share(exclusive, whole),
    )
    return Row((*head, *(Text("") for _ in range(6))), strong=True)
