"""Builder of the report of a `TraceStudy`. No clock, no randomness: the same traces give the same report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from strobe.perf.report.blocks.page import page
from strobe.perf.report.model import Report, Section
from strobe.perf.report.trace_page.activity import activity_section
from strobe.perf.report.trace_page.answer import answer_section
from strobe.perf.report.trace_page.banners import trace_banners
from strobe.perf.report.trace_page.collectives import collectives_section
from strobe.perf.report.trace_page.critical_path import critical_path_section
from strobe.perf.report.trace_page.gaps import gaps_section
from strobe.perf.report.trace_page.kernels import device_kernels
from strobe.perf.report.trace_page.launch import launch_section
from strobe.perf.report.trace_page.memory import memory_section
from strobe.perf.report.trace_page.operator_times import operator_times_section
from strobe.perf.report.trace_page.operators import operators_section
from strobe.perf.report.trace_page.overview import overview_section, trace_facts
from strobe.perf.report.trace_page.queue import queue_section
from strobe.perf.report.trace_page.ranges import ranges_section
from strobe.perf.report.trace_page.regions import regions_section
from strobe.perf.report.trace_page.roofline import roofline_section
from strobe.perf.report.trace_page.sections import sections_section
from strobe.perf.report.trace_page.seen import seen_devices
from strobe.perf.report.trace_page.steps import steps_section
from strobe.perf.report.trace_page.timeline import timeline_section
from strobe.perf.report.trace_study import TraceStudy

SECTIONS: Final[tuple[Callable[[TraceStudy], Section | None], ...]] = (
    answer_section,
    overview_section,
    activity_section,
    device_kernels,
    operator_times_section,
    roofline_section,
    operators_section,
    steps_section,
    timeline_section,
    sections_section,
    gaps_section,
    launch_section,
    queue_section,
    critical_path_section,
    regions_section,
    ranges_section,
    collectives_section,
    memory_section,
)
"""Builders of the report's sections in reading order: busy time, work, its course, gaps, launches, ranges."""


def build_trace_report(study: TraceStudy) -> Report:
    """Build the report of a study's traces.

    Raises:
        DataError: a trace whose times cannot be.
        ConfigError: a section or step that is not defined as one.
    """
    sections = (section(study) for section in SECTIONS)
    return page(
        title=_title(study),
        subtitle=_subtitle(study),
        facts=trace_facts(study),
        banners=trace_banners(study),
        sections=sections,
    )


def _title(study: TraceStudy) -> str:
    if len(study.traces) == 1:
        return f"Trace {study.labels[0]}"
    return f"{len(study.traces)} traces: {study.labels[0]} to {study.labels[-1]}"


def _subtitle(study: TraceStudy) -> str:
    seen = seen_devices(study)
    if not seen:
        return "no device events"
    shares = sorted(one.launch.activity.busy_ns / max(1, one.view.span_ns) for one in seen)
    if len(seen) > 1:
        return f"{len(seen)} devices, busy for {100 * shares[0]:.1f} to {100 * shares[-1]:.1f} % of their time"
    product = next((f"{one.name}, " for one in study.traces[0].devices if one.index == seen[0].view.device and one.name), "")
    return f"{product}{seen[0].view.span_ns / 1e6:.3f} ms, busy for {100 * shares[0]:.1f} % of it: {seen[0].launch.verdict}"
