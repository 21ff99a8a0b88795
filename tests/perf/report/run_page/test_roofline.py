"""Stages against the device's peaks, and GPU clocks, in the report of a run whose records say what a stage costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reports import by_title, records, rewrite, section, tables
from strobe.perf.records.store import seal
from strobe.perf.report.build import build_report
from strobe.perf.report.run_page import _roofs as roofs_of
from strobe.perf.report.study import load_study
from strobe.perf.table.model import Missing, Share, Table

MakeRun = Callable[..., Path]
FLOPS, READ, WRITE = 10 * 10**12, 6 * 10**9, 4 * 10**9


def edited(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """Rewrite the records line by line."""
    return rewrite(folder, [change(line) for line in records(folder)])


def with_costs(line: dict[str, Any], flops: int = FLOPS) -> dict[str, Any]:
    if line["record"] == "variant":
        cost = {"flops": flops, "read_bytes": READ, "write_bytes": WRITE}
        line["costs"] = [{"span": name, **cost} for name in ("denoise_step", "attention_kernel", "never")]
        line["dtype"] = "bfloat16"
    return line


def on_gpu(line: dict[str, Any], name: str = "NVIDIA H100 80GB HBM3") -> dict[str, Any]:
    if line["record"] == "header":
        line["machine"] |= {"device": "cuda:0", "device_name": name, "gpu_count": 1}
    return line


def roofline(folder: Path) -> Table:
    return tables(section(build_report([folder]), "roofline"))[0]


@pytest.mark.parametrize(
    ("change", "said", "columns"),
    [
        (lambda line: on_gpu(with_costs(line)), "The SM clock was not sampled while it ran", 11),
        (lambda line: on_gpu(with_costs(line, 10**14)), "ANOMALY, denoise_step", 11),
        (with_costs, "No published peaks are known for Example CPU 9000", 6),
    ],
)
def test_a_note_says_what_is_not_known_and_what_cannot_be(make_run: MakeRun, change: Any, said: str, columns: int) -> None:
    table = roofline(edited(make_run(), change))
    assert len(table.columns) == columns and "of peak at its clock" not in by_title(table)[0]
    assert any(note.startswith(said) for note in table.notes)


def test_the_attention_kernel_is_taken_from_the_trace(make_run: MakeRun) -> None:
    table = roofline(edited(make_run(), lambda line: with_costs(line, 10**9)))
    assert len(table.rows) == 2  # `never` was not measured
    row = by_title(table)[1]
    assert (row["stage"].text, row["how"].text) == ("attention_kernel", "traced")
    assert row["n"].value == 3 * 5 * 4  # frame blocks, passes, layers
    assert 0 < row["mean"].ns < 31e6


def filling(line: dict[str, Any]) -> dict[str, Any]:
    """The first of the traced frame blocks, 6 to 8, meets half a window; a quarter of a step's work is attention."""
    line = with_costs(line, 10**9)
    if line["record"] == "variant":
        line["attended_keys"] = [10, 20, 30, 40, 50, 50, 50, 100]
        for cost in line["costs"]:
            share = 1 if cost["span"] == "attention_kernel" else 4
            cost |= {"attended_flops": cost["flops"] // share, "attended_read_bytes": cost["read_bytes"] // (2 * share)}
    return line


def test_a_traced_call_counts_the_keys_that_it_attended_to(make_run: MakeRun) -> None:
    """Two of three frame blocks have a full window, one half of it; timed frame blocks are steady and count in full."""
    folder = make_run()
    changes = (lambda line: with_costs(line, 10**9), filling)
    (full_step, full_kernel), (step, kernel) = (by_title(roofline(edited(folder, change))) for change in changes)
    assert kernel["mean"] == full_kernel["mean"] and kernel["how"].text == "traced"
    assert kernel["TFLOP/s"].value == pytest.approx(full_kernel["TFLOP/s"].value * 5 / 6)
    assert kernel["GB/s"].value == pytest.approx(full_kernel["GB/s"].value * (WRITE + READ * (1 - 1 / 12)) / (WRITE + READ))
    assert (step["how"].text, step["TFLOP/s"], step["GB/s"]) == ("timed", full_step["TFLOP/s"], full_step["GB/s"])


def test_a_breakdown_counts_the_keys_that_were_attended(make_run: MakeRun) -> None:
    study = load_study([edited(make_run(), filling)])
    costs = roofs_of(study.subjects[0]).costs
    assert costs["attention_kernel"].flops == round(10**9 * 5 / 6)
    assert costs["denoise_step"].flops == round(10**9 * (1 - 1 / 24))


def test_a_trace_with_a_prompt_switch_gives_no_rate_of_attention(make_run: MakeRun) -> None:
    """Its recache attends with a whole window of queries."""

    def switched(line: dict[str, Any]) -> dict[str, Any]:
        line = with_costs(line, 10**9)
        if line["record"] == "header":
            line["workload"]["prompts"][1]["frame_block"] = 7
        return line

    table = roofline(edited(make_run(), switched))
    assert [row.cells[0].text for row in table.rows] == ["denoise_step"]  # type: ignore[union-attr]


def test_a_dtype_without_a_peak_has_no_floor(make_run: MakeRun) -> None:
    def wide(line: dict[str, Any]) -> dict[str, Any]:
        line = on_gpu(with_costs(line))
        return line | {"dtype": "float64"} if line["record"] == "variant" else line

    table = roofline(edited(make_run(), wide))
    row = by_title(table)[0]
    assert isinstance(row["of peak"], Missing) and isinstance(row["floor"], Missing) and isinstance(row["of bandwidth"], Share)


def test_an_attribution_trace_gives_no_times(make_run: MakeRun) -> None:
    """A second trace line of the same variant, with options that distort times, that points nowhere."""
    folder = make_run()
    line = {"record": "trace", "v": 2, "variant": "turbo", "clip": 9, "path": "attribution/turbo.json.gz", "sha256": "0" * 64}
    line |= {"size_bytes": 1, "first_block": 6, "num_blocks": 1, "options": ["with_stack"]}
    plain = build_report([folder])
    with (folder / "records.jsonl").open("ab") as file:
        file.write(seal(json.dumps(line).encode(), len(records(folder)) + 1) + b"\n")
    report = build_report([folder])
    assert report.speedups == plain.speedups
    assert any("with with_stack: no times" in str(row.cells[0]) for row in tables(section(report, "settings"))[0].rows)
