"""Measure attention in eight bits beside FlashAttention 4, at the sizes of a frame block of Wan 1.3B on a GPU.

Each call replays a CUDA graph of 30 attentions, one for each layer. Queries are rounded in it, keys and values before it.

Usage: python tools/measure_eight_bits.py PAGE.md
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import strobe

LAYERS = 30


def graph_of(attend: Callable[[Tensor], Tensor], q: Tensor) -> Callable[[], Tensor]:
    """Return a function that replays a graph of `LAYERS` calls, and returns what the last one wrote."""
    attend(q)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAYERS):
            out = attend(q)

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


def main(page: Path) -> None:
    """Compare the two and write the page."""
    shapes = [(1, tokens, 12, 128) for tokens in (4_680, 18_720, 18_720)]
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    kept = strobe.round_keys(k, v)
    with torch.no_grad():
        ways = {
            "fa4": graph_of(lambda q: strobe.dense_attention(q, k, v, impl="fa4").out, q),
            "eight bits": graph_of(lambda q: strobe.attend_rounded(q, kept).out, q),
        }
        found = strobe.compare(ways, inputs=(), tolerance=6e-2, rounds=12, trace=True)
    sys.stdout.write(f"{found}\n")
    found.report(str(page))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
