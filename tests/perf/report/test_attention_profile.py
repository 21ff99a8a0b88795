"""The page of one attention call, from records with times of the test's own."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from made_records import header_of, machine_of, span_of
from reports import by_title, section, tables
from strobe.perf.records import record as rec
from strobe.perf.records.store import RunWriter
from strobe.perf.report.build import build_report
from strobe.perf.table.model import Missing, Report, Share, Table

TIMES = {"sdpa": (1_000_000, 1_100_000), "sparse:x": (400_000, 500_000)}
"""Nanoseconds of the kernel and of the section in lap 0; a lap later everything takes 1 % longer."""


def page(tmp_path: Path, device_name: str = "NVIDIA H200", sparse_flops: int = 10**11) -> Report:
    folder = tmp_path / "run"
    flops = {"sdpa": (5 * 10**11, None), "sparse:x": (sparse_flops, 5 * 10**11)}
    with RunWriter(folder) as writer:
        machine = machine_of(device="cuda:0", device_name=device_name, gpu_count=1)
        writer.append(header_of(("sdpa", "sparse:x", "sparse:x", "sdpa"), run=folder.name, machine=machine))
        for name, (own, dense) in flops.items():
            cost = rec.SpanCost(span="attention_kernel", flops=own, read_bytes=10**8, write_bytes=10**7, dense_flops=dense)
            gate = rec.Gate(variant=name, reference="reference, float64", rule="r", passed=True, detail="1e-3")
            sparsity = 0.0 if dense is None else 0.8
            settings = rec.Variant(
                name=name, preset="custom", attention_impl=name, sparsity=sparsity, dtype="bfloat16", costs=(cost,),
                sizes={"q_tokens": 4680}, calls_per_stage={"attention_kernel": 2, "attention": 2},
            )  # fmt: skip
            writer.append(gate, settings)
        laps(writer)
        writer.append(rec.End(status="complete", date="2026-11-01T09:31:00Z", wall_ns=1))
    return build_report([folder])


def laps(writer: RunWriter) -> None:
    counts, order = {"sdpa": 0, "sparse:x": 0}, 0
    for lap in range(3):
        for name in ("sdpa", "sparse:x", "sparse:x", "sdpa"):
            common: dict[str, Any] = {"variant": name, "clip": counts[name], "order": order, "palindrome": lap}
            for what, base in zip(("attention_kernel", "attention"), TIMES[name], strict=True):
                for index in range(2):
                    value = base * (100 + lap) // 100 + index
                    writer.append(span_of(name=what, value_ns=value, index=index, **common | {"clock": "cuda_event"}))
            writer.append(rec.Clip(**common, phase="timed", num_spans=4))
            counts[name] += 1
            order += 1


def rows(report: Report, id: str, number: int = 0) -> tuple[Table, list[dict[str, Any]]]:
    table = tables(section(report, id))[number]
    return table, by_title(table)


def test_times_of_single_calls(tmp_path: Path) -> None:
    table, found = rows(page(tmp_path), "times", 1)
    assert [(row["implementation"].text, row["what"].text) for row in found] == [
        ("sdpa", "kernel"), ("sdpa", "section"), ("sparse:x", "kernel"), ("sparse:x", "section")
    ]  # fmt: skip
    kernel = [400_000 * (100 + lap) // 100 + index for lap in range(3) for index in (0, 1, 0, 1)]
    row = found[2]
    assert (row["calls"].value, row["min"].ns, row["mean"].ns) == (12, min(kernel), statistics.fmean(kernel))
    assert (row["slow end"].ns, row["slow end"].note) == (max(kernel), "max of 12")
    assert any("CUDA events" in note for note in table.notes) and any(
        "dense attention has nothing but" in note for note in table.notes
    )


def test_speedups_compare_like_with_like(tmp_path: Path) -> None:
    report = page(tmp_path)
    found = {each.level: each for each in report.speedups}
    assert found["kernel"].ratio.value == pytest.approx(2.5, rel=1e-5) and found["section"].ratio.value == pytest.approx(
        2.2, rel=1e-5
    )
    assert found["kernel"].ratio.low is not None and found["kernel"].saved_ns == pytest.approx(606_000, rel=1e-3)
    assert {(each.candidate, each.reference) for each in report.speedups} == {("sparse:x", "sdpa")}
    _, table = rows(report, "speedups")
    assert [(row["what"].text, row["verdict"].text, row["pairs"].value) for row in table] == [
        ("kernel", "faster", 3), ("section", "faster", 3)
    ]  # fmt: skip


def test_the_roofline_of_sparse_attention_counts_what_is_computed(tmp_path: Path) -> None:
    _, (dense, sparse) = rows(page(tmp_path), "roofline")
    assert isinstance(dense["effective TFLOP/s"], Missing)
    mean = sparse["mean"].ns
    assert sparse["TFLOP/s"].value == pytest.approx(1e11 / mean * 1e9 / 1e12)
    assert isinstance(sparse["of peak"], Share) and sparse["of peak"].value == pytest.approx(1e11 / mean * 1e9 / 989.5e12)
    assert sparse["effective TFLOP/s"].value == pytest.approx(5 * sparse["TFLOP/s"].value)
    assert sparse["sparsity"] == Share(0.8)


def test_a_rate_above_the_peak_is_flagged(tmp_path: Path) -> None:
    table, _ = rows(page(tmp_path, sparse_flops=5 * 10**11), "roofline")
    assert any(note.startswith("ANOMALY, sparse:x") for note in table.notes)


def test_an_unknown_device_has_no_shares(tmp_path: Path) -> None:
    table, (_, sparse) = rows(page(tmp_path, "a GPU of tomorrow"), "roofline")
    assert "of peak" not in sparse and sparse["effective TFLOP/s"].value > 0
    assert any("No published peaks are known for a GPU of tomorrow" in note for note in table.notes)
