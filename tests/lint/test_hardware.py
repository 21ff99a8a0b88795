"""What the device and the model's arithmetic allow, to either side of each threshold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strobe.core.costs import WAN_1_3B, device_peaks
from strobe.lint.document import LintOptions, device_named

SEEDS = range(3)
TOKENS = WAN_1_3B.tokens_per_frame(480, 832)
SHAPED = LintOptions(model=WAN_1_3B, tokens_per_frame=TOKENS, window=12, device=device_peaks("H100 80GB HBM3"))
DIM, FFN, LAYERS, TEXT = 1536, 8960, 30, 512


def self_attention(window: int) -> int:
    """FLOPs of one self-attention call, by hand: two products of S x K x dim."""
    return 4 * (3 * TOKENS) * (window * TOKENS) * DIM


def whole_pass(window: int) -> float:
    """FLOPs of one pass, by hand, without the small embedding and head."""
    rows = 3 * TOKENS
    linears = 8 * rows * DIM**2 + 4 * rows * DIM**2 + 4 * rows * DIM * FFN
    return LAYERS * (linears + self_attention(window) + 4 * rows * TEXT * DIM)


def windows(page: Any) -> None:
    """A window ablation whose times follow the FLOPs."""
    page.options = SHAPED
    per_flop = 575.0 / whole_pass(12)
    rows = [[f"{window} frames", f"{per_flop * whole_pass(window):.1f} ms"] for window in (6, 8, 10, 12)]
    page.say("# Ablation: window size").table(("Window size", "Mean"), rows)


def layers(page: Any) -> None:
    """Times of the parts of a layer, below the peak."""
    page.options = SHAPED
    page.say("# Latency", "A layer takes:")
    time = self_attention(12) / 600e12
    page.say(f"- Self attention: ~{time * 1e6:.0f} us", "- Cross attention: ~41 us", "- Self attention KV cache roll: ~30 us")


FORMS = [windows, layers]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("build", FORMS)
def test_what_is_possible_is_clean(build: Any, seed: int, page: Any, clean: Any) -> None:
    clean(page(seed, build))


def two_windows(page: Any, small: int, large: int, share_saved: float) -> Any:
    """Two windows, of which the smaller one saves a share of the FLOPs that it removes."""
    removed = 1 - whole_pass(small) / whole_pass(large)
    page.options = SHAPED
    times = ((small, 100_000 * (1 - share_saved * removed)), (large, 100_000))
    page.say("# Ablation: window size")
    return page.table(("Window size", "Mean"), [[f"{window} frames", f"{time:.1f} ms"] for window, time in times])


@pytest.mark.parametrize(("share_saved", "free"), [(0.0, True), (0.24, True), (0.26, False), (1.0, False)])
def test_a_window_costs_nothing_if_it_saves_less_than_a_quarter_of_its_flops(share_saved: float, free: bool, page: Any) -> None:
    found = two_windows(page(0), 6, 12, share_saved).lint()
    assert [(each.rule, each.place.row) for each in found] == [("window-free", "6 frames")] * free
    if found:
        removed = 1 - whole_pass(6) / whole_pass(12)
        assert float(found[0].corrected.split()[1]) == pytest.approx(100_000 * (1 - removed), rel=2e-3)
        assert f"{100 * removed:.0f} %" in found[0].why


def test_a_window_that_removes_less_than_a_tenth_of_the_flops_may_cost_nothing(page: Any) -> None:
    removed = {small: 1 - whole_pass(small) / whole_pass(30) for small in range(20, 30)}
    below = max((share, small) for small, share in removed.items() if share < 0.1)
    above = min((share, small) for small, share in removed.items() if share >= 0.1)
    assert below[0] > 1 / 15 and above[0] < 1 / 7
    assert not two_windows(page(0), below[1], 30, 0.0).lint()
    assert [each.rule for each in two_windows(page(0), above[1], 30, 0.0).lint()] == ["window-free"]


@pytest.mark.parametrize("without", ["model", "tokens_per_frame"])
def test_without_a_model_a_window_may_cost_nothing(without: str, page: Any, clean: Any) -> None:
    made = two_windows(page(0), 6, 12, 0.0)
    made.options = replace(SHAPED, **{without: None})
    clean(made)


@pytest.mark.parametrize("seed", SEEDS)
def test_attention_faster_than_the_device(seed: int, page: Any, only: Any) -> None:
    made = page(seed, layers)
    time = self_attention(12) / 600e12
    line = made.replace(f"~{time * 1e6:.0f} us", "~800 us for the first layer and ~220 us for later layers")
    found = only(made)
    assert (found.rule, found.place.line, found.said) == ("below-floor", line, "Self attention: ~220 us")
    assert found.corrected == f"at least {self_attention(12) / 989.4e12 * 1e6:.1f} µs"
    assert f"{self_attention(12) / 1e9:.4g} GFLOP" in found.why


def test_the_device_of_a_text() -> None:
    assert [
        device_named(text) and device_named(text).name
        for text in ("NVIDIA H100 80GB HBM3", "h100", "H100 PCIe", "A100 80GB", "a100", "RTX 4090")
    ] == [
        "H100 SXM",
        "H100 SXM",
        "H100 PCIe",
        "A100 80GB SXM",
        "A100 40GB",
        "RTX 4090",
    ]
    assert [device_named(text) for text in ("H100 and A100", "H10", "V100", "")] == [None] * 4
