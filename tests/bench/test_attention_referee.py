"""Captured q, k and v through several methods: what is measured of each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import strobe
from strobe.bench.attention import run as running
from strobe.bench.attention.contestant import CHECKED_ROWS, captured_cells, draw, level_of
from strobe.bench.attention.run import METHODS, Request, contestants, run_grid
from strobe.bench.cases.attention import selected_pairs
from strobe.core.errors import ConfigError
from strobe.models.captured import CapturedCall, write_calls
from strobe.perf.records.store import read_run

CPU = torch.device("cpu")
GRID = (3, 5, 7)
TOKENS, TEXT, HEADS, WIDTH = 3 * 5 * 7, 4, 2, 32


def captured(path: Path, steps: int = 1) -> list[list[Tensor]]:
    """Calls of one layer with text after the video."""
    generator = torch.Generator().manual_seed(5)
    found = [[torch.randn(1, TOKENS + TEXT, HEADS, WIDTH, generator=generator) for _ in "qkv"] for _ in range(steps)]
    call = CapturedCall(model="Some_Model", layer="blocks.7.attn1", step=0, grid=GRID, text_tokens=TEXT)
    write_calls(path, [(CapturedCall(**{**_fields(call), "step": step}), (q, k, v)) for step, (q, k, v) in enumerate(found)])
    return found


def _fields(call: CapturedCall) -> dict[str, object]:
    return {name: getattr(call, name) for name in call.__struct_fields__}


def test_every_method_is_measured_at_every_level_on_the_calls_own_numbers(tmp_path: Path) -> None:
    file = tmp_path / "qkv.safetensors"
    given = captured(file)
    (cell,) = captured_cells(file, (0.5,), (64,))
    assert cell.name == "Some-Model-3x5x7_call000_b64_forward"
    inputs = draw(cell, tile="cube", dtype=torch.float32, device=CPU, seed=0)
    assert all(torch.equal(ours, each[:, :TOKENS]) for ours, each in zip((inputs.q, inputs.k, inputs.v), given[0], strict=True))
    names = contestants(("dense:sdpa", "vsa"), CPU, (0.25, 0.5))
    assert names == ("dense:sdpa", *(f"vsa:{method}@{level}" for method in METHODS for level in (0.25, 0.5)))
    run_grid([cell], Request(contestants=names, tile="cube", seconds=0.01, device="cpu"), tmp_path / "b", lambda *_: None)
    run = read_run(tmp_path / "b" / "cells" / cell.name)
    assert run.cell is not None
    assert (run.cell.layer, run.cell.step, run.cell.text_tokens, run.cell.topk) == ("blocks.7.attn1", 0, TEXT, None)
    q, k, v = (each[:, :TOKENS] for each in given[0])
    rows = torch.linspace(0, TOKENS - 1, min(CHECKED_ROWS, TOKENS)).round().long()
    weights = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q[:, rows].double(), k.double()) / WIDTH**0.5, -1)
    dense = torch.einsum("bhqk,bkhd->bqhd", weights, v.double())
    assert [gate.passed for gate in run.gates] == [True] * 5
    for name in names[1:]:
        sparse = strobe.video_sparse_attention(
            q, k, v, grid=GRID, tile=(4, 4, 4), **METHODS[name[4:].partition("@")[0]](level_of(name))
        )
        off = sparse.out[:, rows].double() - dense
        by_head = (off.square().mean((0, 1, 3)) / dense.square().mean((0, 1, 3))).sqrt()
        tile_of = sparse.q_tiles.rows() // sparse.q_tiles.block
        seen = sparse.selection.mask(sparse.q_tiles.num_tiles)[:, :, tile_of[rows]][..., tile_of]
        said = {line.metric: line.value for line in run.quality if line.variant == name and line.against == "dense"}
        assert said["relative error"] == pytest.approx((off.square().mean() / dense.square().mean()).sqrt().item(), rel=1e-4)
        assert said["relative error of the worst head"] == pytest.approx(by_head.max().item(), rel=1e-4)
        assert said["recall"] == pytest.approx((weights * seen).sum(-1).mean().item(), rel=1e-4)
        (variant,) = (line for line in run.variants if line.name == name)
        pairs = selected_pairs(sparse.selection, sparse.q_tiles)
        assert variant.sparsity == pytest.approx(1 - pairs / (HEADS * TOKENS**2))
        assert variant.sizes["selected_blocks"] == int(sparse.selection.counts.sum())


def test_the_words_of_methods_and_levels() -> None:
    usual = contestants((), CPU, (0.9,))
    assert usual[-2:] == ("vsa:count@0.9", "vsa:sub-block@0.9") and all(name.startswith("dense:") for name in usual[:-2])
    assert contestants(("count", "fa4-dense", "flashinfer"), CPU, (0.5, 0.9)) == (
        "peer:fa4-dense", "vsa:count@0.5", "vsa:count@0.9", "peer:flashinfer@0.5", "peer:flashinfer@0.9",
    )  # fmt: skip
    with pytest.raises(ConfigError, match="did you mean 'count'"):
        contestants(("cuont",), CPU, (0.5,))
    assert (level_of("vsa:count@0.95"), level_of("dense:sdpa")) == (0.95, None)


def test_a_peer_at_a_level_is_given_the_selection_of_that_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, seen = tmp_path / "qkv.safetensors", {}
    captured(file)
    (cell,) = captured_cells(file, (0.5,), (64,))

    def build(name: str, inputs: object) -> object:
        made = running.build_ours("fine:cpu", inputs)  # type: ignore[arg-type]
        seen[name] = inputs.selection.indices.shape[-1], inputs.tiles.num_tiles  # type: ignore[attr-defined]
        return running.BoundContestant(
            name=name, kind="fine", impl="theirs", leaves=made.leaves, call=made.call, tiled=True, reason=""
        )

    monkeypatch.setattr(running.peers, "build", build)
    names = ("dense:sdpa", "peer:cudnn-bsa@0.25", "peer:cudnn-bsa@0.75")
    run_grid([cell], Request(contestants=names, seconds=0.01, device="cpu"), tmp_path / "b", lambda *_: None)
    tiles = next(iter(seen.values()))[1]
    assert seen == {names[1]: (-(-tiles * 3 // 4), tiles), names[2]: (-(-tiles // 4), tiles)}
    assert [gate.passed for gate in read_run(tmp_path / "b" / "cells" / cell.name).gates] == [True] * 3
