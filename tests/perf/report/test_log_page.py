"""The page of one preset with settings changed, on runs whose numbers are fixed: what moved, and what more streams cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from reports import records, rewrite
from strobe.perf.records.record import PLAN, Plan, PlannedCell
from strobe.perf.report.log_page import vary_report
from strobe.perf.report.write import render_markdown

NAME = "without-ring_cache"


def setting(step_ms: float, name: str = "balanced") -> SimpleNamespace:
    return SimpleNamespace(name=name, step_ms=step_ms, steps=4, window=12, copies=1.0)


def planned(folder: Path, *cells: PlannedCell) -> None:
    plan = Plan(base="balanced", request={}, values={}, idle={"compile": "no compiler"}, cells=cells)
    (folder / PLAN).write_bytes(msgspec.json.encode(plan))


WITH, WITHOUT = setting(20.0), setting(30.0, NAME)


@pytest.fixture
def cell(make_run: Callable[..., Path], tmp_path: Path) -> Path:
    """Each denoise step takes 20 ms with the optimisation and 30 without it, timed and traced alike; all else is the same."""
    planned(tmp_path, PlannedCell(name=NAME, kind="leave-one-out", changes={"ring_cache": "off"}))
    return make_run(f"cells/{NAME}", settings=(WITH, WITHOUT), baseline="balanced")


def row(folder: Path) -> list[str]:
    """The one row of the table."""
    page = render_markdown(vary_report(folder))
    assert "compile is asked for and does nothing here: no compiler" in page
    (table,) = page.split("**Lines that moved.**")[1:]
    (line,) = (line for line in table.splitlines() if line.startswith("| 2 without"))
    return [text.strip() for text in line.strip("|").split("|")]


def test_the_line_that_moved_most_is_named_with_its_level(cell: Path, tmp_path: Path) -> None:
    name, ratio, verdict, line, level, moved = row(tmp_path)
    assert (name, verdict) == ("2 without-ring\\_cache", "slower")
    assert (line, level) == ("denoise\\_step / attention: op", "attention section")
    assert 1.40 < 1 / float(ratio.partition("x")[0]) < 1.43  # 170 of 120 ms a frame block, its decode included
    operators, layers = 3 + 13 + 9 + 6, 4  # their shares of 94 of a layer, the kernel not among them
    per_layer_ms = (WITHOUT.step_ms - WITH.step_ms) / layers * operators / 94
    assert -float(moved) == pytest.approx(7 * 4 * layers * per_layer_ms, rel=0.05)  # 7 steady frame blocks of 4 steps; 5 % noise


def test_if_no_line_moved_with_the_whole_that_is_said(cell: Path, tmp_path: Path) -> None:
    """The traces are those of the other side: they say faster where the clips say slower."""

    lines = records(cell)
    traces = [line for line in lines if line.get("variant") and "first_block" in line]
    assert [trace["variant"] for trace in traces] == ["balanced", NAME]
    traces[0]["variant"], traces[1]["variant"] = NAME, "balanced"
    rewrite(cell, lines)
    name, ratio, verdict, line, level, moved = row(tmp_path)
    assert 1.40 < 1 / float(ratio.partition("x")[0]) < 1.43 and (name, verdict) == ("2 without-ring\\_cache", "slower")
    assert (line, level, moved) == ("- (no line of the traced frame blocks moved with the whole)", "", "-")
