"""Kernels of every device."""

from __future__ import annotations

from collections.abc import Iterator

from strobe.perf.analysis.device.kernel_table import KernelTable
from strobe.perf.report.blocks.kernels import Listed, kernel_tables, kernels_section
from strobe.perf.report.model import Section
from strobe.perf.report.trace_page.devices import during
from strobe.perf.report.trace_page.seen import seen_devices
from strobe.perf.report.trace_study import TraceStudy


def device_kernels(study: TraceStudy) -> Section | None:
    """Build the section on kernels with one table per device; `None` without device events."""
    top = study.options.top
    tables = [
        table
        for at, (name, view, _, found) in enumerate(seen_devices(study))
        for table in kernel_tables(
            f"{name}, {during(view)}", [Listed(row) for row in found.rows], top=top, notes=_notes(found), collapsed=at > 0
        )
    ]
    return kernels_section(tables, exclusive=True) if tables else None


def _notes(found: KernelTable) -> Iterator[str]:
    if found.num_cut:
        yield f"Calls cut by the edges of the window: {found.num_cut}. Each counts as one, times count their part inside."
    if found.num_mangled:
        yield f"{found.num_mangled} names could not be demangled and stand as they are."
