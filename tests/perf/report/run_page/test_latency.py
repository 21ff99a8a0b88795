"""What the latency section says of samples that are far from the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from strobe.perf.report.build import build_report
from strobe.perf.table.model import Notes


def notes(folder: Path) -> str:
    (latency,) = (section for section in build_report([folder]).sections if section.id == "latency")
    return " ".join(text for block in latency.blocks if isinstance(block, Notes) for text in block.items)


def test_outliers_count_and_their_effect_is_said(make_run: Callable[..., Path]) -> None:
    folder = make_run()
    assert "Tukey" not in notes(folder)
    records = folder / "records.jsonl"
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    last = max(line["order"] for line in lines if line["record"] == "clip" and line["variant"] == "turbo")
    for line in lines:
        late = line.get("record") == "span" and line["order"] == last and line["name"] in ("frame_block", "e2e")
        if late and line["name"] == "frame_block" and line["index"] >= 7:
            line["start_ns"] += 400_000_000 if line["index"] > 7 else 0
            line["value_ns"] += 400_000_000 if line["index"] == 7 else 0
        if late and line["name"] == "e2e":
            line["value_ns"] += 400_000_000
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = notes(folder)
    assert "1 of the " in found and "lie outside Tukey's fences and count: without them the mean would change by -" in found
