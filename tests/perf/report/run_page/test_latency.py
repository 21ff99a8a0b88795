"""What the latency section says of samples that are far from the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from reports import notes, records, rewrite, section
from strobe.perf.report.build import build_report


def latency(folder: Path) -> str:
    return notes(section(build_report([folder]), "latency"))


def test_outliers_count_and_their_effect_is_said(make_run: Callable[..., Path]) -> None:
    folder = make_run()
    assert "Tukey" not in latency(folder)
    lines = records(folder)
    last = max(line["order"] for line in lines if line["record"] == "clip" and line["variant"] == "turbo")
    for line in lines:
        late = line.get("record") == "span" and line["order"] == last and line["name"] in ("frame_block", "e2e")
        if late and line["name"] == "frame_block" and line["index"] >= 7:
            line["start_ns"] += 400_000_000 if line["index"] > 7 else 0
            line["value_ns"] += 400_000_000 if line["index"] == 7 else 0
        if late and line["name"] == "e2e":
            line["value_ns"] += 400_000_000
    found = latency(rewrite(folder, lines))
    assert "1 of the " in found and "lie outside Tukey's fences and count: without them the mean would change by -" in found
