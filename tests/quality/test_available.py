"""A metric is measured, or says what it needs; never approximated."""

from __future__ import annotations

import pytest
import torch

from strobe.core.errors import ConfigError
from strobe.quality.available import METRICS, metric
from strobe.quality.fidelity import compare


def test_compared_metrics_are_those_that_compare_computes() -> None:
    clip = torch.zeros(2, 3, 16, 16)
    computed = {fidelity.metric: fidelity.definition for fidelity in compare(clip, clip)}
    assert computed == {each.name: each.definition for each in METRICS if each.compares}
    assert all(metric(name).not_measured is None for name in computed)


@pytest.mark.parametrize("name", ["lpips", "dists", "clip_score", "fvd", "vmaf"])
def test_metrics_that_need_more_say_what(name: str) -> None:
    assert (metric(name).not_measured or "").startswith("needs ")


def test_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown metric 'pnsr' \(did you mean 'psnr'\?\)"):
        metric("pnsr")
