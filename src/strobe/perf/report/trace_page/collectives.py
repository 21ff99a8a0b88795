"""Communication: its exposed time and, across ranks, time spent waiting, time spent moving data, and the last rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from strobe.perf.analysis.structure.collective_skew import CollectiveSkew, MemberTime, SkewKind, collective_skew
from strobe.perf.analysis.structure.collectives import CollectiveKind, CollectiveTime, Communication, communication
from strobe.perf.report.blocks.fields import Field, count, exact_time, left_out, numeric, share_cell, table_of, time
from strobe.perf.report.blocks.spread import spread
from strobe.perf.report.model import Block, Cell, Code, ExactTime, Notes, Number, Section, Table, Text
from strobe.perf.report.text import bytes_cell, exact_ms, time_text
from strobe.perf.report.trace_page.devices import device_name
from strobe.perf.report.trace_study import TraceStudy

T = TypeVar("T")
_OF_UNION: Final = "share of the union"


def collectives_section(study: TraceStudy) -> Section | None:
    """Build the section with communication per device and across ranks; `None` if there is none."""
    found = communication(study.traces, study.windows)
    if not found:
        return None
    names = [device_name(study, study.labels[one.trace], one.device) for one in found]
    blocks: list[Block] = [_devices(names, found), _kinds(names, found, study.options.top)]
    together = collective_skew(study.traces, study.windows)
    if together is not None:
        blocks += _across(names, together, study.options.top)
    lead = (
        "Exposed communication is what neither a kernel nor a memset of the same device hides. A collective's duration holds "
        "the wait for the last rank (skew) and the moving of data (transfer); only the traces of all ranks tell them apart."
    )
    return Section("collectives", "Communication", lead, tuple(blocks))


def _devices(names: Sequence[str], found: Sequence[Communication]) -> Table:
    exposed = "of the union, the part that neither a kernel nor a memset hides"
    fields: tuple[Field[tuple[str, Communication]], ...] = (
        Field("device", lambda row: row[0], Code),
        count("collectives", lambda row: row[1].n, "communication kernels"),
        exact_time("union", lambda row: row[1].union_ns, "at least one of them ran"),
        numeric("of span", lambda row: share_cell(row[1].union_ns, row[1].span_ns)),
        exact_time("exposed", lambda row: row[1].exposed_ns, exposed),
        numeric("of span", lambda row: share_cell(row[1].exposed_ns, row[1].span_ns)),
        numeric("hidden", lambda row: share_cell(row[1].union_ns - row[1].exposed_ns, row[1].union_ns), _OF_UNION),
        exact_time("sum", lambda row: row[1].sum_ns, "of durations"),
    )
    return table_of("Communication of each device.", fields, list(zip(names, found, strict=True)))


def _kind_fields(kind: Callable[[T], CollectiveKind]) -> tuple[Field[T], ...]:
    """Return the columns that identify a kind of collective."""
    none, message = "not recorded", "the larger of input and output of one rank"
    return (
        Field("collective", lambda row: kind(row).name, Code),
        Field("group", lambda row: kind(row).group or None, Code, missing=none),
        count("ranks", lambda row: len(kind(row).ranks) or None, missing=none),
        numeric("message", lambda row: kind(row).message_bytes, message, show=_megabytes, missing=none),
    )


def _megabytes(num_bytes: int) -> Number:
    return bytes_cell(num_bytes, "MB", 3)


def _kinds(names: Sequence[str], found: Sequence[Communication], top: int) -> Table:
    fields: tuple[Field[tuple[str, CollectiveTime]], ...] = (
        Field("device", lambda row: row[0], Code),
        *_kind_fields(lambda row: row[1].kind),
        count("n", lambda row: row[1].duration.n),
        exact_time("exposed", lambda row: row[1].exposed_ns, "the part that neither a kernel nor a memset hides"),
        exact_time("sum", lambda row: row[1].duration.sum_ns, "of durations"),
        *spread(lambda row: row[1].duration, "µs"),
    )
    told = [(name, kind) for name, one in zip(names, found, strict=True) for kind in one.kinds]
    told.sort(key=lambda item: -item[1].exposed_ns)
    notes = ["Durations hold the wait for the last rank. Exposed times add up only where collectives do not overlap."]
    cut = sum(one.num_cut for one in found)
    if cut:
        notes.append(f"Collectives cut by the edges of the window: {cut}. n counts them, times count their part inside.")
    left = sum(kind.exposed_ns for _, kind in told[top:])
    notes += left_out(told, top, f"rows are left out, with {time_text(left)} ms exposed together")
    shown = told[:top]
    caption = "Collectives by name, group and size."
    return table_of(caption, fields, shown, notes=notes, sortable=True, collapsed=len(shown) > 12)


def _across(names: Sequence[str], together: CollectiveSkew, top: int) -> Iterator[Block]:
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


def _members(names: Sequence[str], together: CollectiveSkew) -> Table:
    straggler, often = together.straggler, together.last_most_often

    def cost(row: tuple[str, MemberTime]) -> Cell:
        return Text(exact_ms(row[1].cost_ns), "bad") if row[1] == straggler else ExactTime(row[1].cost_ns)

    fields: tuple[Field[tuple[str, MemberTime]], ...] = (
        Field("device", lambda row: row[0], Code),
        count("collectives", lambda row: row[1].n),
        count("last", lambda row: row[1].last, "how many it started last, alone"),
        numeric("share", lambda row: share_cell(row[1].last, row[1].n)),
        Field("cost", cost, unit="ms", hint="by how much it came after the second last one, added up"),
        exact_time("waited", lambda row: row[1].wait_ns, "skew: from its own start to the last one's"),
        exact_time("transferred", lambda row: row[1].transfer_ns, "from the last start to its own end"),
        numeric("waited, of both", lambda row: share_cell(row[1].wait_ns, row[1].wait_ns + row[1].transfer_ns)),
    )
    rows = list(zip(names, together.times, strict=True))
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
    return table_of("Waiting and moving data in collectives where all ranks wait for all.", fields, rows, notes=notes)


def _meeting_kinds(together: CollectiveSkew, top: int) -> Table:
    fields: tuple[Field[SkewKind], ...] = (
        *_kind_fields(lambda one: one.kind),
        count("n", lambda one: one.skew.n),
        exact_time("skew", lambda one: one.skew.sum_ns, "from the first start to the last, added up"),
        time("skew p50", lambda one: one.skew.p50_ns, "µs"),
        time("max", lambda one: one.skew.max_ns, "µs"),
        exact_time("transfer", lambda one: one.transfer.sum_ns, "from the last start to the last end, added up"),
        time("transfer p50", lambda one: one.transfer.p50_ns, "µs"),
        time("max", lambda one: one.transfer.max_ns, "µs"),
        numeric("rate", _rate, "message / median transfer", missing="no size recorded"),
    )
    return table_of(
        "Skew against transfer, by name, group and size.",
        fields,
        together.kinds[:top],
        notes=left_out(together.kinds, top),
        sortable=True,
    )


def _rate(one: SkewKind) -> Cell | None:
    size, median = one.kind.message_bytes, one.transfer.p50_ns
    return Number(size / median, 1, "GB/s") if size and median > 0 else None
