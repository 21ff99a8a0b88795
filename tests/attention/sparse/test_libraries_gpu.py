"""The libraries' block-sparse kernels on a GPU, against the reference in float32 on the same rounded inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from strobe.attention.explain import explain
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.packed import block_sparse_attention_varlen
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.types import AttentionOutput
from strobe.core.errors import ImplUnavailableError

pytestmark = pytest.mark.gpu

IMPLS = ("cudnn", "fa4", "triton", "flex")
TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.fixture(autouse=True)
def _forget_what_was_compiled() -> None:
    torch._dynamo.reset()


@dataclass(frozen=True, kw_only=True)
class Shape:
    heads: int = 4
    kv_heads: int = 4
    num_q: int = 5
    num_kv: int = 7
    width: int = 128
    block: int = 64
    batch: int = 2
    ragged: bool = True
    dtype: torch.dtype = torch.bfloat16

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        kind = "ragged" if self.ragged else "whole"
        return f"{name}-{self.block}x{self.width}-{self.heads}/{self.kv_heads}-{self.num_q}x{self.num_kv}-{kind}"


SHAPES = [
    Shape(),
    Shape(ragged=False),
    Shape(block=128),
    Shape(block=128, ragged=False),
    Shape(width=64),
    Shape(width=64, block=128),
    Shape(kv_heads=2),
    Shape(kv_heads=1, block=128),
    Shape(dtype=torch.float16),
    Shape(dtype=torch.float16, block=128, width=64, kv_heads=2),
    Shape(num_q=1, num_kv=1, batch=1, ragged=False),
    Shape(num_q=1, num_kv=31, batch=1),
    Shape(num_q=33, num_kv=3, block=128),
    Shape(num_q=3, num_kv=1, width=64, heads=1, kv_heads=1),
]
Case = tuple[Tensor, Tensor, Tensor, BlockSelection]


def draw(shape: Shape, seed: int = 0) -> Case:
    """q, k, v and a selection: empty rows, all counts, indices in any order, padding rows and unused entries poisoned."""
    generator = torch.Generator().manual_seed(seed)
    block = shape.block

    def tokens(blocks: int, heads: int) -> Tensor:
        return torch.randn(shape.batch, blocks * block, heads, shape.width, generator=generator)

    q, k, v = tokens(shape.num_q, shape.heads), tokens(shape.num_kv, shape.kv_heads), tokens(shape.num_kv, shape.kv_heads)
    mask = torch.rand(shape.batch, shape.heads, shape.num_q, shape.num_kv, generator=generator) < 0.5
    mask[0, 0, 0] = shape.num_q * shape.num_kv == 1
    sizes: list[Tensor | None] = [None, None]
    if shape.ragged:
        for side, (number, tensors) in enumerate(((shape.num_q, [q]), (shape.num_kv, [k, v]))):
            valid = torch.randint(0, block + 1, (number,), generator=generator, dtype=torch.int32)
            valid[0] = block
            padding = (torch.arange(block) >= valid[:, None]).flatten()
            for tensor in tensors:
                tensor[:, padding] = float("nan")
            sizes[side] = valid
    selection = BlockSelection.from_mask(mask, block=block, q_sizes=sizes[0], kv_sizes=sizes[1])
    indices = selection.indices.masked_fill(torch.arange(shape.num_kv) >= selection.counts[..., None], 1 << 29)
    selection = replace(selection, indices=indices)
    fields = ("indices", "counts", "q_sizes", "kv_sizes")
    moved = {name: getattr(selection, name).cuda() for name in fields if getattr(selection, name) is not None}
    q, k, v = (tensor.to(shape.dtype).cuda() for tensor in (q, k, v))
    return q, k, v, replace(selection, **moved)


def usable(case: Case, impl: str, *, needs_grad: bool = False, return_lse: bool = True, **options: bool) -> None:
    """Skip with the impl's own reason if it refuses this case."""
    q, k, v = (tensor.detach().requires_grad_(needs_grad) for tensor in case[:3])
    try:
        explain(q, k, v, case[3], impl=impl, return_lse=return_lse, **options)
    except ImplUnavailableError as error:
        pytest.skip(f"{impl}: {error.reason}")


def wide(case: Case) -> Case:
    return case[0].float(), case[1].float(), case[2].float(), case[3]


def gradients(case: Case, impl: str, *, through_lse: bool, **options: bool) -> tuple[AttentionOutput, tuple[Tensor, ...]]:
    """Output and gradients for a fixed random gradient of the output (and of the lse), NaN in the padding rows of neither."""
    q, k, v = (tensor.clone().requires_grad_() for tensor in case[:3])
    found = block_sparse_attention(q, k, v, case[3], impl=impl, return_lse=through_lse, **options)
    generator = torch.Generator().manual_seed(9)
    outs, grads = [found.out], [torch.randn(found.out.shape, generator=generator).to(case[0].dtype).cuda()]
    d_lse = torch.randn(found.out.shape[0], found.out.shape[2], found.out.shape[1], generator=generator)
    if through_lse:
        assert found.lse is not None
        outs, grads = [*outs, found.lse], [*grads, d_lse.cuda()]
    return found, torch.autograd.grad(outs, (q, k, v), grads)


def same(found: Tensor, expected: Tensor, limit: float, name: str) -> None:
    assert found.isfinite().all(), f"{name} is not finite"
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(
        found.float(), expected.float(), atol=limit * scale, rtol=limit, msg=lambda text: f"{name}: {text}"
    )


def same_result(found: AttentionOutput, expected: AttentionOutput, dtype: torch.dtype) -> None:
    assert found.out.dtype == dtype
    same(found.out, expected.out, TOLERANCES[dtype], "out")
    if found.lse is not None:
        assert expected.lse is not None and found.lse.dtype == torch.float32 and found.lse.shape == expected.lse.shape
        assert torch.equal(found.lse.isneginf(), expected.lse.isneginf()), "lse: -inf for empty rows and only for them"
        same(found.lse.nan_to_num(neginf=0), expected.lse.nan_to_num(neginf=0), 2e-3, "lse")


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output_and_lse_are_the_reference_s(shape: Shape, impl: str) -> None:
    case = draw(shape)
    usable(case, impl)
    for scale in (None, 0.3):
        found = block_sparse_attention(*case, impl=impl, softmax_scale=scale, return_lse=True)
        expected = block_sparse_attention(*wide(case), impl="reference", softmax_scale=scale, return_lse=True)
        same_result(found, expected, shape.dtype)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("through_lse", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_the_reference_s(shape: Shape, through_lse: bool, impl: str) -> None:
    case = draw(shape)
    usable(case, impl, needs_grad=True, return_lse=through_lse)
    found, grads = gradients(case, impl, through_lse=through_lse)
    q, k, v = (tensor.clone().requires_grad_() for tensor in wide(case)[:3])
    expected = block_sparse_attention(q, k, v, case[3], impl="reference", return_lse=True)
    generator = torch.Generator().manual_seed(9)
    d_out = torch.randn(found.out.shape, generator=generator).to(shape.dtype).float().cuda()
    d_lse = torch.randn(found.out.shape[0], found.out.shape[2], found.out.shape[1], generator=generator).cuda()
    assert expected.lse is not None
    wanted = torch.autograd.grad([expected.out, expected.lse], (q, k, v), [d_out, d_lse * through_lse])
    same_result(found, expected, shape.dtype)
    for name, got, want in zip(("dq", "dk", "dv"), grads, wanted, strict=True):
        assert got.dtype == shape.dtype and got.shape == want.shape
        same(got, want, TOLERANCES[shape.dtype], name)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("block", [64, 128])
def test_finite_padding_need_not_be_cleared(block: int, impl: str) -> None:
    q, k, v, selection = draw(Shape(block=block))
    loud = [tensor.nan_to_num(50.0) for tensor in (q, k, v)]
    promised = replace(selection, finite_padding=True)
    usable((q, k, v, selection), impl, needs_grad=True, return_lse=False)
    found, grads = gradients((*loud, promised), impl, through_lse=False)
    expected, wanted = gradients((*wide((q, k, v, selection))[:3], selection), "reference", through_lse=False)
    same_result(found, expected, torch.bfloat16)
    for name, got, want in zip(("dq", "dk", "dv"), grads, wanted, strict=True):
        same(got, want, TOLERANCES[torch.bfloat16], name)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("block", [64, 128])
def test_one_count_that_the_host_knows(block: int, ragged: bool, count: int, impl: str) -> None:
    """The same for every row; entries past it are poison, and some rows see nothing but empty blocks."""
    q, k, v, selection = draw(Shape(block=block, ragged=ragged, kv_heads=2 if impl != "cudnn" else 4))
    generator = torch.Generator().manual_seed(count)
    indices = torch.rand(2, 4, 5, 7, generator=generator).argsort(-1).to(torch.int32)
    indices[..., count:] = 1 << 29
    told = replace(selection, indices=indices.cuda(), counts=torch.full_like(selection.counts, count), known_count=count)
    if ragged:
        sizes = told.kv_sizes.masked_fill(torch.arange(7, device="cuda") == 3, 0)  # type: ignore[union-attr]
        told = replace(told, kv_sizes=sizes, known_count=count)
        empty = torch.zeros(7 * block, dtype=torch.bool, device="cuda")
        empty[3 * block : 4 * block] = True
        k[:, empty], v[:, empty] = float("nan"), float("nan")
    usable((q, k, v, told), impl)
    found = block_sparse_attention(q, k, v, told, impl=impl, return_lse=True)
    expected = block_sparse_attention(
        *wide((q, k, v, told))[:3], replace(told, known_count=None), impl="reference", return_lse=True
    )
    same_result(found, expected, torch.bfloat16)
    again = block_sparse_attention(q, k, v, replace(told, known_count=None), impl=impl, return_lse=True)
    same(found.out, again.out.float(), 2e-2, "out of the kernels that read counts")


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("block", [64, 128])
def test_gradients_for_one_count_that_the_host_knows(block: int, impl: str) -> None:
    q, k, v, selection = draw(Shape(block=block))
    indices = torch.rand(2, 4, 5, 7, generator=torch.Generator().manual_seed(3)).argsort(-1).to(torch.int32).cuda()
    told = replace(selection, indices=indices, counts=torch.full_like(selection.counts, 3), known_count=3)
    usable((q, k, v, told), impl, needs_grad=True, return_lse=False)
    found, grads = gradients((q, k, v, told), impl, through_lse=False)
    expected, wanted = gradients((*wide((q, k, v, told))[:3], replace(told, known_count=None)), "reference", through_lse=False)
    same_result(found, expected, torch.bfloat16)
    for name, got, want in zip(("dq", "dk", "dv"), grads, wanted, strict=True):
        same(got, want, TOLERANCES[torch.bfloat16], name)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("block", [64, 128])
def test_nothing_selected_and_nothing_selectable(block: int, impl: str) -> None:
    q, k, v, selection = draw(Shape(block=block, ragged=False))
    usable((q, k, v, selection), impl, needs_grad=True, return_lse=False)
    none = replace(selection, counts=torch.zeros_like(selection.counts))
    hollow = replace(selection, kv_sizes=torch.zeros(7, dtype=torch.int32, device="cuda"))
    narrow = replace(none, indices=selection.indices[..., :0])
    for empty in (none, hollow, narrow):
        usable((q, k, v, empty), impl, needs_grad=True, return_lse=False)
        found, grads = gradients((q, k, v, empty), impl, through_lse=False)
        assert not found.out.any() and not any(grad.any() for grad in grads)
        with torch.no_grad():
            lse = block_sparse_attention(q, k, v, empty, impl=impl, return_lse=True).lse
        assert lse is not None and lse.isneginf().all()


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("block", [64, 128])
def test_views_are_read_in_place_or_copied(block: int, impl: str) -> None:
    """Heads outside, a slice of a longer buffer, a row offset that is no multiple of 128 bytes, queries of all heads the same."""
    q, k, v, selection = draw(Shape(block=block, width=64, ragged=False))
    usable((q, k, v, selection), impl)
    expected = block_sparse_attention(q, k, v, selection, impl=impl, return_lse=True)
    outside = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (q, k, v)]
    longer = [torch.cat([torch.full_like(tensor[:, :3], torch.nan), tensor, tensor], dim=1) for tensor in (q, k, v)]
    sliced = [tensor[:, 3 : 3 + own.shape[1]] for tensor, own in zip(longer, (q, k, v), strict=True)]
    flat = [torch.cat([tensor.new_full((1,), torch.nan), tensor.flatten()]) for tensor in (q, k, v)]
    odd = [tensor[1:].view(own.shape) for tensor, own in zip(flat, (q, k, v), strict=True)]
    for views in (outside, sliced, odd):
        found = block_sparse_attention(*views, selection, impl=impl, return_lse=True)
        assert torch.equal(found.out, expected.out) and torch.equal(found.lse, expected.lse)  # type: ignore[arg-type]
    one = q[:, :, :1].expand_as(q)
    found = block_sparse_attention(one, k, v, selection, impl=impl)
    assert torch.equal(found.out, block_sparse_attention(one.contiguous(), k, v, selection, impl=impl).out)


@pytest.mark.parametrize("impl", IMPLS)
def test_a_nan_in_a_valid_token_shows(impl: str) -> None:
    q, k, v, selection = draw(Shape(ragged=False))
    usable((q, k, v, selection), impl)
    everything = BlockSelection.from_mask(torch.ones(2, 4, 5, 7, dtype=torch.bool, device="cuda"), block=64)
    k[1, 100] = float("nan")
    found = block_sparse_attention(q, k, v, everything, impl=impl, return_lse=True)
    assert found.lse is not None and found.out[1].isnan().all() and found.lse[1].isnan().all()
    assert found.out[0].isfinite().all()


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("block", [64, 128])
def test_large_scores_do_not_overflow(block: int, impl: str) -> None:
    q, k, v, selection = draw(Shape(block=block))
    case = (q * 30, k * 30, v, selection)  # scores of about 10,000
    usable(case, impl)
    found = block_sparse_attention(*case, impl=impl, return_lse=True)
    expected = block_sparse_attention(*wide(case), impl="reference", return_lse=True)
    same(found.out, expected.out, 2e-2, "out")


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("block", [64, 128])
def test_results_are_the_same_bits_in_every_run(block: int, impl: str) -> None:
    case = draw(Shape(block=block, num_q=17, num_kv=23))
    usable(case, impl)
    runs = [block_sparse_attention(*case, impl=impl, return_lse=True) for _ in range(5)]
    assert all(torch.equal(run.out, runs[0].out) and torch.equal(run.lse, runs[0].lse) for run in runs)  # type: ignore[arg-type]
    usable(case, impl, needs_grad=True, return_lse=False, deterministic=True)
    grads = [gradients(case, impl, through_lse=False, deterministic=True)[1] for _ in range(5)]
    assert all(torch.equal(a, b) for run in grads for a, b in zip(run, grads[0], strict=True))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("block", [64, 128])
def test_nothing_waits_for_the_device(block: int, ragged: bool, impl: str) -> None:
    case = draw(Shape(block=block, ragged=ragged))
    usable(case, impl, needs_grad=True, return_lse=False)
    case = tuple(tensor.requires_grad_() for tensor in case[:3]) + case[3:]  # type: ignore[assignment]
    d_out = torch.randn_like(case[0])
    for strict in ("default", "error"):  # the first run compiles
        torch.cuda.set_sync_debug_mode(strict)
        try:
            out = block_sparse_attention(*case, impl=impl).out
            torch.autograd.grad(out, case[:3], d_out)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("block", [64, 128])
def test_a_cuda_graph_follows_changed_indices(block: int, ragged: bool, impl: str) -> None:
    case, other = draw(Shape(block=block, ragged=ragged)), draw(Shape(block=block, ragged=ragged), seed=1)
    usable(case, impl)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            block_sparse_attention(*case, impl=impl, return_lse=True)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = block_sparse_attention(*case, impl=impl, return_lse=True)
    for mine, theirs in zip(case[:3], other[:3], strict=True):
        mine.copy_(theirs)
    for name in ("indices", "counts", "q_sizes", "kv_sizes"):
        if getattr(case[3], name) is not None:
            getattr(case[3], name).copy_(getattr(other[3], name))
    graph.replay()
    expected = block_sparse_attention(*wide(other), impl="reference", return_lse=True)
    same_result(found, expected, torch.bfloat16)


@pytest.mark.parametrize("impl", IMPLS)
def test_it_compiles_without_a_graph_break(impl: str) -> None:
    q, k, v, selection = draw(Shape(ragged=False))
    usable((q, k, v, selection), impl)
    compiled = torch.compile(block_sparse_attention, fullgraph=True, backend="aot_eager")
    expected = block_sparse_attention(q, k, v, selection, impl=impl)
    same(compiled(q, k, v, selection, impl=impl).out, expected.out, 2e-2, "out")


@pytest.mark.parametrize("impl", IMPLS)
def test_offsets_beyond_two_gigabytes(impl: str) -> None:
    """The last head of a tensor of more than 2^31 elements."""
    heads, blocks = 16, (1 << 31) // (16 * 64 * 128) + 1
    q = torch.zeros(1, 64, heads, 128, dtype=torch.bfloat16, device="cuda")
    kv = torch.zeros(1, blocks * 64, heads, 128, dtype=torch.bfloat16, device="cuda")
    last = torch.randn(64, heads, 128, device="cuda").to(torch.bfloat16)
    q[0], kv[0, -64:] = last, last
    indices = torch.full((1, heads, 1, 1), blocks - 1, dtype=torch.int32, device="cuda")
    selection = BlockSelection(indices=indices, counts=torch.ones_like(indices[..., 0]), block=64)
    usable((q, kv, kv, selection), impl)
    found = block_sparse_attention(q, kv, kv, selection, impl=impl)
    few = BlockSelection(indices=torch.zeros_like(indices), counts=selection.counts, block=64)
    expected = block_sparse_attention(q.float(), kv[:, -64:].float(), kv[:, -64:].float(), few, impl="reference")
    same(found.out, expected.out, 2e-2, "out")


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("block", [64, 128])
def test_packed_sequences(block: int, impl: str) -> None:
    """Against the reference in the same packing; `test_packed` holds that against separate calls."""
    lengths = torch.tensor(
        [[0, 3 * block - 5, 3 * block - 5, 5 * block, 7 * block + 1], [0, 10, 4 * block, 6 * block + 2, 9 * block]]
    )
    cu_q, cu_kv = (each.to(torch.int32).cuda() for each in lengths)
    generator = torch.Generator().manual_seed(block)
    shapes = [(int(total), 4, 128) for total in (lengths[0, -1], lengths[1, -1], lengths[1, -1])]
    q, k, v = (torch.randn(shape, generator=generator).to(torch.bfloat16).cuda() for shape in shapes)
    blocks = shapes[0][0] // block + 4
    available = torch.tensor([1] * 3 + [3] * 2 + [3] * (blocks - 5))  # key blocks of the sequence of each query block
    order = torch.rand(4, blocks, 3, generator=generator).argsort(-1)
    order = torch.where(order < available[:, None], order, 3).sort(-1).values  # those it has, first
    counts = torch.minimum(available, torch.randint(0, 4, (4, blocks), generator=generator)).to(torch.int32).cuda()
    indices = order.to(torch.int32).cuda()
    heads = BlockSelection(indices=indices[None], counts=counts[None], block=block)
    rows = q.new_zeros(1, blocks * block, 4, 128)
    usable((rows, rows, rows, heads), impl, needs_grad=True, return_lse=False)
    results = []
    for name, tensors in ((impl, (q, k, v)), ("reference", (q.float(), k.float(), v.float()))):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        where = {"indices": indices, "counts": counts, "cu_seqlens_q": cu_q, "cu_seqlens_kv": cu_kv, "block": block}
        out = block_sparse_attention_varlen(*leaves, **where, impl=name).out  # type: ignore[arg-type]
        d_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16).to(out.dtype).cuda()
        results.append((out, *torch.autograd.grad(out, leaves, d_out)))
    for name, mine, theirs in zip(("out", "dq", "dk", "dv"), *results, strict=True):
        same(mine, theirs, 2e-2, name)
