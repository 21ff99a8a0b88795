"""The Triton kernels, compared with the reference in Triton's interpreter: `TRITON_INTERPRET=1 python triton_on_cpu.py`.

A process of its own, because the interpreter must be chosen before Triton is imported. bfloat16 is left to the GPU: the
interpreter multiplies its bits as integers. On a GPU: `python triton_on_cpu.py cuda`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from strobe.attention.dense import dense_attention
from strobe.attention.sparse import entries
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.entries import kept
from strobe.attention.sparse.impl import triton
from strobe.attention.sparse.impl.entries_triton import kept_on_gpu
from strobe.attention.sparse.impl.padding_triton import settle_on_gpu_
from strobe.attention.sparse.impl.triton import queries_of_keys
from strobe.attention.sparse.packed import block_sparse_attention_varlen
from strobe.attention.sparse.padding import settle_
from strobe.attention.sparse.selection import BlockSelection
from strobe.core.device import Card, card_of
from strobe.core.tolerances import tolerance

ELEMENT = tolerance("sparse element", "float32")
HARMLESS = tolerance("harmless entry", "float16")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One call: padding rows hold NaN, or finite numbers where the selection says so."""

    block: int = 64
    dtype: torch.dtype = torch.float32
    ragged: bool = True
    finite: bool = False
    heads: tuple[int, int] = (2, 2)
    width: int = 32
    scale: float | None = None
    strided: bool = False
    uniform: bool = False
    bounded: bool = False


def case(shape: Shape, device: str) -> tuple[list[Tensor], BlockSelection]:
    """Draw q, k, v and a selection with an empty row, an empty block and all counts."""
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
        built, finite_padding=shape.finite, known_count=3 if shape.uniform else None, known_bound=4 if shape.bounded else None
    )


def check(shape: Shape, device: str) -> None:
    """Compare out, lse and all gradients; both see the same rounded numbers."""
    tensors, selection = case(shape, device)
    results = {}
    for impl in ("triton", "reference"):
        dtype = shape.dtype if impl == "triton" else torch.float32
        inputs = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]
        found = block_sparse_attention(*inputs, selection, impl=impl, return_lse=True, softmax_scale=shape.scale)
        generator = torch.Generator().manual_seed(1)
        d_out, d_lse = (torch.randn(tensor.shape, generator=generator).to(device) for tensor in (found.out, found.lse))
        gradients = torch.autograd.grad([found.out, found.lse], inputs, [d_out.to(shape.dtype).to(dtype), d_lse])
        results[impl] = (found.out, found.lse, *gradients)
    assert torch.equal(results["triton"][1].isneginf(), results["reference"][1].isneginf()), shape
    for found, expected in zip(results["triton"], results["reference"], strict=True):
        limit = tolerance("sparse element", shape.dtype)
        atol = limit * max(1.0, expected.nan_to_num(neginf=0).abs().max().item())
        torch.testing.assert_close(found.to(expected.dtype), expected, atol=atol, rtol=limit, msg=str(shape))


def check_turned(device: str) -> None:
    """Check that the turned selection lists every pair once, ascending."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(2, 3, 77, 7, generator=generator) < 0.4
    begins, queries = queries_of_keys(BlockSelection.from_mask(mask.to(device), block=64), 7)
    for entry, seen_by in enumerate(mask.transpose(2, 3).flatten(0, 2)):
        assert queries[begins[entry] : begins[entry + 1]].tolist() == seen_by.nonzero().flatten().tolist()


def check_settled(device: str) -> None:
    """Check the launch that settles padding against the plain operations, with and without padding and hidden NaN."""
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


def check_dense(device: str) -> None:
    """Check dense attention by the kernels over all blocks, with gradients through the lse, at sizes that need padding."""
    generator = torch.Generator().manual_seed(4)
    for q_len, kv_len, heads, width in ((70, 130, (4, 2), 24), (64, 64, (1, 1), 32), (1, 65, (2, 2), 40)):
        shapes = ((1, q_len, heads[0], width), (1, kv_len, heads[1], width), (1, kv_len, heads[1], width))
        inputs = [torch.randn(shape, generator=generator).to(device).requires_grad_() for shape in shapes]
        results = []
        for impl in ("triton", "reference"):
            found = dense_attention(*inputs, impl=impl, return_lse=True)
            loss = (found.out * torch.linspace(-1, 1, width, device=device)).sum() + found.lse.square().sum()
            results.append((found.out, found.lse, *torch.autograd.grad(loss, inputs)))
        for mine, theirs in zip(*results, strict=True):
            limit = tolerance("gradient through an lse", "float32") * max(1.0, theirs.abs().max().item())
            torch.testing.assert_close(mine, theirs, atol=limit, rtol=tolerance("gradient through an lse", "float32"))


def check_outside(shape: Shape, device: str) -> None:
    """Check that an index of no key block, or a count beyond the row's entries, reads nothing, forward and backward.

    Before and after the rows of every sample lie NaN, in memory that a wrong index would reach. The kernels are called past the
    check that a CPU makes.
    """
    tensors, selection = case(shape, device)
    block, num_kv = shape.block, 4
    wild = torch.tensor([-1, num_kv, num_kv + 1, -(2**31), 2**31 - 1, 2**24, -7, 2**20], dtype=torch.int32, device=device)
    generator = torch.Generator().manual_seed(7)
    pick = wild[torch.randint(0, len(wild), selection.indices.shape, generator=generator).to(device)]
    replaced = (torch.rand(selection.indices.shape, generator=generator) < 0.4).to(device)
    outside = replace(selection, indices=torch.where(replaced, pick, selection.indices))
    everything = torch.arange(num_kv, device=device).expand(selection.indices.shape) < selection.counts[..., None]
    inside = BlockSelection.from_mask(
        torch.zeros_like(everything).scatter_(-1, selection.indices.long(), everything & ~replaced),
        block=block,
        q_sizes=selection.q_sizes,
        kv_sizes=selection.kv_sizes,
    )
    inputs = []
    for tensor in tensors:
        surrounded = torch.full((tensor.shape[0], tensor.shape[1] + 2 * block, *tensor.shape[2:]), float("nan"))
        surrounded = surrounded.to(tensor)
        surrounded[:, block:-block] = tensor
        inputs.append(surrounded[:, block:-block])
    scale = shape.width**-0.5
    results = []
    for chosen in (outside, inside):
        state = triton.forward(*inputs, chosen, scale)
        d_out, d_lse = torch.ones_like(state[0]), torch.full_like(state[1], 0.5)
        results.append((*state, *triton.backward((d_out, d_lse), *inputs, state, chosen, scale)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=ELEMENT, rtol=ELEMENT, msg=str(shape))
        assert not found.isnan().any(), shape

    reference = block_sparse_attention(*(each.float() for each in inputs), inside, impl="reference", return_lse=True)
    torch.testing.assert_close(results[0][0].float(), reference.out, atol=HARMLESS, rtol=HARMLESS)
    torch.testing.assert_close(results[0][1], reference.lse, atol=HARMLESS, rtol=HARMLESS)

    begins, queries = queries_of_keys(outside, num_kv)
    for entry, seen_by in enumerate(inside.mask(num_kv).transpose(2, 3).flatten(0, 2)):
        assert queries[begins[entry] : begins[entry + 1]].tolist() == seen_by.nonzero().flatten().tolist()


def check_counts_outside(device: str) -> None:
    """Check that a count beyond the row's entries sees these entries, and one below 0 sees none."""
    tensors, selection = case(Shape(ragged=False), device)
    counts = selection.counts.clone()
    counts[0, :, 0], counts[1, :, 1] = 1000, -5
    wrong, right = (replace(selection, counts=each) for each in (counts, counts.clamp(0, 4)))
    for found, expected in zip(*(triton.forward(*tensors, each, 0.2) for each in (wrong, right)), strict=True):
        assert torch.equal(found, expected)


def check_kept(device: str) -> None:
    """Check the launch that drops unusable entries against the plain operations."""
    generator = torch.Generator().manual_seed(3)
    for most in (0, 1, 7, 1500):
        indices = torch.randint(-3, 12, (2, 2, 5, most), generator=generator, dtype=torch.int32)
        counts = torch.randint(-1, most + 9, (2, 2, 5), generator=generator, dtype=torch.int32)
        used = BlockSelection(indices=indices, counts=counts, block=64).used(9)
        expected, numbers = kept(indices, used)
        found, found_numbers = kept_on_gpu(indices.to(device), counts.to(device), 9)
        assert torch.equal(found_numbers.cpu(), numbers)
        front = torch.arange(most) < numbers[..., None]
        assert torch.equal(found.cpu().where(front, 0), expected.where(front, 0))


def check_packed_outside(device: str) -> None:
    """Check that an index past the key blocks of its own sequence does not reach the next sequence, whose keys are NaN."""
    lengths = [70, 64, 100]
    cu = torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(sum(lengths), 2, 32, generator=generator).to(device) for _ in range(3))
    k[70:134], v[70:134] = float("nan"), float("nan")  # the second sequence
    row = torch.tensor([[0, 1, 2], [1, 3, -1], [5, 7, -2], [1, 2, 0], [0, -1, 1], [0, 0, 0]], dtype=torch.int32, device=device)
    wild = row.expand(2, -1, -1).contiguous()
    tame = torch.tensor([[0, 1], [1, 0], [0, 0], [1, 0], [0, 1], [0, 0]], dtype=torch.int32, device=device)
    counts = torch.tensor([2, 1, 0, 2, 2, 0], dtype=torch.int32, device=device)
    results = []
    for indices, number in ((wild, counts.clamp(min=3) * 0 + 3), (tame.expand(2, -1, -1).contiguous(), counts)):
        inputs = [each.clone().requires_grad_() for each in (q, k, v)]
        found = block_sparse_attention_varlen(
            *inputs, indices, number.expand(2, -1).contiguous(), cu, cu, block=64, impl="triton", return_lse=True
        )
        own = torch.cat((found.out[:70], found.out[134:]))
        grads = torch.autograd.grad(own.sum(), inputs)
        results.append((own, found.lse, *grads))
        assert not own.isnan().any() and not any(each.isnan().any() for each in grads)
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=ELEMENT, rtol=ELEMENT)


CASES = (
    Shape(heads=(4, 2)),
    Shape(heads=(2, 1), uniform=True, bounded=True, dtype=torch.float16),
    Shape(bounded=True),
    Shape(ragged=False, heads=(1, 1), scale=-0.3),
    Shape(dtype=torch.float16, scale=0.7),
    Shape(block=128, heads=(1, 1), finite=True, strided=True),
    Shape(block=256, heads=(1, 1), scale=0.0),
)
IN_REGISTERS = (CASES[0], Shape(dtype=torch.float16, scale=0.7), Shape(block=128, heads=(1, 1), finite=True))
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
    if place == "cpu":  # the smaller tiles of cards whose matrix units work on registers
        triton.card_of = lambda _: Card(vendor="nvidia", architecture="sm_89", capability=(8, 9))
        for shape in IN_REGISTERS:
            check(shape, place)
        triton.card_of = card_of
    check_dense(place)
    entries.looks = lambda _: False  # from here on: what a GPU does with entries that a CPU refuses, with the check off as there
    for shape in (Shape(), Shape(ragged=False, heads=(2, 1)), Shape(block=128, dtype=torch.float16, heads=(1, 1))):
        check_outside(shape, place)
    check_counts_outside(place)
    check_kept(place)
    check_packed_outside(place)
