"""Prompt switches: reading them, and when they take effect."""

from __future__ import annotations

import pytest
import torch

from strobe.core.errors import ConfigError
from strobe.core.shapes import VaeStride
from strobe.engine.config import ModelDefaults
from strobe.engine.prompts import Blend, Switch, blocks_for, check_switches, parse_switch

DEFAULTS = ModelDefaults(frame_size=(32, 32), fps=16, stride=VaeStride(), frame_block=3, timesteps=(1000.0,), shift=5.0)


@pytest.mark.parametrize(
    ("text", "frame_block", "prompt"),
    [
        ("block=12:a blue square", 12, "a blue square"),
        (" block = 1 : x:y, z ", 1, "x:y, z"),
        ("0.5s:go", 1, "go"),  # frame block 1 begins with frame 9, at 0.5625 s
        ("0.5625s:go", 1, "go"),
        ("0.57s:go", 2, "go"),
        ("4.5s:a blue square moving up", 7, "a blue square moving up"),  # frame 72; frame block 7 begins with frame 81
        (".1s:go", 1, "go"),
    ],
)
def test_switches_read_time_and_prompt(text: str, frame_block: int, prompt: str) -> None:
    assert parse_switch(text, DEFAULTS) == Switch(frame_block=frame_block, prompt=prompt)


@pytest.mark.parametrize(
    "text", ["", "a red circle", "4.5:a", "block:a", "block=x:a", "4s:", "block=3:  ", "-1s:a", "4 blocks:a"]
)
def test_what_cannot_be_read_gets_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="write for example"):
        parse_switch(text, DEFAULTS)


@pytest.mark.parametrize("text", ["0s:a", "block=0:a"])
def test_the_first_block_has_the_first_prompt(text: str) -> None:
    with pytest.raises(ConfigError, match="smallest: 1"):
        parse_switch(text, DEFAULTS)


def test_modes_are_checked() -> None:
    assert parse_switch("block=2:a", DEFAULTS, mode="interpolate", over=3).over == 3
    with pytest.raises(ConfigError, match="did you mean 'recache'"):
        Switch(frame_block=1, prompt="a", mode="recach")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="smallest: 1"):
        Switch(frame_block=1, prompt="a", mode="interpolate", over=0)


def test_switches_are_ordered_and_never_two_at_once() -> None:
    late, early = Switch(frame_block=9, prompt="b"), Switch(frame_block=2, prompt="a")
    assert check_switches([late, early]) == (early, late)
    with pytest.raises(ConfigError, match="block=10"):
        check_switches([late, early, Switch(frame_block=9, prompt="c")])


@pytest.mark.parametrize("first", [0, 1, 5])
@pytest.mark.parametrize("seconds", [0.01, 0.5625, 0.57, 1.0, 10.0, 63.9])
def test_blocks_for_is_the_smallest_that_lasts(seconds: float, first: int) -> None:
    def lasts(count: int) -> float:
        return (12 * count - (3 if first == 0 and count else 0)) / 16

    count = blocks_for(seconds, DEFAULTS, first=first)
    assert lasts(count) >= seconds - 1e-9 and lasts(count - 1) < seconds


@pytest.mark.parametrize(
    ("total", "num_steps", "steps"),
    [
        (4, 4, [1, 2, 3, 4]),
        (4, 2, [1, 1, 2, 2]),
        (8, 4, [1, 1, 2, 2, 3, 3, 4, 4]),
        (2, 4, [2, 4]),
        (3, 1, [1, 1, 1]),
        (1, 4, [4]),
    ],
)
def test_a_blend_gives_ever_more_denoise_steps_to_the_target(total: int, num_steps: int, steps: list[int]) -> None:
    start, target = torch.zeros(1, 2, 3), torch.rand(1, 2, 3)
    blend, found, nearer = Blend(start=start, target=target, done=1, total=total), [], []
    for _ in range(total):
        found.append(blend.steps(num_steps))
        nearer.append(blend.text is target)
        assert blend.text is (target if blend.nearer_to_target else start)
        last, blend = blend, blend.advance()
    assert found == steps and nearer == [2 * done >= total for done in range(1, total + 1)]
    assert last.finished and blend == last
