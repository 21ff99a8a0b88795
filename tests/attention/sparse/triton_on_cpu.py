"""The Triton kernels against the reference, in Triton's interpreter: `TRITON_INTERPRET=1 python triton_on_cpu.py`.

A process of its own, because the interpreter must be chosen before Triton is imported. bfloat16 is left to the GPU: the
interpreter multiplies its bits as integers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.selection import BlockSelection

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3}


def case(block: int, dtype: torch.dtype, ragged: bool, heads: tuple[int, int]) -> tuple[list[Tensor], BlockSelection]:
    """q, k, v with every padding row NaN, and a selection with an empty row, an empty block and all counts."""
    generator = torch.Generator().manual_seed(block + heads[0])
    q, k, v = (
        torch.randn(2, blocks * block, number, 32, generator=generator).to(dtype)
        for blocks, number in ((3, heads[0]), (4, heads[1]), (4, heads[1]))
    )
    mask = torch.rand(2, heads[0], 3, 4, generator=generator) < 0.5
    mask[0, 0, 0] = False
    sizes = [torch.tensor(valid, dtype=torch.int32) for valid in ((block, 10, 0), (block, 1, 0, 33))] if ragged else [None, None]
    for tensor, valid in ((q, sizes[0]), (k, sizes[1]), (v, sizes[1])):
        if valid is not None:
            tensor[:, (torch.arange(block) >= valid[:, None]).flatten()] = float("nan")
    return [q, k, v], BlockSelection.from_mask(mask, block=block, q_sizes=sizes[0], kv_sizes=sizes[1])


def check(block: int, dtype: torch.dtype, ragged: bool, heads: tuple[int, int]) -> None:
    """Compare out, lse and all gradients."""
    tensors, selection = case(block, dtype, ragged, heads)
    results = {}
    for impl in ("triton", "reference"):
        inputs = [tensor.clone().requires_grad_() for tensor in tensors]
        found = block_sparse_attention(*inputs, selection, impl=impl, return_lse=True)
        assert found.lse is not None
        generator = torch.Generator().manual_seed(1)
        d_out, d_lse = (torch.randn(tensor.shape, generator=generator) for tensor in (found.out, found.lse))
        gradients = torch.autograd.grad([found.out, found.lse], inputs, [d_out.to(dtype), d_lse])
        results[impl] = (found.out, found.lse, *gradients)
    assert torch.equal(results["triton"][1].isneginf(), results["reference"][1].isneginf())
    for found, expected in zip(results["triton"], results["reference"], strict=True):
        limit = TOLERANCES[dtype] * max(1.0, expected.nan_to_num(neginf=0).abs().max().item())
        torch.testing.assert_close(found, expected, atol=limit, rtol=TOLERANCES[dtype])


CASES = (
    (64, torch.float32, True, (4, 2)),
    (64, torch.float32, False, (1, 1)),
    (64, torch.float16, True, (2, 2)),
    (128, torch.float32, True, (1, 1)),
    (256, torch.float32, True, (1, 1)),
)

if __name__ == "__main__":
    for arguments in CASES:
        check(*arguments)
