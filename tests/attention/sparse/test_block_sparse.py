"""Block-sparse attention: every impl against the reference, which test_video_sparse.py compares with the definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from strobe.attention.explain import explain
from strobe.attention.sparse import entries
from strobe.attention.sparse.api import block_sparse_attention, spec_of
from strobe.attention.sparse.coarse import Estimator
from strobe.attention.sparse.custom_ops import block_sparse_backward, block_sparse_forward
from strobe.attention.sparse.entries import sound
from strobe.attention.sparse.impl import cudnn, reference
from strobe.attention.sparse.lists import key_lists, query_lists
from strobe.attention.sparse.packed import PackedLayout, block_sparse_attention_varlen, video_sparse_attention_varlen
from strobe.attention.sparse.padding import aligned, cleared, finite
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.spec import SparseSpec
from strobe.attention.sparse.video import video_sparse_attention
from strobe.attention.types import AttentionOutput, check
from strobe.core.errors import ConfigError, ImplUnavailableError, ShapeError
from strobe.core.tolerances import tolerance

Case = tuple[Tensor, Tensor, Tensor, BlockSelection]


def _case(
    shape: tuple[int, int, int, int, int, int],
    *,
    block: int = 64,
    dtype: torch.dtype = torch.float32,
    ragged: bool = True,
    seed: int = 0,
) -> Case:
    """Random q, k, v and selection for (B, H, H_kv, N_q, N_kv, D): empty rows, all counts, padding rows poisoned with NaN."""
    batch, heads, kv_heads, num_q, num_kv, width = shape
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int, heads: int) -> Tensor:
        return torch.randn(batch, rows * block, heads, width, generator=generator, dtype=torch.float64)

    q, k, v = draw(num_q, heads), draw(num_kv, kv_heads), draw(num_kv, kv_heads)
    mask = torch.rand(batch, heads, num_q, num_kv, generator=generator) < 0.5
    mask[0, 0, 0] = False
    sizes: list[Tensor | None] = [None, None]
    if ragged:
        for side, (number, tensors) in enumerate(((num_q, [q]), (num_kv, [k, v]))):
            sizes[side] = torch.randint(0, block + 1, (number,), generator=generator, dtype=torch.int32)
            padding = (torch.arange(block) >= sizes[side][:, None]).flatten()
            for tensor in tensors:
                tensor[:, padding] = float("nan")
    selection = BlockSelection.from_mask(mask, block=block, q_sizes=sizes[0], kv_sizes=sizes[1])
    return q.to(dtype), k.to(dtype), v.to(dtype), selection


def _gradients(case: Case, impl: str, **options: object) -> tuple[AttentionOutput, tuple[Tensor, ...]]:
    q, k, v = (tensor.clone().requires_grad_() for tensor in case[:3])
    found = block_sparse_attention(q, k, v, case[3], impl=impl, return_lse=True, **options)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(9)
    d_out = torch.randn(found.out.shape, generator=generator).to(found.out.dtype)
    d_lse = torch.randn(found.lse.shape, generator=generator)
    return found, torch.autograd.grad([found.out, found.lse], (q, k, v), [d_out, d_lse])


def _same(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    limit = tolerance("sparse element", dtype)
    torch.testing.assert_close(found, expected, atol=limit * max(1.0, expected.abs().max().item()), rtol=limit)


DTYPES = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])


@given(st.integers(1, 3), st.integers(1, 4), st.sampled_from([(1, 1), (3, 1), (4, 2)]), DTYPES, st.integers(0, 99))
def test_impl_cpu_at_any_size(num_q: int, num_kv: int, heads: tuple[int, int], dtype: torch.dtype, seed: int) -> None:
    case = _case((1, *heads, num_q, num_kv, 4), dtype=dtype, ragged=seed % 3 > 0, seed=seed)
    (found, gradients), (expected, wanted) = _gradients(case, "cpu"), _gradients(case, "reference")
    assert found.out.dtype == dtype and torch.equal(found.lse.isneginf(), expected.lse.isneginf())
    _same(found.lse.nan_to_num(neginf=0), expected.lse.nan_to_num(neginf=0), torch.float32)
    for got, want in zip((found.out, *gradients), (expected.out, *wanted), strict=True):
        assert got.isfinite().all()
        _same(got, want, dtype)


def test_gradients_are_the_same_bits_in_every_run() -> None:
    case = _case((2, 4, 2, 6, 9, 16))
    runs = [_gradients(case, "cpu", deterministic=True)[1] for _ in range(3)]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(run, runs[0], strict=True))


def test_a_mask_and_its_indices_say_the_same() -> None:
    mask = torch.rand(2, 3, 4, 5) < 0.5
    selection = BlockSelection.from_mask(mask, block=64)
    assert torch.equal(selection.mask(5), mask)
    for row, number, seen in zip(selection.indices.flatten(0, 2), selection.counts.flatten(), mask.flatten(0, 2), strict=True):
        assert row[:number].tolist() == seen.nonzero().flatten().tolist()
    garbage = replace(selection, indices=torch.where(torch.arange(5) < selection.counts[..., None], selection.indices, 12345))
    q, k, v = torch.randn(2, 256, 3, 8), torch.randn(2, 320, 3, 8), torch.randn(2, 320, 3, 8)
    for impl in ("cpu", "reference"):  # entries past the count are never read
        expected = block_sparse_attention(q, k, v, selection, impl=impl)
        assert torch.equal(block_sparse_attention(q, k, v, garbage, impl=impl).out, expected.out)


@pytest.mark.parametrize("impl", ["cpu", "reference"])
def test_one_count_for_all_rows_may_be_told_but_not_wrongly(impl: str) -> None:
    q, k, v, selection = _case((1, 2, 2, 2, 3, 8), ragged=False)
    two = replace(selection, counts=torch.full_like(selection.counts, 2))
    expected, grads = _gradients((q, k, v, two), impl)
    found, same = _gradients((q, k, v, replace(two, known_count=2)), impl)
    assert torch.equal(found.out, expected.out) and all(map(torch.equal, same, grads))
    for counts in (selection.counts, torch.full_like(two.counts, 1)):
        for name in (impl, "flex"):
            with pytest.raises(ShapeError, match=r"known_count: got 2, but counts holds [01] to [123]; leave known_count out"):
                block_sparse_attention(q, k, v, replace(two, counts=counts, known_count=2), impl=name)
    other = replace(replace(two, known_count=2), counts=selection.counts)  # what was said of other counts is not kept
    assert other.uniform_count is None
    block_sparse_attention(q, k, v, other, impl=impl)
    for told in (-1, 4):
        with pytest.raises(ShapeError, match=f"known_count: got {told}, expected 0 to 3, the entries of a row, or None"):
            block_sparse_attention(q, k, v, replace(two, known_count=told), impl=impl)


ENTRIES: list[tuple[str, tuple[int, ...], int, str]] = [
    ("indices", (1, 0, 1, 1), 3, "indices: sample 1, head 0, query block 1 names key block 3, expected 0 to 2, the key blocks"),
    ("indices", (0, 1, 0, 0), -1, "indices: sample 0, head 1, query block 0 names key block -1, expected 0 to 2"),
    ("indices", (0, 0, 1, 2), 2**31 - 1, "query block 1 names key block 2147483647, expected 0 to 2"),
    ("counts", (0, 1, 1), 4, "counts: sample 0, head 1, query block 1 holds 4, expected 0 to 3, the entries of a row"),
    ("counts", (1, 1, 0), -2, "counts: sample 1, head 1, query block 0 holds -2, expected 0 to 3"),
    ("indices", (0, 0, 0, 2), 0, "indices: sample 0, head 0, query block 0 names a key block twice, expected distinct ones"),
    ("kv_sizes", (1,), 65, "kv_sizes: got 64 to 65 tokens in a block, expected 0 to 64"),
    ("q_sizes", (0,), -1, "q_sizes: got -1 to 64 tokens in a block, expected 0 to 64"),
]


@pytest.mark.parametrize(("name", "where", "value", "message"), ENTRIES)
def test_an_entry_that_names_no_key_block_is_refused(name: str, where: tuple[int, ...], value: int, message: str) -> None:
    q, k, v = torch.randn(2, 128, 2, 8), torch.randn(2, 192, 2, 8), torch.randn(2, 192, 2, 8)
    whole = torch.full((3,), 64, dtype=torch.int32)
    every = BlockSelection.from_mask(torch.ones(2, 2, 2, 3, dtype=torch.bool), block=64, q_sizes=whole[:2], kv_sizes=whole)
    wrong = getattr(every, name).clone()
    wrong[where] = value
    selection = replace(every, **{name: wrong})
    for impl in ("cpu", "reference", "flex", "auto"):
        with pytest.raises(ShapeError, match=message):
            block_sparse_attention(q, k, v, selection, impl=impl)
    compiled = torch.compile(block_sparse_attention, fullgraph=True, backend="eager")
    with pytest.raises(ShapeError, match=message):
        compiled(q, k, v, selection)


def test_a_bound_that_is_known_is_believed_on_no_cpu() -> None:
    q, k, v, selection = _case((1, 2, 2, 2, 3, 8), ragged=False)
    assert selection.within(3) and selection.within(9) and not selection.within(2)
    assert replace(selection, counts=selection.counts).index_bound is None
    wrong = replace(selection, indices=selection.indices + 1, counts=torch.full_like(selection.counts, 3), known_bound=3)
    with pytest.raises(ShapeError, match="names key block 3, expected 0 to 2"):
        block_sparse_attention(q, k, v, wrong)
    with pytest.raises(ShapeError, match="known_bound: got -1, expected a number of key blocks, or None"):
        block_sparse_attention(q, k, v, replace(selection, known_bound=-1))


@given(st.integers(1, 5), st.integers(0, 99))
def test_what_a_library_is_given_names_key_blocks_alone(num_kv: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(-2, 7, (1, 2, 3, 4), generator=generator, dtype=torch.int32)
    counts = torch.randint(-1, 6, (1, 2, 3), generator=generator, dtype=torch.int32)
    wild = BlockSelection(indices=indices, counts=counts, block=64, known_count=2)
    clean = sound(wild, num_kv)
    assert clean.uniform_count is None and clean.within(num_kv) and sound(clean, num_kv) is clean
    rows = zip(*(each.flatten(0, 2).tolist() for each in (indices, counts, clean.indices, clean.counts)), strict=True)
    for row, count, kept, number in rows:
        assert kept[:number] == [each for each in row[: max(count, 0)] if 0 <= each < num_kv]
    assert torch.equal(clean.mask(num_kv), wild.mask(num_kv))


def test_the_environment_may_have_every_device_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = SimpleNamespace(device=torch.device("cuda"), is_cuda=False, is_meta=False)
    for value, checks in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("STROBE_CHECK", value)
        entries._everywhere.cache_clear()
        assert entries.looks(elsewhere) is checks  # type: ignore[arg-type]
        assert entries.looks(torch.zeros(1))
    entries._everywhere.cache_clear()


@pytest.mark.parametrize("told", [None, 2])
def test_custom_operators_are_clean(told: int | None) -> None:
    q, k, v, selection = _case((1, 2, 1, 2, 3, 8))
    if told is not None:
        selection = replace(selection, counts=torch.full_like(selection.counts, told))
    q, k, v = (tensor.nan_to_num(0).requires_grad_() for tensor in (q, k, v))
    where = (selection.indices, selection.counts, selection.q_sizes, selection.kv_sizes, 64, False, told, None, 0.3, "cpu")
    torch.library.opcheck(block_sparse_forward, (q, k, v, *where))
    out, lse = (tensor.detach() for tensor in block_sparse_forward(q, k, v, *where))
    plain = [tensor.detach() for tensor in (q, k, v)]
    torch.library.opcheck(block_sparse_backward, (torch.randn_like(out), torch.randn_like(lse), *plain, out, lse, *where))


def test_explain_says_who_runs_and_why_not_the_others() -> None:
    q, k, v, selection = _case((1, 2, 2, 2, 3, 8))
    choice = explain(q, k, v, selection)
    assert choice.impl.name == "cpu" and ("reference", "cpu comes first") in choice.passed_over
    with pytest.raises(ConfigError, match="unknown impl 'cpuu' \\(did you mean 'cpu'"):
        block_sparse_attention(q, k, v, selection, impl="cpuu")
    meta = [tensor.to("meta") for tensor in (q, k, v)]
    fields = ("indices", "counts", "q_sizes", "kv_sizes")
    elsewhere = replace(selection, **{name: getattr(selection, name).to("meta") for name in fields})
    with pytest.raises(ImplUnavailableError, match="it runs on a CPU, the tensors are on meta; would run here: reference"):
        block_sparse_attention(*meta, elsewhere, impl="cpu")
    assert block_sparse_attention(*meta, elsewhere, impl="reference").out.shape == q.shape


def test_what_does_not_fit_is_refused() -> None:
    q, k, v, good = _case((1, 2, 2, 2, 3, 8))
    cases: list[tuple[Tensor, BlockSelection, str]] = [
        (q, replace(good, block=32), "block: got 32 tokens, expected one of 64, 128, 256"),
        (q[:, :100], good, "q: got 100 rows, expected a multiple of the block's 64; pad the rows"),
        (q, replace(good, indices=good.indices[:, :1]), r"indices: got shape \(1, 1, 2, 3\), expected \[1, 2, 2, K\] with K at"),
        (q, replace(good, indices=good.indices.long()), r"indices: got .* torch.int64 on cpu, expected .* torch.int32"),
        (q, replace(good, counts=good.counts[..., :1]), r"counts: got \(1, 2, 1\)"),
        (q, replace(good, kv_sizes=good.q_sizes), r"kv_sizes: got \(2,\) torch.int32 on cpu, expected \(3,\)"),
        (q, replace(good, q_sizes=torch.zeros(2)), r"q_sizes: got \(2,\) torch.float32"),
        (q, replace(good, block="64"), "block: got '64' tokens, expected one of 64, 128, 256"),
        (q[:, :, :1], good, "k: got 2 heads, expected a divisor of q's 1"),
    ]
    for queries, selection, message in cases:
        with pytest.raises(ShapeError, match=message):
            block_sparse_attention(queries, k, v, selection)
    wrong: list[tuple[dict[str, object], str]] = [
        ({"selection": torch.ones(1, 2, 2, 3)}, r"selection: got a tensor of shape \(1, 2, 2, 3\) .*BlockSelection.from_mask"),
        ({"selection": replace(good, kv_sizes=[64, 64, 40])}, r"kv_sizes: got a list, expected a tensor \(3,\) torch.int32"),
        ({"q": None}, r"q: got None, expected a tensor \[B, S, H, D\]"),
        ({"softmax_scale": torch.ones(2)}, r"softmax_scale: got a tensor of shape \(2,\) and torch.float32, expected a number"),
    ]
    for change, message in wrong:
        with pytest.raises(ConfigError, match=message):
            block_sparse_attention(**({"q": q, "k": k, "v": v, "selection": good} | change))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"mask: got \(2, 3\) torch.bool, expected \[B, H, N_q, N_kv\]"):
        BlockSelection.from_mask(torch.ones(2, 3, dtype=torch.bool), block=64)


@pytest.mark.parametrize("given", [(), ("q_sizes",), ("kv_sizes",), ("q_sizes", "kv_sizes")])
def test_sizes_of_either_side_make_a_call_ragged(given: tuple[str, ...]) -> None:
    """The choice of an implementation depends on it."""
    q, k, v, selection = _case((1, 2, 2, 2, 3, 8))
    dropped = {name: None for name in ("q_sizes", "kv_sizes") if name not in given}
    spec = spec_of(q, k, v, replace(selection, **dropped), None, False, False)  # type: ignore[arg-type]
    assert spec.ragged == bool(given)


# What the libraries are told of a selection, entry by entry, and FlexAttention as a second oracle.


ELEMENT = tolerance("element", "float32")

SIZES = torch.tensor([64, 0, 10, 64, 63, 1], dtype=torch.int32)


def selection(*, ragged: bool = True) -> BlockSelection:
    generator = torch.Generator().manual_seed(4)
    mask = torch.rand(2, 3, 4, 6, generator=generator) < 0.6
    mask[0, 0, 0] = False
    made = BlockSelection.from_mask(mask, block=64, kv_sizes=SIZES if ragged else None)
    poison = torch.arange(6) >= made.counts[..., None]
    return replace(made, indices=made.indices.masked_fill(poison, 1 << 29))


def rows(counts: Tensor, indices: Tensor) -> list[list[int]]:
    flat = zip(indices.flatten(0, 2), counts.flatten(), strict=True)
    return [sorted(row[:number].tolist()) for row, number in flat]


@pytest.mark.parametrize("ragged", [False, True])
def test_whole_blocks_and_blocks_with_padding_are_told_apart(ragged: bool) -> None:
    made = selection(ragged=ragged)
    seen, sizes = made.mask(6), SIZES.tolist() if ragged else [64] * 6
    places = [(b, h) for b in range(2) for h in range(3)]
    for lists, pairs in (
        (key_lists(made), [[(i, j, j) for j in range(6)] for i in range(4)]),
        (query_lists(made, 6), [[(i, j, i) for i in range(4)] for j in range(6)]),
    ):
        for whole, counts, indices in ((True, lists.full_counts, lists.full), (False, lists.partial_counts, lists.partial)):
            wanted = [
                [name for i, j, name in row if seen[b, h, i, j] and sizes[j] and (sizes[j] == 64) == whole]
                for b, h in places
                for row in pairs
            ]
            assert counts.dtype == indices.dtype == torch.int32 and rows(counts, indices) == wanted


def test_padding_is_cleared_only_where_it_could_matter() -> None:
    made, rows_kv = selection(), torch.full((2, 384, 3, 8), torch.nan)
    padding = (torch.arange(64) >= SIZES[:, None]).flatten()
    rows_kv[:, ~padding] = 1.0
    clean = cleared(rows_kv, SIZES, 64)
    assert not clean[:, padding].any() and (clean[:, ~padding] == 1).all() and rows_kv[:, padding].isnan().all()
    assert cleared(rows_kv, None, 64) is rows_kv
    assert torch.equal(finite(rows_kv, SIZES, made), clean)
    assert finite(rows_kv, SIZES, replace(made, finite_padding=True)) is rows_kv


def test_only_what_a_descriptor_cannot_address_is_copied() -> None:
    base = torch.randn(2, 10, 4, 8)
    for view in (base, base[:, 3:], base.transpose(1, 2).contiguous().transpose(1, 2), base[:1]):
        assert aligned(view) is view
    odd = torch.randn(2 * 10 * 4 * 8 + 1)[1:].view(2, 10, 4, 8)
    for view in (odd, base[:, :, :1].expand(2, 10, 4, 8), base.transpose(2, 3), torch.randn(2, 10, 4, 9)[..., :8]):
        copy = aligned(view)
        assert torch.equal(copy, view) and copy.is_contiguous() and copy.data_ptr() % 16 == 0


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("block", [64, 128])
def test_flexattention_agrees(block: int, ragged: bool) -> None:
    generator = torch.Generator().manual_seed(block)
    q = torch.randn(2, 3 * block, 4, 16, generator=generator)
    k, v = (torch.randn(2, 4 * block, 2, 16, generator=generator) for _ in range(2))
    mask = torch.rand(2, 4, 3, 4, generator=generator) < 0.5
    mask[0, 0, 0] = False
    sizes = [torch.tensor(each, dtype=torch.int32) for each in ([block, 0, 7], [3, block, 0, 60])] if ragged else [None, None]
    for tensors, valid in (((q,), sizes[0]), ((k, v), sizes[1])):
        for tensor in tensors:
            if valid is not None:
                tensor[:, (torch.arange(block) >= valid[:, None]).flatten()] = float("nan")
    made = BlockSelection.from_mask(mask, block=block, q_sizes=sizes[0], kv_sizes=sizes[1])
    found = block_sparse_attention(q, k, v, made, impl="flex", softmax_scale=0.3, return_lse=True)
    for impl in ("reference", "cpu"):
        expected = block_sparse_attention(q, k, v, made, impl=impl, softmax_scale=0.3, return_lse=True)
        torch.testing.assert_close(found.out, expected.out, atol=ELEMENT, rtol=ELEMENT)
        torch.testing.assert_close(found.lse, expected.lse, atol=ELEMENT, rtol=ELEMENT)


def stand_in(
    block: int, width: int, groups: int, dtype: torch.dtype, ragged: bool, counted: bool, _: int | None
) -> Callable[..., None]:
    """A kernel of cuDNN's signature that computes with the reference, from its own order of dimensions."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, indices: Tensor, counts: Tensor, *rest: Any) -> None:
        for tensor, leading in ((q, 1), (k, 1), (v, 0), (out, 1), (lse, 0), (indices, 0), (counts, 0)):
            assert tensor.stride(leading) == 1, "the dimension that a kernel is compiled for is the contiguous one"
        if block == 128:
            sizes, softmax_scale, count = rest
            assert count == (2 if counted else 0) and (sizes.dim() == 1) == ragged
        else:
            per_head, again, softmax_scale = rest
            assert again is counts
            sizes = per_head[:, 0, 0]
            assert not ragged or all(torch.equal(sizes, each) for each in per_head.flatten(1).unbind(1))
        operands = [q.permute(3, 0, 2, 1), k.permute(3, 0, 2, 1), v.permute(3, 1, 2, 0)]
        assert operands[0].shape[2] == groups * operands[1].shape[2] and operands[0].shape[3] == width
        selection = BlockSelection(
            indices=indices.permute(3, 2, 1, 0),
            counts=counts.permute(2, 1, 0),
            block=block,
            kv_sizes=sizes if ragged else None,
            finite_padding=True,
        )
        call = check(*operands, softmax_scale, True)
        spec = SparseSpec.of(
            call, block=block, most_selected=indices.shape[0], ragged=ragged, uniform=counted, deterministic=False
        )
        found = reference.IMPL.run(*operands, selection, spec)
        out.copy_(found.out.permute(1, 3, 2, 0))
        lse.copy_(found.lse.permute(2, 1, 0))

    return kernel


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("count", [None, 2])
def test_cudnn_is_prepared_for_what_its_forward_is_given(
    block: int, ragged: bool, count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cudnn, "_forward_kernel", stand_in)
    generator = torch.Generator().manual_seed(block)
    shapes = ((2, 3 * block, 4, 64), (2, 5 * block, 2, 64), (2, 5 * block, 2, 64))
    sizes = torch.tensor([block, block, 7, block, 1], dtype=torch.int32) if ragged else None
    counts = torch.full((2, 4, 3), 2, dtype=torch.int32)
    if count is None:
        counts[0, 1, 2] = 1

    def drawn() -> tuple[list[Tensor], BlockSelection]:
        indices = torch.rand(2, 4, 3, 5, generator=generator).argsort(dim=-1)[..., :2].to(torch.int32).contiguous()
        selection = BlockSelection(
            indices=indices, counts=counts, block=block, kv_sizes=sizes, finite_padding=True, known_count=count, known_bound=5
        )
        return [torch.randn(shape, generator=generator).to(torch.bfloat16) for shape in shapes], selection

    first, selection = drawn()
    prepared = cudnn.prepare(*first, selection, 0.2)
    for _ in range(2):
        tensors, selection = drawn()
        out, lse = cudnn.forward(*tensors, selection, 0.2)
        orders = ((1, 3, 2, 0), (1, 3, 2, 0), (3, 1, 2, 0))
        placed = []
        for tensor, (size, stride), order in zip(tensors, prepared.places, orders, strict=True):
            room = torch.empty_strided(size, stride, dtype=torch.bfloat16)
            placed.append(room.copy_(tensor.permute(order)))
            assert torch.equal(torch.as_strided(room, tensor.shape, tensor.stride()), tensor), "the memory is in its usual order"
        got, denominators = prepared.run(0, *placed, selection.indices)
        assert torch.equal(torch.as_strided(got, out.shape, prepared.stride), out)
        assert torch.equal(prepared.lse(denominators), lse)


def test_nothing_is_prepared_for_no_keys() -> None:
    q, k = torch.zeros(1, 64, 1, 64), torch.zeros(1, 0, 1, 64)
    indices, counts = torch.zeros(1, 1, 1, 0, dtype=torch.int32), torch.zeros(1, 1, 1, dtype=torch.int32)
    assert cudnn.prepare(q, k, k, BlockSelection(indices=indices, counts=counts, block=64), 0.1) is None


# Packed sequences: the layout token by token, and attention against separate calls of the reference.


_LENGTH = st.integers(0, 200)


def bounds(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


@given(st.lists(st.integers(0, 300), max_size=5), st.integers(0, 70), st.sampled_from([64, 128]))
def test_every_token_has_one_row_in_its_sequence_s_blocks(lengths: list[int], surplus: int, block: int) -> None:
    total = sum(lengths) + surplus
    layout = PackedLayout.of(bounds(lengths), total, block)
    assert layout.num_blocks == total // block + len(lengths)
    expected = []  # (sequence, valid rows) of each block, from the lengths alone
    for sequence, length in enumerate(lengths):
        expected += [(sequence, min(block, length - begin)) for begin in range(0, length, block)]
    left_over = layout.num_blocks - len(expected)
    assert layout.sizes.tolist() == [size for _, size in expected] + [0] * left_over
    assert layout.sequences.tolist() == [sequence for sequence, _ in expected] + [len(lengths)] * left_over
    rows = [number * block + inside for number, (_, size) in enumerate(expected) for inside in range(size)]
    assert layout.rows.tolist() == rows + [-1] * surplus
    tokens = torch.full((layout.num_blocks * block,), -1)
    tokens[rows] = torch.arange(len(rows))
    assert layout.tokens.tolist() == tokens.tolist()


def draw(q_lengths: list[int], kv_lengths: list[int], heads: int, kv_heads: int, seed: int) -> dict[str, Tensor]:
    """Inputs of one call, with a selection drawn for each sequence; unused rows and entries hold nonsense."""
    generator = torch.Generator().manual_seed(seed)
    total_q, total_kv = sum(q_lengths), sum(kv_lengths)
    q = torch.randn(total_q, heads, 16, generator=generator)
    k, v = (torch.randn(total_kv, kv_heads, 16, generator=generator) for _ in range(2))
    most = max(1, *(-(-length // 64) for length in kv_lengths))
    indices = torch.full((heads, total_q // 64 + len(q_lengths), most), 12345, dtype=torch.int32)
    counts = torch.full(indices.shape[:2], 77, dtype=torch.int32)
    row = 0
    for q_length, kv_length in zip(q_lengths, kv_lengths, strict=True):
        for _ in range(-(-q_length // 64)):
            available = -(-kv_length // 64)
            for head in range(heads):
                number = int(torch.randint(0, available + 1, (1,), generator=generator))
                indices[head, row, :number] = torch.randperm(available, generator=generator)[:number].to(torch.int32)
                counts[head, row] = number
            row += 1
    cu = {"cu_seqlens_q": bounds(q_lengths), "cu_seqlens_kv": bounds(kv_lengths)}
    return {"q": q, "k": k, "v": v, "indices": indices, "counts": counts, **cu}


def one_by_one(case: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The same by one call of the reference per sequence, with padding made here."""
    outs, lses, first_block = [], [], 0
    cu_q, cu_kv = case["cu_seqlens_q"].tolist(), case["cu_seqlens_kv"].tolist()

    def padded(name: str, begin: int, end: int) -> tuple[Tensor, Tensor]:
        blocks = -(-(end - begin) // 64)
        sizes = torch.tensor([min(64, end - begin - 64 * i) for i in range(blocks)], dtype=torch.int32)
        tensor = case[name][begin:end]
        return torch.nn.functional.pad(tensor, (0, 0, 0, 0, 0, blocks * 64 - (end - begin))).unsqueeze(0), sizes

    for i in range(len(cu_q) - 1):
        q, q_sizes = padded("q", cu_q[i], cu_q[i + 1])
        (k, kv_sizes), (v, _) = padded("k", cu_kv[i], cu_kv[i + 1]), padded("v", cu_kv[i], cu_kv[i + 1])
        rows = slice(first_block, first_block + len(q_sizes))
        first_block = rows.stop
        selection = BlockSelection(
            indices=case["indices"][None, :, rows, : len(kv_sizes)],
            counts=case["counts"][None, :, rows],
            block=64,
            q_sizes=q_sizes,
            kv_sizes=kv_sizes,
        )
        found = block_sparse_attention(q, k, v, selection, impl="reference", return_lse=True)
        length = cu_q[i + 1] - cu_q[i]
        outs.append(found.out[0, :length])
        lses.append(found.lse[0, :, :length])
    return torch.cat(outs), torch.cat(lses, dim=1)


@pytest.mark.parametrize("impl", ["cpu", "reference"])
@example([(70, 64), (1, 200), (128, 63)], (4, 2), 0)
@example([(64, 0), (0, 65), (300, 2000)], (2, 2), 0)
@example([(0, 10), (0, 0)], (4, 2), 0)
@example([(3, 130), (130, 0)], (2, 2), 0)
@settings(max_examples=30)
@given(st.lists(st.tuples(_LENGTH, _LENGTH), min_size=1, max_size=4), st.sampled_from([(2, 2), (4, 2)]), st.integers(0, 99))
def test_it_equals_separate_calls(impl: str, pairs: list[tuple[int, int]], heads: tuple[int, int], seed: int) -> None:
    case = draw([q for q, _ in pairs], [kv for _, kv in pairs], *heads, seed)
    results = []
    for call in (lambda each: block_sparse_attention_varlen(**each, block=64, impl=impl, return_lse=True), one_by_one):
        leaves = {name: case[name].clone().requires_grad_() for name in ("q", "k", "v")}
        found = call(case | leaves)
        out, lse = found if isinstance(found, tuple) else (found.out, found.lse)
        weight = torch.linspace(-1, 1, out.numel()).view_as(out)
        seen = lse.masked_fill(lse.isneginf(), 0)
        gradients = torch.autograd.grad((out * weight).sum() + seen.square().sum(), list(leaves.values()), allow_unused=True)
        results.append((out, lse, *gradients))
    for mine, theirs in zip(*results, strict=True):
        if theirs is None or mine is None:  # no token at all
            assert mine is None or not mine.any()
        else:
            torch.testing.assert_close(mine, theirs, atol=ELEMENT, rtol=ELEMENT)


def test_tokens_that_no_sequence_has_are_empty_rows() -> None:
    case = draw([70, 30], [100, 20], 2, 2, seed=0)
    short = case | {"cu_seqlens_q": torch.tensor([0, 70, 90], dtype=torch.int32)}
    found = block_sparse_attention_varlen(**short, block=64, return_lse=True)
    whole = block_sparse_attention_varlen(**case, block=64, return_lse=True)
    assert torch.equal(found.out[:90], whole.out[:90]) and torch.equal(found.lse[:, :90], whole.lse[:, :90])
    assert not found.out[90:].any() and found.lse[:, 90:].isneginf().all()


@pytest.mark.parametrize("impl", ["cpu", "reference", "flex"])
@pytest.mark.parametrize(("entry", "blocks"), [(2, "0 to 1"), (-1, "0 to 1"), (3, "0 to 1")])
def test_an_index_past_its_own_sequence_is_refused(entry: int, blocks: str, impl: str) -> None:
    case = draw([70, 30], [100, 64], 2, 2, seed=0)
    case["indices"][1, 1, 0], case["counts"][1, 1] = entry, 1
    with pytest.raises(ShapeError, match=f"indices: sample 0, head 1, query block 1 names key block {entry}, expected {blocks}"):
        block_sparse_attention_varlen(**case, block=64, impl=impl)
    empty = case | {"cu_seqlens_kv": torch.tensor([0, 0, 164], dtype=torch.int32)}
    with pytest.raises(ShapeError, match="expected none: there is no key block for it to see"):
        block_sparse_attention_varlen(**empty, block=64, impl=impl)


def test_what_does_not_fit_is_named() -> None:
    case = draw([70, 30], [100, 20], 2, 2, seed=0)
    wrong: list[tuple[str, Tensor, str]] = [
        ("cu_seqlens_kv", bounds([120]), r"cu_seqlens_kv: got shape \(2,\), expected \(3,\) like cu_seqlens_q"),
        ("cu_seqlens_q", bounds([70, 30]).long(), r"cu_seqlens: got \(3,\) torch.int64, expected \[n \+ 1\] torch.int32"),
        ("indices", case["indices"][:, :2], r"indices: got shape \(2, 2, 2\), expected \[2, 3, K\] for 3 query blocks"),
        ("cu_seqlens_q", torch.tensor([0, 70, 60]).int(), r"cu_seqlens: got \[0, 70, 60\], expected numbers that ascend from 0"),
        ("cu_seqlens_kv", torch.tensor([0, 70, 121]).int(), r"cu_seqlens: got \[0, 70, 121\], .* to at most 120, the rows"),
        ("v", case["v"][:5], r"packed: got shape \(5, 2, 16\) torch.float32, expected \[120, H, D\]"),
    ]
    for name, tensor, message in wrong:
        with pytest.raises(ShapeError, match=message):
            block_sparse_attention_varlen(**case | {name: tensor}, block=64)


SPARSE_ELEMENT = tolerance("sparse element", "float32")
ELEMENT_F64 = tolerance("sparse element", "float64")


def video_one_by_one(tensors: list[Tensor], lengths: list[tuple[int, int]], **chosen: Any) -> tuple[Tensor, Tensor]:
    """Sequence by sequence, each a video of one row whose tiles are runs of 64 tokens."""
    outs, lses, at_q, at_kv = [], [], 0, 0
    for q_length, kv_length in lengths:
        q, gate = (each[None, at_q : at_q + q_length] for each in (tensors[0], tensors[3]))
        k, v = (each[None, at_kv : at_kv + kv_length] for each in tensors[1:3])
        at_q, at_kv = at_q + q_length, at_kv + kv_length
        if not q_length or not kv_length:
            outs.append(torch.zeros_like(q[0]))
            lses.append(torch.full((q.shape[2], q_length), float("-inf")))
            continue
        own = chosen | ({"topk": min(chosen["topk"], -(-kv_length // 64))} if "topk" in chosen else {})
        grids = {"grid": (1, 1, q_length), "kv_grid": (1, 1, kv_length), "tile": (1, 1, 64), "kv_tile": (1, 1, 64)}
        found = video_sparse_attention(q, k, v, gate=gate, **grids, **own, impl="reference", return_lse=True)
        outs.append(found.out[0])
        lses.append(found.lse[0])
    return torch.cat(outs), torch.cat(lses, dim=1)


def draw_video(lengths: list[tuple[int, int]], heads: tuple[int, int], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = [sum(side) for side in zip(*lengths, strict=True)]
    shapes = [(rows[0], heads[0]), (rows[1], heads[1]), (rows[1], heads[1]), (rows[0], heads[0])]
    return [torch.randn(number, head, 8, generator=generator, dtype=torch.float64).requires_grad_() for number, head in shapes]


VIDEO_LENGTHS = [[(70, 200), (1, 64), (130, 300)], [(64, 0), (100, 500)], [(0, 100), (65, 65)], [(150, 129)]]


@pytest.mark.parametrize("chosen", [{"topk": 2}, {"sparsity": 0.5}, {"sparsity": 0.0}, {"topk": 99}])
@pytest.mark.parametrize(("heads", "parts"), [((2, 2), 1), ((4, 2), 4)])
@pytest.mark.parametrize("lengths", VIDEO_LENGTHS)
def test_video_equals_separate_calls(
    lengths: list[tuple[int, int]], heads: tuple[int, int], parts: int, chosen: dict[str, Any]
) -> None:
    tensors = draw_video(lengths, heads)
    cu_q, cu_kv = (bounds(list(side)) for side in zip(*lengths, strict=True))
    options = {"estimator": Estimator(parts=parts), **chosen}
    found = video_sparse_attention_varlen(*tensors[:3], cu_q, cu_kv, gate=tensors[3], return_lse=True, **options)
    out, lse = video_one_by_one(tensors, lengths, **options)
    torch.testing.assert_close(found.out, out)
    torch.testing.assert_close(found.lse, lse, atol=SPARSE_ELEMENT, rtol=SPARSE_ELEMENT)
    for mine, theirs in zip(*(torch.autograd.grad(each.square().sum(), tensors) for each in (found.out, out)), strict=True):
        torch.testing.assert_close(mine, theirs, atol=ELEMENT_F64, rtol=ELEMENT_F64)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"topk": None}, ConfigError, "give either topk or sparsity; got topk=None, sparsity=None"),
        ({"topk": 0}, ConfigError, "topk: got 0, expected a number from 1"),
        ({"topk": torch.tensor(1)}, ConfigError, r"topk: got a tensor of shape \(\) and torch.int64, expected an int"),
        ({"topk": None, "sparsity": 1.0}, ConfigError, "sparsity: got 1.0, expected 0"),
        ({"gate": 0.5}, ConfigError, r"gate: got 0.5, expected a tensor of what broadcasts to q's \(150, 2, 8\)"),
        ({"cu_seqlens_kv": bounds([100, 29])}, ShapeError, r"cu_seqlens_kv: got shape \(3,\), expected \(2,\) like cu_seqlens_q"),
    ],
)
def test_what_does_not_fit_a_video_is_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    q, k, v, _ = draw_video([(150, 129)], (2, 2))
    options = {"cu_seqlens_q": bounds([150]), "cu_seqlens_kv": bounds([129]), "topk": 1} | change
    with pytest.raises(error, match=message):
        video_sparse_attention_varlen(q, k, v, **options)
