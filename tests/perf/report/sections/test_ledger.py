"""What the ledger of our own clips says of its intervals."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from strobe.perf.report.build import build_report
from strobe.perf.report.model import Figure, Text, Waterfall


@pytest.mark.parametrize(("traced", "whiskers"), [((6, 3), 0), ((0, 12), 1)])
def test_ledger_has_intervals_of_what_is_timed_alone(
    make_run: Callable[..., Path], traced: tuple[int, int], whiskers: int
) -> None:
    """Three palindromes: the interval of the total is that of t over what each saved, for all six clips."""
    folder = make_run(traced=traced)
    figure = next(section for section in build_report([folder]).sections if section.id == "ledger").blocks[0]
    assert isinstance(figure, Figure) and isinstance(figure.picture, Waterfall)
    at = [column.title for column in figure.table.columns].index("95 % interval")
    cells = {row.cells[1].text: row.cells[at] for row in figure.table.rows}
    timed = {name for name, cell in cells.items() if isinstance(cell, Text)}
    assert timed == {"outside profiled window", "sum of all lines = timed clips"}
    saved = Counter[int]()
    for line in map(json.loads, (folder / "records.jsonl").read_text().splitlines()):
        if line["record"] == "span" and line["name"] == "e2e" and line["clip"] > 0:
            sign = {"baseline": 1, "balanced": -1}.get(line["variant"], 0)
            saved[(line["clip"] - 1) // 2] += sign * line["value_ns"]
    mean, spread = statistics.fmean(saved.values()), statistics.stdev(saved.values())
    ends = (3 * (mean + side * 4.30265273 * spread / 3**0.5) for side in (-1, 1))
    found = cells["sum of all lines = timed clips"].text.split(" to ")
    assert len(saved) == 3 and [float(end) for end in found] == pytest.approx([end / 1e6 for end in ends], abs=1e-4)
    assert sum(bar.low_ns is not None for bar in figure.picture.bars) == whiskers == ("Whiskers" in figure.title)
    assert any("paired t over 3 palindromes" in note for note in figure.table.notes)
