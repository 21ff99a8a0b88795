"""The names of others give what their definition says, and what our own operator gives in their layout."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from strobe.attention.sparse.layout import tile_layout
from strobe.attention.sparse.video import video_sparse_attention
from strobe.compat import video_sparse_attn
from strobe.core.errors import StrobeError
from strobe.core.tolerances import tolerance

ELEMENT = tolerance("element", "float32")


def _draw(rows: int, seed: int) -> Tensor:
    return torch.randn(2, 3, rows, 16, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("block_size", "block"), [(64, 64), ((4, 4, 4), 64), ((2, 8, 8), 128), ((4, 8, 8), 256), (256, 256)])
def test_the_documented_calls(block_size: Any, block: int) -> None:
    """Block by block, with plain softmax."""
    q, k, v, gate = _draw(2 * block, 0), _draw(3 * block, 1), _draw(3 * block, 2), _draw(2 * block, 3)
    found = video_sparse_attn(q, k, v, topk=2, block_size=block_size, compress_attn_weight=gate)
    q_means, k_means, v_means = (tensor.unflatten(2, (-1, block)).mean(dim=3) for tensor in (q, k, v))
    scores = q_means @ k_means.transpose(-1, -2) / 4
    coarse = (torch.softmax(scores, dim=-1) @ v_means).repeat_interleave(block, dim=2)
    seen = torch.zeros(2, 3, 2, 3, dtype=torch.bool).scatter(-1, scores.topk(2).indices, True)
    mask = seen.repeat_interleave(block, dim=2).repeat_interleave(block, dim=3)
    fine = torch.softmax((q @ k.transpose(-1, -2) / 4).masked_fill(~mask, float("-inf")), dim=-1) @ v
    torch.testing.assert_close(found, coarse * gate + fine, atol=ELEMENT, rtol=ELEMENT)
    plain = video_sparse_attn(q, k, v, topk=2, block_size=block_size)
    torch.testing.assert_close(plain, coarse + fine, atol=ELEMENT, rtol=ELEMENT)


def test_fastvideo_s_documented_calls_bind_as_they_are_written() -> None:
    """The public signature of fastvideo-kernel 0.3, by position and by name, and the older one without sizes."""
    named = ["q", "k", "v", "variable_block_sizes", "q_variable_block_sizes", "topk", "block_size", "compress_attn_weight"]
    parameters = inspect.signature(video_sparse_attn).parameters
    positional = [name for name, each in parameters.items() if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert positional == named
    q, k, v, gate = (_draw(192, seed) for seed in range(4))
    sizes = torch.tensor([64, 20, 64], dtype=torch.int32)
    for tensor in (q, k, v):
        tensor[:, :, 84:128] = 0  # padding rows are zeros
    by_position = video_sparse_attn(q, k, v, sizes, sizes, 2, (4, 4, 4), gate)
    by_name = video_sparse_attn(
        q, k, v, variable_block_sizes=sizes, q_variable_block_sizes=sizes, topk=2, block_size=(4, 4, 4), compress_attn_weight=gate
    )
    assert torch.equal(by_position, by_name)
    assert torch.equal(video_sparse_attn(q, k, v, sizes, sizes, topk=2), video_sparse_attn(q, k, v, sizes, sizes, 2, 64))
    older = video_sparse_attn(q, k, v, topk=2, block_size=64)
    whole = torch.full((3,), 64, dtype=torch.int32)
    torch.testing.assert_close(older, video_sparse_attn(q, k, v, whole, whole, topk=2))
    reference = video_sparse_attn(q, k, v, sizes, sizes, 2, (4, 4, 4), gate, impl="reference")
    torch.testing.assert_close(by_name, reference, atol=ELEMENT, rtol=ELEMENT)
    assert not by_name[:, :, 84:128].any()


def test_ragged_tiles_are_those_of_our_own_operator() -> None:
    layout = tile_layout((3, 5, 6), 64)
    raster = [torch.randn(1, layout.num_tokens, 2, 8) for _ in range(3)]
    ours = video_sparse_attention(*raster, grid=(3, 5, 6), topk=2, coarse=True).out
    tiled = [layout.to_tiles(tensor).transpose(1, 2) for tensor in raster]
    theirs = video_sparse_attn(*tiled, layout.sizes(), layout.sizes(), topk=2, block_size=(4, 4, 4))
    torch.testing.assert_close(layout.to_raster(theirs.transpose(1, 2)), ours)
    assert torch.equal(video_sparse_attn(*tiled, layout.sizes(), topk=2), theirs)  # one kind of sizes serves both
    every = video_sparse_attn(*tiled, layout.sizes(), topk=99)
    assert torch.equal(every, video_sparse_attn(*tiled, layout.sizes(), topk=layout.num_tiles))


SIZES, GATE = "variable_block_sizes", "compress_attn_weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 32}, "block: got 32 tokens, expected one of 64, 128, 256"),
        ({"block_size": 128}, "got 64 and 192 rows, expected multiples of the block's 128"),
        ({SIZES: torch.ones(2)}, rf"{SIZES}: got shape \(2,\), expected \(3,\)"),
        ({SIZES: torch.tensor([64, 65, 0])}, f"{SIZES}: got 0 to 65 tokens in a block, expected 0 to 64"),
        ({SIZES: [64, 64, 64]}, rf"{SIZES}: got a list, expected a tensor of shape \(3,\)"),
        ({"q": torch.ones(2, 3)}, r"q: got shape \(2, 3\), expected \[B, H, S, D\]"),
        ({"k": _draw(192, 1)[:, :2]}, r"\(2, 2, 192, 16\).*, expected \[B, H, S, D\] with one batch, number of heads"),
        ({"topk": 0}, "topk: got 0, expected 1 to 3"),
        ({GATE: 0.5}, rf"{GATE}: got 0.5, expected a tensor of what broadcasts to q's \(2, 3, 64, 16\)"),
        ({GATE: torch.ones(2, 64, 3, 16)}, rf"{GATE}: got shape .*\(2, 3, 64, 16\), \[B, H, S, D\]"),
        ({"impl": "cudnn"}, "impl 'cudnn' cannot run: it runs on a GPU"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(StrobeError, match=message):
        video_sparse_attn(**({"q": _draw(64, 0), "k": _draw(192, 1), "v": _draw(192, 2)} | change))
