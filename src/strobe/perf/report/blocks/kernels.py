"""Kernels on every page: by region of a run, by name on a device, and those that a change is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias, TypeVar

from strobe.perf.analysis.device.distribution import Distribution
from strobe.perf.analysis.device.kernel_table import KernelTable, KernelTableRow, Member
from strobe.perf.analysis.runs.kernels import RegionKernel, RegionKernels, region_kernels
from strobe.perf.analysis.structure.focal import FocalKernels
from strobe.perf.report.blocks.calls_words import line_word
from strobe.perf.report.blocks.fields import (
    Field,
    count,
    count_cell,
    exact_time,
    heads,
    numeric,
    padded,
    rows_of,
    share_of,
    table_of,
    time,
)
from strobe.perf.report.blocks.spread import spread
from strobe.perf.report.model import Block, Code, Missing, Notes, Row, Section, Table, Text
from strobe.perf.report.study import Profile, RunStudy, Subject
from strobe.perf.report.text import time_text

MAX_ROWS: Final = 20
MAX_CANDIDATE_ROWS: Final = 12
MAX_MEMBERS: Final = 8
"""Most full names listed for one group."""

T = TypeVar("T")
FocalRow: TypeAlias = tuple[str, int, Sequence[str], Distribution | Missing]
"""Trace, device and names of focal kernels, and their times or why there are none."""


def kernels_section(study: RunStudy, calls: bool = False) -> Section:
    """Build the section with one kernel table per variant; the reference's is open."""
    blocks: list[Block] = []
    missing = []
    for subject in study.subjects:
        if isinstance(subject.profile, Profile):
            blocks.append(_table(subject, subject.profile, region_kernels(subject.profile.partition), calls))
        else:
            missing.append(f"{subject.label}: {subject.profile}")
    if missing:
        blocks.append(Notes(tuple(missing)))
    lead = (
        f"Calls inside the traced {'samples' if calls else 'frame blocks'} by section and name. Only the exclusive column adds "
        "up: it counts every nanosecond once."
    )
    return Section("kernels", "Kernels and operators", lead, tuple(blocks))


def _table(subject: Subject, profile: Profile, found: RegionKernels, calls: bool) -> Table:
    whole = share_of(found.exclusive_ns, "no busy time")
    fields: tuple[Field[RegionKernel], ...] = (
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


def device_kernels(found: KernelTable, opening: str, top: int, *, by_shape: bool, collapsed: bool) -> Table:
    """Build the table of the kernels of a device.

    Args:
        opening: of the caption: device and window.
        top: rows that are shown; the others are one row together.
        by_shape: the rows are of kernels with the same shape.
        collapsed: the table opens on a click.
    """
    shape: Field[KernelTableRow] = Field(
        "shape",
        lambda row: row.shape or None,
        Code,
        hint="input sizes, or grid and block, as the trace gives them",
        missing="the trace gives none",
    )
    fields: tuple[Field[KernelTableRow], ...] = (
        Field("kernel", lambda row: row.group, Code, hint="normalised name of the group"),
        *((shape,) if by_shape else ()),
        Field("kind", lambda row: row.kind),
        count("n", lambda row: row.calls.n, "calls", total=sum),
        exact_time("exclusive", lambda row: row.exclusive_ns, "time no other row counts; adds up to busy", total=sum),
        numeric(
            "of busy",
            lambda row: row.exclusive_ns,
            "exclusive time / busy time of the device",
            show=share_of(found.busy_ns),
            total=sum,
        ),
        exact_time("sum", lambda row: row.calls.sum_ns, "of durations: inclusive, not additive where events overlap", total=sum),
        *spread(lambda row: row.calls, "µs"),
        numeric(
            "unlinked", lambda row: row.num_unlinked, "calls whose launch the trace does not hold", show=count_cell, total=sum
        ),
        count("names", lambda row: len(row.members), "different full names in the group"),
    )
    caption = (
        f"{opening}: {sum(row.calls.n for row in found.rows)} calls in {len(found.rows)} rows, busy {found.busy_ns / 1e6:.6f} ms."
    )
    notes = []
    if found.num_cut:
        notes.append(f"Calls cut by the edges of the window: {found.num_cut}. n counts them, times count their part inside.")
    if found.num_mangled:
        notes.append(f"{found.num_mangled} names could not be demangled and stand as they are.")
    return table_of(caption, fields, found.rows, top=top, notes=notes, sortable=True, collapsed=collapsed)


def full_names(rows: Sequence[KernelTableRow], name: str) -> Iterator[Table]:
    """Yield the table of full kernel names in groups whose own name is not the full one."""
    listed: dict[str, KernelTableRow] = {}
    for row in rows:
        if len(row.members) > 1 or row.members[0].name != row.group:
            listed.setdefault(row.group, row)
    fields: tuple[Field[tuple[str, Member]], ...] = (
        Field("kernel", lambda row: row[0], Code, total=lambda groups: next(iter(groups))),
        Field("full name", lambda row: row[1].name, Code),
        count("n", lambda row: row[1].n, total=sum),
        exact_time("sum", lambda row: row[1].sum_ns, "of durations", total=sum),
    )
    cells = [
        cell
        for row in listed.values()
        for cell in rows_of(fields, [(row.group, member) for member in row.members], top=MAX_MEMBERS, left="names", words_in=1)
    ]
    if cells:
        yield Table(f"{name}: full names of the groups above.", heads(fields), tuple(cells), collapsed=True)


def focal_fields(head: str, get: Callable[[T], FocalRow]) -> tuple[Field[T], ...]:
    """Return the columns that say which focal kernels a row is of, and how many calls; `head` stands above their names."""
    return (
        Field("trace", lambda row: get(row)[0]),
        count("device", lambda row: get(row)[1]),
        Field(head, lambda row: ", ".join(get(row)[2]), Code),
        count("occurrences", lambda row: calls if isinstance(calls := get(row)[3], Missing) else calls.n),
    )


def focal_section(traces: Sequence[tuple[str, Sequence[FocalKernels]]], pattern: str) -> Section:
    """Build the section with one row per trace and device: calls and times of the focal kernels.

    Args:
        traces: each with its label and the focal kernels on its devices.
        pattern: regular expression that the kernels were found by.
    """
    fields: tuple[Field[tuple[str, FocalKernels]], ...] = (
        *focal_fields("kernels", lambda row: (row[0], row[1].device, row[1].names, row[1].calls)),
        *spread(lambda row: row[1].calls, "ms", ("min", "max"), exact=True),
        exact_time("avg", lambda row: round(row[1].calls.mean_ns)),
        *spread(lambda row: row[1].calls, "ms", ("p50", "sum"), exact=True),
    )
    rows: list[Row] = []
    for label, found in traces:
        rows += rows_of(fields, [(label, each) for each in found])
        if not found:
            rows.append(padded(len(fields), Text(label), Missing("no device event has such a name", "none")))
    lead = "Device events whose name holds the regular expression, over the whole trace. Each counts in full, overlap or not."
    table = Table(f"Focal kernels: {pattern}", heads(fields), tuple(rows))
    return Section("kernels", "Focal kernels", lead, (table,))
