"""Prompt switches of the bundled model as its oracle sees them."""

from __future__ import annotations

import pytest
import torch

from strobe.engine.prompts import Mode, Switch
from strobe.engine.session import Session
from strobe.models.shapes import oracle
from strobe.models.shapes.grammar import CHOICES, parse

OLD, NEW = "a red circle moving left slowly on a navy background", "a green star moving up fast on a forest background"
AT_ONCE = [0, 1, 4]
"""Colour, shape and background, which a single frame shows."""


@pytest.mark.parametrize(("mode", "shows"), [("recache", 4), ("soft", 4), ("interpolate", 14)])
def test_a_switch_shows_soon_and_in_the_colours_of_the_two_prompts(mode: Mode, shows: int) -> None:
    """Between two texts there is none that the model knows: what it shows meanwhile has no colour of its own."""
    switch = Switch(frame_block=2, prompt=NEW, mode=mode)
    with Session(OLD, preset="quality", device="cpu") as session:
        frames = torch.cat([block.frames for block in session.stream(7, switches=[switch])])[9 + 12 :]
    found = oracle.detect(frames.permute(0, 3, 1, 2).float()[None] / 255)
    right = (found.labels == torch.tensor(parse(NEW).attributes))[0][:, AT_ONCE].all(-1)
    assert right.any() and int(right.int().argmax()) <= shows
    seen = found.seen[0] > 0
    assert bool(right[24:][seen[24:]].all()) and seen[24:].double().mean() > 0.5
    colours = {CHOICES["colour"][number] for number in found.colour.flatten().tolist() if number >= 0}
    assert colours <= {"red", "green"}
