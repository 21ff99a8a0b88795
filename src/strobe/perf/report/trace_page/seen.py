"""Each device of a study with what several sections say about it, computed once."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

from strobe.perf.analysis.device.hotspots import HotTable, hot_table
from strobe.perf.analysis.device.launch import Launch, graph_calls, launch
from strobe.perf.analysis.device.views import DeviceView, device_views
from strobe.perf.analysis.structure.steps import NoSteps, Steps, find_steps
from strobe.perf.report.trace_page.devices import named_views
from strobe.perf.report.trace_page.study import TraceStudy
from strobe.perf.trace import Trace


class Seen(NamedTuple):
    """One device during the chosen window; `launch` holds its activity too, `hot` is grouped as the study asks."""

    name: str
    view: DeviceView
    launch: Launch
    hot: HotTable


_KNOWN: WeakKeyDictionary[TraceStudy, tuple[Seen, ...]] = WeakKeyDictionary()
_STEPS: WeakKeyDictionary[TraceStudy, tuple[tuple[Steps | NoSteps, ...], ...]] = WeakKeyDictionary()


def seen_steps(study: TraceStudy) -> tuple[tuple[Steps | NoSteps, ...], ...]:
    """The steps of every device of each trace, of all of it. They are kept as long as the study is."""
    if study not in _STEPS:
        _STEPS[study] = tuple(find_steps(trace, study.options.steps) for trace in study.traces)
    return _STEPS[study]


def seen_devices(study: TraceStudy) -> tuple[Seen, ...]:
    """Each device that has events during the chosen window. They are kept as long as the study is."""
    if study not in _KNOWN:
        graphs = {id(trace): graph_calls(trace) for trace in study.traces}
        _KNOWN[study] = tuple(
            Seen(name, view, launch(view, graphs[id(view.trace)]), hot_table(view, study.options.by))
            for name, view in named_views(study)
        )
    return _KNOWN[study]


def whole_views(study: TraceStudy, trace: Trace) -> tuple[DeviceView, ...]:
    """The devices of a trace during all of it, whatever the window."""
    if study.options.window is not None:
        return device_views(trace)
    return tuple(one.view for one in seen_devices(study) if one.view.trace is trace)
