"""Video-sparse attention of packed sequences against separate calls, one sequence at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.coarse import Estimator, block_scores, budget, coarse_attention, pool, select_blocks
from strobe.attention.sparse.packed_video import video_sparse_attention_varlen
from strobe.attention.sparse.selection import BlockSelection
from strobe.core.errors import ConfigError, ShapeError
from strobe.core.tolerances import tolerance

ELEMENT = tolerance("sparse element", "float32")
ELEMENT_F64 = tolerance("sparse element", "float64")


def bounds(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def one_by_one(tensors: list[Tensor], lengths: list[tuple[int, int]], parts: int, **chosen: Any) -> tuple[Tensor, Tensor]:
    """The definition, sequence by sequence, with padding made here."""
    q, k, v, gate = tensors
    outs, lses, at_q, at_kv, scale = [], [], 0, 0, q.shape[2] ** -0.5
    for q_length, kv_length in lengths:
        ends = at_q + q_length, at_kv + kv_length
        if q_length and kv_length:
            sizes, padded = [], []
            for tensor, begin, length in ((q, at_q, q_length), (k, at_kv, kv_length), (v, at_kv, kv_length)):
                blocks = -(-length // 64)
                sizes.append(torch.tensor([min(64, length - 64 * i) for i in range(blocks)], dtype=torch.int32))
                rows = tensor[begin : begin + length]
                padded.append(torch.nn.functional.pad(rows, (0, 0, 0, 0, 0, 64 * blocks - length)).unsqueeze(0))
            scores = block_scores(padded[0], padded[1], sizes[0], sizes[1], 64, scale, Estimator(parts=parts))
            number = chosen.get("topk")
            per_head = budget(None if number is None else min(number, len(sizes[1])), chosen.get("sparsity"), 1, len(sizes[1]))
            indices, counts = select_blocks(scores, per_head, None)
            selection = BlockSelection(indices=indices, counts=counts, block=64, q_sizes=sizes[0], kv_sizes=sizes[1])
            fine = block_sparse_attention(*padded, selection, impl="reference", return_lse=True)
            assert fine.lse is not None
            means = block_scores(padded[0], padded[1], sizes[0], sizes[1], 64, scale, Estimator())
            coarse = coarse_attention(means, pool(padded[2], sizes[1], 64)).repeat_interleave(64, dim=2)[0].transpose(0, 1)
            outs.append(fine.out[0, :q_length] + coarse[:q_length] * gate[at_q : ends[0]])
            lses.append(fine.lse[0, :, :q_length])
        else:
            outs.append(torch.zeros_like(q[at_q : ends[0]]))
            lses.append(torch.full((q.shape[1], q_length), float("-inf")))
        at_q, at_kv = ends
    return torch.cat(outs), torch.cat(lses, dim=1)


def draw(lengths: list[tuple[int, int]], heads: tuple[int, int], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = [sum(side) for side in zip(*lengths, strict=True)]
    shapes = [(rows[0], heads[0]), (rows[1], heads[1]), (rows[1], heads[1]), (rows[0], heads[0])]
    return [torch.randn(number, head, 8, generator=generator, dtype=torch.float64).requires_grad_() for number, head in shapes]


LENGTHS = [[(70, 200), (1, 64), (130, 300)], [(64, 0), (100, 500)], [(0, 100), (65, 65)], [(150, 129)]]


@pytest.mark.parametrize("chosen", [{"topk": 2}, {"sparsity": 0.5}, {"sparsity": 0.0}, {"topk": 99}])
@pytest.mark.parametrize(("heads", "parts"), [((2, 2), 1), ((4, 2), 4)])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_it_equals_separate_calls(
    lengths: list[tuple[int, int]], heads: tuple[int, int], parts: int, chosen: dict[str, Any]
) -> None:
    tensors = draw(lengths, heads)
    cu_q, cu_kv = (bounds(list(side)) for side in zip(*lengths, strict=True))
    options = {"estimator": Estimator(parts=parts), **chosen}
    found = video_sparse_attention_varlen(*tensors[:3], cu_q, cu_kv, gate=tensors[3], return_lse=True, **options)
    out, lse = one_by_one(tensors, lengths, parts, **chosen)
    torch.testing.assert_close(found.out, out)
    torch.testing.assert_close(found.lse, lse, atol=ELEMENT, rtol=ELEMENT)
    for mine, theirs in zip(*(torch.autograd.grad(each.square().sum(), tensors) for each in (found.out, out)), strict=True):
        torch.testing.assert_close(mine, theirs, atol=ELEMENT_F64, rtol=ELEMENT_F64)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), min_size=1, max_size=4), st.integers(0, 99))
def test_any_lengths(lengths: list[tuple[int, int]], seed: int) -> None:
    tensors = [each.detach() for each in draw(lengths, (2, 1), seed)]
    cu_q, cu_kv = (bounds(list(side)) for side in zip(*lengths, strict=True))
    found = video_sparse_attention_varlen(*tensors[:3], cu_q, cu_kv, gate=tensors[3], topk=1, return_lse=True)
    out, lse = one_by_one(tensors, lengths, 1, topk=1)
    torch.testing.assert_close(found.out, out)
    torch.testing.assert_close(found.lse, lse, atol=ELEMENT, rtol=ELEMENT)


def test_a_neighbour_s_keys_never_matter() -> None:
    lengths = [(70, 100), (64, 64), (30, 130)]
    tensors = [each.detach() for each in draw(lengths, (2, 2))]
    cu_q, cu_kv = (bounds(list(side)) for side in zip(*lengths, strict=True))
    options: dict[str, Any] = {"topk": 2, "coarse": False}
    clean = video_sparse_attention_varlen(*tensors[:3], cu_q, cu_kv, **options).out
    tensors[1][100:164], tensors[2][100:164] = 1e3, -1e3
    changed = video_sparse_attention_varlen(*tensors[:3], cu_q, cu_kv, **options).out
    assert torch.equal(clean[:70], changed[:70]) and torch.equal(clean[134:], changed[134:])
    assert not torch.equal(clean[70:134], changed[70:134])


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
def test_what_does_not_fit_is_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    q, k, v, _ = draw([(150, 129)], (2, 2))
    options = {"cu_seqlens_q": bounds([150]), "cu_seqlens_kv": bounds([129]), "topk": 1} | change
    with pytest.raises(error, match=message):
        video_sparse_attention_varlen(q, k, v, **options)
