"""The critical path on the page, in the document and in Python."""

from __future__ import annotations

from pathlib import Path

import strobe
from source import H200
from strobe.perf.report.study import TraceOptions, load_trace_study
from strobe.perf.report.trace_page.build import build_trace_report
from strobe.perf.report.write import render_markdown


def _page(path: Path, **options: object) -> str:
    return render_markdown(build_trace_report(load_trace_study([path], TraceOptions(**options))))  # type: ignore[arg-type]


def test_without_details_there_is_none() -> None:
    assert "Critical path" not in _page(H200 / "graph.json.gz", details=False)
    assert "Critical path" in _page(H200 / "graph.json.gz")
    assert strobe.read_trace(H200 / "graph.json.gz", details=False).critical_paths == ()
