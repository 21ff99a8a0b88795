"""Gaps between the kernels of every device, by the kernels before and after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from strobe.perf.analysis.device.gaps import GapRow, GapTable, gap_table
from strobe.perf.analysis.device.idle import CAUSES
from strobe.perf.report.blocks.fields import Field, count, exact_time, heads, numeric, rows_of, share_of, time
from strobe.perf.report.model import Block, Code, Section, Table
from strobe.perf.report.text import exact_ms
from strobe.perf.report.trace_page.devices import CAUSE_HINTS, during
from strobe.perf.report.trace_page.seen import seen_devices
from strobe.perf.report.trace_study import TraceStudy


def _part(head: str, get: Callable[[GapRow], int], hint: str) -> Field[GapRow]:
    return exact_time(head, lambda row: get(row) or None, hint, total=sum)


def _idle(cause: str) -> Field[GapRow]:
    return _part(cause, lambda row: row.idle[cause], f"idle in the gaps: {CAUSE_HINTS[cause]}")


_PARTS: Final[tuple[Field[GapRow], ...]] = (
    *map(_idle, CAUSES),
    _part("DtoD copies", lambda row: row.dtod_ns, "time of device-to-device copies in the gaps"),
    _part("other copies", lambda row: row.other_copy_ns, "time of other copies in the gaps"),
    _part("memsets", lambda row: row.memset_ns, "time of memsets in the gaps"),
)


def gaps_section(study: TraceStudy) -> Section | None:
    """Build the section with one table of gaps per device; `None` if no device has a gap after a kernel."""
    blocks: list[Block] = []
    for name, view, *_ in seen_devices(study):
        found = gap_table(view)
        if found.rows:
            blocks.append(_table(found, f"{name}, {during(view)}", study.options.top, collapsed=bool(blocks)))
    if not blocks:
        return None
    lead = (
        "A gap is a stretch without any kernel, compute or communication, on any stream of the device. Copies and memsets do not "
        "end one: their time in it stands beside the idle causes, and together they add up to the gap exactly."
    )
    return Section("gaps", "Gaps between kernels", lead, tuple(blocks))


def _table(found: GapTable, opening: str, top: int, *, collapsed: bool) -> Table:
    dtod = "device-to-device copies that ran in the gaps"
    fields: tuple[Field[GapRow], ...] = (
        Field("after", lambda row: row.before, Code),
        Field("before", lambda row: row.after, Code, hint="the kernel that ends the gap"),
        count("n", lambda row: row.gaps.n, total=sum),
        exact_time("sum", lambda row: row.gaps.sum_ns, "of the gaps; adds up over rows", total=sum),
        numeric("of span", lambda row: row.gaps.sum_ns, show=share_of(found.span_ns), total=sum),
        time("p50", lambda row: row.gaps.p50_ns, "µs", "median, a sample (nearest rank)"),
        time("max", lambda row: row.gaps.max_ns, "µs", total=max),
        *(part for part in _PARTS if any(part.get(row) for row in found.rows)),
        count("DtoD n", lambda row: row.num_dtod, dtod, total=sum),
    )
    caption = (
        f"{opening}: kernels {exact_ms(found.kernel_ns)} + gaps {exact_ms(found.gap_ns)} + before the first kernel "
        f"{exact_ms(found.head_ns)} + after the last one {exact_ms(found.tail_ns)} = span {exact_ms(found.span_ns)} ms."
    )
    notes = ("Columns of causes, copies and memsets are exclusive: a row adds up to its sum. Those without time are left out.",)
    rows = rows_of(fields, found.rows, top=top, left="pairs", totals=(("all gaps", found.rows),))
    return Table(caption, heads(fields), rows, notes, sortable=True, collapsed=collapsed)
