"""The Triton messages, compared with plain PyTorch in Triton's interpreter: `TRITON_INTERPRET=1 python messages_on_cpu.py`.

A process of its own, because the interpreter must be chosen before Triton is imported. On a GPU: `messages_on_cpu.py cuda`.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from strobe.attention.state import merge
from strobe.attention.tree.impl import triton
from strobe.attention.tree.local import merge_messages, pack, row_elements, unpack_state
from strobe.attention.types import AttentionOutput
from strobe.core.tolerances import tolerance

ELEMENT_BF16 = tolerance("element", "bfloat16")

EPSILON = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def draw(shape: tuple[int, int, int, int], dtype: torch.dtype, seed: int, device: str) -> AttentionOutput:
    """Draw a partial result with lse up to about 40; some rows are empty; neither tensor is contiguous."""
    generator = torch.Generator().manual_seed(seed)
    batch, queries, heads, dim = shape
    out = torch.randn(batch, heads, queries, 2 * dim, generator=generator).to(dtype).to(device)[..., :dim].transpose(1, 2)
    lse = 20 * torch.randn(batch, queries, heads, generator=generator)
    empty = torch.rand(batch, queries, heads, generator=generator) < 0.3
    out = out.masked_fill(empty.to(device).unsqueeze(-1), 0.0)
    return AttentionOutput(out=out, lse=lse.masked_fill(empty, float("-inf")).to(device).transpose(1, 2))


def message(part: AttentionOutput) -> Tensor:
    """Pack a message by both implementations, and check that they agree bit by bit."""
    wanted = pack(part.out, part.lse)
    found = triton.pack_message(part.out, part.lse, row_elements(part.out.shape[3], part.out.dtype))
    assert torch.equal(found.contiguous().view(torch.uint8), wanted.view(torch.uint8)), (part.out.shape, part.out.dtype)
    return found


def merged(messages: list[Tensor], dim: int) -> tuple[Tensor, Tensor]:
    """Merge messages as the ranks do, where the kernel reads them as views."""
    states = [unpack_state(each, dim) for each in messages]
    named, found = merge(states, impl="triton"), merge_messages(messages, dim)
    assert torch.equal(named.out, found.out) or found.out.isnan().any()
    return found.out, found.lse


def check(shape: tuple[int, int, int, int], dtype: torch.dtype, num_parts: int, device: str) -> None:
    """Check packing and merging of some parts against `merge`."""
    parts = [draw(shape, dtype, seed, device) for seed in range(num_parts)]
    messages = [message(part) for part in parts]
    wanted = merge([unpack_state(each, shape[3]) for each in messages], impl="reference")
    out, lse = merged(messages, shape[3])
    assert wanted.lse is not None and out.dtype == dtype and lse.dtype == torch.float32
    largest = max(float(part.out.abs().max()) for part in parts)
    torch.testing.assert_close(out.float(), wanted.out.float(), atol=EPSILON[dtype] * largest, rtol=EPSILON[dtype])
    torch.testing.assert_close(lse, wanted.lse, atol=2.0**-18, rtol=0)
    assert lse.isneginf().any() or shape[1] < 60, "no row is empty in all parts"


def main(device: str) -> None:
    """Check all shapes and dtypes."""
    for dtype in EPSILON:
        check((2, 1, 8, 64), dtype, 2, device)
        check((1, 63, 3, 5), dtype, 3, device)
        check((2, 100, 2, 100), dtype, 2, device)
        check((1, 1, 1, 1), dtype, 5, device)
        check((1, 9, 2, 16), dtype, 8, device)
    check((1, 2000, 1, 128), torch.bfloat16, 2, device)
    first, second = (draw((1, 4, 2, 8), torch.float32, seed, device) for seed in (0, 1))
    second.lse[0, 1, 2] = float("nan")  # a rank has gone wrong: it shows
    out, lse = merged([message(first), message(second)], 8)
    assert lse[0, 1, 2].isnan() and out[0, 2, 1].isnan().all() and int(out.isnan().sum()) == 8
    cut = [message(draw((1, 7, 4, 8), torch.bfloat16, seed, device))[:, :, 1:3] for seed in (0, 1)]
    out, lse = merged(cut, 8)
    wanted = merge([unpack_state(each, 8) for each in cut], impl="reference")
    torch.testing.assert_close(out, wanted.out, atol=ELEMENT_BF16, rtol=ELEMENT_BF16)
    assert merged([cut[0][:, :0]] * 2, 8)[0].shape == (1, 0, 2, 8)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
