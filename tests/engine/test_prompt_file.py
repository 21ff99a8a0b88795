"""Files of prompts over time, against a plain reading of each line."""

from __future__ import annotations

import pytest

from strobe.core.errors import ConfigError
from strobe.core.shapes import VaeStride
from strobe.engine.config import ModelDefaults
from strobe.engine.prompts import Switch, read_prompts, switches_of

DEFAULTS = ModelDefaults(
    frame_size=(32, 32), fps=16, stride=VaeStride(time=4, space=8), frame_block=3, timesteps=(1000.0,), shift=5.0
)
FILE = """
# what happens

0s: a red circle: large
2s : a blue square
block=9 soft: a green star
 12.5s interpolate 6:   a white cross
block = 40 interpolate: a red star
"""


def test_lines_become_switches_at_the_next_frame_block() -> None:
    prompts = read_prompts(FILE, "f")
    assert [each.line for each in prompts] == [4, 5, 6, 7, 8] and prompts[0].first and not any(each.first for each in prompts[1:])
    assert prompts[0].prompt == "a red circle: large"
    # frame block n begins with frame 9 + 12 (n - 1); 2 s are 32 frames, 12.5 s 200: the first that begins there or later
    starts = [0, *range(9, 999, 12)]
    after = [next(number for number, start in enumerate(starts) if start >= frames) for frames in (32, 200)]
    assert switches_of(prompts, "f", DEFAULTS) == (
        Switch(frame_block=after[0], prompt="a blue square"),
        Switch(frame_block=9, prompt="a green star", mode="soft"),
        Switch(frame_block=after[1], prompt="a white cross", mode="interpolate", over=6),
        Switch(frame_block=40, prompt="a red star", mode="interpolate"),
    )
    assert {each.mode for each in switches_of(read_prompts(FILE, "f", mode="soft"), "f", DEFAULTS)} == {"soft", "interpolate"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f holds no prompt; write a line for each"),
        ("# only this\n\n", "f holds no prompt"),
        ("0s: a\nlater: b", "f, line 2: cannot read 'later: b'; write for example '4.5s: a blue square moving up'"),
        ("0s:", "f, line 1: cannot read '0s:'"),
        ("-1s: a", "f, line 1: cannot read"),
        ("0s: a\n2s harsh: b", "f, line 2: unknown switch mode 'harsh'"),
        ("2s soft 4: b", "f, line 1: soft takes no number of frame blocks; leave the 4 out"),
        ("2s interpolate 0: b", "f, line 1: a prompt cannot change over 0 frame blocks"),
    ],
)
def test_a_wrong_line_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_prompts(text, "f")
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_two_prompts_of_one_frame_block_are_refused_with_the_file() -> None:
    with pytest.raises(ConfigError, match="f: two prompt switches take effect at frame block 3"):
        switches_of(read_prompts("block=3: a\n2.4s: c\nblock=3 soft: b", "f"), "f", DEFAULTS)
