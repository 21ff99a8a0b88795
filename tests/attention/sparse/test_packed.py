"""Packed sequences: the layout token by token, and attention against separate calls of the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.coarse import Estimator
from strobe.attention.sparse.packed import PackedLayout, block_sparse_attention_varlen, video_sparse_attention_varlen
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.video import video_sparse_attention
from strobe.core.errors import ConfigError, ShapeError
from strobe.core.tolerances import tolerance

ELEMENT = tolerance("element", "float32")
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
        ("v", case["v"][:5], r"packed: got shape \(5, 2, 16\), expected \[120, H, D\]"),
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
