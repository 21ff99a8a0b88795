"""The kernels of attention in eight bits, compared with the reference: `TRITON_INTERPRET=1 python eightbit_on_cpu.py`.

A process of its own, because the interpreter must be chosen before Triton is imported. Inputs are float16: the interpreter
multiplies the bits of bfloat16 as integers. Every tensor that a kernel is to fill is full of NaN before.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

from real_like import Shape, error, real_like
from strobe.attention.dense import dense_attention
from strobe.attention.dense.eight import best_blocks
from strobe.attention.dense.eight.impl import reference
from strobe.attention.dense.eight.impl import triton as kernels
from strobe.attention.types import AttentionOutput, check
from strobe.core.tolerances import tolerance
from strobe.eightbit.impl import rounding, rounding_triton
from strobe.eightbit.rounded import Arriving, BlockBudget, RoundedKeys, RoundedQueries, unfilled
from strobe.eightbit.rounding import round_queries

_converted = interpreter._convert_float
HALF = torch.float16


def to_fp8(x: Any, given: Any, wanted: Any, mode: Any) -> Any:
    """Round to FP8 as a GPU does: the interpreter cuts off, and loses a carry."""
    if wanted != tl.float8e4nv or given != tl.float32:
        return _converted(x, given, wanted, mode)
    values = torch.from_numpy(np.ascontiguousarray(x)).view(torch.float32)
    return values.to(torch.float8_e4m3fn).view(torch.uint8).numpy()


def arriving(k: Tensor, v: Tensor | None, begin: int, end: int) -> Arriving:
    return Arriving(k=k[:, begin:end], v=None if v is None else v[:, begin:end], rows=torch.arange(begin, end), run=end - begin)


def same(found: RoundedKeys, expected: RoundedKeys) -> None:
    """Compare what a kernel rounded with what the reference did."""
    assert (found.keys.int() - expected.keys.int()).abs().max() <= 1
    assert (found.keys != expected.keys).float().mean() < 1e-3  # a tie that fell the other way
    assert (found.values.view(torch.int8) != expected.values.view(torch.int8)).float().mean() < 1e-3
    assert (found.values.float() - expected.values.float()).abs().max() <= 32  # a step of the largest numbers


def rounded(k: Tensor, v: Tensor, *edges: int) -> tuple[RoundedKeys, RoundedKeys]:
    """Round keys and values piece by piece by the kernel, and at once by the reference; compare, and return both."""
    found, expected = unfilled(k, v, 1.25), unfilled(k, v, 1.25)
    found.keys.fill_(99)
    for begin, end in pairwise((0, *edges, k.shape[1])):
        rounding_triton.store(found, arriving(k, v, begin, end))
    rounding.store(expected, arriving(k, v, 0, k.shape[1]))
    same(found, expected)
    return found, expected


def queries(q: Tensor, kept: RoundedKeys, scale: float, new: Arriving | None = None) -> RoundedQueries:
    """Round queries by the kernel and compare with the reference."""
    found = round_queries(q, kept, scale, new=new, with_taken=True, impl="triton")
    expected = round_queries(q, kept, scale, with_taken=True, impl="reference")
    assert found.taken is not None and expected.taken is not None
    assert (found.values.int() - expected.values.int()).abs().max() <= 1
    assert (found.values != expected.values).float().mean() < 1e-3
    assert error(found.scale, expected.scale) < tolerance("eight-bit layer", torch.float32)
    assert (found.taken - expected.taken).square().mean().sqrt() < tolerance("lse of an eight-bit kernel", HALF)
    return found


def runs_of_a_ring() -> None:
    """Frames go to slots anywhere, one of them nowhere, beside queries in the same launch; v is part of a larger tensor."""
    generator = torch.Generator().manual_seed(3)
    for tokens, slots, batch in (
        (70, (3, 1, 0), 1),
        (1, (2, 0, 3), 2),
        (129, (-1, 2, 0), 1),
        (128, (0, 3, 1), 1),
        (33, (-1, -1, 5), 3),
    ):
        q, k = (torch.randn(batch, 3 * tokens, 2, 128, generator=generator).half() for _ in range(2))
        v = torch.randn(batch, 3 * tokens, 3, 2, 128, generator=generator).half()[:, :, 2]
        rows = torch.cat([torch.arange(tokens) + slot * tokens if slot >= 0 else torch.full((tokens,), -1) for slot in slots])
        whole = torch.randn(2, batch, 6 * tokens, 2, 128, generator=generator).half()
        found, expected = (unfilled(*whole, 1.0) for _ in range(2))
        for kept in (found, expected):
            kept.keys.fill_(99)
            kept.values.fill_(3.0)
        new = Arriving(k=k, v=v, rows=rows, run=tokens)
        queries(q, found, 0.1, new)
        rounding.store(expected, new)
        same(found, expected)
        before = found.values.clone()
        rounding_triton.store(found, new._replace(k=-k, v=None))
        rounding.store(expected, new._replace(k=-k, v=None))
        same(found, expected)
        assert torch.equal(before.view(torch.int8), found.values.view(torch.int8))


def first_rows() -> None:
    """Attention sees the first rows of more; what stands behind them, in keys and values, does not count."""
    q, k, v = (x.half() for x in real_like(Shape(frames=3, own=1, height=7, width=13, heads=2)))
    for rows in (1, 31, 70, 128, 129):
        kept, _ = rounded(torch.cat((k[:, :rows], 9 * k[:, rows:]), 1), torch.cat((v[:, :rows], 9 * v[:, rows:]), 1))
        view = replace(kept, keys=kept.keys[:, :, :rows])
        spec = check(q, k[:, :rows], v[:, :rows], None, True)
        whole = replace(view, keys=view.keys.contiguous())
        other = kept.values.clone()
        other.view(torch.int8)[
            ..., [place for place in range(other.shape[3]) if place not in set(rounding.places(other)[:rows].tolist())]
        ] = 99
        small = queries(q, kept, spec.softmax_scale)
        found = kernels.run(small, view, spec)
        for each in (whole, replace(view, values=other)):
            again = kernels.run(small, each, spec)
            assert torch.equal(again.out, found.out) and torch.equal(again.lse, found.lse)
        assert error(found.out, reference.run(small, view, spec).out) < tolerance("eight-bit kernel", HALF)


def blocks_of_keys() -> None:
    """Tiles attend to blocks of their own, in parts too; the blocks of best score are the reference's."""
    q, k, v = (x.half() for x in real_like(Shape(frames=5, own=2, height=7, width=19, heads=2)))
    kept, _ = rounded(k, v)
    kept = replace(kept, keys=kept.keys[:, :, :600])  # the last of five blocks has 88 keys
    spec = check(q, k[:, :600], v[:, :600], None, True)
    small = queries(q, kept, spec.softmax_scale)
    split = kernels.split
    for lists in ([[0, 4], [1, 3], [2, 4]], [[4], [0], [2]], [[0, 1, 2, 3, 4]] * 3):
        blocks = torch.tensor(lists, dtype=torch.int32).expand(1, 2, -1, -1).contiguous()
        blocks[:, 1] = blocks[:, 1].flip(1)
        expected = reference.run(small, kept, spec, blocks)
        for first, parts in ((18, 1), (3, blocks.shape[3])):
            kernels.split = lambda *_, found=(first, parts): found  # type: ignore[assignment]
            found = kernels.run(small, kept, spec, blocks)
            assert found.lse is not None and expected.lse is not None
            assert error(found.out, expected.out) < tolerance("eight-bit kernel", HALF), lists
            assert (found.lse - expected.lse).square().mean().sqrt() < tolerance("lse of an eight-bit kernel", HALF)
    kernels.split = split  # type: ignore[assignment]

    for number, held in ((3, ()), (3, (1,)), (2, (0, 4)), (5, (2,)), (1, ())):
        always = torch.isin(torch.arange(5), torch.tensor(held, dtype=torch.int64))
        budget = BlockBudget(number=number, always=always)
        assert torch.equal(best_blocks(small, kept, budget, impl="triton"), best_blocks(small, kept, budget)), (number, held)
    alike = small._replace(values=torch.zeros_like(small.values))  # all scores tie
    assert (best_blocks(alike, kept, BlockBudget(number=2, always=always), impl="triton") == torch.arange(2)).all()


def attended(q: Tensor, k: Tensor, v: Tensor, *edges: int, scale: float | None = None) -> AttentionOutput:
    """Attend by the kernels and compare with the reference on the same rounded keys, and with plain attention."""
    kept, _ = rounded(k, v, *edges)
    spec = check(q, k, v, scale, True)
    small = queries(q, kept, spec.softmax_scale)
    found, expected = kernels.run(small, kept, spec), reference.run(small, kept, spec)
    assert found.lse is not None and expected.lse is not None
    assert error(found.out, expected.out) < tolerance("eight-bit kernel", HALF), (q.shape, k.shape)
    assert (found.lse - expected.lse).square().mean().sqrt() < tolerance("lse of an eight-bit kernel", HALF)
    plain = dense_attention(q.double(), k.double(), v.double(), softmax_scale=scale, impl="reference", return_lse=True)
    assert plain.lse is not None
    assert error(found.out, plain.out) < tolerance("eight-bit attention", HALF), (q.shape, k.shape)
    assert (found.lse - plain.lse).square().mean().sqrt() < tolerance("lse in eight bits", HALF)
    small = round_queries(q, kept, spec.softmax_scale, impl="triton")
    without = kernels.run(small, kept, replace(spec, return_lse=False))
    assert without.lse is None and torch.equal(without.out, found.out)
    return found


def main() -> None:
    """Run all comparisons."""
    interpreter._convert_float = to_fp8
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # fills what is not written yet with NaN
    assert torch.empty(3).isnan().all()

    q, k, v = (x.half() for x in real_like(Shape(frames=3, own=2, height=7, width=19, heads=2)))
    splits = []
    split = kernels.split
    kernels.split = lambda *numbers: splits.append(split(*numbers)) or splits[-1]  # type: ignore[assignment]
    found = attended(q, k, v, 3, 200)
    kernels.split = lambda programs, *_: (programs, 1)  # type: ignore[assignment]
    whole = attended(q, k, v)
    assert splits[0] == (9, 3), splits  # tiles of the last wave are in parts
    assert not torch.equal(whole.out, found.out)
    kernels.split = lambda programs, *_: (1, 2)  # type: ignore[assignment]
    attended(q, k, v, scale=0.05)
    kernels.split = lambda *_: (0, 3)  # type: ignore[assignment]
    attended(q[:, :63], k[:, :300], v[:, :300])  # keys in parts
    kernels.split = split  # type: ignore[assignment]

    for length in (1, 63, 128, 129):  # keys that fill no tile, or one; one query
        attended(q[:, :1], k[:, :length], v[:, :length])
    attended(torch.cat((q, q.flip(1)))[:, :65], torch.cat((k, k.flip(1)))[:, :70], torch.cat((v, v.flip(1)))[:, :70])
    nothing = torch.zeros_like(q[:, :5])
    kept, _ = rounded(k, v)
    spec = check(nothing, k, v, None, False)
    mean = kernels.run(queries(nothing, kept, spec.softmax_scale), kept, spec).out
    assert error(mean, v.double().mean(1, keepdim=True).expand_as(mean)) < tolerance("eight-bit attention", HALF)
    runs_of_a_ring()
    first_rows()
    blocks_of_keys()


if __name__ == "__main__":
    main()
