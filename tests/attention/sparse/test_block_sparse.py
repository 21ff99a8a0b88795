"""Block-sparse attention: the reference against dense attention token by token, every other impl against the reference."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from strobe.attention.dense.api import dense_attention
from strobe.attention.explain import explain
from strobe.attention.sparse import entries
from strobe.attention.sparse.api import block_sparse_attention, spec_of
from strobe.attention.sparse.custom_ops import block_sparse_backward, block_sparse_forward
from strobe.attention.sparse.entries import sound
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.types import AttentionOutput
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


def test_the_reference_is_dense_attention_over_the_selected_tokens() -> None:
    q, k, v, selection = _case((2, 4, 2, 3, 4, 8), dtype=torch.float64)
    found = block_sparse_attention(q, k, v, selection, impl="reference", return_lse=True)
    for b in range(2):
        for h in range(4):
            for i in range(3):
                blocks = selection.indices[b, h, i, : selection.counts[b, h, i]].tolist()
                keys = [64 * j + row for j in blocks for row in range(selection.kv_sizes[j])]
                rows = slice(64 * i, 64 * i + int(selection.q_sizes[i]))
                one = [tensor[b : b + 1, :, head : head + 1] for tensor, head in ((q, h), (k, h // 2), (v, h // 2))]
                dense = dense_attention(one[0][:, rows], one[1][:, keys], one[2][:, keys], impl="reference", return_lse=True)
                torch.testing.assert_close(found.out[b, rows, h], dense.out[0, :, 0])
                torch.testing.assert_close(found.lse[b, h, rows], dense.lse[0, 0])
                padding = slice(rows.stop, 64 * (i + 1))
                assert not found.out[b, padding, h].any() and found.lse[b, h, padding].isneginf().all()


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
