"""Attention over dense keys and selected history tiles against a walk over tokens that shares nothing with the package."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from forked import in_triton, needs_triton
from history_on_cpu import Case, Drawn, by_definition, highest, tiles_of
from history_on_cpu import draw as in_slots
from strobe.attention.dense import dense_attention
from strobe.attention.sparse import history as operator
from strobe.attention.sparse.coarse import Estimator, pool
from strobe.attention.sparse.history import History, history_attention
from strobe.attention.sparse.layout import tile_layout
from strobe.core.errors import ConfigError, ShapeError
from strobe.core.tolerances import tolerance

ELEMENT = tolerance("element", "float32")
ROUNDING = tolerance("rounding", "float32")

SCRIPT = Path(__file__).parents[2] / "support" / "history_on_cpu.py"
LIMITS = {torch.float64: 1e-6, torch.float32: 2e-5, torch.bfloat16: 2e-2}

USUAL = Case(batch=2, tile=(2, 3), slots=5, held=(0, 3, 4), heads=(4, 2), width=8, dtype=torch.float64)


def draw(case: Case, *, unused: float = float("nan")) -> Drawn:
    """Random tensors; `unused` is what lies in the slots that are no history."""
    drawn = in_slots(case, "cpu")
    for tensor in (drawn.history.keys, drawn.history.values):
        for slot in set(range(case.slots)) - set(case.held):
            tensor.chunk(case.slots, dim=1)[slot].fill_(unused)
    return drawn


def past(drawn: Drawn) -> list[Tensor]:
    """Keys and values of every slot, in raster order."""
    both = (each.split(drawn.tiles.num_rows, dim=1) for each in (drawn.history.keys, drawn.history.values))
    return [torch.cat([drawn.tiles.to_raster(slot) for slot in slots], dim=1) for slots in both]


def run(drawn: Drawn, sparsity: float, **options: Any) -> Any:
    options |= {"sparsity": sparsity, "return_lse": True}
    return history_attention(drawn.q, drawn.dense, drawn.history, q_tiles=drawn.q_tiles, **options)


def by_hand(case: Case, drawn: Drawn, topk: int) -> tuple[Tensor, Tensor]:
    """Out and lse in float64."""
    near = [torch.cat(each, dim=1).double() for each in zip(*drawn.dense, strict=True)]
    per_frame, tiles = math.prod(case.size), tiles_of(case.size, drawn.tiles.tile[1:])
    key_tiles = [[slot * per_frame + token for token in tile] for slot in case.held for tile in tiles]
    q_tiles = tiles_of((case.frames, *case.size), drawn.q_tiles.tile)
    operands = [each.double() for each in (drawn.q, *past(drawn))]
    out, lse, _ = by_definition(operands, q_tiles, key_tiles, lambda _, scores: highest(topk, scores), beside=near)
    return out, lse


CASES = [
    USUAL,
    replace(USUAL, tile=(5, 7)),
    replace(USUAL, size=(8, 8), tile=(8, 8), frames=3),  # whole tiles
    replace(USUAL, size=(9, 9), tile=(4, 16), frames=1, slots=3, held=(1,)),
    replace(USUAL, sink=0, held=(0, 4)),
    replace(USUAL, heads=(4, 4)),
    replace(USUAL, dtype=torch.float32),
    replace(USUAL, dtype=torch.bfloat16),
]


@pytest.mark.parametrize("impl", ["cpu", "reference"])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("sparsity", [0.5, 0.9])
def test_the_operator_is_its_definition(case: Case, sparsity: float, impl: str) -> None:
    drawn = draw(case)
    topk = max(1, math.ceil(round((1 - sparsity) * drawn.history.num_tiles, 9)))
    found = run(drawn, sparsity, impl=impl)
    out, lse = by_hand(case, drawn, topk)
    limit = LIMITS[case.dtype]
    assert found.out.dtype == case.dtype and found.lse.dtype == torch.float32
    torch.testing.assert_close(found.out.double(), out, atol=limit, rtol=limit)
    torch.testing.assert_close(found.lse.double(), lse, atol=max(limit, 1e-5), rtol=ELEMENT)


@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    tile=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    frames=st.integers(1, 3),
    slots=st.integers(1, 4),
    data=st.data(),
)
def test_all_tiles_are_dense_attention(
    size: tuple[int, int], tile: tuple[int, int], frames: int, slots: int, data: st.DataObject
) -> None:
    held = tuple(sorted(data.draw(st.sets(st.integers(0, slots - 1)))))
    sink, parts = data.draw(st.integers(0, 2)), data.draw(st.sampled_from([1, 4]))
    drawn = draw(replace(USUAL, size=size, tile=tile, frames=frames, slots=slots, held=held, sink=sink, parts=parts))
    rows = [slot * math.prod(size) + token for slot in held for token in range(math.prod(size))]
    sides = zip(*drawn.dense, past(drawn), strict=True)
    keys, values = (torch.cat([sink, new, old[:, rows]], dim=1) for sink, new, old in sides)
    dense = dense_attention(drawn.q, keys, values, impl="reference", return_lse=True)
    found = run(drawn, 0.0)
    torch.testing.assert_close(found.out, dense.out, atol=ROUNDING, rtol=ROUNDING)
    torch.testing.assert_close(found.lse, dense.lse, atol=ELEMENT, rtol=ELEMENT)


def test_more_parts_find_keys_that_cancel_in_a_mean() -> None:
    """A tile whose keys are strong and opposite has a mean of 0: only scores of its parts see it."""
    case = replace(USUAL, size=(8, 8), tile=(8, 8), frames=1, slots=2, held=(0, 1), heads=(1, 1))
    drawn = draw(case, unused=0.0)
    q = torch.ones_like(drawn.q)
    keys = torch.full_like(drawn.history.keys, 0.1)
    keys[:, 64:96], keys[:, 96:] = 3.0, -3.0
    seen = []
    for parts in (1, 4):
        means = torch.cat([pool(keys[:, s : s + 64], torch.tensor([64], dtype=torch.int32), 64, parts) for s in (0, 64)], dim=2)
        history = replace(drawn.history, keys=keys, means=means, estimator=Estimator(parts=parts))
        values = torch.arange(2.0, dtype=torch.float64).repeat_interleave(64)[None, :, None, None].expand_as(keys)
        found = history_attention(q, (), replace(history, values=values), q_tiles=drawn.q_tiles, sparsity=0.5)
        seen.append(found.out.mean().item())
    assert seen == pytest.approx([0, 1])  # the value of a slot is its number


def test_a_history_that_is_made_in_compiled_code() -> None:
    drawn = draw(USUAL)
    kept = drawn.history

    def attend(q: Tensor, keys: Tensor, values: Tensor, means: Tensor, sizes: Tensor) -> Tensor:
        past = History(keys=keys, values=values, means=means, sizes=sizes, num_tiles=kept.num_tiles, block=kept.block)
        return history_attention(q, drawn.dense, past, q_tiles=drawn.q_tiles, sparsity=0.5).out

    compiled = torch.compile(attend, fullgraph=True, backend="eager")
    assert torch.equal(compiled(drawn.q, kept.keys, kept.values, kept.means, kept.sizes), run(drawn, 0.5).out)


def test_gradients_are_those_of_the_definition() -> None:
    drawn = draw(USUAL, unused=0.0)
    inputs = [tensor.clone().requires_grad_() for tensor in (drawn.q, *drawn.dense[0], *drawn.dense[1])]
    other = replace(drawn, q=inputs[0], dense=[(inputs[1], inputs[2]), (inputs[3], inputs[4])])
    weights = torch.rand_like(drawn.q)
    topk = math.ceil(0.5 * drawn.history.num_tiles)
    found = torch.autograd.grad((run(other, 0.5).out * weights).sum(), inputs)
    expected = torch.autograd.grad((by_hand(USUAL, other, topk)[0] * weights).sum(), inputs)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, atol=ELEMENT, rtol=ELEMENT)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"sparsity": 1.0}, ConfigError, r"sparsity: got 1.0, expected 0 \(dense\) to below 1"),
        ({"q_tiles": tile_layout((2, 5, 6), "auto")}, ShapeError, r"q: got shape .* expected \[B, 60, H, D\]"),
        ({"q_tiles": tile_layout((2, 5, 7), "auto", 128)}, ShapeError, "blocks of 128, expected the history's 64"),
        ({"means": torch.zeros(2, 2, 3, 8)}, ShapeError, r"history means: got shape \(2, 2, 3, 8\), expected \(2, 2, 45, 8\)"),
        ({"sizes": torch.zeros(45)}, ShapeError, "history sizes: got torch.float32 on cpu, expected torch.int32 on cpu like q"),
        ({"q_tiles": (2, 5, 7)}, ConfigError, "q_tiles: got a tuple, expected a strobe.TileLayout; strobe.tile_layout makes one"),
        ({"num_tiles": 99}, ShapeError, "num_tiles: got 99, expected 0 to 45"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception], words: str) -> None:
    drawn = draw(USUAL)
    own = {name: value for name, value in change.items() if name in ("means", "num_tiles", "sizes")}
    options: dict[str, Any] = {"q_tiles": drawn.q_tiles, "sparsity": 0.5} | {k: v for k, v in change.items() if k not in own}
    with pytest.raises(error, match=words):
        history_attention(drawn.q, drawn.dense[1:], replace(drawn.history, **own), **options)


@pytest.mark.parametrize(
    ("device", "cases"),
    [("cpu", ["two"]), pytest.param("cpu", [], marks=pytest.mark.rest), pytest.param("cuda", [], marks=pytest.mark.gpu)],
    ids=["two", "cpu", "cuda"],
)
@needs_triton
def test_fused_selection_equals_the_plain_one(device: str, cases: list[str]) -> None:
    in_triton(SCRIPT, device, *cases)


def test_no_key_at_all_is_refused() -> None:
    drawn = draw(replace(USUAL, held=()))
    with pytest.raises(ShapeError, match="expected at least one"):
        history_attention(drawn.q, (), drawn.history, q_tiles=drawn.q_tiles, sparsity=0.5)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("capturing", [True, False])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("breaks", [True, False])
def test_only_what_is_fused_and_recorded_runs_beside(
    device: str, capturing: bool, fused: bool, breaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a recording that breaks off is joined. That a recorded pass gives what another does is tested on a GPU."""
    place, done = torch.device(device), MagicMock()
    done.is_current_stream_capturing.return_value = capturing
    done.stream.return_value.__exit__.return_value = None
    for name in ("Stream", "stream", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, getattr(done, name))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: done.here)
    operator.side_stream.cache_clear()
    with suppress(KeyboardInterrupt), operator._beside(place, fused) as side:
        with side:
            done.fine()
        done.dense()
        if breaks:
            raise KeyboardInterrupt
    operator.side_stream.cache_clear()
    aside = done.Stream.return_value
    expected = [call.fine(), call.dense()]
    if device == "cuda" and capturing and fused:
        expected = [call.Stream(place), call.Stream().wait_stream(done.here), call.stream(aside), call.stream().__enter__()]
        expected += [call.fine(), call.stream().__exit__(None, None, None), call.dense(), call.here.wait_stream(aside)]
    assert [each for each in done.mock_calls if each != call.is_current_stream_capturing()] == expected
