"""Blocks of the guide's `Timer`: the paper's three all-reduces, free-running and serialised."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import torch

from strobe.bench.tree.candidates import Inputs
from strobe.bench.tree.request import How
from strobe.compat.assert_tree_attn import Timer, profiled_tree_attn_decode
from strobe.perf.records.record import Mode


def guide_blocks(inputs: Inputs, device: torch.device, how: How, align: Callable[[], None]) -> dict[Mode, dict[str, list[float]]]:
    """Measure every block on this rank, milliseconds by mode and block.

    `profiled_tree_attn_decode` takes the whole keys and cuts out its own; queries must be replicated.
    """
    if inputs.shape.placement != "replicated":
        return {}
    shape = inputs.shape
    q = inputs.q.transpose(1, 2)
    whole = (shape.batch, shape.kv_heads, shape.seq_len, shape.dim)
    generator = torch.Generator(device).manual_seed(how.seed)
    k, v = (torch.randn(whole, generator=generator, device=device, dtype=torch.float32).to(q.dtype) for _ in range(2))
    found: dict[Mode, dict[str, list[float]]] = {}
    for mode in get_args(Mode):
        timer = Timer(device.type == "cuda", serialised=mode == "serialised")
        for turn in range(2 + how.iterations):
            align()
            profiled_tree_attn_decode(q, k, v, timer, warmup=turn < 2)
        found[mode] = timer.times
    return found
