"""The critical path on the page, in the document and in Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import strobe
from source import H200
from strobe.perf.report.study import TraceOptions, load_trace_study
from strobe.perf.report.trace_page.build import build_trace_report, critical_path_section
from strobe.perf.report.write import render_markdown
from strobe.perf.table.model import ExactTime, Table


def _page(path: Path, **options: object) -> str:
    return render_markdown(build_trace_report(load_trace_study([path], TraceOptions(**options))))  # type: ignore[arg-type]


def test_the_parts_add_up_on_the_page() -> None:
    section = critical_path_section(load_trace_study([H200 / "graph.json.gz"], TraceOptions(top=3)))
    assert section is not None and section.folded
    parts = section.blocks[0]
    assert isinstance(parts, Table) and len(parts.rows) == 5, "three, the others together, the whole"
    times = [cell.ns for row in parts.rows for cell in row.cells if isinstance(cell, ExactTime)]
    assert sum(times[:-1]) == times[-1]


def test_the_document_has_all_of_it() -> None:
    found = strobe.read_trace(H200 / "graph.json.gz")
    (path,) = found.rows("critical_paths")
    assert sum(row["path_ns"] for row in found.rows("critical_path_parts")) == path["duration_ns"]
    rows = {(row["kind"], row["name"]): row for row in found.rows("what_if")}
    forward = rows["kernel", "_forward_kernel"]
    assert forward["ratio"] == path["duration_ns"] / forward["duration_ns"] > 1.4
    assert path["duration_ns"] - forward["duration_ns"] <= forward["removed_ns"]


def test_without_details_there_is_none() -> None:
    assert "Critical path" not in _page(H200 / "graph.json.gz", details=False)
    assert "Critical path" in _page(H200 / "graph.json.gz")
    assert strobe.read_trace(H200 / "graph.json.gz", details=False).critical_paths == ()


def test_a_long_trace_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.perf.analysis.critical_path.MOST_EVENTS", 50)
    assert "84 device events are too many for the critical path, 50 at most: give a --window" in _page(H200 / "eager.json.gz")
