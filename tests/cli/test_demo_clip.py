"""The demo's clip against a stored one: other machines and thread counts round differently, but may not show anything else."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from pathlib import Path

import av
import pytest
import torch
from torch import Tensor

from strobe.cli.compare import ClipFlags
from strobe.engine.load import load
from strobe.models.shapes.grammar import parse
from strobe.models.shapes.oracle import detect

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def stored() -> Tensor:
    with av.open(str(DATA / "demo_clip.mkv")) as container:
        return torch.stack([torch.from_numpy(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)])


@pytest.fixture(scope="module")
def made() -> Tensor:
    spec = importlib.util.spec_from_file_location("make_demo_clip", DATA / "make_demo_clip.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    frames: Tensor = module.demo_frames()
    return frames


@pytest.mark.rest
def test_the_clip_is_the_stored_one(made: Tensor, stored: Tensor) -> None:
    assert made.shape == stored.shape
    difference = (made.double() - stored.double()) / 255
    assert float(-10 * torch.log10(difference.square().mean().clamp(min=1e-12))) >= 50


def test_the_clip_lasts_ten_seconds_with_two_switches(stored: Tensor) -> None:
    flags, defaults = ClipFlags(), load().defaults
    assert len(stored) / defaults.fps >= 10
    assert len(flags.script(defaults).switches) == 2


def test_the_oracle_reads_the_same_and_what_was_asked(made: Tensor, stored: Tensor) -> None:
    flags, defaults = ClipFlags(), load().defaults
    script = flags.script(defaults)
    starts = [0, *(switch.frame_block for switch in script.switches), script.num_blocks]
    prompts = [flags.prompt, *(switch.prompt for switch in script.switches)]
    for (first, last), prompt in zip(pairwise(starts), prompts, strict=True):
        block = defaults.frame_block
        begin = defaults.stride.frames(0, first * block) + (4 if first else 0)  # the first frames after a switch cross-fade
        end = defaults.stride.frames(0, last * block)
        labels, expected = (detect(clip[begin:end].permute(0, 3, 1, 2)[None].float() / 255).labels for clip in (made, stored))
        assert torch.equal(labels, expected)
        assert (labels == torch.tensor(parse(prompt).attributes)).all(-1).double().mean() >= 0.95
