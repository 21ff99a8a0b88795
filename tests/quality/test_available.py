"""A metric is measured, or refused with its reason; never approximated."""

from __future__ import annotations

import pytest
import torch

from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.quality.available import METRICS, require
from strobe.quality.fidelity import compare


def test_measured_metrics_are_those_that_compare_computes() -> None:
    clip = torch.zeros(2, 3, 16, 16)
    computed = {fidelity.metric: fidelity.definition for fidelity in compare(clip, clip)}
    assert computed == {metric.name: metric.definition for metric in METRICS if metric.not_measured is None}
    for name in computed:
        assert require(name).name == name


@pytest.mark.parametrize("name", ["lpips", "dists", "clip_score", "fvd", "vmaf"])
def test_metrics_without_weights_fail_closed(name: str) -> None:
    with pytest.raises(ImplUnavailableError, match=r"not measured: needs .*would run here: psnr, ssim, temporal_difference"):
        require(name)


def test_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown metric 'pnsr' \(did you mean 'psnr'\?\)"):
        require("pnsr")
