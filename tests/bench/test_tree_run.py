"""Cells of the tree benchmark on real ranks, and the gate that they pass first."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import torch

from strobe.attention.types import AttentionOutput
from strobe.bench.processes import alive
from strobe.bench.tree import rank
from strobe.bench.tree.request import PEER, RankedCall, TreeSettings
from strobe.bench.tree.run import run_cells
from strobe.core.errors import ConfigError
from strobe.perf.analysis.runs.grid import covered_ns, regions_of
from strobe.perf.records.record import MESSAGE
from strobe.perf.records.store import read_run
from strobe.perf.report.bench_pages import bound, collectives_of, parts_of, read_cells, split_calls
from terminal import quiet


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The mark of each cell that has run."""
    found: list[str] = []

    def draw() -> UUID:
        found.append((drawn := uuid4()).hex)
        return drawn

    monkeypatch.setattr("strobe.bench.processes.uuid4", draw)
    return found


def test_all_ranks_are_measured_and_taken_apart(tmp_path: Path, marks: list[str]) -> None:
    """One is held back; who waits for whom is up to the machine, so what that makes of a verdict is tested on made calls."""
    how = TreeSettings(contestants=("allgather", "ring", "auto", PEER), iterations=1, profile=True, delay=(1, 20.0))
    shape = RankedCall(world_size=2, seq_len=101, heads=4, kv_heads=2, dim=8, batch=2)
    outcome = run_cells([shape], how, tmp_path, quiet, timeout_s=300)
    assert outcome.measured == (shape.name,), outcome.failed
    assert alive(marks[0]) == []
    (cell,) = read_cells(tmp_path, "tree")[0]
    ours = [entry for entry in cell.entries if entry.name != PEER]
    assert not any(entry.reason for entry in ours)
    for entry in ours:
        assert len(entry.times_ns) == 6 and min(entry.times_ns) >= 20e6
        assert len(split_calls(entry, "free-running")) == len(split_calls(entry, "serialised")) == 6
        (sample, *_) = split_calls(entry, "free-running")
        held = sample[1]
        marked = ((each.start_ns, each.start_ns + each.value_ns) for each in held[1:])
        assert covered_ns(marked) <= held[0].value_ns - 20e6  # no region is told to have slept
        kinds = [region.part for region in regions_of(sample[0], MESSAGE)]
        messages = {"allgather": ["gather"], "ring": ["exchange", "gather"]}
        sent = [each.kind for each in entry.sent]
        assert kinds == ["agreement", *sent] and sent == messages.get(entry.name, sent)  # auto is one of all
        parts = parts_of(entry)
        assert parts is not None
        assert parts.local + parts.merge + parts.wait + parts.transfer + parts.host == pytest.approx(parts.total)
        assert bound(cell, entry) is not None and all(len(each.waits_ns) == 2 for each in collectives_of(entry))
    assert cell.run.header.world_size == 2
    again = run_cells([shape], how, tmp_path, quiet)
    assert again.kept == (shape.name,) and len(marks) == 1
    with pytest.raises(ConfigError, match="differ in seed"):
        run_cells([shape], TreeSettings(contestants=how.contestants, iterations=1, profile=True, seed=1), tmp_path, quiet)


@pytest.mark.rest
def test_a_rank_that_does_not_answer_fails_the_cell_in_words_and_leaves_nothing(tmp_path: Path, marks: list[str]) -> None:
    how = TreeSettings(contestants=("allgather",), iterations=1, delay=(1, 600_000.0))
    shape = RankedCall(world_size=2, seq_len=16, heads=1, kv_heads=1, dim=8)
    start = time.monotonic()
    (failed,) = run_cells([shape], how, tmp_path, quiet, timeout_s=3.0).failed
    assert "rank 0: tree attention, call" in failed and "rank 1 did not answer within 3 s" in failed and "\n" not in failed
    assert time.monotonic() - start < 500 and alive(marks[0]) == []
    end = read_run(tmp_path / "cells" / shape.name).end
    assert end is not None and end.status == "failed" and "rank 1" in end.message


def test_a_cell_that_takes_too_long_is_ended(tmp_path: Path, marks: list[str]) -> None:
    shape = RankedCall(world_size=2, seq_len=16)
    (failed,) = run_cells([shape], TreeSettings(), tmp_path, quiet, cell_timeout_s=0.5).failed
    assert "ended after 0.5 s" in failed and alive(marks[0]) == []
    (cell,) = read_cells(tmp_path, "tree")[0]
    assert not cell.measured and "ended after 0.5 s" in cell.failure


def test_cells_whose_launcher_fails_fail_one_by_one_and_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Traceback\n  File x\nValueError: no room\nlast words\n"
    done = subprocess.CompletedProcess(args=[], returncode=4, stdout="", stderr=said)
    monkeypatch.setattr("strobe.bench.tree.run.run_swept", lambda *_: done)
    shapes = [RankedCall(world_size=ranks, seq_len=16, heads=1, kv_heads=1, dim=8) for ranks in (2, 1)]
    outcome = run_cells(shapes, TreeSettings(contestants=("allgather",), iterations=1), tmp_path, quiet)
    whys = [f"the launcher ended with code 4; rank {gone} left no word: no room" for gone in ("0, 1", "0")]
    assert outcome.failed == tuple(f"{shape.name}: {why}" for shape, why in zip(shapes, whys, strict=True))
    assert not outcome.measured and [cell.failure for cell in read_cells(tmp_path, "tree")[0]] == whys[::-1]
    for shape, why in zip(shapes, whys, strict=True):
        end = read_run(tmp_path / "cells" / shape.name).end
        assert end is not None and (end.status, end.message) == ("failed", why)


@pytest.fixture
def inputs() -> rank.RankShare:
    return rank.draw(RankedCall(world_size=1, seq_len=63, heads=4, kv_heads=2, dim=8, q_len=3), 0, torch.device("cpu"), seed=0)


def right(inputs: rank.RankShare) -> AttentionOutput:
    from strobe.attention.dense.api import dense_attention

    return dense_attention(inputs.q, inputs.k, inputs.v, return_lse=True)


HALVES = slice(0, 20), slice(20, None)
WRONG = {
    "last key dropped": lambda i: (right(replace(i, k=i.k[:, :-1], v=i.v[:, :-1])).out, None),
    "no scale": lambda i: (right(replace(i, q=i.q * 8**0.5)).out, None),
    "mean of two halves": lambda i: (sum(right(replace(i, k=i.k[:, at], v=i.v[:, at])).out for at in HALVES) / 2, None),
    "lse of base 2": lambda i: (right(i).out, right(i).lse / 0.6931),
    "nothing": lambda i: (torch.full_like(i.q, float("nan")), None),
    "heads mixed up": lambda i: (right(i).out.flip(2), None),
    "another dtype": lambda i: (right(i).out.double(), None),
}


@pytest.mark.parametrize("fault", WRONG)
def test_the_gate_sees_what_is_wrong(inputs: rank.RankShare, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(rank, "_ours", lambda name, given, timeout, return_lse: WRONG[fault](given))
    assert not rank.check("allgather", inputs, 1.0).passed


def test_ranks_draw_the_same_call_and_keep_their_share() -> None:
    shape = RankedCall(world_size=3, seq_len=10, q_len=4, placement="sequence", kv_heads=4, dim=8)
    ranks = [rank.draw(shape, number, torch.device("cpu"), seed=3) for number in range(3)]
    whole = rank.draw(RankedCall(world_size=1, seq_len=10, q_len=4, kv_heads=4, dim=8), 0, torch.device("cpu"), seed=3)
    for name in ("q", "k", "v", "expected"):
        assert torch.equal(torch.cat([getattr(each, name) for each in ranks], dim=1), getattr(whole, name))
    assert [each.k.shape[1] for each in ranks] == [4, 3, 3]


@pytest.mark.parametrize(("dtype", "least", "most"), [("float32", 2.0**-21, 1e-5), ("bfloat16", 1e-5, 1e-3)])
def test_the_gate_passes_what_is_right(dtype: str, least: float, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lse of 16-bit tensors is rounded to half precision."""
    shape = RankedCall(world_size=1, seq_len=63, heads=4, kv_heads=2, dim=8, q_len=3, dtype=dtype)
    inputs = rank.draw(shape, 0, torch.device("cpu"), seed=0)
    monkeypatch.setattr(rank, "_ours", lambda name, given, timeout, return_lse: (right(given).out, right(given).lse))
    found = rank.check("allgather", inputs, 1.0)
    assert found.passed and not found.refused and found.lse_error is not None and least <= found.lse_limit <= most
    monkeypatch.setattr(rank, "_ours", lambda *_, **__: 1 / 0)
    assert rank.check("allgather", inputs, 1.0).refused == "failed: ZeroDivisionError: division by zero"
