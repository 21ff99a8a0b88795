"""Prompt switches of the bundled model as its oracle and its palette see them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from strobe.engine.prompts import Mode, Switch
from strobe.engine.session import Session
from strobe.models.shapes import clips, oracle
from strobe.models.shapes.grammar import parse
from strobe.models.shapes.render import palette

OLD, NEW = "a red circle moving left slowly on a navy background", "a green star moving up fast on a forest background"
AT_ONCE = [0, 1, 4, 5, 6]
"""Colours, shapes and background, which a single frame shows."""
FAR = 48
"""Levels of 255 in RGB from every colour of the world, outlines included, beyond which a pixel is off the palette."""


def off_palette(frames: Tensor) -> float:
    colours, floors = palette(torch.device("cpu"))
    lit = [colours * tone for tone in (0.9, 1, 1.1)] + [floors * tone for tone in (0.4, 0.55, 0.7, 0.85, 1, 1.15, 1.3)]
    colours = torch.cat(lit) * 255
    return (torch.cdist(frames.reshape(-1, 3).float(), colours).amin(1) > FAR).double().mean().item()


@pytest.mark.few(1)
@pytest.mark.parametrize(("mode", "shows", "later"), [("recache", 4, 0.03), ("soft", 4, 0.03), ("interpolate", 14, 0.03)])
def test_a_switch_shows_soon_and_leaves_the_colours_of_the_world(mode: Mode, shows: int, later: float) -> None:
    """Between two texts there is none that the model knows: with one the prompt showed after 25 frames, 8 % off the palette."""
    switch = Switch(frame_block=2, prompt=NEW, mode=mode)
    with Session(OLD, preset="quality", device="cpu") as session:
        frames = torch.cat([block.frames for block in session.stream(7, switches=[switch])])[9 + 12 :]
    found = oracle.detect(frames.permute(0, 3, 1, 2).float()[None] / 255)
    right = (found.labels == torch.tensor(parse(NEW).attributes))[0][:, AT_ONCE].all(-1)
    assert right.any() and int(right.int().argmax()) <= shows
    assert bool(right[24:].all())
    assert off_palette(frames[12:21]) < later and off_palette(frames[24:]) < 0.025


def test_a_drawn_clip_shows_its_second_scene_from_the_switch_on(monkeypatch: pytest.MonkeyPatch) -> None:
    scenes = iter((torch.zeros(64, 7, dtype=torch.long), torch.ones(64, 7, dtype=torch.long)))
    monkeypatch.setattr(clips, "draw_scenes", lambda count, device: next(scenes))
    drawn = lambda scenes, *_, fade, **__: (scenes[..., 0], fade)  # noqa: E731
    attributes, fade = clips.draw_clips(64, 4, torch.device("cpu"), drawn)
    begins = [(row.tolist().index(1), (weight > 0).tolist().index(True)) for row, weight in zip(attributes, fade, strict=True)
              if 0 < row.sum() < row.numel()]  # fmt: skip
    assert len(begins) > 10 and all(second == faded for second, faded in begins)
