"""The kernels of attention in eight bits, compared with the reference: `TRITON_INTERPRET=1 python eightbit_on_cpu.py`.

A process of its own, because the interpreter must be chosen before Triton is imported. Inputs are float16: the interpreter
multiplies the bits of bfloat16 as integers. Every tensor that a kernel is to fill is full of NaN before.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

from real_like import Shape, error, real_like
from strobe.attention.dense import dense_attention
from strobe.attention.dense.eight.impl import reference
from strobe.attention.dense.eight.impl import triton as kernels
from strobe.attention.dense.eight.rounded import RoundedKeys, unfilled
from strobe.attention.types import AttentionOutput, check
from strobe.core.tolerances import tolerance

_converted = interpreter._convert_float
HALF = torch.float16


def to_fp8(x: Any, given: Any, wanted: Any, mode: Any) -> Any:
    """Round to FP8 as a GPU does: the interpreter cuts off, and loses a carry."""
    if wanted != tl.float8e4nv or given != tl.float32:
        return _converted(x, given, wanted, mode)
    values = torch.from_numpy(np.ascontiguousarray(x)).view(torch.float32)
    return values.to(torch.float8_e4m3fn).view(torch.uint8).numpy()


def rounded(k: Tensor, v: Tensor, *edges: int) -> tuple[RoundedKeys, RoundedKeys]:
    """Round keys and values piece by piece by the kernel, and at once by the reference; compare, and return both."""
    found, expected = unfilled(k, v, 1.25), unfilled(k, v, 1.25)
    found.keys.fill_(99)
    for begin, end in pairwise((0, *edges, k.shape[1])):
        kernels.store(found, k[:, begin:end], v[:, begin:end], begin)
    reference.store(expected, k, v, 0)
    assert (found.keys.int() - expected.keys.int()).abs().max() <= 1
    assert (found.keys != expected.keys).float().mean() < 1e-3  # a tie that fell the other way
    assert (found.values.view(torch.int8) != expected.values.view(torch.int8)).float().mean() < 1e-3
    assert (found.values.float() - expected.values.float()).abs().max() <= 32  # a step of the largest numbers
    return found, expected


def attended(q: Tensor, k: Tensor, v: Tensor, *edges: int, scale: float | None = None) -> AttentionOutput:
    """Attend by the kernels and compare with the reference on the same rounded keys, and with plain attention."""
    kept, _ = rounded(k, v, *edges)
    spec = check(q, k, v, scale, True)
    found, expected = kernels.run(q, kept, spec), reference.run(q, kept, spec)
    assert found.lse is not None and expected.lse is not None
    assert error(found.out, expected.out) < tolerance("eight-bit kernel", HALF), (q.shape, k.shape)
    assert (found.lse - expected.lse).square().mean().sqrt() < tolerance("lse of an eight-bit kernel", HALF)
    plain = dense_attention(q.double(), k.double(), v.double(), softmax_scale=scale, impl="reference", return_lse=True)
    assert plain.lse is not None
    assert error(found.out, plain.out) < tolerance("eight-bit attention", HALF), (q.shape, k.shape)
    assert (found.lse - plain.lse).square().mean().sqrt() < tolerance("lse in eight bits", HALF)
    without = kernels.run(q, kept, replace(spec, return_lse=False))
    assert without.lse is None and torch.equal(without.out, found.out)
    return found


def main() -> None:
    """Run all comparisons."""
    interpreter._convert_float = to_fp8
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # fills what is not written yet with NaN
    assert torch.empty(3).isnan().all()

    q, k, v = (x.half() for x in real_like(Shape(frames=3, own=2, height=7, width=19, heads=2)))
    splits = []
    split = kernels.split
    kernels.split = lambda *numbers: splits.append(split(*numbers)) or splits[-1]  # type: ignore[assignment]
    found = attended(q, k, v, 3, 200)
    kernels.split = lambda programs, *_: (programs, 1)  # type: ignore[assignment]
    whole = attended(q, k, v)
    assert splits[0] == (9, 3), splits  # tiles of the last wave are in parts
    assert not torch.equal(whole.out, found.out)
    kernels.split = lambda programs, *_: (1, 2)  # type: ignore[assignment]
    attended(q, k, v, scale=0.05)
    kernels.split = split  # type: ignore[assignment]

    for length in (1, 63, 128, 129):  # keys that fill no tile, or one; one query
        attended(q[:, :1], k[:, :length], v[:, :length])
    attended(torch.cat((q, q.flip(1)))[:, :65], torch.cat((k, k.flip(1)))[:, :70], torch.cat((v, v.flip(1)))[:, :70])
    nothing = torch.zeros_like(q[:, :5])
    kept, _ = rounded(k, v)
    mean = kernels.run(nothing, kept, check(nothing, k, v, None, False)).out
    assert error(mean, v.double().mean(1, keepdim=True).expand_as(mean)) < tolerance("eight-bit attention", HALF)


if __name__ == "__main__":
    main()
