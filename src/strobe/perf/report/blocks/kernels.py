"""Kernel tables (operators on a CPU) of every traced variant."""

from __future__ import annotations

from typing import Final

from strobe.perf.analysis.runs.kernels import KernelRow, KernelTable, kernel_table
from strobe.perf.report.blocks.calls_words import line_word
from strobe.perf.report.blocks.fields import Field, count, heads, numeric, rows_of, share_of, time
from strobe.perf.report.blocks.spread import spread
from strobe.perf.report.model import Block, Code, Notes, Section, Table
from strobe.perf.report.study import Profile, RunStudy, Subject
from strobe.perf.report.text import time_text

MAX_ROWS: Final = 20
MAX_CANDIDATE_ROWS: Final = 12


def kernels_section(study: RunStudy, calls: bool = False) -> Section:
    """Build the section with one kernel table per variant; the reference's is open."""
    blocks: list[Block] = []
    missing = []
    for subject in study.subjects:
        if isinstance(subject.profile, Profile):
            blocks.append(_table(subject, subject.profile, kernel_table(subject.profile.partition), calls))
        else:
            missing.append(f"{subject.label}: {subject.profile}")
    if missing:
        blocks.append(Notes(tuple(missing)))
    lead = (
        f"Calls inside the traced {'samples' if calls else 'frame blocks'} by section and name. Only the exclusive column adds "
        "up: it counts every nanosecond once."
    )
    return Section("kernels", "Kernels and operators", lead, tuple(blocks))


def _table(subject: Subject, profile: Profile, found: KernelTable, calls: bool) -> Table:
    whole = share_of(found.exclusive_ns, "no busy time")
    fields: tuple[Field[KernelRow], ...] = (
        Field("section", lambda row: line_word(row.region, calls)),
        Field(found.kind, lambda row: row.name, Code),
        count("calls", lambda row: row.calls.n, total=sum),
        time("exclusive", lambda row: row.exclusive_ns, "ms", "time no other row counts", total=sum),
        numeric("share", lambda row: row.exclusive_ns, "of the exclusive time of all rows", show=whole, total=sum),
        *spread(lambda row: row.calls, "µs", quiet=True),
        time("sum", lambda row: row.calls.sum_ns, "ms", "of durations; an operator's includes the operators it calls"),
    )
    first, last = profile.partition.indices[0], profile.partition.indices[-1]
    where = "" if calls else f" over frame blocks {first} to {last}"
    caption = f"{found.kind.capitalize()}s of {subject.label}: {len(found.rows)} rows{where}, on {profile.partition.device}."
    beside = tuple(
        f"Beside, thread {item.thread}, {' / '.join(item.path) or 'no section'}: {time_text(item.busy_ns)} ms busy, not counted."
        for item in profile.partition.overlap
    )
    top = MAX_ROWS if subject.is_reference else MAX_CANDIDATE_ROWS
    closed = not subject.is_reference
    rows = rows_of(fields, found.rows, top=top, words_in=1)
    return Table(caption, heads(fields), rows, beside, sortable=True, collapsed=closed)
