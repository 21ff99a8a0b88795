from __future__ import annotations

import pytest

from made_traces import trace_of
from strobe.core.errors import ConfigError
from strobe.perf.report.profile_pages import attribution_report
from strobe.perf.report.write import render_markdown
from strobe.perf.trace.events import HostEvent, MemoryTrack, Trace


def trace(ops: int = 3, modules: bool = True, memory: bool = True) -> Trace:
    rows = [HostEvent(f"aten::op{number}", 100 * number, 100 * number + 10 * (number + 1), 0) for number in range(ops)]
    calls = [HostEvent("Linear_0", 0, 90, 0)] if modules else []
    track = MemoryTrack(device="cpu", step_ns=10, start_ns=(0, 10), allocated_bytes=(2**20, 5 * 2**20), reserved_bytes=(0, 0))
    return trace_of(ops=rows, modules=calls, memory=(track,) if memory else ())


def test_the_page_says_that_it_is_no_measurement() -> None:
    report = attribution_report([("balanced", trace())], ("with_stack",), sort_by="device", top=2)
    (banner,) = report.banners
    assert "with_stack" in banner.items[0] and "no measurement" in banner.items[0]
    operators, modules, memory = report.sections[0].blocks
    assert operators.caption == "Operators by self_host: 2 of 3."  # no device events: the host's own time
    assert [row.cells[0].text for row in operators.rows] == ["aten::op2", "aten::op1"]
    assert [cell.ns for cell in operators.rows[0].cells[2:]] == [0, 30, 30]
    assert [row.cells[0].text for row in modules.rows] == ["Linear_0"]
    assert (memory.rows[0].cells[1].value, memory.rows[0].cells[1].unit) == (5.0, "MiB")
    assert "aten::op2" in render_markdown(report)


def test_what_was_not_recorded_is_not_shown() -> None:
    report = attribution_report([("a", trace(modules=False, memory=False))], ("record_shapes",), sort_by="calls", top=9)
    assert len(report.sections[0].blocks) == 1


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown order"):
        attribution_report([("a", trace())], ("with_stack",), sort_by="cuda_time_total", top=1)
