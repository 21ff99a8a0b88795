"""Timing of the contestants of one cell in palindromes, a few calls at a time, within a budget of seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from strobe.perf.measure.stopwatch import Run, Speed

MIN_ROUNDS: Final = 3
"""Fewest palindromes: with two, the interval of a ratio is too wide to say anything."""
MAX_ROUNDS: Final = 8
MAX_CALLS: Final = 6
"""Most calls of a contestant in a row."""


def plan_interleave(speeds: Mapping[str, Speed], seconds: float) -> tuple[int, Mapping[str, int]]:
    """Spend the budget: as many rounds of single calls as fit, then more calls per round of fast contestants.

    Returns:
        Palindromes, never fewer than `MIN_ROUNDS`, and by contestant its calls in each of its two places of one.
    """
    budget_ns = seconds * 1e9
    cost = {name: max(speed.device_ns, speed.host_ns, 1) for name, speed in speeds.items()}
    round_ns = 2 * sum(cost.values())
    rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, int(budget_ns / max(1, round_ns))))
    spare_ns = max(0.0, budget_ns - rounds * round_ns) / max(1, len(cost))
    calls = {name: max(1, min(MAX_CALLS, 1 + int(spare_ns / (2 * rounds * each)))) for name, each in cost.items()}
    return rounds, calls


def matmul_peak(dtype: torch.dtype, device: torch.device) -> tuple[Run, int]:
    """Return a large square matrix product and its FLOPs: its rate is the matrix peak that this device reaches now."""
    side = 8192 if device.type == "cuda" else 512
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return lambda: torch.mm(left, right), 2 * side**3
