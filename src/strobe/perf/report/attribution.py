"""The page of an attribution run: which operator or module launched what. Kept apart from every page with measured times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strobe.perf.analysis.structure.attribution import Attributed, attribute_modules, attribute_operators
from strobe.perf.report.model import (
    SCHEMA_VERSION,
    Banner,
    Block,
    Code,
    Column,
    Count,
    Number,
    Report,
    Row,
    Section,
    Table,
    Text,
    Time,
)
from strobe.perf.trace.events import Trace

_COLUMNS = (
    Column("calls", numeric=True),
    Column("device", "ms", True, "device work launched while this one was the innermost"),
    Column("host, self", "ms", True, "on the host, without what it calls"),
    Column("host", "ms", True, "on the host, with what it calls"),
)


def attribution_report(traces: Sequence[tuple[str, Trace]], options: Sequence[str], *, sort_by: str, top: int) -> Report:
    """Build the page.

    Args:
        traces: each with its variant; read with operators.
        options: profiler options that were on.
        sort_by: order of the tables, one of `strobe.perf.analysis.structure.attribution.SORTS`.
        top: rows of a table.

    Raises:
        ConfigError: there is no such order.
    """
    on = ", ".join(options)
    caution = f"Taken with {on}: the profiler slowed the host unevenly. These times rank; they are no measurement."
    sections = tuple(_section(label, trace, sort_by, top) for label, trace in traces)
    return Report(
        v=SCHEMA_VERSION,
        speedups=(),
        title="Attribution: " + ", ".join(label for label, _ in traces),
        subtitle=f"with {on}, by {sort_by}",
        facts=(),
        banners=(Banner("caution", "No measurement.", (caution,)),),
        sections=sections,
    )


def _section(label: str, trace: Trace, sort_by: str, top: int) -> Section:
    return Section(f"attribution-{label}", label, "", tuple(_blocks(trace, sort_by, top)))


def _blocks(trace: Trace, sort_by: str, top: int) -> Iterator[Block]:
    if not len(trace.device_events) and sort_by == "device":
        sort_by = "self_host"
    for what, rows in (("operator", attribute_operators(trace, sort_by)), ("module", attribute_modules(trace, sort_by))):
        if rows:
            shown = tuple(_row(row) for row in rows[:top])
            caption = f"{what.capitalize()}s by {sort_by}: {len(shown)} of {len(rows)}."
            yield Table(caption, (Column(what), *_COLUMNS), shown)
    if trace.memory:
        peaks = tuple(
            Row((Code(track.device), *(_mib(values) for values in (track.allocated_bytes, track.reserved_bytes))))
            for track in trace.memory
        )
        columns = (Column("device"), Column("peak allocated", numeric=True), Column("peak held by the allocator", numeric=True))
        yield Table("Memory.", columns, peaks)


def _row(row: Attributed) -> Row:
    return Row((Code(row.name), Count(row.calls), Time(row.device_ns), Time(row.self_host_ns), Time(row.host_ns)))


def _mib(values: Sequence[int]) -> Number | Text:
    return Number(max(values) / 2**20, 1, "MiB") if any(values) else Text("-", "muted")
