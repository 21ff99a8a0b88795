"""The eight-bit ring shows what the plain ring shows, within half a step of what was written, for ever."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from ring_frames import SHAPE, content, stored_bytes, turn, turn_into, turned_content, write
from strobe.attention.dense import dense_attention
from strobe.attention.dense.eight import attend_rounded
from strobe.cache.kv import RingCache
from strobe.cache.policy import RingPolicy
from strobe.cache.quantized import ROOM, EightBitRing, QuantizedRing, block_number, eightbit_ring_bytes, ring_bytes
from strobe.core.errors import ConfigError, ShapeError
from strobe.core.tolerances import tolerance
from strobe.eightbit.impl.rounding import places
from strobe.eightbit.rounded import BLOCK, Arriving, RoundedKeys, constants, measured, padded
from strobe.eightbit.rounding import store
from strobe.eightbit.rows import EightBit, quantize_rows

ROUNDING = tolerance("rounding", "float32")

FORMATS: list[EightBit] = ["int8", "fp8"]
CPU = torch.device("cpu")


def made(kind: Any, window: int, sink: int, **options: Any) -> Any:
    options = {"dtype": torch.float32, "positions": "rebased", "rotate": turn_into} | options
    return kind(SHAPE, RingPolicy(window=window, sink=sink), device=CPU, **options)


plain, build_eightbit = partial(made, RingCache), partial(made, EightBitRing)


def build(to: EightBit, window: int, sink: int, **options: Any) -> QuantizedRing:
    eight: QuantizedRing = made(QuantizedRing, window, sink, to=to, **options)
    return eight


@pytest.mark.parametrize(
    ("window", "sink", "tokens", "frame_block"), [(12, 3, 200, 3), (9, 2, 430, 3), (8, 0, 333, 3), (12, 1, 257, 2)]
)
def test_a_sparse_pass_always_takes_the_sink_and_its_own_frames(window: int, sink: int, tokens: int, frame_block: int) -> None:
    """Wherever frames lie, as many blocks are taken, all of the others are past alone, and none of these is always taken."""
    policy, numbers = RingPolicy(window=window, sink=sink), set()
    shape = replace(SHAPE, tokens_per_frame=tokens, num_layers=1, batch=1)
    ring = EightBitRing(shape, policy, device=CPU, dtype=torch.float32, sparsity=0.75)
    for first in range(0, 10 * frame_block, frame_block):
        end = first + frame_block
        budget = ring.at(first, frame_block).budget
        frames = {policy.slot(frame): frame for frame in policy.frames(end)}
        past = policy.history(first, end)
        of = [frames[row // tokens] in past for row in range(len(frames) * tokens)]
        alone = [all(of[start : start + BLOCK]) for start in range(0, len(of), BLOCK)]
        if budget is None:
            assert not past or block_number(tokens, len(frames), len(past), 0.75) >= len(alone)
            continue
        assert budget.always.tolist() == [not each for each in alone]
        assert int(budget.always.sum()) < budget.number < len(alone)
        if end >= window + frame_block:
            numbers.add((budget.number, budget.always.data_ptr()))
    assert len(numbers) == 1


def bound(exact: Tensor, to: EightBit, turned_rows: int = 0) -> Tensor:
    """Most that storing moves a number: half a step; keys that were turned: that of a pair, and half a step more.

    A turn keeps the length of a pair, so what a number may be off by before it is bounded by the largest of its row.
    """
    most = exact.abs().amax(-1, keepdim=True).double()  # of each row
    once = (most / 254).repeat(1, 1, 1, exact.shape[-1])
    if to != "int8":
        once = torch.maximum(exact.abs().double() / 16, most / 448 / 1024)
    if turned_rows:
        most = exact[:, :turned_rows].abs().amax(-1, keepdim=True).double() * math.sqrt(2)  # of the row before the turn
        once[:, :turned_rows] = 2.5 * most / (254 if to == "int8" else 16)
    return once * (1 + 1e-4) + 1e-6


def rounded(keys: Tensor, values: Tensor, held: tuple[Tensor, ...]) -> RoundedKeys:
    """Round native keys and values by the reference."""
    batch, rows, heads, dim = keys.shape
    names = ("key_mean", "key_scale", "value_mean", "value_scale")
    kept = RoundedKeys(
        keys=torch.zeros(batch, heads, rows, dim, dtype=torch.int8),
        values=torch.zeros(batch, heads, dim, padded(rows)).to(torch.float8_e4m3fn),
        **dict(zip(names, held, strict=True)),
    )
    store(kept, Arriving(k=keys, v=values, rows=torch.arange(rows), run=rows), impl="reference")
    return kept


def same(found: RoundedKeys, expected: RoundedKeys) -> None:
    rows = expected.keys.shape[2]
    assert torch.equal(found.keys, expected.keys)
    mine, theirs = (each.values.view(torch.int8)[..., places(each.values)[:rows]] for each in (found, expected))
    assert torch.equal(mine, theirs)
    assert found.values.float().isfinite().all()  # what stands behind the rows is multiplied by 0
    for mine, theirs in zip(constants(found), constants(expected), strict=True):
        assert torch.equal(mine, theirs)


class Beside:
    """A ring in eight bits and the plain one, through the same passes.

    Args:
        kind: "int8" or "fp8" of a `QuantizedRing`, "rounded" for an `EightBitRing`.
    """

    def __init__(self, kind: Any, window: int, sink: int) -> None:
        self.kind, self.ring = kind, plain(window, sink)
        self.eight = build_eightbit(window, sink) if kind == "rounded" else build(kind, window, sink)
        self.held: list[tuple[Tensor, ...]] = [()] * SHAPE.num_layers  # what was measured last
        if kind != "rounded":
            self.eight.scales.fill_(torch.nan)  # what is never written must never be attended
            self.eight.full.fill_(torch.nan)

    def both(self, opened: Callable[[Any], Any], version: int = 0) -> None:
        """Open a pass of both, write the same into both, and compare what they show."""
        mine, other = opened(self.eight), opened(self.ring)
        assert (mine.positions, mine.attended, mine.skipped) == (other.positions, other.attended, other.skipped)
        assert self.kind == "rounded" or mine.signature[1:] == other.signature[1:]
        moved = (
            self.eight.policy.sink * SHAPE.tokens_per_frame
            if self.eight.end - self.eight._origin > self.eight.policy.window
            else 0
        )
        for layer in range(SHAPE.num_layers):
            k, v = turned_content(mine.positions, mine.positions, layer, version), content(mine.positions, layer, version + 50)
            found, (keys, values) = mine.write(layer, k, v), other.write(layer, k, v)
            if self.kind != "rounded":
                assert found[0].shape == keys.shape
                assert ((found[0] - keys).abs() <= bound(keys, self.kind, moved)).all()
                assert ((found[1] - values).abs() <= bound(values, self.kind)).all()
                continue
            if other.skipped == 0 and len(other.rows) == other.attended:
                self.held[layer] = measured(k, v, ROOM)
            same(found, rounded(keys, values, self.held[layer]))

    def next(self, size: int = 3) -> None:
        """Two denoise passes of the next frames, then the commit pass."""
        first = self.ring.end
        for version in (1, 2, 0):
            self.both(lambda cache: cache.at(first, size), version)


KINDS = [*FORMATS, "rounded"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(3,) * 7, (1, 2, 3, 1) * 3])
@pytest.mark.parametrize(("window", "sink"), [(12, 3), (7, 2), (3, 0), (30, 3), (5, 2)])
def test_it_shows_what_the_plain_ring_shows(window: int, sink: int, sizes: tuple[int, ...], kind: str) -> None:
    game = Beside(kind, window, sink)
    for size in sizes:
        game.next(size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("to", FORMATS)
def test_what_is_attended_is_what_is_stored_in_its_dtype(to: EightBit, dtype: torch.dtype) -> None:
    eight = build(to, 6, 1, dtype=dtype)
    step = eight.at(0, 3)
    k, v = turned_content(range(3), range(3), 1).to(dtype), content(range(3), 1, 50).to(dtype)
    for given, exact in zip(step.write(1, k, v), (k, v), strict=True):
        stored = quantize_rows(exact, to)
        assert given.dtype == dtype
        assert torch.equal(given, (stored.values.float() * stored.scale).to(dtype))
    assert step.buffers(1)[0].data_ptr() == eight.values[:, 1].data_ptr()


@pytest.mark.parametrize("to", FORMATS)
def test_a_sink_that_moved_often_was_turned_once(to: EightBit) -> None:
    """Its keys are those of the first frames: rounded, turned by all the way at once, rounded."""
    eight = build(to, 6, 2)
    rows = 2 * SHAPE.tokens_per_frame
    for block in range(50):
        keys, values = write(eight.at(3 * block, 3))[1]
    first = quantize_rows(turned_content(range(2), range(2), 1), to).dequantized(torch.float32)
    expected = quantize_rows(turn(first, 150 - 6), to).dequantized(torch.float32)
    torch.testing.assert_close(keys[:, :rows], expected, rtol=0, atol=ROUNDING)
    exact = turned_content(range(2), range(144, 146), 1)
    assert ((keys[:, :rows] - exact).abs() <= bound(exact, to, rows)).all()
    assert torch.equal(values[:, :rows], quantize_rows(content(range(2), 1, 50), to).dequantized(torch.float32))


@pytest.mark.parametrize("keep_sink", [True, False])
@pytest.mark.parametrize("blocks_before", [1, 3, 4, 6])
@pytest.mark.parametrize(("kind", "window", "sink"), [*product(("int8", "rounded"), (12, 6), (3, 1)), ("rounded", 6, 0)])
def test_a_window_derived_again(kind: str, window: int, sink: int, blocks_before: int, keep_sink: bool) -> None:
    game = Beside(kind, window, sink)
    for block in range(blocks_before):
        game.both(partial(open_block, block=block))
    cur, before = 3 * blocks_before, list(game.held)
    game.eight.at(cur, 3)  # a frame block that was given up
    game.both(lambda cache: cache.rewrite(cur, keep_sink=keep_sink), 9)
    if kind == "rounded":
        frozen = all(torch.equal(old[0], new[0]) for old, new in zip(before, game.held, strict=True))
        assert frozen == (cur > window and keep_sink and sink > 0)
    for block in range(blocks_before, blocks_before + 5):
        game.both(partial(open_block, block=block))


def open_block(cache: Any, block: int) -> Any:
    return cache.at(3 * block, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("positions", ["absolute", "rebased"])
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_those_held(kind: Any, positions: Any, dtype: torch.dtype) -> None:
    options = {"dtype": dtype, "positions": positions}
    eight: Any = build_eightbit(50, 2, **options) if kind == "rounded" else build(kind, 7, 2, **options)  # 256 columns of values
    more = (positions,) if kind == "rounded" else ()
    predicted = (eightbit_ring_bytes if kind == "rounded" else ring_bytes)(SHAPE, eight.policy, dtype, *more)
    assert stored_bytes(eight) == predicted


def test_queries_are_rounded_beside_and_attention_sees_what_is_kept() -> None:
    eight, ring = (each(6, 1, positions="absolute") for each in (build_eightbit, plain))
    eight._kept.values.view(torch.int8).fill_(126)  # 448, where nothing was written
    for block in range(3):
        step, other = eight.at(3 * block, 3), ring.at(3 * block, 3)
        for layer in range(SHAPE.num_layers):
            again = tuple(frame * 2 % 3 for frame in step.positions)  # as large as the first ones, so nothing is cut off
            k, v, q = (content(again, layer, version) for version in (0, 50, 70))
            queries, kept = step.write_beside(layer, q, k, v)
            found = attend_rounded(queries, kept).out
            assert torch.equal(found, attend_rounded(q, step.write(layer, k, v)).out)
            expected = dense_attention(q, *other.write(layer, k, v)).out
            off = (found - expected).square().mean() / expected.square().mean()
            assert off.sqrt() < tolerance("eight-bit attention of noise", "float32")


def test_reset_starts_over_and_erases() -> None:
    game = Beside("rounded", 7, 2)
    for erase in (False, True):
        for _ in range(5):
            game.next()
        for cache in (game.eight, game.ring):
            cache.reset(erase=erase)
        assert game.eight.end == 0
    assert all(not tensor.any() for tensor in game.eight._held())
    for _ in range(4):
        game.next()


def test_what_was_written_beside_is_not_attended_otherwise() -> None:
    step = build_eightbit(6, 1).at(0, 3)
    queries, kept = step.write_beside(0, *(content(range(3), 0) for _ in range(3)))
    with pytest.raises(ConfigError, match="rounded without `taken`"):
        attend_rounded(queries, kept, return_lse=True)
    with pytest.raises(ShapeError, match="expected batch 1"):
        attend_rounded(content(range(3), 0)[:1], replace(kept))
