"""The merging kernel against the reference, in Triton's interpreter: `TRITON_INTERPRET=1 python merge_on_cpu.py`.

A process of its own, because the interpreter must be chosen before Triton is imported. On a GPU: `python merge_on_cpu.py cuda`.
Tensors lie amid NaN, and rows that are not to be read hold it. bfloat16 is left to the GPU: the interpreter cuts it off.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from strobe.attention.state import merge
from strobe.attention.types import AttentionOutput
from strobe.core.tolerances import tolerance

ELEMENT = tolerance("element", "float32")
ROUNDING = tolerance("rounding", "float32")

ROUNDED = {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
"""Half a step of the dtype, at most: the result is rounded once; in float32 some roundings of the sum."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One call. `ranked`: parts whose rows lie elsewhere, amid rows that are not read; `level`: mean of lses that are near it."""

    dtype: torch.dtype = torch.float32
    parts: int = 3
    batch: int = 2
    length: int = 70
    heads: int = 2
    width: int = 32
    ranked: tuple[int, ...] = ()
    strided: bool = False
    lse: bool = True
    into: bool = False
    level: float = 0.0


def poisoned(dtype: torch.dtype, device: str, *shape: int) -> Tensor:
    """NaN amid NaN."""
    number = torch.Size(shape).numel()
    return torch.full((number + 128,), float("nan"), dtype=dtype, device=device)[64 : 64 + number].view(shape)


def draw(shape: Shape, device: str) -> tuple[list[AttentionOutput], list[Tensor | None]]:
    """Parts with empty rows, rows empty in all, scores far apart, and a NaN in out and in lse, one of weight 0."""
    generator = torch.Generator().manual_seed(shape.length + shape.parts)
    states, rows = [], []
    for part in range(shape.parts):
        out = torch.randn(shape.batch, shape.length, shape.heads, shape.width, generator=generator)
        lse = shape.level + (2 if shape.level else 30) * torch.randn(shape.batch, shape.heads, shape.length, generator=generator)
        empty = torch.rand(lse.shape, generator=generator) < (0.4 if part else 0.6)
        lse[empty] = float("-inf")
        out.masked_fill_(empty.transpose(1, 2).unsqueeze(-1), 0)
        lse[0, 0, 0], out[0, 0, 0] = float("-inf"), 0
        if shape.length > 2 and part == shape.parts - 1:
            out[-1, 1, -1, shape.width // 2], lse[-1, -1, 1] = float("nan"), float("-inf")
            lse[-1, -1, 2] = float("nan")
        length = shape.length + 29 if part in shape.ranked else shape.length
        place = torch.randperm(length, generator=generator)[: shape.length] if part in shape.ranked else None
        at = slice(None) if place is None else place.to(device)
        pitch = shape.width + (8 if shape.strided else 0)
        wide = poisoned(shape.dtype, device, shape.batch, length, shape.heads, pitch)[..., : shape.width]
        denominators = poisoned(torch.float32, device, shape.batch, length, shape.heads).transpose(1, 2)
        if not shape.strided:
            denominators = poisoned(torch.float32, device, shape.batch, shape.heads, length)
        wide[:, at], denominators[:, :, at] = out.to(device, shape.dtype), lse.to(device)
        states.append(AttentionOutput(out=wide, lse=denominators))
        rows.append(None if place is None else place.to(device))
    return states, rows


def check(shape: Shape, device: str) -> None:
    """Against the reference in float32 on the same rounded numbers; what lies around the target stays."""
    states, rows = draw(shape, device)
    wide = [AttentionOutput(out=state.out.float(), lse=state.lse) for state in states]
    expected = merge(wide, rows=rows, impl="reference")
    into = None
    if shape.into:
        room = poisoned(shape.dtype, device, shape.batch, shape.length + 7, shape.heads, shape.width)
        numbers = poisoned(torch.float32, device, shape.batch, shape.heads, shape.length + 7) if shape.lse else None
        into = AttentionOutput(out=room[:, 4:-3], lse=None if numbers is None else numbers[:, :, 4:-3])
    found = merge(states, rows=rows, into=into, return_lse=shape.lse, impl="triton")
    assert found.out.dtype == shape.dtype and (found.lse is None) == (not shape.lse), shape
    limit = ROUNDED[shape.dtype]
    torch.testing.assert_close(found.out.float(), expected.out, atol=limit, rtol=limit * 1.01, equal_nan=True, msg=str(shape))
    assert expected.lse is not None and bool(expected.out.isnan().any()) == (shape.length > 2) and not expected.out[0, 0, 0].any()
    if found.lse is not None:
        torch.testing.assert_close(found.lse, expected.lse, atol=ELEMENT, rtol=ROUNDING, equal_nan=True, msg=str(shape))
    if into is not None:
        assert found is into and bool(room[:, :4].isnan().all()) and bool(room[:, -3:].isnan().all()), shape
        assert numbers is None or bool(numbers[:, :, :4].isnan().all() and numbers[:, :, -3:].isnan().all()), shape


def check_in_place(device: str) -> None:
    """The result in the memory of a part."""
    states, rows = draw(Shape(length=70, ranked=(1,), dtype=torch.float16), device)
    expected = merge(states, rows=rows, impl="triton")
    found = merge(states, rows=rows, into=states[0], impl="triton")
    assert found is states[0] and expected.lse is not None and found.lse is not None
    for got, want in ((found.out, expected.out), (found.lse, expected.lse)):
        assert torch.equal(got.nan_to_num(7), want.nan_to_num(7))


CASES = (
    Shape(ranked=(2,)),
    Shape(dtype=torch.float16, parts=2, width=128, length=63, batch=1, ranked=(0, 1), strided=True),
    Shape(dtype=torch.float16, parts=4, width=24, length=1, lse=False),
    Shape(parts=1, length=300, heads=1, batch=1, ranked=(0,), width=16, into=True),
    Shape(parts=4, length=33, heads=2, strided=True, into=True, ranked=(3,), lse=False),
    Shape(parts=5, length=33, ranked=(0, 4), into=True),
    Shape(parts=8, dtype=torch.float16, length=63, batch=1, strided=True),
    Shape(parts=7, ranked=(2, 6), level=300.0),
)
ON_A_GPU = tuple(
    Shape(dtype=dtype, parts=parts, length=length, heads=heads, width=width, ranked=ranked, strided=strided, into=strided)
    for row, dtype in enumerate(ROUNDED)
    for column, (parts, ranked) in enumerate(((1, ()), (2, (1,)), (3, (2,)), (3, ()), (4, (0, 3)), (7, (6,))))
    for layer, (heads, width) in enumerate(((12, 128), (3, 64), (5, 24)))
    for strided in (False, True)
    if (row + column + layer + strided) % 2 == 0  # each kernel is compiled for seconds; half of them has every pair of choices
    for length in (1, 63, 100, 2000)
)

if __name__ == "__main__":
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    for shape in CASES if device == "cpu" else CASES + ON_A_GPU:
        check(shape, device)
    check_in_place(device)
