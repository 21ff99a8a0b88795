"""The picture of one denoise step, from published traces of an H200."""

from __future__ import annotations

from pathlib import Path

import pytest

from strobe.perf.report.run_page import timeline_section
from strobe.perf.report.study import load_study
from strobe.perf.table.model import ExactTime, Figure, Section

COMPARED = Path(__file__).parents[4] / "benchmarks" / "engine-h200" / "compare"


@pytest.fixture(scope="module")
def section() -> Section:
    """`quality` launches its kernels one by one, `ultra` replays graphs."""
    return timeline_section(load_study([COMPARED], pair=("quality", "ultra")))


@pytest.mark.parametrize("work", ["attention kernel", "attention section, other work", "feed-forward", "cross-attention"])
def test_kernels_in_graphs_are_drawn_as_what_they_are(section: Section, work: str) -> None:
    (figure,) = section.blocks
    assert isinstance(figure, Figure) and figure.table is not None
    (row,) = (row for row in figure.table.rows if row.cells[0].text == work)
    assert [isinstance(cell, ExactTime) and cell.ns > 0 for cell in row.cells[1:]] == [True, True]
