"""The section on kernels of every page: one kind of table, with the columns that its rows hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from strobe.perf.analysis.device.distribution import Distribution
from strobe.perf.analysis.device.kernel_table import KernelTableRow, Member
from strobe.perf.analysis.runs.kernels import region_kernels
from strobe.perf.analysis.structure.focal import FocalKernels
from strobe.perf.report.blocks.calls_words import line_word
from strobe.perf.report.blocks.fields import Field, count, count_cell, exact_time, heads, numeric, rows_of, share_of, table_of
from strobe.perf.report.blocks.spread import spread
from strobe.perf.report.model import Block, Code, Missing, Notes, Section, Table, Text
from strobe.perf.report.study import Profile, RunStudy
from strobe.perf.report.text import time_text

Word: TypeAlias = Literal["kernel", "operator"]
MAX_ROWS: Final = 20
MAX_CANDIDATE_ROWS: Final = 12
MAX_MEMBERS: Final = 8
"""Most full names listed for one group."""


class Listed(NamedTuple):
    """One row: calls of a kernel, or why there are none, and where they ran if the rows of a table differ in that."""

    kernel: KernelTableRow | Missing
    side: str = ""
    trace: str = ""
    device: int | None = None


def kernels_section(tables: Sequence[Table], *, exclusive: bool, missing: Sequence[str] = ()) -> Section:
    """Build the section from what `kernel_tables` gave.

    Args:
        exclusive: rows have the time that they own.
        missing: sentences on what has no table.
    """
    blocks: list[Block] = [*tables, *([Notes(tuple(missing))] if missing else ())]
    lead = "Calls by name. Sums count each call in full, overlap or not; an operator's include the operators it calls."
    if exclusive:
        lead += (
            " Only the exclusive column adds up (to the busy time, exactly): where events overlap, the one that ranks higher "
            "owns the time."
        )
    return Section("kernels", "Kernels", lead, tuple(blocks))


def kernel_tables(
    opening: str,
    rows: Sequence[Listed],
    *,
    top: int | None = None,
    word: Word = "kernel",
    notes: Iterable[str] = (),
    collapsed: bool = False,
) -> Iterator[Table]:
    """Yield the table of the rows, with the columns that they hold, and that of the full names of groups, if there are any.

    Args:
        opening: of the caption: what the calls are of, and where.
        rows: those shown first come first.
        top: rows that are shown; the others are one row together.
        word: what a name is of.
        notes: under the table.
        collapsed: the table opens on a click.
    """
    known = [row.kernel for row in rows if not isinstance(row.kernel, Missing)]
    own = [row.exclusive_ns for row in known if row.exclusive_ns is not None]
    whole = f", busy {sum(own) / 1e6:.6f} ms" if own else ""
    caption = f"{opening}: {sum(row.calls.n for row in known)} calls in {len(known)} rows{whole}."
    fields = tuple(_fields(rows, known, word, sum(own)))
    yield table_of(caption, fields, rows, top=top, notes=notes, sortable=True, collapsed=collapsed)
    shown = [row.kernel for row in rows[:top] if not isinstance(row.kernel, Missing)]
    yield from _full_names(f"{opening}: full names of the groups above.", shown, word)


def run_kernels(study: RunStudy, calls: bool = False) -> Section:
    """Build the section with one table per variant of a run.

    Args:
        calls: the run is of calls, not of frame blocks.
    """
    tables: list[Table] = []
    missing = []
    for subject in study.subjects:
        if not isinstance(subject.profile, Profile):
            missing.append(f"{subject.label}: {subject.profile}")
            continue
        found = subject.profile.partition
        word: Word = "operator" if found.device == "cpu" else "kernel"
        where = "traced samples" if calls else f"frame blocks {found.indices[0]} to {found.indices[-1]}"
        tables.extend(
            kernel_tables(
                f"{word.capitalize()}s of {subject.label}, {where}, on {found.device}",
                [Listed(row) for row in region_kernels(found, lambda region: line_word(region, calls))],
                top=MAX_ROWS if subject.is_reference else MAX_CANDIDATE_ROWS,
                word=word,
                notes=[
                    f"Beside, thread {item.thread}, {' / '.join(item.path) or 'no section'}: "
                    f"{time_text(item.busy_ns)} ms busy, not counted."
                    for item in found.overlap
                ],
                collapsed=not subject.is_reference,
            )
        )
    return kernels_section(tables, exclusive=bool(tables), missing=missing)


def focal_row(names: Sequence[str], calls: Distribution | Missing) -> KernelTableRow | Missing:
    """Return the row of the kernels that a pattern found, all calls together."""
    return calls if isinstance(calls, Missing) else KernelTableRow(group=", ".join(names), calls=calls)


def focal_section(traces: Sequence[tuple[str, Sequence[FocalKernels]]], pattern: str) -> Section:
    """Build the section with one row per trace and device: calls and times of the focal kernels.

    Args:
        traces: each with its label and the focal kernels on its devices.
        pattern: regular expression that the kernels were found by.
    """
    none = Missing("no device event has such a name", "none")
    rows = [
        row
        for label, found in traces
        for row in (
            [Listed(focal_row(each.names, each.calls), trace=label, device=each.device) for each in found]
            or [Listed(none, trace=label)]
        )
    ]
    return kernels_section([*kernel_tables(f"Focal kernels, {pattern}, over the whole traces", rows)], exclusive=False)


def _of(get: Callable[[KernelTableRow], Any]) -> Callable[[Listed], Any]:
    """Return the value of a row's kernel; nothing where there is none."""
    return lambda row: Text("") if isinstance(row.kernel, Missing) else get(row.kernel)


def _fields(rows: Sequence[Listed], known: Sequence[KernelTableRow], word: Word, busy_ns: int) -> Iterator[Field[Listed]]:
    """Yield the columns that hold something: where a kernel ran, what it is, what it took, and how its launch is known."""
    if any(row.side for row in rows):
        yield Field("side", lambda row: row.side)
    if any(row.trace for row in rows):
        yield Field("trace", lambda row: row.trace)
    if any(row.device is not None for row in rows):
        yield count("device", lambda row: Text("") if row.device is None else row.device)
    if any(row.region for row in known):
        yield Field("section", _of(lambda row: row.region))
    yield Field(
        word,
        lambda row: row.kernel if isinstance(row.kernel, Missing) else row.kernel.group,
        Code,
        hint="normalised name of the group",
    )
    if any(row.shape for row in known):
        hint = "input sizes, or grid and block, as the trace gives them"
        yield Field("shape", _of(lambda row: row.shape or None), Code, hint=hint, missing="the trace gives none")
    if any(row.kind for row in known):
        yield Field("kind", _of(lambda row: row.kind))
    yield count("calls", _of(lambda row: row.calls.n), total=sum)
    if any(row.exclusive_ns is not None for row in known):
        yield exact_time("exclusive", _of(lambda row: row.exclusive_ns), "time no other row counts; adds up to busy", total=sum)
        share = share_of(busy_ns, "no busy time")
        yield numeric("of busy", _of(lambda row: row.exclusive_ns), "exclusive time / busy time", show=share, total=sum)
    yield exact_time(
        "sum", _of(lambda row: row.calls.sum_ns), "of durations: inclusive, not additive where events overlap", total=sum
    )
    yield from spread(_of(lambda row: row.calls), "ms", exact=True)
    if any(row.num_unlinked is not None for row in known):
        hint = "calls whose launch the trace does not hold"
        yield numeric("unlinked", _of(lambda row: row.num_unlinked), hint, show=count_cell, total=sum)
    if any(row.members for row in known):
        yield count("names", _of(lambda row: len(row.members)), "different full names in the group")


def _full_names(caption: str, shown: Sequence[KernelTableRow], word: Word) -> Iterator[Table]:
    """Yield the table of full names in the groups shown whose own name is not the full one."""
    groups: dict[str, KernelTableRow] = {}
    for kernel in shown:
        if any(member.name != kernel.group for member in kernel.members):
            groups.setdefault(kernel.group, kernel)
    fields: tuple[Field[tuple[str, Member]], ...] = (
        Field(word, lambda row: row[0], Code, total=lambda groups: next(iter(groups))),
        Field("full name", lambda row: row[1].name, Code),
        count("calls", lambda row: row[1].n, total=sum),
        exact_time("sum", lambda row: row[1].sum_ns, "of durations", total=sum),
    )
    cells = [
        cell
        for row in groups.values()
        for cell in rows_of(fields, [(row.group, member) for member in row.members], top=MAX_MEMBERS, left="names", words_in=1)
    ]
    if cells:
        yield Table(caption, heads(fields), tuple(cells), collapsed=True)
