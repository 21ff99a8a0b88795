"""`strobe bench tree` and `strobe bench scaling` from the command to the pages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from terminal import Strobe

TINY = ("--heads", 1, "--head-dim", 8, "--iterations", 1, "--strategies", "allgather", "--quiet")


def test_one_cell_is_measured_kept_and_rendered_as_either_page(strobe: Strobe, tmp_path: Path) -> None:
    out = tmp_path / "bench"
    line = ("bench", "tree", "--world-size", 1, "--seq-len", 16, *TINY, "--profile", "--out", out, "--json")
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
    curves = strobe("bench", "scaling", "--out", out, "--render")
    assert curves.code == 0 and "links were faster" in curves.out
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
