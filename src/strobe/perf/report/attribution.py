"""The page of an attribution run: operators and modules that launched each kernel; separate from pages with measured times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strobe.perf.analysis.structure.attribution import Attributed, attribute_modules, attribute_operators
from strobe.perf.report.blocks.fields import Field, count, numeric, table_of, time
from strobe.perf.report.blocks.page import page
from strobe.perf.report.model import Banner, Block, Cell, Code, Report, Section, Text
from strobe.perf.report.text import bytes_cell
from strobe.perf.trace.events import MemoryTrack, Trace


def attribution_report(traces: Sequence[tuple[str, Trace]], options: Sequence[str], *, sort_by: str, top: int) -> Report:
    """Build the page of an attribution run.

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
    sections = tuple(Section(f"attribution-{label}", label, "", tuple(_blocks(trace, sort_by, top))) for label, trace in traces)
    return page(
        title="Attribution: " + ", ".join(label for label, _ in traces),
        subtitle=f"with {on}, by {sort_by}",
        banners=(Banner("caution", "No measurement.", (caution,)),),
        sections=sections,
    )


def _blocks(trace: Trace, sort_by: str, top: int) -> Iterator[Block]:
    if not len(trace.device_events) and sort_by == "device":
        sort_by = "self_host"
    for what, rows in (("operator", attribute_operators(trace, sort_by)), ("module", attribute_modules(trace, sort_by))):
        if rows:
            fields: tuple[Field[Attributed], ...] = (
                Field(what, lambda row: row.name, Code),
                count("calls", lambda row: row.calls),
                time("device", lambda row: row.device_ns, "ms", "work launched while this one was the innermost"),
                time("host, self", lambda row: row.self_host_ns, "ms", "on the host, without what it calls"),
                time("host", lambda row: row.host_ns, "ms", "on the host, with what it calls"),
            )
            shown = rows[:top]
            yield table_of(f"{what.capitalize()}s by {sort_by}: {len(shown)} of {len(rows)}.", fields, shown)
    if trace.memory:
        tracks: tuple[Field[MemoryTrack], ...] = (
            Field("device", lambda track: track.device, Code),
            numeric("peak allocated", lambda track: track.allocated_bytes, show=_peak),
            numeric("peak held by the allocator", lambda track: track.reserved_bytes, show=_peak),
        )
        yield table_of("Memory.", tracks, trace.memory)


def _peak(values: Sequence[int]) -> Cell:
    return bytes_cell(max(values), "MiB", 1) if any(values) else Text("-", "muted")
