"""What the ledger of our own clips says of its intervals."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from strobe.perf.report.build import build_report
from strobe.perf.report.model import Table, Text


def test_the_total_has_the_interval_of_its_pairs_and_traced_lines_have_none(make_run: Callable[..., Path]) -> None:
    """Three palindromes: the interval of the total is that of t over what each saved, for all six clips."""
    folder = make_run()
    table = next(section for section in build_report([folder]).sections if section.id == "ledger").blocks[0]
    assert isinstance(table, Table) and table.collapsed
    at = [column.title for column in table.columns].index("95 % interval")
    cells = {row.cells[1].text: row.cells[at] for row in table.rows}
    assert {name for name, cell in cells.items() if isinstance(cell, Text)} == {"sum of all lines = timed clips"}
    saved = Counter[int]()
    for line in map(json.loads, (folder / "records.jsonl").read_text().splitlines()):
        if line["record"] == "span" and line["name"] == "e2e" and line["clip"] > 0:
            sign = {"baseline": 1, "balanced": -1}.get(line["variant"], 0)
            saved[(line["clip"] - 1) // 2] += sign * line["value_ns"]
    mean, spread = statistics.fmean(saved.values()), statistics.stdev(saved.values())
    ends = (3 * (mean + side * 4.30265273 * spread / 3**0.5) for side in (-1, 1))
    found = cells["sum of all lines = timed clips"].text.split(" to ")
    assert len(saved) == 3 and [float(end) for end in found] == pytest.approx([end / 1e6 for end in ends], abs=1e-4)
    assert any("paired t over 3 palindromes" in note for note in table.notes)
