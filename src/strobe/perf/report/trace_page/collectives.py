"""Communication: how much of it nothing hides, and, across ranks, waiting against moving data and who the others wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strobe.perf.analysis.structure.collectives import CollectiveKind, CollectiveTime, Communication, communication
from strobe.perf.analysis.structure.meetings import Meetings, MemberTime, meetings
from strobe.perf.report.model import (
    Block,
    Cell,
    Code,
    Column,
    Count,
    ExactTime,
    Missing,
    Notes,
    Number,
    Row,
    Section,
    Table,
    Text,
    Time,
)
from strobe.perf.report.text import exact_ms, time_text
from strobe.perf.report.trace_page.devices import SPREAD_COLUMNS, device_name, share_cell, spread_cells
from strobe.perf.report.trace_page.study import TraceStudy


def collectives_section(study: TraceStudy) -> Section | None:
    """Communication of each device and across ranks; `None` if there is none."""
    found = communication(study.traces, study.windows)
    if not found:
        return None
    names = [device_name(study, study.labels[one.trace], one.device) for one in found]
    blocks: list[Block] = [_devices(names, found), _kinds(names, found, study.options.top)]
    together = meetings(study.traces, study.windows)
    if together is not None:
        blocks += _across(names, together, study.options.top)
    lead = (
        "Exposed communication is what neither a kernel nor a memset of the same device hides. A collective's duration holds "
        "the wait for the last rank (skew) and the moving of data (transfer); only the traces of all ranks tell them apart."
    )
    return Section("collectives", "Communication", lead, tuple(blocks))


def _devices(names: Sequence[str], found: Sequence[Communication]) -> Table:
    columns = (
        Column("device"), Column("collectives", numeric=True, hint="communication kernels"),
        Column("union", "ms", True, "at least one of them ran"), Column("of span", numeric=True),
        Column("exposed", "ms", True, "of the union, the part that neither a kernel nor a memset hides"),
        Column("of span", numeric=True), Column("hidden", numeric=True, hint="share of the union"),
        Column("sum", "ms", True, "of durations"),
    )  # fmt: skip
    rows = []
    for name, one in zip(names, found, strict=True):
        union = (ExactTime(one.union_ns), share_cell(one.union_ns, one.span_ns))
        exposed = (ExactTime(one.exposed_ns), share_cell(one.exposed_ns, one.span_ns))
        hidden = share_cell(one.union_ns - one.exposed_ns, one.union_ns)
        rows.append(Row((Code(name), Count(one.n), *union, *exposed, hidden, ExactTime(one.sum_ns))))
    return Table("Communication of each device.", columns, tuple(rows))


def _kind_cells(kind: CollectiveKind) -> tuple[Cell, ...]:
    ranks: Cell = Count(len(kind.ranks)) if kind.ranks else Missing("not recorded", "-")
    size = kind.message_bytes
    message: Cell = Missing("not recorded", "-") if size is None else Number(size / 1e6, 3, "MB")
    return Code(kind.name), Code(kind.group) if kind.group else Missing("not recorded", "-"), ranks, message


_KIND_COLUMNS = (
    Column("collective"), Column("group"), Column("ranks", numeric=True),
    Column("message", numeric=True, hint="the larger of input and output of one rank"),
)  # fmt: skip


def _kinds(names: Sequence[str], found: Sequence[Communication], top: int) -> Table:
    columns = (
        Column("device"), *_KIND_COLUMNS, Column("n", numeric=True),
        Column("exposed", "ms", True, "the part that neither a kernel nor a memset hides"),
        Column("sum", "ms", True, "of durations"), *SPREAD_COLUMNS,
    )  # fmt: skip
    told = [(name, kind) for name, one in zip(names, found, strict=True) for kind in one.kinds]
    told.sort(key=lambda item: -item[1].exposed_ns)
    rows = [_kind_row(name, kind) for name, kind in told[:top]]
    rest = [kind for _, kind in told[top:]]
    notes = ["Durations hold the wait for the last rank. Exposed times add up only where collectives do not overlap."]
    cut = sum(one.num_cut for one in found)
    if cut:
        notes.append(f"Collectives cut by the edges of the window: {cut}. n counts them, times count their part inside.")
    if rest:
        left = sum(kind.exposed_ns for kind in rest)
        notes.append(f"{len(rest)} more rows are left out, with {time_text(left)} ms exposed together.")
    return Table(
        "Collectives by name, group and size.", columns, tuple(rows), tuple(notes), sortable=True, collapsed=len(rows) > 12
    )


def _kind_row(name: str, kind: CollectiveTime) -> Row:
    times = (Count(kind.duration.n), ExactTime(kind.exposed_ns), ExactTime(kind.duration.sum_ns))
    return Row((Code(name), *_kind_cells(kind.kind), *times, *spread_cells(kind.duration)))


def _across(names: Sequence[str], together: Meetings, top: int) -> Iterator[Block]:
    clock = together.clock
    if together.times:
        yield _members(names, together)
        yield _meeting_kinds(together, top)
    notes = [f"{together.matched} collectives were found on every rank that has a trace, by {together.by}."]
    if together.unmatched:
        notes.append(f"{together.unmatched} have no counterpart in the other traces and are not split.")
    if together.one_way:
        notes.append(f"{together.one_way} go one way (not all ranks wait for all others) and are not split.")
    if together.cut:
        notes.append(f"{together.cut} are cut by the edges of the window and are not split.")
    notes += [f"{problem}." for problem in together.problems]
    if clock.checked and clock.aligned:
        seen = f"at most {time_text(clock.worst_ns, 'µs')} µs before" if clock.worst_ns else "never before"
        notes.append(
            f"Clocks: a collective ends on one rank {seen} it has started on all, so they may be the same; the collectives alone "
            f"would not show a difference below {time_text(clock.slack_ns, 'µs')} µs, and skews are exact to within the true one."
        )
    elif clock.checked:
        notes.append(
            f"Clocks of ranks not aligned: {clock.violated} of {clock.checked} collectives end on one rank before another has "
            f"started, by up to {time_text(clock.worst_ns)} ms ({names[clock.ahead]} is ahead of {names[clock.behind]}). "
            "Skew and transfer would mean nothing and are not shown."
        )
    yield Notes(tuple(notes))


def _members(names: Sequence[str], together: Meetings) -> Table:
    columns = (
        Column("device"), Column("collectives", numeric=True),
        Column("last", numeric=True, hint="how many it started last, alone"),
        Column("share", numeric=True), Column("cost", "ms", True, "by how much it came after the second last one, added up"),
        Column("waited", "ms", True, "skew: from its own start to the last one's"),
        Column("transferred", "ms", True, "from the last start to its own end"),
        Column("waited, of both", numeric=True),
    )  # fmt: skip
    straggler, often = together.straggler, together.last_most_often
    rows = [_member(name, one, one == straggler) for name, one in zip(names, together.times, strict=True)]
    notes = []
    if straggler is not None and often is not None:
        name = names[together.times.index(straggler)]
        notes.append(
            f"The others wait longest for {name}: it costs each of them {time_text(straggler.cost_ns)} ms, the time from the "
            f"second last start to its own, added up; it starts {straggler.last} of {straggler.n} collectives last."
        )
        if often != straggler:
            name = names[together.times.index(often)]
            notes.append(f"Last most often is {name}: {often.last} of {often.n}, which costs {time_text(often.cost_ns)} ms.")
    return Table("Waiting and moving data in collectives where all ranks wait for all.", columns, tuple(rows), tuple(notes))


def _member(name: str, one: MemberTime, is_straggler: bool) -> Row:
    cost: Cell = Text(exact_ms(one.cost_ns), "bad") if is_straggler else ExactTime(one.cost_ns)
    times = (cost, ExactTime(one.wait_ns), ExactTime(one.transfer_ns))
    both = share_cell(one.wait_ns, one.wait_ns + one.transfer_ns)
    return Row((Code(name), Count(one.n), Count(one.last), share_cell(one.last, one.n), *times, both))


def _meeting_kinds(together: Meetings, top: int) -> Table:
    columns = (
        *_KIND_COLUMNS, Column("n", numeric=True),
        Column("skew", "ms", True, "from the first start to the last, added up"), Column("skew p50", "µs", True),
        Column("max", "µs", True), Column("transfer", "ms", True, "from the last start to the last end, added up"),
        Column("transfer p50", "µs", True), Column("max", "µs", True),
        Column("rate", numeric=True, hint="message / median transfer"),
    )  # fmt: skip
    rows = []
    for one in together.kinds[:top]:
        skew = (ExactTime(one.skew.sum_ns), Time(one.skew.p50_ns), Time(one.skew.max_ns))
        transfer = (ExactTime(one.transfer.sum_ns), Time(one.transfer.p50_ns), Time(one.transfer.max_ns))
        size, median = one.kind.message_bytes, one.transfer.p50_ns
        rate: Cell = Number(size / median, 1, "GB/s") if size and median > 0 else Missing("no size recorded", "-")
        rows.append(Row((*_kind_cells(one.kind), Count(one.skew.n), *skew, *transfer, rate)))
    rest = len(together.kinds) - len(rows)
    notes = (f"{rest} more rows are left out.",) if rest else ()
    return Table("Skew against transfer, by name, group and size.", columns, tuple(rows), notes, sortable=True)
