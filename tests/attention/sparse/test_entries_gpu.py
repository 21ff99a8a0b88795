"""An index that names no key block reads nothing on a GPU, whoever computes, and raises where the environment says so."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from strobe.attention.explain import explain
from strobe.attention.sparse import entries
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.selection import BlockSelection
from strobe.core.errors import ImplUnavailableError, ShapeError
from strobe.core.tolerances import tolerance

ELEMENT_BF16 = tolerance("element of a library", "bfloat16")

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("impl", ["cudnn", "fa4", "triton", "flex"])
@pytest.mark.parametrize("block", [64, 128])
def test_an_index_that_names_no_key_block_reads_nothing(impl: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.randn(2, 5 * block, 4, 128, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(2, 7 * block, 4, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    mask = torch.rand(2, 4, 5, 7, device="cuda") < 0.6
    mask[..., 3] = True
    kept = mask & (torch.rand(2, 4, 5, 7, device="cuda") < 0.6)
    kept[..., 5] = False
    selection, inside = (BlockSelection.from_mask(each, block=block) for each in (mask, kept))
    seen = kept.gather(-1, selection.indices.long())
    outside = replace(selection, indices=torch.where(seen, selection.indices, selection.indices + 7))
    k[:, 5 * block : 6 * block] = v[:, 5 * block : 6 * block] = float("nan")  # nobody sees these any more
    try:
        explain(q, k, v, outside, impl=impl, return_lse=True)
    except ImplUnavailableError as error:
        pytest.skip(f"{impl}: {error.reason}")
    found = block_sparse_attention(q, k, v, outside, impl=impl, return_lse=True)
    expected = block_sparse_attention(q.float(), k.float(), v.float(), inside, impl="reference", return_lse=True)
    torch.testing.assert_close(found.out.float(), expected.out, atol=ELEMENT_BF16, rtol=ELEMENT_BF16)
    torch.testing.assert_close(found.lse, expected.lse, atol=ELEMENT_BF16, rtol=ELEMENT_BF16)
    monkeypatch.setenv("STROBE_CHECK", "1")
    entries._everywhere.cache_clear()
    with pytest.raises(ShapeError, match="names key block [0-9]+, expected 0 to 6"):
        block_sparse_attention(q, k, v, outside, impl=impl)
    monkeypatch.undo()
    entries._everywhere.cache_clear()
