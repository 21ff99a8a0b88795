"""Attention in eight bits beside FlashAttention 4, at the sizes of a frame block of Wan 1.3B: `python eight_bits.py OUT`, on an H200.

Queries are rounded in the call, as the engine does; keys and values once before it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

import strobe


def main(out: Path) -> None:
    shapes = [(1, tokens, 12, 128) for tokens in (4_680, 18_720, 18_720)]
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    kept = strobe.round_keys(k, v)

    def fa4(q: Tensor) -> Tensor:
        return strobe.dense_attention(q, k, v, impl="fa4").out

    def eight_bits(q: Tensor) -> Tensor:
        return strobe.attend_rounded(q, kept).out

    with torch.no_grad():
        found = strobe.compare({"fa4": fa4, "eight bits": eight_bits}, inputs=(q,), tolerance=6e-2, rounds=12, trace=True)
    print(found)
    found.report(str(out / "eight_bits.md"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
