"""Merging partial attention is exact attention over the union, with gradients, for empty parts and for NaN."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from strobe.attention.dense.api import dense_attention
from strobe.attention.state import merge
from strobe.attention.types import AttentionOutput
from strobe.core.errors import ShapeError


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
    torch.testing.assert_close(merged.out, whole.out, atol=2e-6, rtol=2e-6)  # the lse between the parts is float32
    torch.testing.assert_close(merged.lse, whole.lse)
    regrouped = merge([merge(parts[:1]), merge(parts[1:])]) if len(parts) > 1 else merge(parts[::-1])
    torch.testing.assert_close(regrouped.out, whole.out, atol=2e-6, rtol=2e-6)


def test_gradients_of_out_and_through_lse_are_those_of_the_whole() -> None:
    inputs = [tensor.requires_grad_() for tensor in _qkv(9, 41)]
    d_out, d_lse = torch.randn(2, 9, 4, 16, dtype=torch.float64), torch.randn(2, 4, 9)

    def gradients(state: AttentionOutput) -> tuple[Tensor, ...]:
        assert state.lse is not None
        return torch.autograd.grad([state.out, state.lse], inputs, [d_out, d_lse])

    whole = gradients(dense_attention(*inputs, impl="reference", return_lse=True))
    merged = gradients(merge(_parts(*inputs, [0, 13, 13, 40])))
    for found, expected in zip(merged, whole, strict=True):
        torch.testing.assert_close(found, expected, atol=5e-6, rtol=5e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_large_scores_neither_overflow_nor_vanish(dtype: torch.dtype) -> None:
    q, k, v = _qkv(6, 40, dtype)
    k = k.clone()
    k[:, :20] *= 100  # these keys take everything
    parts = _parts(q, k, v, [20])
    merged = merge([*parts[::-1], *merge_of_empty(q)])
    whole = dense_attention(q, k, v, impl="reference")
    assert merged.out.dtype == dtype
    torch.testing.assert_close(merged.out, whole.out, atol=2e-2 if dtype != torch.float32 else 1e-5, rtol=2e-2)


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


def test_nan_is_never_hidden() -> None:
    good = AttentionOutput(out=torch.ones(1, 2, 1, 4), lse=torch.zeros(1, 1, 2))
    for bad in (
        AttentionOutput(out=torch.full((1, 2, 1, 4), float("nan")), lse=torch.full((1, 1, 2), float("-inf"))),
        AttentionOutput(out=torch.zeros(1, 2, 1, 4), lse=torch.full((1, 1, 2), float("nan"))),
    ):
        for order in ([good, bad], [bad, good]):
            assert merge(order).out.isnan().all()


def test_states_that_do_not_fit_are_refused() -> None:
    state = AttentionOutput(out=torch.zeros(1, 2, 3, 4), lse=torch.zeros(1, 3, 2))
    for states, message in (
        ([], "got none"),
        ([AttentionOutput(out=torch.zeros(2, 3, 4), lse=None)], r"states\[0\].out: got shape \(2, 3, 4\)"),
        ([state, AttentionOutput(out=state.out, lse=None)], r"states\[1\].lse: got None.*return_lse=True"),
        ([state, AttentionOutput(out=torch.zeros(1, 2, 3, 5), lse=None)], r"states\[1\].out: got \(1, 2, 3, 5\)"),
        ([AttentionOutput(out=state.out, lse=torch.zeros(1, 2, 3))], r"states\[0\].lse: got \(1, 2, 3\).*expected \(1, 3, 2\)"),
        ([AttentionOutput(out=state.out, lse=torch.zeros(1, 3, 2).double())], "float64, expected .* torch.float32"),
    ):
        with pytest.raises(ShapeError, match=message):
            merge(states)
