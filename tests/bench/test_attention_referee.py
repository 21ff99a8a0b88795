"""Captured q, k and v through several methods: what is measured of each."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

import strobe
from strobe.bench.attention import run as running
from strobe.bench.attention.contestant import CHECKED_ROWS, GridCell, captured_cells, draw, level_of
from strobe.bench.attention.run import METHODS, SHARES, Request, contestants, run_grid
from strobe.core.errors import ConfigError
from strobe.models.captured import CapturedCall, write_calls
from strobe.perf.records.store import RunRecords, read_run
from strobe.perf.report.attention_bench import read_cells
from strobe.perf.report.blocks.referee import judge_methods
from terminal import quiet

CPU = torch.device("cpu")
GRID = (3, 5, 7)
TOKENS, TEXT, HEADS, WIDTH = 3 * 5 * 7, 4, 2, 32


def captured(path: Path, steps: int = 1) -> list[list[Tensor]]:
    """Calls of one layer with text after the video."""
    generator = torch.Generator().manual_seed(5)
    found = [[torch.randn(1, TOKENS + TEXT, HEADS, WIDTH, generator=generator) for _ in "qkv"] for _ in range(steps)]
    call = CapturedCall(model="Some_Model", layer="blocks.7.attn1", step=0, grid=GRID, text_tokens=TEXT)
    write_calls(path, [(replace(call, step=step), (q, k, v)) for step, (q, k, v) in enumerate(found)])
    return found


def cell_of(file: Path, block: int = 64) -> GridCell:
    captured(file)
    (cell,) = captured_cells(file, (0.5,), (block,))
    return cell


def measured(cells: Sequence[GridCell], names: tuple[str, ...], root: Path) -> RunRecords:
    """Measure cells; return the run of the first."""
    request = Request(contestants=names, tile="cube", seconds=0.01, device="cpu")
    run_grid(cells, request, root, quiet)
    return read_run(root / "cells" / cells[0].name)


def test_every_method_is_measured_at_every_level_on_the_calls_own_numbers(tmp_path: Path) -> None:
    file = tmp_path / "qkv.safetensors"
    cell, given = cell_of(file), captured(file)
    assert cell.name == "Some-Model-3x5x7_call000_b64_forward"
    inputs = draw(cell, tile="cube", dtype=torch.float32, device=CPU, seed=0)
    assert all(torch.equal(ours, each[:, :TOKENS]) for ours, each in zip((inputs.q, inputs.k, inputs.v), given[0], strict=True))
    names = contestants(("dense:sdpa", "vsa"), CPU, (0.25, 0.5))
    levels = {method: SHARES if method == "share" else (0.25, 0.5) for method in METHODS}
    assert names == ("dense:sdpa", *(f"vsa:{method}@{level}" for method, own in levels.items() for level in own))
    run = measured([cell], names, tmp_path / "b")
    assert run.cell is not None
    assert (run.cell.layer, run.cell.step, run.cell.text_tokens, run.cell.topk) == ("blocks.7.attn1", 0, TEXT, None)
    assert [gate.passed for gate in run.gates] == [True] * len(names)


def test_the_words_of_methods_and_levels() -> None:
    usual = contestants((), CPU, (0.9,))
    sparse = ("vsa:count@0.9", "vsa:sub-block@0.9", "vsa:corrected@0.9", *(f"vsa:share@{share}" for share in SHARES))
    assert usual[-7:] == sparse and all(name.startswith("dense:") for name in usual[:-7])
    assert contestants(("share", "corrected"), CPU, (0.5,)) == ("vsa:corrected@0.5", *sparse[3:])
    assert contestants(("count", "fa4-dense", "flashinfer"), CPU, (0.5, 0.9)) == (
        "peer:fa4-dense", "vsa:count@0.5", "vsa:count@0.9", "peer:flashinfer@0.5", "peer:flashinfer@0.9",
    )  # fmt: skip
    with pytest.raises(ConfigError, match="did you mean 'count'"):
        contestants(("cuont",), CPU, (0.5,))
    assert (level_of("vsa:count@0.95"), level_of("dense:sdpa")) == (0.95, None)


def test_a_peer_at_a_level_is_given_the_selection_of_that_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, seen = cell_of(tmp_path / "qkv.safetensors"), {}

    def build(name: str, inputs: object) -> object:
        made = running.build_ours("fine:cpu", inputs)  # type: ignore[arg-type]
        seen[name] = inputs.selection.indices.shape[-1], inputs.tiles.num_tiles  # type: ignore[attr-defined]
        return running.BoundContestant(
            name=name, kind="fine", impl="theirs", leaves=made.leaves, call=made.call, tiled=True, reason=""
        )

    monkeypatch.setattr(running.peers, "build", build)
    names = ("dense:sdpa", "peer:cudnn-bsa@0.25", "peer:cudnn-bsa@0.75")
    assert [gate.passed for gate in measured([cell], names, tmp_path / "b").gates] == [True] * 3
    tiles = next(iter(seen.values()))[1]
    assert seen == {names[1]: (-(-tiles * 3 // 4), tiles), names[2]: (-(-tiles // 4), tiles)}


def by_hand(q: Tensor, k: Tensor, v: Tensor, grid: tuple[int, int, int], name: str) -> dict[str, Any]:
    """Compute one head of count, corrected or share on cubes of 4, in float64: its error, dense attention and the weight kept."""
    method, level = name[4:].partition("@")[0], level_of(name)
    places = torch.cartesian_prod(*(torch.arange(size) // 4 for size in grid))
    tile_of = torch.unique(places, dim=0, return_inverse=True)[1]
    member = torch.nn.functional.one_hot(tile_of).double()  # [S, N]
    sizes, (q, k, v) = member.sum(0), (each.double() for each in (q, k, v))
    qm, km, vm = (member.T @ each / sizes[:, None] for each in (q, k, v))
    coarse, tiles, scale = qm @ km.T / WIDTH**0.5, len(sizes), WIDTH**-0.5
    sums = coarse.softmax(-1).sort(-1, descending=True).values.cumsum(-1)
    count = (sums < level).sum(-1) + 1 if method == "share" else torch.tensor([ceil((1 - level) * tiles)] * tiles)
    chosen = coarse.argsort(-1, descending=True).argsort(-1) < count[:, None]
    seen = chosen[tile_of][:, tile_of]
    weights = (q @ k.T * scale).exp()
    kept, means = weights * seen, (q @ km.T * scale).exp() * sizes * ~chosen[tile_of] * (method == "corrected")
    out = (kept @ v + means @ vm) / (kept.sum(-1) + means.sum(-1))[:, None]
    dense = weights @ v / weights.sum(-1, keepdim=True)
    return {"off": out - dense, "dense": dense, "kept": kept.sum(-1) / weights.sum(-1), "density": seen.double().mean().item()}


@pytest.mark.parametrize("layers", [1, 2])
def test_share_and_correction_have_the_numbers_of_a_calculation_by_hand(tmp_path: Path, layers: int) -> None:
    grid, file, generator = (5, 9, 6), tmp_path / "qkv.safetensors", torch.Generator().manual_seed(3)
    tokens, names = prod(grid), ("vsa:count@0.75", "vsa:corrected@0.75", "vsa:share@0.5", "vsa:share@0.9")
    given = [[1.5 * torch.randn(1, tokens, HEADS, WIDTH, generator=generator) for _ in "qkv"] for _ in range(layers)]
    for three in given:
        for each in three:
            each += torch.randn(1, 1, HEADS, WIDTH, generator=generator) * torch.linspace(-1, 1, tokens)[:, None, None]
    calls = (CapturedCall(model="M", layer=f"l{at}", step=0, grid=grid) for at in range(layers))
    write_calls(file, [(call, (q, k, v)) for call, (q, k, v) in zip(calls, given, strict=True)])
    measured(captured_cells(file, (0.75,), (64,)), ("dense:sdpa", *names), tmp_path / "b")
    judged = {each.entry.name: each for each in judge_methods(read_cells(tmp_path / "b")[0])[1]}
    rows = torch.linspace(0, tokens - 1, CHECKED_ROWS).round().long()
    for name in names:
        errors, heads, kept, density = [], [], [], []
        for q, k, v in given:
            found = [by_hand(*(each[0, :, head] for each in (q, k, v)), grid, name) for head in range(HEADS)]
            off, dense = (torch.stack([each[which][rows] for each in found]) for which in ("off", "dense"))
            errors.append((off.square().mean() / dense.square().mean()).sqrt().item())
            heads.append((off.square().mean((1, 2)) / dense.square().mean((1, 2))).sqrt().max().item())
            kept.append(torch.stack([each["kept"][rows] for each in found]).mean().item())
            density += [each["density"] for each in found]
        row, worst = judged[name], max(range(layers), key=errors.__getitem__)
        assert row.error == pytest.approx(sum(errors) / layers, rel=1e-3)
        assert (row.worst_head, row.kept) == pytest.approx((max(heads), sum(kept) / layers), rel=1e-3)
        assert row.worst_layer == (f"l{worst}", pytest.approx(errors[worst], rel=1e-3))
        assert row.density == pytest.approx(sum(density) / len(density))
        assert row.entry.median_ns > 0
    assert judged["vsa:corrected@0.75"].error < judged["vsa:count@0.75"].error
    assert judged["vsa:corrected@0.75"].kept == judged["vsa:count@0.75"].kept


def test_a_call_that_leaves_the_correction_out_gets_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, real = cell_of(tmp_path / "qkv.safetensors"), strobe.video_sparse_attention
    monkeypatch.setattr(
        running, "video_sparse_attention", lambda *three, **given: real(*three, **{**given, "pool_skipped": False})
    )
    names = ("dense:sdpa", "vsa:count@0.5", "vsa:corrected@0.5")
    assert [gate.passed for gate in measured([cell], names, tmp_path / "b").gates] == [True, True, False]


def test_the_impl_that_is_named_is_that_of_the_methods_own_call(tmp_path: Path) -> None:
    cell = cell_of(tmp_path / "qkv.safetensors", 128)
    inputs = draw(cell, tile="auto", dtype=torch.float32, device=CPU, seed=0)
    count, share = (running.build_ours(f"vsa:{name}@0.9", inputs.at(0.9)).reason for name in ("count", "share"))
    assert count.startswith("cudnn: ") and share.startswith("triton: "), "counts of tiles differ by row"
