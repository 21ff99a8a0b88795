"""The cases of block-sparse attention: every implementation against the reference in float32 on the same rounded inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Final

import torch
from torch import Tensor

from strobe.attention.explain import explain
from strobe.attention.gates.case import CaseRefusedError, GateCase, hold, near, room_for, same_bits
from strobe.attention.gates.operands import POISON, PORTABLE, SHAPES, Operands, Shape, draw, outside, upstream
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.custom_ops import DIFFERENTIABLE, gradients
from strobe.attention.sparse.packed import block_sparse_attention_varlen
from strobe.attention.sparse.selection import BlockSelection, shard_cuts, shard_list
from strobe.attention.state import merge
from strobe.attention.types import AttentionOutput
from strobe.core.errors import ImplUnavailableError
from strobe.core.tolerances import tolerance

IMPLS: Final = ("cudnn", "fa4", "triton", "flex")
"""Implementations that have a gate."""
_HALF: Final = tolerance("element of a library", "bfloat16")
_ROOM: Final = 14 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class _Of:
    """One implementation of block-sparse attention on one device, called as `block_sparse_attention` would be."""

    impl: str
    device: torch.device

    def __call__(self, operands: Operands, **options: object) -> AttentionOutput:
        return block_sparse_attention(*operands, impl=self.impl, **options)  # type: ignore[arg-type]

    def takes(self, operands: Operands, *, needs_grad: bool = False, return_lse: bool = True, **options: bool) -> None:
        """Refuse the case with the impl's own reason if it refuses these operands."""
        q, k, v = (tensor.detach().requires_grad_(needs_grad) for tensor in operands[:3])
        try:
            explain(q, k, v, operands[3], impl=self.impl, return_lse=return_lse, **options)
        except ImplUnavailableError as error:
            raise CaseRefusedError(error.reason) from error

    def gradients(self, operands: Operands, *, through_lse: bool, **options: bool) -> tuple[AttentionOutput, tuple[Tensor, ...]]:
        """Compute the output and its gradients for a fixed random gradient of the output (and of the lse)."""
        q, k, v = (tensor.clone().requires_grad_() for tensor in operands[:3])
        found = self((q, k, v, operands[3]), return_lse=through_lse, **options)
        d_out, d_lse = upstream(found.out, operands[0].dtype)
        outs, grads = [found.out], [d_out.to(found.out.dtype)]
        if through_lse:
            hold(found.lse is not None, "the lse was asked for")
            outs, grads = [*outs, *([] if found.lse is None else [found.lse])], [*grads, d_lse]
        return found, torch.autograd.grad(outs, (q, k, v), grads)


def cases(impl: str, device: torch.device) -> Iterator[GateCase]:
    """List every case of an implementation's gate on a device.

    Args:
        impl: a name in `IMPLS`, or any other implementation to try the cases on.
    """
    of = _Of(impl=impl, device=device)
    shapes = (*SHAPES, *(PORTABLE if impl in ("triton", "cpu") else ()))
    blocks, flags = (64, 128), (False, True)
    for shape in shapes:
        yield GateCase(name=f"output and lse, {shape}", check=partial(_output, of, shape))
    for shape, through in product(shapes, flags):
        yield GateCase(name=f"gradients, {shape}, through the lse: {through}", check=partial(_gradients, of, shape, through))
    for block, ragged, count in product(blocks, flags, (1, 2, 7)):
        name = f"one count that the host knows, block {block}, ragged: {ragged}, {count}"
        yield GateCase(name=name, check=partial(_one_count, of, block, ragged, count))
    each: tuple[tuple[str, Callable[[_Of, int], None]], ...] = (
        ("finite padding need not be cleared", _finite_padding),
        ("gradients for one count that the host knows", _one_count_gradients),
        ("nothing selected and nothing selectable", _nothing),
        ("views are read in place or copied", _views),
        ("large scores do not overflow", _large_scores),
        ("shards of the keys make the whole", _shards),
        ("the same bits in every run", _same_bits),
        ("packed sequences", _packed),
    )
    for (name, check), block in product(each, blocks):
        yield GateCase(name=f"{name}, block {block}", check=partial(check, of, block))
    yield GateCase(name="a NaN in a valid token shows", check=partial(_nan_shows, of))
    yield GateCase(name="it compiles without a graph break", check=partial(_compiles, of))
    for block, ragged in product(blocks, flags):
        what = f"block {block}, ragged: {ragged}"
        yield GateCase(name=f"nothing waits for the device, {what}", check=partial(_no_wait, of, block, ragged), needs_gpu=True)
        yield GateCase(name=f"a graph follows changed indices, {what}", check=partial(_graph, of, block, ragged), needs_gpu=True)
    for block in blocks:
        name = f"an index that names no key block reads nothing, block {block}"
        yield GateCase(name=name, check=partial(_outside, of, block), needs_gpu=True)  # a CPU refuses it
    yield GateCase(name="offsets beyond two gigabytes", check=partial(_far, of), needs_gpu=True)


def _wide(operands: Operands) -> Operands:
    return operands[0].float(), operands[1].float(), operands[2].float(), operands[3]


def _reference(operands: Operands, **options: object) -> AttentionOutput:
    return block_sparse_attention(*_wide(operands), impl="reference", **options)  # type: ignore[arg-type]


def _same(found: AttentionOutput, expected: AttentionOutput, dtype: torch.dtype) -> None:
    hold(found.out.dtype == dtype, f"out is {found.out.dtype}, not {dtype}")
    near(found.out, expected.out, tolerance("element of a library", dtype), "out")
    if found.lse is not None and expected.lse is not None:
        hold(found.lse.dtype == torch.float32 and found.lse.shape == expected.lse.shape, "lse: float32 [B, H, S]")
        same_bits(found.lse.isneginf(), expected.lse.isneginf(), "which rows of the lse are -inf")
        limit = tolerance("sparse lse of a library", dtype)
        near(found.lse.nan_to_num(neginf=0), expected.lse.nan_to_num(neginf=0), limit, "lse")


def _same_gradients(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    for name, mine, theirs in zip(("dq", "dk", "dv"), found, expected, strict=True):
        hold(mine.dtype == dtype and mine.shape == theirs.shape, f"{name}: {mine.dtype} {tuple(mine.shape)}")
        near(mine, theirs, tolerance("element of a library", dtype), name)


def _output(of: _Of, shape: Shape) -> None:
    operands = draw(shape, of.device)
    of.takes(operands)
    for scale in (None, 0.3):
        found = of(operands, softmax_scale=scale, return_lse=True)
        _same(found, _reference(operands, softmax_scale=scale, return_lse=True), shape.dtype)


def _gradients(of: _Of, shape: Shape, through_lse: bool) -> None:
    operands = draw(shape, of.device)
    of.takes(operands, needs_grad=True, return_lse=through_lse)
    found, grads = of.gradients(operands, through_lse=through_lse)
    q, k, v = (tensor.clone().requires_grad_() for tensor in _wide(operands)[:3])
    expected = _reference((q, k, v, operands[3]), return_lse=True)
    d_out, d_lse = upstream(found.out, shape.dtype)
    outs = [each for each in (expected.out, expected.lse) if each is not None]
    wanted = torch.autograd.grad(outs, (q, k, v), [d_out.float(), d_lse * through_lse])
    _same(found, expected, shape.dtype)
    _same_gradients(grads, wanted, shape.dtype)


def _finite_padding(of: _Of, block: int) -> None:
    q, k, v, selection = draw(Shape(block=block), of.device)
    loud = [tensor.nan_to_num(50.0) for tensor in (q, k, v)]
    of.takes((q, k, v, selection), needs_grad=True, return_lse=False)
    found, grads = of.gradients((*loud, replace(selection, finite_padding=True)), through_lse=False)  # type: ignore[arg-type]
    reference = _Of(impl="reference", device=of.device)
    expected, wanted = reference.gradients(_wide((q, k, v, selection)), through_lse=False)
    _same(found, expected, torch.bfloat16)
    _same_gradients(grads, tuple(each.to(torch.float32) for each in wanted), torch.bfloat16)


def _told(of: _Of, shape: Shape, count: int, seed: int) -> Operands:
    """Draw operands whose rows all have one count, which the host knows; index entries past it are poison."""
    q, k, v, selection = draw(shape, of.device)
    indices = torch.rand(2, 4, 5, 7, generator=torch.Generator().manual_seed(seed)).argsort(-1).to(torch.int32)
    indices[..., count:] = POISON
    counts = torch.full_like(selection.counts, count)
    return q, k, v, replace(selection, indices=indices.to(of.device), counts=counts, known_count=count)


def _one_count(of: _Of, block: int, ragged: bool, count: int) -> None:
    """Check a known count, the same for every row, against the reference and against counts read on the device."""
    shape = Shape(block=block, ragged=ragged, kv_heads=2 if of.impl != "cudnn" else 4)
    q, k, v, told = _told(of, shape, count, count)
    if told.kv_sizes is not None:
        told = replace(told, kv_sizes=told.kv_sizes.masked_fill(torch.arange(7, device=of.device) == 3, 0))
        k[:, 3 * block : 4 * block], v[:, 3 * block : 4 * block] = float("nan"), float("nan")
    operands, unknown = (q, k, v, told), (q, k, v, replace(told, known_count=None))
    of.takes(operands)
    found = of(operands, return_lse=True)
    _same(found, _reference(unknown, return_lse=True), torch.bfloat16)
    near(found.out, of(unknown, return_lse=True).out.float(), _HALF, "out of the kernels that read counts")


def _one_count_gradients(of: _Of, block: int) -> None:
    operands = _told(of, Shape(block=block), 3, 3)
    of.takes(operands, needs_grad=True, return_lse=False)
    found, grads = of.gradients(operands, through_lse=False)
    unknown = (*_wide(operands)[:3], replace(operands[3], known_count=None))
    expected, wanted = _Of(impl="reference", device=of.device).gradients(unknown, through_lse=False)
    _same(found, expected, torch.bfloat16)
    _same_gradients(grads, wanted, torch.bfloat16)


def _nothing(of: _Of, block: int) -> None:
    q, k, v, selection = draw(Shape(block=block, ragged=False), of.device)
    none = replace(selection, counts=torch.zeros_like(selection.counts))
    hollow = replace(selection, kv_sizes=torch.zeros(7, dtype=torch.int32, device=of.device))
    narrow = replace(none, indices=selection.indices[..., :0])
    for empty in (none, hollow, narrow):
        of.takes((q, k, v, empty), needs_grad=True, return_lse=False)
        found, grads = of.gradients((q, k, v, empty), through_lse=False)
        hold(not found.out.any() and not any(grad.any() for grad in grads), "out and gradients of no keys are 0")
        with torch.no_grad():
            lse = of((q, k, v, empty), return_lse=True).lse
        hold(lse is not None and lse.isneginf().all(), "the lse of no keys is -inf")


def _views(of: _Of, block: int) -> None:
    """Check views: heads outside, a slice of a longer buffer, an odd row offset, and queries of all heads in one memory."""
    q, k, v, selection = draw(Shape(block=block, width=64, ragged=False), of.device)
    of.takes((q, k, v, selection))
    expected = of((q, k, v, selection), return_lse=True)
    outside = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v)]
    longer = [torch.cat([torch.full_like(tensor[:, :3], torch.nan), tensor, tensor], dim=1) for tensor in (q, k, v)]
    sliced = [tensor[:, 3 : 3 + own.shape[1]] for tensor, own in zip(longer, (q, k, v), strict=True)]
    flat = [torch.cat([tensor.new_full((1,), torch.nan), tensor.flatten()]) for tensor in (q, k, v)]
    odd = [tensor[1:].view(own.shape) for tensor, own in zip(flat, (q, k, v), strict=True)]
    for views in (outside, sliced, odd):
        found = of((*views, selection), return_lse=True)  # type: ignore[arg-type]
        same_bits(found.out, expected.out, "out of views")
        same_bits(found.lse, expected.lse, "lse of views")
    one = q[:, :, :1].expand_as(q)
    same_bits(of((one, k, v, selection)).out, of((one.contiguous(), k, v, selection)).out, "out of queries that share memory")


def _nan_shows(of: _Of) -> None:
    q, k, v, selection = draw(Shape(ragged=False), of.device)
    of.takes((q, k, v, selection))
    everything = BlockSelection.from_mask(torch.ones(2, 4, 5, 7, dtype=torch.bool, device=of.device), block=64)
    k[1, 100] = float("nan")
    found = of((q, k, v, everything), return_lse=True)
    hold(found.lse is not None and found.out[1].isnan().all() and found.lse[1].isnan().all(), "a NaN is lost")
    hold(found.out[0].isfinite().all(), "a NaN is in another sample")


def _large_scores(of: _Of, block: int) -> None:
    q, k, v, selection = draw(Shape(block=block), of.device)
    operands = (q * 30, k * 30, v, selection)  # scores of about 10,000
    of.takes(operands)
    near(of(operands, return_lse=True).out, _reference(operands, return_lse=True).out, _HALF, "out")


def _shards(of: _Of, block: int) -> None:
    """Check attention over shards of the keys merged by lse, and gradients of each given the whole out and lse, as on ranks."""
    q, k, v, selection = draw(Shape(block=block, num_kv=9, ragged=False), of.device)
    mask, wide = selection.mask(9), _wide((q, k, v, selection))
    of.takes((q, k, v, selection), needs_grad=of.impl in DIFFERENTIABLE, return_lse=False)
    whole = BlockSelection.from_mask(mask, block=block)
    whole = replace(whole, indices=whole.indices.masked_fill(~whole.used(9), 9).sort(dim=-1).values)
    parts, bounds = [], (0, 4, 5, 9)
    cuts = shard_cuts(whole.indices, whole.counts, torch.tensor(bounds, dtype=torch.int32, device=of.device))
    for shard, (start, stop) in enumerate(pairwise(bounds)):
        indices, counts = shard_list(whole.indices, cuts, bounds, shard)
        rows = slice(start * block, stop * block)
        parts.append(
            (rows, BlockSelection(indices=indices, counts=counts, block=block, finite_padding=True, known_bound=stop - start))
        )
    with torch.no_grad():
        found = merge([of((q, k[:, rows], v[:, rows], part), return_lse=True) for rows, part in parts])
    leaves = [each.clone().requires_grad_() for each in wide[:3]]
    expected = _reference((*leaves, whole), return_lse=True)  # type: ignore[arg-type]
    _same(found, expected, q.dtype)
    if of.impl not in DIFFERENTIABLE:
        return
    d_out, d_lse = upstream(found.out, q.dtype)
    wanted = torch.autograd.grad(expected.out, leaves, d_out.float())
    hold(found.lse is not None, "merge returns the lse")
    state = found.out, found.lse
    each = [
        gradients(of.impl, (d_out, torch.zeros_like(d_lse)), (q, k[:, rows], v[:, rows]), state, part, q.shape[3] ** -0.5)  # type: ignore[arg-type]
        for rows, part in parts
    ]
    d_q = torch.stack([grads[0].float() for grads in each]).sum(dim=0).to(q.dtype)
    d_k, d_v = (torch.cat([grads[side] for grads in each], dim=1) for side in (1, 2))
    _same_gradients((d_q, d_k, d_v), wanted, q.dtype)


def _same_bits(of: _Of, block: int) -> None:
    operands = draw(Shape(block=block, num_q=17, num_kv=23), of.device)
    of.takes(operands)
    first, *others = (of(operands, return_lse=True) for _ in range(5))
    for other in others:
        same_bits(other.out, first.out, "out of another run")
        same_bits(other.lse, first.lse, "lse of another run")
    of.takes(operands, needs_grad=True, return_lse=False, deterministic=True)
    once, *again = (of.gradients(operands, through_lse=False, deterministic=True)[1] for _ in range(5))
    for grads in again:
        for name, mine, theirs in zip(("dq", "dk", "dv"), grads, once, strict=True):
            same_bits(mine, theirs, f"{name} of another run")


def _no_wait(of: _Of, block: int, ragged: bool) -> None:
    operands = draw(Shape(block=block, ragged=ragged), of.device)
    of.takes(operands, needs_grad=True, return_lse=False)
    q, k, v = (tensor.requires_grad_() for tensor in operands[:3])
    d_out = torch.randn_like(q)
    for strict in ("default", "error"):  # the first run compiles
        torch.cuda.set_sync_debug_mode(strict)
        try:
            torch.autograd.grad(of((q, k, v, operands[3])).out, (q, k, v), d_out)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _graph(of: _Of, block: int, ragged: bool) -> None:
    operands, other = (draw(Shape(block=block, ragged=ragged), of.device, seed) for seed in (0, 1))
    of.takes(operands)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            of(operands, return_lse=True)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = of(operands, return_lse=True)
    for mine, theirs in zip(operands[:3], other[:3], strict=True):
        mine.copy_(theirs)
    for name in ("indices", "counts", "q_sizes", "kv_sizes"):
        if getattr(operands[3], name) is not None:
            getattr(operands[3], name).copy_(getattr(other[3], name))
    graph.replay()
    _same(found, _reference(other, return_lse=True), torch.bfloat16)


def _compiles(of: _Of) -> None:
    q, k, v, selection = draw(Shape(ragged=False), of.device)
    of.takes((q, k, v, selection))
    compiled = torch.compile(block_sparse_attention, fullgraph=True, backend="aot_eager")
    near(compiled(q, k, v, selection, impl=of.impl).out, of((q, k, v, selection)).out, _HALF, "out")


def _outside(of: _Of, block: int) -> None:
    operands, inside = outside(block, of.device)
    of.takes(operands)
    found = of(operands, return_lse=True)
    expected = _reference((*operands[:3], inside), return_lse=True)
    near(found.out, expected.out, _HALF, "out")
    hold(found.lse is not None and expected.lse is not None, "the lse was asked for")
    near(found.lse.nan_to_num(neginf=0), expected.lse.nan_to_num(neginf=0), _HALF, "lse")  # type: ignore[union-attr]


def _far(of: _Of) -> None:
    """Check the last block of a tensor with more than 2^31 elements."""
    room_for(_ROOM, of.device)
    heads, blocks = 16, (1 << 31) // (16 * 64 * 128) + 1
    q = torch.zeros(1, 64, heads, 128, dtype=torch.bfloat16, device=of.device)
    kv = torch.zeros(1, blocks * 64, heads, 128, dtype=torch.bfloat16, device=of.device)
    last = torch.randn(64, heads, 128, device=of.device).to(torch.bfloat16)
    q[0], kv[0, -64:] = last, last
    indices = torch.full((1, heads, 1, 1), blocks - 1, dtype=torch.int32, device=of.device)
    selection = BlockSelection(indices=indices, counts=torch.ones_like(indices[..., 0]), block=64)
    of.takes((q, kv, kv, selection))
    found = of((q, kv, kv, selection))
    few = BlockSelection(indices=torch.zeros_like(indices), counts=selection.counts, block=64)
    near(found.out, _reference((q, kv[:, -64:], kv[:, -64:], few)).out, _HALF, "out")


def _packed(of: _Of, block: int) -> None:
    """Compare packed sequences, output and gradients, with the reference in the same packing."""
    lengths = torch.tensor(
        [[0, 3 * block - 5, 3 * block - 5, 5 * block, 7 * block + 1], [0, 10, 4 * block, 6 * block + 2, 9 * block]]
    )
    cu_q, cu_kv = (each.to(torch.int32).to(of.device) for each in lengths)
    generator = torch.Generator().manual_seed(block)
    shapes = [(int(total), 4, 128) for total in (lengths[0, -1], lengths[1, -1], lengths[1, -1])]
    q, k, v = (torch.randn(shape, generator=generator).to(torch.bfloat16).to(of.device) for shape in shapes)
    blocks = shapes[0][0] // block + 4
    available = torch.tensor([1] * 3 + [3] * 2 + [3] * (blocks - 5))  # key blocks of the sequence of each query block
    order = torch.rand(4, blocks, 3, generator=generator).argsort(-1)
    order = torch.where(order < available[:, None], order, 3).sort(-1).values  # those it has, first
    counts = torch.minimum(available, torch.randint(0, 4, (4, blocks), generator=generator)).to(torch.int32).to(of.device)
    indices = order.to(torch.int32).to(of.device)
    rows = q.new_zeros(1, blocks * block, 4, 128)
    of.takes(
        (rows, rows, rows, BlockSelection(indices=indices[None], counts=counts[None], block=block)),
        needs_grad=True,
        return_lse=False,
    )
    results = []
    for name, tensors in ((of.impl, (q, k, v)), ("reference", (q.float(), k.float(), v.float()))):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        mine, keys, values = leaves
        found = block_sparse_attention_varlen(mine, keys, values, indices, counts, cu_q, cu_kv, block=block, impl=name).out
        d_out = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16).to(found.dtype)
        results.append((found, *torch.autograd.grad(found, leaves, d_out.to(of.device))))
    for name, own, theirs in zip(("out", "dq", "dk", "dv"), *results, strict=True):
        near(own, theirs, _HALF, name)
