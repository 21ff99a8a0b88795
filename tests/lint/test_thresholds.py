"""Rules with a threshold, a little to either side of it."""

from __future__ import annotations

from typing import Any

import pytest

from strobe.core.costs import WAN_1_3B, PassShape, device_peaks, total, transformer_pass
from strobe.lint.document import LintOptions

TOKENS = 1560


def whole_pass(window: int) -> int:
    """FLOPs of a pass over three latent frames that attend to a window of so many."""
    shape = PassShape(q_tokens=3 * TOKENS, kv_tokens=window * TOKENS)
    return total(transformer_pass(WAN_1_3B, shape)).flops


def rules_of(page: Any) -> list[str]:
    return [found.rule for found in page.lint()]


def windows(page: Any, small: int, large: int, share_saved: float) -> Any:
    """Two windows, of which the smaller one saves a share of the FLOPs that it removes."""
    removed = 1 - whole_pass(small) / whole_pass(large)
    page.options = LintOptions(model=WAN_1_3B, tokens_per_frame=TOKENS, window=large, device=device_peaks("H100 80GB HBM3"))
    times = ((small, 100_000 * (1 - share_saved * removed)), (large, 100_000))
    page.say("# Ablation: window size")
    return page.table(("Window size", "Mean"), [[f"{window} frames", f"{time:.1f} ms"] for window, time in times])


@pytest.mark.parametrize(("share_saved", "free"), [(0.0, True), (0.24, True), (0.26, False), (1.0, False)])
def test_a_window_costs_nothing_if_it_saves_less_than_a_quarter_of_its_flops(share_saved: float, free: bool, page: Any) -> None:
    assert ("window-free" in rules_of(windows(page(0), 6, 12, share_saved))) == free


def test_a_window_that_removes_less_than_a_tenth_of_the_flops_may_cost_nothing(page: Any) -> None:
    removed = {small: 1 - whole_pass(small) / whole_pass(30) for small in range(20, 30)}
    below = max((share, small) for small, share in removed.items() if share < 0.1)
    above = min((share, small) for small, share in removed.items() if share >= 0.1)
    assert below[0] > 1 / 15 and above[0] < 1 / 7
    assert "window-free" not in rules_of(windows(page(0), below[1], 30, 0.0))
    assert "window-free" in rules_of(windows(page(0), above[1], 30, 0.0))
