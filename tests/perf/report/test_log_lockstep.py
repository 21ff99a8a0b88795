"""What several samples at once cost: the table of batches in the optimisation log, against the same figures from the records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from strobe.perf.analysis.runs.latency import latencies
from strobe.perf.records.record import PLAN, Plan, PlannedCell
from strobe.perf.records.store import RECORDS, read_run, seal
from strobe.perf.report.log_page import vary_report
from strobe.perf.report.write import render_markdown

CELLS = (
    PlannedCell(name="base", kind="base", changes={}),
    PlannedCell(name="batch-4", kind="workload", changes={"batch": "4"}),
)
GIB = 1 << 30


def setting(step_ms: float) -> SimpleNamespace:
    return SimpleNamespace(name="balanced", step_ms=step_ms, steps=4, window=12, copies=1.0)


def edited(folder: Path, batch: int, peak_bytes: int) -> Path:
    """The same records of so many samples in lockstep, and with another peak."""
    lines = [msgspec.json.decode(line) for line in (folder / RECORDS).read_bytes().splitlines()]
    for line in lines:
        if line["record"] == "header":
            line["workload"]["batch"] = batch
        if line["record"] == "clip":
            line["peak_bytes"] = peak_bytes
    (folder / RECORDS).write_bytes(
        b"".join(seal(msgspec.json.encode(line), at) + b"\n" for at, line in enumerate(lines, start=1))
    )
    return folder


@pytest.fixture
def rows(make_run: Callable[..., Path], tmp_path: Path) -> tuple[list[list[str]], list[Path]]:
    """Rows of the table, and the runs they are about: one sample, and four that take twice as long together."""
    plan = Plan(base="balanced", request={}, values={}, idle={}, cells=CELLS)
    (tmp_path / PLAN).write_bytes(msgspec.json.encode(plan))
    folders = [
        edited(make_run("cells/base", settings=(setting(20.0),), baseline="balanced"), 1, 4 * GIB),
        edited(make_run("cells/batch-4", settings=(setting(40.0),), baseline="balanced"), 4, 7 * GIB),
    ]
    (table,) = render_markdown(vary_report(tmp_path)).split("**What more streams in lockstep cost.**")[1:]
    lines = [line for line in table.partition("\n\n* ")[0].splitlines() if line.startswith("| ") and "---" not in line][1:]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines], folders


def test_each_sample_and_all_of_them(rows: tuple[list[list[str]], list[Path]]) -> None:
    table, folders = rows
    assert [row[1] for row in table] == ["1", "4"]
    found = [latencies(read_run(folder), "balanced") for folder in folders]
    assert found[0].block is not None and found[1].block is not None and found[1].pixel_fps is not None
    ratio = found[1].block.mean_ns / found[0].block.mean_ns
    assert [row[2] for row in table] == ["1.00 x", f"{ratio:.2f} x"]
    assert table[1][3] == f"{found[1].pixel_fps / 4:.2f}"
    fps = read_run(folders[0]).header.workload
    assert fps is not None
    each = [found[0].pixel_fps or 0.0, found[1].pixel_fps / 4]
    assert [row[4] for row in table] == ["yes" if own >= fps.fps else f"no, {fps.fps} asked for" for own in each]


def test_memory_of_each_more(rows: tuple[list[list[str]], list[Path]]) -> None:
    table, _ = rows
    assert table[1][5] == "1.000 GiB" and table[0][5].startswith("-")
