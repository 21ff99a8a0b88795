"""Stages against the device's peaks, and GPU clocks, in the report of a run whose records say what a stage costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strobe.perf.records.store import seal
from strobe.perf.report.build import build_report
from strobe.perf.report.run_page import _roofs as roofs_of
from strobe.perf.report.study import load_study
from strobe.perf.table.model import Missing, Report, Share, Table, Text

MakeRun = Callable[..., Path]
FLOPS, READ, WRITE = 10 * 10**12, 6 * 10**9, 4 * 10**9


def edited(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """Rewrite the records line by line."""
    records = folder / "records.jsonl"
    lines = [change(json.loads(line)) for line in records.read_text().splitlines()]
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


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
    (found,) = (section for section in build_report([folder]).sections if section.id == "roofline")
    table = found.blocks[0]
    assert isinstance(table, Table)
    return table


def cells(table: Table, row: int) -> dict[str, Any]:
    return dict(zip((column.title for column in table.columns), table.rows[row].cells, strict=True))


def with_clocks(line: dict[str, Any]) -> dict[str, Any]:
    if line["record"] == "clip" and line["phase"] == "timed":
        line["clocks"] = {"source": "nvml", "samples": 8, "sm_mhz": 1464}
    if line["record"] == "header":
        line["machine"]["gpu"] = {"max_sm_mhz": 1980}
    return on_gpu(with_costs(line))


def test_a_stage_is_held_against_the_peak_at_the_clock_that_ran(make_run: MakeRun) -> None:
    table = roofline(edited(make_run(), with_clocks))
    row = cells(table, 0)
    assert row["of peak at its clock"].value == pytest.approx(row["of peak"].value * 1830 / 1464)
    assert any("at 1,464 of 1,980 MHz. The peaks hold at 1,830 MHz" in note for note in table.notes)


def test_a_clock_that_was_not_sampled_is_said(make_run: MakeRun) -> None:
    table = roofline(edited(make_run(), lambda line: on_gpu(with_costs(line))))
    assert "of peak at its clock" not in cells(table, 0)
    assert any(note.startswith("The SM clock was not sampled while it ran") for note in table.notes)


def test_the_attention_kernel_is_taken_from_the_trace(make_run: MakeRun) -> None:
    table = roofline(edited(make_run(), lambda line: with_costs(line, 10**9)))
    assert len(table.rows) == 2  # `never` was not measured
    row = cells(table, 1)
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
    tables, folder = [], make_run()
    for change in (lambda line: with_costs(line, 10**9), filling):
        table = roofline(edited(folder, change))
        tables.append([cells(table, row) for row in range(2)])
    (full_step, full_kernel), (step, kernel) = tables
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


def test_a_rate_above_the_peak_is_flagged(make_run: MakeRun) -> None:
    table = roofline(edited(make_run(), lambda line: on_gpu(with_costs(line, 10**14))))
    assert any(note.startswith("ANOMALY, denoise_step") and "above the bfloat16 peak of H100 SXM" in note for note in table.notes)


def test_an_unknown_device_has_rates_and_no_shares(make_run: MakeRun) -> None:
    table = roofline(edited(make_run(), with_costs))
    assert [column.title for column in table.columns] == ["stage", "how", "n", "mean", "TFLOP/s", "GB/s"]
    assert any("No published peaks are known for Example CPU 9000" in note for note in table.notes)


def test_a_dtype_without_a_peak_has_no_floor(make_run: MakeRun) -> None:
    def wide(line: dict[str, Any]) -> dict[str, Any]:
        line = on_gpu(with_costs(line))
        return line | {"dtype": "float64"} if line["record"] == "variant" else line

    table = roofline(edited(make_run(), wide))
    row = cells(table, 0)
    assert isinstance(row["of peak"], Missing) and isinstance(row["floor"], Missing) and isinstance(row["of bandwidth"], Share)


def test_without_costs_there_is_no_section(make_run: MakeRun) -> None:
    assert not any(section.id == "roofline" for section in build_report([make_run()]).sections)


# --------------------------------------------------------------------------------------------------------------- clocks


def banner(report: Report) -> str:
    return " ".join(item for banner in report.banners for item in banner.items)


def clocks(**values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(line: dict[str, Any]) -> dict[str, Any]:
        line = on_gpu(line)
        if line["record"] == "clip" and line["phase"] == "timed":
            line["clocks"] = {"source": "nvml", "throttle": [], **values}
        if line["record"] == "header":
            line["machine"]["gpu"] = {"persistence": True, "mig": None, "power_limit_mw": 700_000, "max_sm_mhz": 1980}
        return line

    return change


def test_clocks_that_vary_within_a_clip_are_told(make_run: MakeRun) -> None:
    within = {"sm_mhz": 1900, "sm_mhz_min": 1700, "sm_mhz_max": 1980, "samples": 10, "idle_samples": 0, "read_ns": 500_000}
    report = build_report([edited(make_run(), clocks(**within, power_mw=412_000))])
    assert "SM clock varied by more than 2 % between or within timed clips: 1700 to 1980 MHz" in banner(report)
    (settings,) = (section for section in report.sections if section.id == "settings")
    (table, *_) = settings.blocks
    assert isinstance(table, Table)
    rows = {row.cells[0].text: row.cells[1].text for row in table.rows if isinstance(row.cells[1], Text)}
    assert rows["GPU set-up"] == "persistence mode on, power limit 700 W, up to 1980 MHz SM"
    timed = 3 * 2 * 4
    assert rows["GPU in timed clips"] == (
        f"1700 to 1980 MHz SM, up to 412 W; {10 * timed} readings beside the clips took {0.5 * timed:.3g} ms"
    )


def test_steady_clocks_are_not(make_run: MakeRun) -> None:
    steady = {"sm_mhz": 1960, "sm_mhz_min": 1945, "sm_mhz_max": 1980, "samples": 10, "read_ns": 1}
    assert "SM clock" not in banner(build_report([edited(make_run(), clocks(**steady))]))


def test_clocks_of_an_idle_gpu_are_named_so(make_run: MakeRun) -> None:
    folder = edited(make_run(), clocks(source="nvidia-smi", sm_mhz=345))
    assert "GPU clocks were read when clips had ended, not while they ran" in banner(build_report([folder]))


def test_an_attribution_trace_gives_no_times(make_run: MakeRun) -> None:
    """A second trace line of the same variant, with options that distort times, that points nowhere."""
    folder = make_run()
    line = {"record": "trace", "v": 2, "variant": "turbo", "clip": 9, "path": "attribution/turbo.json.gz", "sha256": "0" * 64}
    line |= {"size_bytes": 1, "first_block": 6, "num_blocks": 1, "options": ["with_stack"]}
    plain = build_report([folder])
    records = folder / "records.jsonl"
    with records.open("ab") as file:
        file.write(seal(json.dumps(line).encode(), len(records.read_bytes().splitlines()) + 1) + b"\n")
    report = build_report([folder])
    assert report.speedups == plain.speedups
    (settings,) = (section for section in report.sections if section.id == "settings")
    assert isinstance(settings.blocks[0], Table)
    assert any("with with_stack: no times" in str(row.cells[0]) for row in settings.blocks[0].rows)
