"""Conditions on a finished comparison."""

from __future__ import annotations

import pytest

from strobe.cli.require import failures, parse_requirement
from strobe.core.errors import ConfigError

FIGURES = {"turbo": {"e2e": 1.5, "psnr": 31.25, "ssim": None}, "ultra": {"e2e": 2.0, "psnr": 24.0, "ssim": None}}


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("e2e>=1.5", []),
        ("e2e > 1.5", ["turbo"]),
        ("turbo:e2e<=1.5", []),
        ("ultra: psnr >= 30", ["ultra"]),
        ("psnr<30", ["turbo"]),
        ("e2e>=1e1", ["turbo", "ultra"]),
        ("ssim>0", ["turbo", "ultra"]),
    ],
)
def test_a_requirement_holds_for_every_candidate_it_means(text: str, failed: list[str]) -> None:
    assert [line.split(":")[0] for line in failures(parse_requirement(text), FIGURES)] == failed


def test_a_failure_says_the_figure_and_what_was_required() -> None:
    assert failures(parse_requirement("turbo:psnr>=40"), FIGURES) == ["turbo: psnr is 31.25, >=40 required"]
    assert failures(parse_requirement("turbo:ssim>=0.9"), FIGURES) == ["turbo: ssim was not measured, >=0.9 required"]


@pytest.mark.parametrize("text", ["", "e2e", "e2e>=", ">=1", "e2e=1", "e2e>=fast", "e2e>=1.5 or so", "a:b:c>1"])
def test_what_is_not_a_condition_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--require"):
        parse_requirement(text)


@pytest.mark.parametrize(("text", "nearest"), [("e2>=1", "e2e"), ("trubo:e2e>=1", "turbo")])
def test_unknown_names_say_the_nearest(text: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        failures(parse_requirement(text), FIGURES)
