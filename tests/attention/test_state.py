"""Merging partial attention is exact attention over the union, with gradients, for empty parts and for NaN."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from forked import in_triton, needs_triton
from strobe.attention.dense.api import dense_attention
from strobe.attention.state import merge
from strobe.attention.types import AttentionOutput
from strobe.core.errors import ConfigError, ImplUnavailableError, ShapeError
from strobe.core.tolerances import tolerance

ELEMENT = tolerance("element", "float32")
ELEMENT_BF16 = tolerance("element", "bfloat16")
DOUBLE = tolerance("element", "float64")
MERGE = tolerance("merge", "float32")
OF_MERGE = tolerance("gradient of a merge", "float32")
ROUNDING = tolerance("rounding", "float32")

SCRIPT = Path(__file__).with_name("merge_on_cpu.py")


def _qkv(q_len: int, kv_len: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(q_len * 1000 + kv_len)
    return tuple(  # type: ignore[return-value]
        torch.randn(2, length, heads, 16, generator=generator, dtype=torch.float64).to(dtype)
        for length, heads in ((q_len, 4), (kv_len, 2), (kv_len, 2))
    )


def _parts(q: Tensor, k: Tensor, v: Tensor, cuts: list[int]) -> list[AttentionOutput]:
    bounds = [0, *sorted(cuts), k.shape[1]]
    return [
        dense_attention(q, k[:, left:right], v[:, left:right], impl="reference", return_lse=True)
        for left, right in pairwise(bounds)
    ]


@given(st.sampled_from([1, 5, 63]), st.sampled_from([1, 7, 100]), st.lists(st.integers(0, 100), max_size=5))
def test_any_split_of_the_keys_is_the_whole(q_len: int, kv_len: int, cuts: list[int]) -> None:
    q, k, v = _qkv(q_len, kv_len)
    parts = _parts(q, k, v, [min(cut, kv_len) for cut in cuts])  # empty parts wherever two cuts meet
    whole = dense_attention(q, k, v, impl="reference", return_lse=True)
    merged = merge(parts)
    torch.testing.assert_close(merged.out, whole.out, atol=MERGE, rtol=MERGE)  # the lse between the parts is float32
    torch.testing.assert_close(merged.lse, whole.lse)
    regrouped = merge([merge(parts[:1]), merge(parts[1:])]) if len(parts) > 1 else merge(parts[::-1])
    torch.testing.assert_close(regrouped.out, whole.out, atol=MERGE, rtol=MERGE)


def test_gradients_of_out_and_through_lse_are_those_of_the_whole() -> None:
    q, k, v = inputs = tuple(tensor.requires_grad_() for tensor in _qkv(9, 41))
    d_out, d_lse = torch.randn(2, 9, 4, 16, dtype=torch.float64), torch.randn(2, 4, 9)

    def gradients(state: AttentionOutput) -> tuple[Tensor, ...]:
        return torch.autograd.grad([state.out, state.lse], inputs, [d_out, d_lse])

    whole = gradients(dense_attention(*inputs, impl="reference", return_lse=True))
    merged = gradients(merge(_parts(q, k, v, [0, 13, 13, 40])))
    for found, expected in zip(merged, whole, strict=True):
        torch.testing.assert_close(found, expected, atol=OF_MERGE, rtol=OF_MERGE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_large_scores_neither_overflow_nor_vanish(dtype: torch.dtype) -> None:
    q, k, v = _qkv(6, 40, dtype)
    k = k.clone()
    k[:, :20] *= 100  # these keys take everything
    parts = _parts(q, k, v, [20])
    merged = merge([*parts[::-1], *merge_of_empty(q)])
    whole = dense_attention(q, k, v, impl="reference")
    assert merged.out.dtype == dtype
    torch.testing.assert_close(merged.out, whole.out, atol=2e-2 if dtype != torch.float32 else 1e-5, rtol=ELEMENT_BF16)


def test_parts_in_double_precision_merge_in_double_precision() -> None:
    outs, lses = torch.randn(3, 2, 7, 2, 5, dtype=torch.float64), torch.randn(3, 2, 2, 7)
    weights = lses.double().softmax(dim=0).transpose(2, 3).unsqueeze(-1)
    merged = merge([AttentionOutput(out=out, lse=lse) for out, lse in zip(outs, lses, strict=True)])
    torch.testing.assert_close(merged.out, (weights * outs).sum(dim=0), atol=DOUBLE, rtol=DOUBLE)


def merge_of_empty(q: Tensor) -> list[AttentionOutput]:
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("-inf"))
    return [AttentionOutput(out=torch.zeros_like(q), lse=lse)] * 2


def test_rows_that_are_empty_everywhere_stay_empty_with_gradient_0() -> None:
    q = torch.randn(1, 3, 2, 4)
    parts = [AttentionOutput(out=part.out.clone().requires_grad_(), lse=part.lse) for part in merge_of_empty(q)]
    lses = [part.lse.clone().requires_grad_() for part in parts if part.lse is not None]
    merged = merge([AttentionOutput(out=part.out, lse=lse) for part, lse in zip(parts, lses, strict=True)])
    assert merged.lse is not None and merged.lse.isneginf().all() and not merged.out.any()
    gradients = torch.autograd.grad(merged.out.sum(), [*(part.out for part in parts), *lses])
    assert all(not gradient.any() for gradient in gradients)  # not NaN, which `any` would count


@pytest.mark.parametrize(("out", "lse"), [(float("nan"), float("-inf")), (0.0, float("nan")), (0.0, float("inf"))])
def test_what_is_no_attention_is_never_hidden(out: float, lse: float) -> None:
    """A NaN, or an lse of +inf: the row is NaN, and the one beside it is what it was."""
    good, bad = (AttentionOutput(out=torch.ones(1, 2, 1, 4), lse=torch.zeros(1, 1, 2)) for _ in range(2))
    assert bad.lse is not None
    bad.out[:, 0], bad.lse[..., 0] = out, lse
    for order in ([good, bad], [bad, good], [bad], [bad, bad]):
        found = merge(order)
        assert found.lse is not None and found.out[:, 0].isnan().all() and (out != 0 or found.lse[..., 0].isnan().all())
        assert found.out[:, 1].isfinite().all() and found.lse[..., 1].isfinite().all()


def test_rows_of_a_part_lie_elsewhere() -> None:
    """One part in another order amid rows that nothing reads; what it gives is what reordering it first gives, with gradients."""
    q, k, v = _qkv(9, 41)
    plain, other = _parts(q, k, v, [17])
    rows = torch.randperm(30, generator=torch.Generator().manual_seed(1))[:9]
    out, lse = torch.full((2, 30, 4, 16), float("nan"), dtype=q.dtype), torch.full((2, 4, 30), float("nan"))
    out[:, rows], lse[:, :, rows] = other.out, other.lse
    out.requires_grad_()
    found = merge([plain, AttentionOutput(out=out, lse=lse)], rows=[None, rows])
    expected = merge([plain, other])
    assert torch.equal(found.out, expected.out) and found.lse is not None and torch.equal(found.lse, expected.lse)
    (gradient,) = torch.autograd.grad(found.out.sum(), [out])
    unread = torch.ones(30, dtype=torch.bool)
    unread[rows] = False
    assert gradient[:, rows].any(dim=-1).all() and not gradient[:, unread].any()


def test_the_result_goes_where_it_is_wanted() -> None:
    q, k, v = _qkv(9, 41)
    parts = _parts(q, k, v, [17])
    expected = merge(parts)
    out, lse = torch.zeros(2, 12, 4, 16, dtype=q.dtype), torch.zeros(2, 4, 12)
    into = AttentionOutput(out=out[:, 3:], lse=lse[:, :, 3:])
    assert merge(parts, into=into) is into
    assert torch.equal(out[:, 3:], expected.out) and expected.lse is not None and torch.equal(lse[:, :, 3:], expected.lse)
    assert not out[:, :3].any() and not lse[:, :, :3].any()
    assert torch.equal(merge(parts, into=parts[0]).out, expected.out)
    assert merge(parts, return_lse=False).lse is None


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@needs_triton
def test_triton_equals_the_reference(device: str) -> None:
    in_triton(SCRIPT, device)


@pytest.mark.gpu
def test_a_graph_merges_what_lies_there_when_it_is_replayed() -> None:
    states = [
        AttentionOutput(out=torch.randn(1, 100, 3, 64, device="cuda"), lse=torch.randn(1, 3, 100, device="cuda"))
        for _ in range(2)
    ]
    rows = torch.randperm(100, device="cuda")
    merge(states, rows=[None, rows])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = merge(states, rows=[None, rows])
    rows.copy_(torch.arange(99, -1, -1, device="cuda"))
    for state in states:
        state.out.normal_()
        state.lse.normal_()
    graph.replay()
    expected = merge(states, rows=[None, rows], impl="reference")
    torch.testing.assert_close(found.out, expected.out, atol=MERGE, rtol=MERGE)
    torch.testing.assert_close(found.lse, expected.lse, atol=ELEMENT, rtol=ROUNDING)


def test_states_that_do_not_fit_are_refused() -> None:
    state = AttentionOutput(out=torch.zeros(1, 2, 3, 4), lse=torch.zeros(1, 3, 2))
    for states, message in (
        ([], "got none"),
        ([AttentionOutput(out=torch.zeros(2, 3, 4), lse=None)], r"states\[0\].out: got shape \(2, 3, 4\)"),
        ([AttentionOutput(out=state.out.to(torch.float8_e5m2), lse=None)], r"got shape .* torch.float8_e5m2, .*over 8 bits"),
        ([state, AttentionOutput(out=state.out, lse=None)], r"states\[1\].lse: got None.*return_lse=True"),
        ([state, AttentionOutput(out=torch.zeros(1, 2, 3, 5), lse=None)], r"states\[1\].out: got \(1, 2, 3, 5\)"),
        ([AttentionOutput(out=state.out, lse=torch.zeros(1, 2, 3))], r"states\[0\].lse: got \(1, 2, 3\).*expected \(1, 3, 2\)"),
        ([AttentionOutput(out=state.out, lse=torch.zeros(1, 3, 2).double())], "float64, expected .* torch.float32"),
    ):
        with pytest.raises(ShapeError, match=message):
            merge(states)
    rows = torch.arange(2)
    for options, message in (
        ({"rows": [rows]}, "rows: got 1 entries, expected one, a tensor or None, for each of 2 states"),
        ({"rows": [None, rows.int()]}, r"rows\[1\]: got \(2,\) torch.int32 on cpu, expected \(2,\) torch.int64"),
        ({"rows": [rows[:1], None]}, r"states\[1\].out: got \(1, 2, 3, 4\) .*, expected \(1, 1, 3, 4\)"),
        ({"into": AttentionOutput(out=state.out[:, :1], lse=None)}, r"into.out: got \(1, 1, 3, 4\) .*, expected \(1, 2, 3, 4\)"),
        ({"into": AttentionOutput(out=state.out, lse=torch.zeros(1, 3, 1))}, r"into.lse: got \(1, 3, 1\)"),
    ):
        with pytest.raises(ShapeError, match=message):
            merge([state, state], **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown impl 'tritn'"):
        merge([state], impl="tritn")
    with pytest.raises(ImplUnavailableError, match="would run here: reference"):
        merge([state], impl="triton")
