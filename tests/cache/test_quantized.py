"""The eight-bit ring shows what the plain ring shows, within half a step of what was written, for ever."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ring_frames import SHAPE, content, turn, turn_into, turned_content, write
from strobe.cache.kv import RingCache
from strobe.cache.policy import RingPolicy
from strobe.cache.quantized import QuantizedRing, ring_bytes
from strobe.core.tolerances import tolerance
from strobe.eightbit.rows import EightBit, quantize_rows

ROUNDING = tolerance("rounding", "float32")

FORMATS: list[EightBit] = ["int8", "fp8"]
CPU = torch.device("cpu")


def build(to: EightBit, window: int, sink: int, **options: Any) -> QuantizedRing:
    options = {"dtype": torch.float32, "positions": "rebased", "rotate": turn_into} | options
    return QuantizedRing(SHAPE, RingPolicy(window=window, sink=sink), device=CPU, to=to, **options)


def plain(window: int, sink: int, **options: Any) -> RingCache:
    options = {"dtype": torch.float32, "positions": "rebased", "rotate": turn_into} | options
    return RingCache(SHAPE, RingPolicy(window=window, sink=sink), device=CPU, **options)


def half_step(exact: Tensor, to: EightBit) -> Tensor:
    """Most that one rounding moves a number, by its row."""
    most = exact.abs().amax(-1, keepdim=True).double()
    return (most / 254).expand(exact.shape) if to == "int8" else torch.maximum(exact.abs().double() / 16, most / 448 / 1024)


def bound(exact: Tensor, to: EightBit, turned_rows: int = 0) -> Tensor:
    """Most that storing moves a number: half a step; keys that were turned: that of a pair, and half a step more.

    A turn keeps the length of a pair, so what a number may be off by before it is bounded by the largest of its row.
    """
    once = half_step(exact, to).clone()
    if turned_rows:
        most = exact[:, :turned_rows].abs().amax(-1, keepdim=True).double() * math.sqrt(2)  # of the row before the turn
        once[:, :turned_rows] = 2.5 * most / (254 if to == "int8" else 16)
    return once * (1 + 1e-4) + 1e-6


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("sizes", [(3,) * 7, (1, 2, 3, 1) * 3])
@pytest.mark.parametrize(("window", "sink"), [(12, 3), (7, 2), (3, 0), (30, 3)])
def test_it_shows_what_the_plain_ring_shows(window: int, sink: int, sizes: tuple[int, ...], to: EightBit) -> None:
    eight, ring = build(to, window, sink), plain(window, sink)
    eight.scales.fill_(torch.nan)  # what is never written must never be attended
    eight.full.fill_(torch.nan)
    first = 0
    for size in sizes:
        for version in (1, 2, 0):  # two denoise passes, then the commit pass
            step = eight.at(first, size)
            expected = write(ring.at(first, size), version)
            moved = sink * SHAPE.tokens_per_frame if first + size > window else 0
            for layer, (keys, values) in enumerate(expected):
                new = turned_content(step.positions, step.positions, layer, version), content(step.positions, layer, version + 50)
                mine = step.write(layer, *new)
                assert mine[0].shape == keys.shape
                assert ((mine[0] - keys).abs() <= bound(keys, to, moved)).all()
                assert ((mine[1] - values).abs() <= bound(values, to)).all()
        first += size


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
@pytest.mark.parametrize("blocks_before", [1, 3, 4])
@pytest.mark.parametrize(("window", "sink"), [(12, 3), (6, 1)])
def test_a_window_derived_again(window: int, sink: int, blocks_before: int, keep_sink: bool) -> None:
    to: EightBit = "int8"
    eight, ring = build(to, window, sink), plain(window, sink)
    for block in range(blocks_before):
        for cache in (eight, ring):
            write(cache.at(3 * block, 3))
    cur = 3 * blocks_before
    eight.at(cur, 3)  # a frame block that was given up
    steps = [cache.rewrite(cur, keep_sink=keep_sink) for cache in (eight, ring)]
    moved = sink * SHAPE.tokens_per_frame if cur > window and keep_sink else 0
    assert steps[0].signature[1:] == steps[1].signature[1:]
    for block in range(blocks_before, blocks_before + 4):
        for layer in range(SHAPE.num_layers):
            new = [turned_content(step.positions, step.positions, layer, 9) for step in steps]
            other = [content(step.positions, layer, 59) for step in steps]
            mine, expected = (step.write(layer, *pair) for step, *pair in zip(steps, new, other, strict=True))
            assert ((mine[0] - expected[0]).abs() <= bound(expected[0], to, moved)).all()
            assert ((mine[1] - expected[1]).abs() <= bound(expected[1], to)).all()
        steps = [cache.at(3 * block, 3) for cache in (eight, ring)]
        moved = sink * SHAPE.tokens_per_frame if eight._rotate and 3 * block + 3 > eight._origin + window else 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("to", FORMATS)
def test_bytes_are_those_held(to: EightBit, dtype: torch.dtype) -> None:
    eight = build(to, 7, 2, dtype=dtype)
    tensors = [value for value in vars(eight).values() if isinstance(value, Tensor)] + [*eight._sink]
    assert eight.num_bytes == sum(tensor.untyped_storage().nbytes() for tensor in tensors)
    assert eight.num_bytes == ring_bytes(SHAPE, eight.policy, dtype)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("to", FORMATS)
def test_a_recorded_write_follows_the_frames(to: EightBit, device: str) -> None:
    """Between two passes of one signature only the contents of tensors differ, so that one recording does for all."""
    policy = RingPolicy(window=6, sink=1)
    here, there = (
        QuantizedRing(SHAPE, policy, device=torch.device(name), dtype=torch.float32, to=to) for name in ("cpu", device)
    )
    for block in range(3):
        for cache in (here, there):
            step = cache.at(3 * block, 3)
            for layer in range(SHAPE.num_layers):
                k, v = (content(step.positions, layer, version).to(cache.values.device) for version in (0, 1))
                step.write(layer, k, v)
    step = there.at(9, 3)
    new = [torch.zeros(SHAPE.batch, 9, 2, 4, device=device) for _ in range(2)]
    if device == "cuda":
        step.write(1, *new)  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = step.write(1, *new)
    here.at(9, 3)
    for block in range(4, 7):
        expected_step, again = here.at(3 * block, 3), there.at(3 * block, 3)
        assert again.signature == step.signature and again.rows.data_ptr() == step.rows.data_ptr()
        exact = content(again.positions, 1), content(again.positions, 1, 1)
        for buffer, tensor in zip(new, exact, strict=True):
            buffer.copy_(tensor)
        if device == "cuda":
            graph.replay()
        else:
            found = step.write(1, *new)
        expected, written = expected_step.write(1, *exact), expected_step.rows.tolist()
        for mine, other in zip(found, expected, strict=True):
            assert torch.equal(mine.cpu()[:, written], other[:, written])
