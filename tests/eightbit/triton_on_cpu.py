"""The Triton kernels against the reference, bit by bit, in Triton's interpreter: `TRITON_INTERPRET=1 python triton_on_cpu.py`.

A process of its own, because the interpreter must be chosen before Triton is imported. On a GPU: `python triton_on_cpu.py cuda`.
The interpreter's own conversion to FP8 loses the carry where rounding reaches a power of two, and rounds ties up: PyTorch's
takes its place, so what is compared is everything around it. On a GPU it is all the kernel's. (To bfloat16 it cuts off.)
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor
from triton.runtime import interpreter

from strobe.eightbit.impl import reference, triton
from strobe.eightbit.types import Quantized

FORMATS = (torch.float8_e4m3fn, torch.int8)


CONVERT = interpreter._convert_float


def convert(numbers: np.ndarray, source: object, target: object, rounding: object) -> np.ndarray:
    """As the interpreter's, but FP8 by PyTorch."""
    if str(target) == "fp8e4nv":
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    if str(source) == "fp8e4nv":
        bits = torch.from_numpy(np.ascontiguousarray(numbers)).view(torch.float8_e4m3fn)
        assert str(target) == "fp32"
        return bits.float().numpy().view(np.uint32)
    return CONVERT(numbers, source, target, rounding)


def check(given: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    """Same scales and same values, wherever the scale is a number."""
    assert given[0].shape == expected[0].shape and given[0].dtype == expected[0].dtype
    torch.testing.assert_close(given[1], expected[1], rtol=0, atol=0, equal_nan=True)
    compared = expected[1].isfinite().expand(expected[0].shape)
    assert torch.equal(given[0].float()[compared], expected[0].float()[compared])


def rows(width: int, dtype: torch.dtype, device: str) -> Tensor:
    x = torch.randn(11, width, generator=torch.Generator().manual_seed(width))
    x[:7] *= torch.logspace(-20, 3, 7)[:, None]
    x[3], x[7, 0], x[8, width // 2] = 0, torch.nan, torch.inf
    return x.to(device, dtype)


def quantize(device: str) -> None:
    for width in (1, 63, 2000) if device == "cpu" else (1, 63, 100, 1536, 2000, 8960):
        for dtype in (torch.float32, torch.bfloat16):
            x = rows(width, dtype, device)
            for to in FORMATS:
                check(triton.quantize_rows(x, to), reference.quantize_rows(x, to))
            strided = torch.cat((x, x), -1)[:, :width]
            check(triton.quantize_rows(strided, torch.int8), reference.quantize_rows(x, torch.int8))
    empty = triton.quantize_rows(torch.empty(0, 8, device=device), torch.int8)
    assert empty[0].shape == (0, 8) and empty[1].shape == (0, 1)


def cache(device: str) -> None:
    for to in FORMATS:
        for batch, tokens, heads, width in ((2, 5, 3, 20), (1, 63, 2, 64)):
            packed = rows(3 * heads * width, torch.float32, device).repeat(6, 1)[: tokens * batch].view(batch, tokens, -1)
            pair = [part.unflatten(-1, (heads, width)) for part in packed.chunk(3, -1)[1:]]
            where = torch.randperm(tokens + 4, generator=torch.Generator().manual_seed(0))[:tokens].to(device)
            where[1] = -1
            layers = 2
            both = []
            for impl in (triton, reference):
                values = torch.zeros(2, layers, batch, tokens + 4, heads, width, dtype=to, device=device)
                scale = torch.full((*values.shape[:-1], 1), torch.nan, device=device)
                kept = Quantized(values[:, 1], scale[:, 1])
                impl.store_rows((pair[0], pair[1]), where, kept)
                assert scale[:, 0].isnan().all()
                both.append(kept)
            check(both[0], both[1])
            expected = both[1]
            for dtype in (torch.float32, torch.float16 if device == "cpu" else torch.bfloat16):
                full = [torch.full((2, batch, tokens + 4, heads, width), torch.nan, dtype=dtype, device=device) for _ in range(2)]
                for impl, out in zip((triton, reference), full, strict=True):
                    impl.expand_rows(expected, out[:, :, : tokens + 1])
                assert full[0][:, :, tokens + 1 :].isnan().all() and full[1].isfinite().any()
                torch.testing.assert_close(full[0], full[1], rtol=0, atol=0, equal_nan=True)


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    interpreter._convert_float = convert
    quantize(where)
    cache(where)
