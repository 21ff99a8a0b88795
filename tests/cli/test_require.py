"""Conditions on a finished comparison."""

from __future__ import annotations

import msgspec
import pytest
import torch

from strobe.cli.require import failures, parse_requirement
from strobe.core.errors import ConfigError
from strobe.perf.table.model import Ratio, Speedup


def ratio(value: float, low: float | None = None, high: float | None = None, saved_ns: float = 1e9) -> Speedup:
    return Speedup("turbo", "baseline", "e2e", Ratio(value, low, high), saved_ns)


FIGURES = {
    "turbo": {"e2e": ratio(1.55, 1.5, 1.6), "psnr": 31.25, "ssim": None},
    "ultra": {"e2e": ratio(2.0, 1.4, 2.9), "psnr": 24.0, "ssim": None},
}


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("e2e>=1.4", []),
        ("e2e>=1.5", ["ultra"]),  # its point estimate is 2, its interval begins at 1.4
        ("e2e > 1.5", ["turbo", "ultra"]),
        ("turbo:e2e<=1.6", []),
        ("turbo:e2e<1.6", ["turbo"]),
        ("e2e<=1.6", ["ultra"]),
        ("e2e~>=1.5", []),
        ("e2e~>=1.6", ["turbo"]),
        ("ultra: psnr >= 30", ["ultra"]),
        ("psnr<30", ["turbo"]),
        ("psnr~<30", ["turbo"]),
        ("e2e>=1e1", ["turbo", "ultra"]),
        ("ssim>0", ["turbo", "ultra"]),
    ],
)
def test_a_requirement_holds_for_every_candidate_it_means(text: str, failed: list[str]) -> None:
    assert [line.split(":")[0] for line in failures(parse_requirement(text), FIGURES)] == failed


def test_a_failure_says_the_figure_and_what_was_required() -> None:
    assert failures(parse_requirement("turbo:psnr>=40"), FIGURES) == ["turbo: psnr is 31.25, >=40 required"]
    assert failures(parse_requirement("turbo:ssim>=0.9"), FIGURES) == ["turbo: ssim was not measured, >=0.9 required"]
    assert failures(parse_requirement("turbo:e2e>=3"), FIGURES) == ["turbo: e2e is 1.55 [1.5, 1.6], >=3 required"]


def test_a_point_estimate_above_the_bound_is_not_enough() -> None:
    (line,) = failures(parse_requirement("ultra:e2e>=1.5"), FIGURES)
    assert line == ("ultra: e2e is 2 [1.4, 2.9], >=1.5 required of its low end, which is 1.4; more rounds narrow the interval")
    (line,) = failures(parse_requirement("ultra:e2e<=2.5"), FIGURES)
    assert "<=2.5 required of its high end, which is 2.9" in line


def test_a_ratio_without_an_interval_proves_nothing() -> None:
    figures = {"turbo": {"e2e": ratio(3.0)}}
    (line,) = failures(parse_requirement("e2e>=1.5"), figures)
    assert "3 without an interval" in line and "write e2e~>=1.5 for the point estimate alone" in line
    assert failures(parse_requirement("e2e~>=1.5"), figures) == []


@pytest.mark.parametrize(
    ("text", "figure", "holds"),
    [
        ("e2e>1", ratio(1.005, 1.003, 1.007), False),  # sure, but below 1 %
        ("e2e>=1", ratio(1.005, 1.003, 1.007), True),  # claims no difference
        ("e2e>=0.98", ratio(1.0, 0.99, 1.01, 0.0), True),  # no regression beyond 2 %
        ("kernel>1.2", ratio(1.5, 1.4, 1.6, 500.0), False),  # 0.5 µs is below what the clock resolves
        ("kernel>1.2", ratio(1.5, 1.4, 1.6, 1500.0), True),
        ("e2e<1", ratio(0.995, 0.993, 0.997), False),
        ("e2e<1", ratio(0.9, 0.85, 0.95), True),
    ],
)
def test_a_claimed_difference_exceeds_both_floors(text: str, figure: Speedup, holds: bool) -> None:
    failed = failures(parse_requirement(text), {"turbo": {"e2e": figure, "kernel": figure}})
    assert (failed == []) is holds
    assert holds or "a difference below 1 % or 1 µs is never one" in failed[0]


@pytest.mark.parametrize(
    "text", ["", "e2e", "e2e>=", ">=1", "e2e=1", "e2e>=fast", "e2e>=1.5 or so", "a:b:c>1", "~e2e>1", "e2e>~1"]
)
def test_what_is_not_a_condition_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--require"):
        parse_requirement(text)


@pytest.mark.parametrize(("text", "nearest"), [("e2>=1", "e2e"), ("trubo:e2e>=1", "turbo")])
def test_unknown_names_say_the_nearest(text: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        failures(parse_requirement(text), FIGURES)


def test_every_metric_a_clip_gets_is_known_before_it_is_made() -> None:
    """`--require` names figures before the run: the list and what the review yields are one."""
    from strobe.bench import quality
    from strobe.perf.records.record import PromptAt, Workload

    prompts = ("a red circle moving left slowly on a navy background", "a yellow star moving up slowly on a black background")
    at = (PromptAt(frame_block=0, text=prompts[0], mode="start"), PromptAt(frame_block=2, text=prompts[1], mode="recache"))
    work = Workload(
        prompts=at,
        seed=0, frame_blocks=4, latents_per_block=1, frames_first_block=4, frames_per_block=4, frames=16, height=128, width=128,
        fps=16,
    )  # fmt: skip
    frames = torch.randint(0, 255, (1, 16, 128, 128, 3), dtype=torch.uint8)
    for number in (1, 2):
        part = msgspec.structs.replace(work, prompts=work.prompts[:number])
        given = [*quality.against_reference("a", frames, frames, "r"), *quality.by_oracle("a", frames, part)]
        assert sorted(line.metric for line in given) == sorted(quality.metrics((128, 128), prompts[:number]))
    assert [line.metric for line in quality.not_measured("a", "no weights")] == list(quality.metrics((480, 832), ()))
