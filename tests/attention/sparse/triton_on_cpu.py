"""The Triton kernels against the reference, in Triton's interpreter: `TRITON_INTERPRET=1 python triton_on_cpu.py`.

A process of its own, because the interpreter must be chosen before Triton is imported. bfloat16 is left to the GPU: the
interpreter multiplies its bits as integers. On a GPU: `python triton_on_cpu.py cuda`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.impl.padding_triton import settle_on_gpu_
from strobe.attention.sparse.impl.triton import queries_of_keys
from strobe.attention.sparse.padding import settle_
from strobe.attention.sparse.selection import BlockSelection
from strobe.core.tolerances import tolerance


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One call: padding rows hold NaN, or finite numbers that the selection says are finite."""

    block: int = 64
    dtype: torch.dtype = torch.float32
    ragged: bool = True
    finite: bool = False
    heads: tuple[int, int] = (2, 2)
    width: int = 32
    scale: float | None = None
    strided: bool = False
    uniform: bool = False


def case(shape: Shape, device: str) -> tuple[list[Tensor], BlockSelection]:
    """q, k, v and a selection with an empty row, an empty block and all counts."""
    block, heads = shape.block, shape.heads
    generator = torch.Generator().manual_seed(block + heads[0])
    tensors = []
    for blocks, number in ((3, heads[0]), (4, heads[1]), (4, heads[1])):
        wide = torch.randn(2, number, blocks * block, shape.width, generator=generator).to(shape.dtype)
        tensors.append(wide.transpose(1, 2) if shape.strided else wide.transpose(1, 2).contiguous())
    mask = torch.rand(2, heads[0], 3, 4, generator=generator) < 0.5
    mask[0, 0, 0] = False
    if shape.uniform:
        mask = torch.rand(2, heads[0], 3, 4, generator=generator).argsort(-1) < 3
    sizes = (
        [torch.tensor(valid, dtype=torch.int32) for valid in ((block, 10, 0), (block, 1, 0, 33))] if shape.ragged else [None] * 2
    )
    for tensor, valid in zip(tensors, (sizes[0], sizes[1], sizes[1]), strict=True):
        if valid is not None:
            tensor[:, (torch.arange(block) >= valid[:, None]).flatten()] = 3.0 if shape.finite else float("nan")
    valid = [size if size is None else size.to(device) for size in sizes]
    built = BlockSelection.from_mask(mask.to(device), block=block, q_sizes=valid[0], kv_sizes=valid[1])
    return [tensor.to(device) for tensor in tensors], replace(
        built, finite_padding=shape.finite, known_count=3 if shape.uniform else None
    )


def check(shape: Shape, device: str) -> None:
    """Compare out, lse and all gradients; both see the same rounded numbers."""
    tensors, selection = case(shape, device)
    results = {}
    for impl in ("triton", "reference"):
        dtype = shape.dtype if impl == "triton" else torch.float32
        inputs = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]
        found = block_sparse_attention(*inputs, selection, impl=impl, return_lse=True, softmax_scale=shape.scale)
        assert found.lse is not None
        generator = torch.Generator().manual_seed(1)
        d_out, d_lse = (torch.randn(tensor.shape, generator=generator).to(device) for tensor in (found.out, found.lse))
        gradients = torch.autograd.grad([found.out, found.lse], inputs, [d_out.to(shape.dtype).to(dtype), d_lse])
        results[impl] = (found.out, found.lse, *gradients)
    assert torch.equal(results["triton"][1].isneginf(), results["reference"][1].isneginf()), shape
    for found, expected in zip(results["triton"], results["reference"], strict=True):
        limit = tolerance("sparse element", shape.dtype) * max(1.0, expected.nan_to_num(neginf=0).abs().max().item())
        torch.testing.assert_close(
            found.to(expected.dtype), expected, atol=limit, rtol=tolerance("sparse element", shape.dtype), msg=str(shape)
        )


def check_turned(device: str) -> None:
    """The turned selection lists every pair once, ascending."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(2, 3, 77, 7, generator=generator) < 0.4
    begins, queries = queries_of_keys(BlockSelection.from_mask(mask.to(device), block=64), 7)
    for entry, seen_by in enumerate(mask.transpose(2, 3).flatten(0, 2)):
        assert queries[begins[entry] : begins[entry + 1]].tolist() == seen_by.nonzero().flatten().tolist()


def check_settled(device: str) -> None:
    """The launch against the plain operations, with and without padding, with and without hidden NaN."""
    generator = torch.Generator().manual_seed(2)
    for sizes in (None, torch.tensor([64, 0, 17], dtype=torch.int32)):
        for hides in (False, True):
            out, lse = torch.randn(2, 192, 2, 24, generator=generator), torch.randn(2, 2, 192, generator=generator)
            lse[torch.rand(2, 2, 192, generator=generator) < 0.1] = float("-inf")
            counts = torch.randint(0, 2, (2, 2, 2, 3), generator=generator, dtype=torch.int32)
            expected = out.clone(), lse.clone()
            settle_(*expected, sizes, 64, (counts[0], counts[1]) if hides else None)
            given = [tensor.to(device) for tensor in (out, lse, counts)]
            seen = (given[2][0], given[2][1]) if hides else None
            settle_on_gpu_(given[0], given[1], None if sizes is None else sizes.to(device), 64, seen)
            assert torch.equal(given[0].cpu(), expected[0]), (sizes, hides)
            torch.testing.assert_close(given[1].cpu(), expected[1], equal_nan=True, atol=0, rtol=0)


CASES = (
    Shape(heads=(4, 2)),
    Shape(heads=(2, 1), uniform=True, dtype=torch.float16),
    Shape(ragged=False, heads=(1, 1), scale=-0.3),
    Shape(dtype=torch.float16, scale=0.7),
    Shape(block=128, heads=(1, 1), finite=True, strided=True),
    Shape(block=256, heads=(1, 1), scale=0.0),
)
ON_A_GPU = tuple(
    Shape(block=block, dtype=dtype, width=width, ragged=ragged, finite=finite, heads=heads, strided=strided)
    for block, dtype, widths in (
        (64, torch.bfloat16, (32, 64, 128)),
        (64, torch.float16, (128,)),
        (64, torch.float32, (64, 128)),
        (128, torch.bfloat16, (64, 128)),
        (256, torch.bfloat16, (128,)),
    )
    for width in widths
    for ragged, finite, heads, strided in (
        (False, False, (2, 2), False),
        (True, False, (4, 2), True),
        (True, True, (3, 1), False),
    )
)

UNIFORM = tuple(Shape(block=block, dtype=torch.bfloat16, width=128, ragged=ragged, uniform=True)
                for block in (64, 128) for ragged in (False, True))  # fmt: skip

if __name__ == "__main__":
    place = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    check_turned(place)
    check_settled(place)
    for shape in CASES if place == "cpu" else CASES + ON_A_GPU + UNIFORM:
        check(shape, place)
