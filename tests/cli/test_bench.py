"""`strobe bench attention | tree` from the command to the pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from strobe.models.captured import CapturedCall, write_calls
from terminal import Strobe

FAST = ("--seconds-per-cell", "0.01", "--quiet")
TINY = ("--grid", 2, 4, 9, "--heads", 1, "--head-dim", 32, "--blocks", 64, "--sparsity", 0.5, *FAST)


def test_a_grid_of_ones_own_is_measured_reported_and_kept(strobe: Strobe, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    line = ("bench", "attention", *TINY, "--impls", "dense:sdpa", "cpu", "--out", out, "--json", "--backward")
    first = strobe(*line)
    assert first.code == 0, first.err
    names = ["2x4x9_s0.5_b64_forward", "2x4x9_s0.5_b64_backward"]
    assert first.document["measured"] == names and first.document["failed"] == []
    (forward, backward) = first.document["cells"]
    assert (forward["reference"], forward["serialised"]) == ("dense:sdpa", False)
    rows = {each["name"]: each for each in forward["contestants"]}
    assert set(rows) == {"dense:sdpa", "dense:cpu", "fine:cpu", "tiled:cpu", "raster:cpu"}
    assert rows["dense:sdpa"]["flops"] == 4 * 32 * 72**2
    assert {each["name"] for each in backward["contestants"]} == set(rows)
    for file in ("report.html", "report.md", "report.json"):
        assert (out / file).stat().st_size > 500
    again = strobe(*line)
    assert again.document["measured"] == [] and again.document["kept"] == names
    assert again.document["cells"] == first.document["cells"]
    rendered = strobe("bench", "attention", "--out", out, "--render")
    assert rendered.code == 0 and "2x4x9, forward: speed." in rendered.out
    other = strobe(*line, "--seed", 1)
    assert other.code == 2 and "differ in seed" in other.err


def test_captured_calls_are_measured_by_several_methods_and_the_answer_comes_first(strobe: Strobe, tmp_path: Path) -> None:
    file, out = tmp_path / "qkv.safetensors", tmp_path / "bench"
    call = CapturedCall(model="M", layer="blocks.3.attn1", step=2, grid=(2, 4, 9))

    def write(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        q, k, v = (torch.randn(1, 72, 1, 32, generator=generator) for _ in range(3))
        write_calls(file, [(call, (q, k, v))])

    write(0)
    line = ("bench", "attention", "--captured", file, "--sparsity", 0, 0.5, "--impls", "dense:sdpa", "vsa", *FAST, "--out", out)
    found = strobe(*line)
    assert found.code == 0, found.err
    title = found.out.splitlines()[0]
    assert title.startswith(("At an error of at most", "No method is faster")) and title.endswith(", on a CPU")
    assert (out / "report.md").read_text().startswith(f"# {title}\n")
    assert "VSA by sub-block at 50 %" in found.out and "M-2x4x9, blocks of 64: methods." in found.out
    (cell,) = strobe(*line, "--json").document["cells"]
    assert [each["name"] for each in cell["contestants"]] == [
        "dense:sdpa", "vsa:count@0", "vsa:count@0.5", "vsa:sub-block@0", "vsa:sub-block@0.5",
        "vsa:corrected@0", "vsa:corrected@0.5", "vsa:share@0.3", "vsa:share@0.5", "vsa:share@0.7", "vsa:share@0.9",
    ]  # fmt: skip
    assert strobe("bench", "attention", "--out", out, "--render").out.splitlines()[0] == title
    write(1)
    other = strobe(*line)
    assert other.code == 2 and "differ in captured" in other.err


def test_the_quick_grid_has_a_size_where_sparsity_pays_and_takes_less_time_per_cell(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int, float]] = []

    def stop(cells: tuple[Any, ...], request: Any, *_: object) -> None:
        asked.append((len(cells), max(cell.shape.num_tokens for cell in cells), request.seconds))
        raise KeyboardInterrupt

    monkeypatch.setattr("strobe.bench.attention.run.run_grid", stop)
    for flags in (("--grid", "quick"), (), ("--grid", "quick", "--seconds-per-cell", 7)):
        assert strobe("bench", "attention", *flags, "--device", "cpu", "--out", tmp_path).code == 130
    (few, most, fast), (_, _, usual), (_, _, told) = asked
    assert few <= 4 and most >= 4096 and (fast, usual, told) == (0.5, 4.0, 7.0)


def test_profile_prints_what_was_called(strobe: Strobe, tmp_path: Path) -> None:
    found = strobe("bench", "attention", *TINY, "--impls", "dense:sdpa", "--out", tmp_path / "b", "--profile")
    assert found.code == 0 and "aten::scaled_dot_product_attention" in found.out


def test_a_serialised_run_says_so(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    found = strobe("bench", "attention", *TINY, "--impls", "dense:sdpa", "fine:cpu", "--out", tmp_path / "b", "--json")
    (cell,) = found.document["cells"]
    assert cell["serialised"] and [each["speedup"] for each in cell["contestants"]] == [None, None]


def test_a_red_gate_is_exit_code_1(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from strobe.bench.attention import run as cell

    monkeypatch.setattr(cell, "tolerance", lambda measure, dtype: 0.0)
    found = strobe("bench", "attention", *TINY, "--impls", "dense:sdpa", "--out", tmp_path / "b", "--json")
    assert found.code == 1
    assert found.document["cells"][0]["contestants"][0]["reason"].startswith("red gate: ")
    assert json.loads((tmp_path / "b" / "request.json").read_text())["tile"] == "auto"


CALL = ("--heads", 1, "--head-dim", 8, "--iterations", 1, "--strategies", "allgather", "--quiet")


def test_one_cell_is_measured_kept_and_rendered_as_either_page(strobe: Strobe, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    line = ("bench", "tree", "--world-size", 1, "--seq-len", 16, *CALL, "--profile", "--out", out, "--json")
    first = strobe(*line)
    assert first.code == 0, first.err
    (cell,) = first.document["cells"]
    assert first.document["measured"] == [cell["cell"]] == ["ws1_n16_q1_h1x8_b1_float32_cpu"]
    (row,) = cell["strategies"]
    assert (row["name"], row["calls"], row["straggler"]) == ("allgather", 6, None)
    assert row["verdict"] in ("launch-bound", "memory-bound", "flop-bound") and row["exposed_ns"] == 0
    again = strobe(*line)
    assert again.document["kept"] == [cell["cell"]] and again.document["cells"] == first.document["cells"]
    page = strobe("bench", "tree", "--out", out, "--render")
    assert page.code == 0
    assert "strategies." in page.out and "comp_local_attention" in page.out and "not summed" in page.out and "Remedy:" in page.out
    for file in ("report.html", "report.md", "report.json"):
        assert (out / file).stat().st_size > 500


@pytest.mark.parametrize("there", [0, 2])
def test_ranks_without_a_gpu_are_not_started(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    found = strobe("bench", "tree", "--device", "cuda", "--world-size", 4, "--out", tmp_path / "b")
    sees = "2 CUDA devices" if there else "no CUDA device"
    assert found.code == 3 and f"each rank takes a GPU, 4 in all, and torch sees {sees} here" in found.err
    assert found.err.count("\n") == 1 and ("--world-size 2" in found.err) == (there == 2)
    assert not (tmp_path / "b").exists()
