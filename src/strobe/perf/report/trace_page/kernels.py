"""Kernel table of every device."""

from __future__ import annotations

from strobe.perf.report.blocks.kernels import device_kernels, full_names
from strobe.perf.report.model import Block, Section
from strobe.perf.report.trace_page.devices import during
from strobe.perf.report.trace_page.seen import seen_devices
from strobe.perf.report.trace_study import TraceStudy


def kernels_section(study: TraceStudy) -> Section | None:
    """Build the section with one kernel table per device and the full names of its groups; `None` without device events."""
    blocks: list[Block] = []
    for name, view, _, found in seen_devices(study):
        opening = f"{name}, {during(view)}"
        by_shape, top = study.options.by == "shape", study.options.top
        blocks.append(device_kernels(found, opening, top, by_shape=by_shape, collapsed=bool(blocks)))
        blocks.extend(full_names(found.rows[:top], name))
    if not blocks:
        return None
    lead = (
        "Every device event, also those whose launch the trace does not hold, grouped by normalised name. Only the exclusive "
        "column adds up (to the device's busy time, exactly): where events overlap, the one that ranks higher owns the time."
    )
    return Section("kernels", "Kernels", lead, tuple(blocks))
