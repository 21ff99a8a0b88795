"""Findings on each device that several sections use, computed once per study."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from strobe.core.errors import DataError
from strobe.perf.analysis.critical_path.path import CriticalPath, critical_path
from strobe.perf.analysis.device.device_work import DeviceView, device_views
from strobe.perf.analysis.device.kernel_table import KernelTable, kernel_table
from strobe.perf.analysis.device.launch import Launch, graph_calls, launch
from strobe.perf.analysis.device.queue import Queue, queues
from strobe.perf.analysis.operators.times import OperatorTimes, operator_times
from strobe.perf.analysis.structure.ranges import Ranges, range_table
from strobe.perf.analysis.structure.scopes import unnumbered
from strobe.perf.analysis.structure.steps import NoSteps, Steps, find_steps
from strobe.perf.analysis.window import Window
from strobe.perf.report.trace_page.devices import named_views
from strobe.perf.report.trace_study import TraceStudy, once
from strobe.perf.trace import Trace


class Seen(NamedTuple):
    """Findings on one device in the chosen window: `launch` includes its activity, `hot` is grouped as the study asks."""

    name: str
    view: DeviceView
    launch: Launch
    hot: KernelTable


QUEUE_BINS: Final = 120
"""Bins of the picture of a queue."""


@once
def seen_steps(study: TraceStudy) -> tuple[tuple[Steps | NoSteps, ...], ...]:
    """Return the steps of every device of each whole trace."""
    return tuple(find_steps(trace, study.options.steps) for trace in study.traces)


@once
def seen_devices(study: TraceStudy) -> tuple[Seen, ...]:
    """Return each device that has events in the chosen window, with its findings."""
    graphs = {id(trace): graph_calls(trace) for trace in study.traces}
    return tuple(
        Seen(name, view, launch(view, graphs[id(view.trace)]), kernel_table(view, study.options.by))
        for name, view in named_views(study)
    )


@once
def seen_operators(study: TraceStudy) -> tuple[tuple[Seen, OperatorTimes], ...]:
    """Return the devices of traces that were read with details, with their operators."""
    seen, found = seen_devices(study), list[tuple[Seen, OperatorTimes]]()
    for trace in study.traces:
        own = [one for one in seen if one.view.trace is trace]
        found += zip(own, operator_times([one.view for one in own]), strict=False)
    return tuple(found)


@once
def seen_paths(study: TraceStudy) -> tuple[CriticalPath | str | None, ...]:
    """Return each trace's critical path or why it has none; `None` without device events or details."""
    return tuple(_path(trace, window) for trace, window in zip(study.traces, study.windows, strict=True))


def _path(trace: Trace, window: Window | None) -> CriticalPath | str | None:
    if trace.details is None or not len(trace.device_events):
        return None
    try:
        return critical_path(trace, window)
    except DataError as error:
        return str(error)


@once
def seen_queues(study: TraceStudy) -> tuple[tuple[Seen, tuple[Queue, ...]], ...]:
    """Return each device with its queue and those of its streams."""
    return tuple((one, queues(one.view, QUEUE_BINS)) for one in seen_devices(study))


@once
def seen_ranges(study: TraceStudy) -> tuple[tuple[Ranges, ...], ...]:
    """Return the ranges and modules of each trace, names without numbers."""
    return tuple(
        range_table(replace(trace, ranges=unnumbered(trace.ranges), modules=unnumbered(trace.modules)), window)
        for trace, window in zip(study.traces, study.windows, strict=True)
    )


def whole_views(study: TraceStudy, trace: Trace) -> tuple[DeviceView, ...]:
    """Return the devices of a trace over its whole length, whatever the window."""
    if study.options.window is not None:
        return device_views(trace)
    return tuple(one.view for one in seen_devices(study) if one.view.trace is trace)
