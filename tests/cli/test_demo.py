"""The demo: its last lines, and its clip against a stored one: other machines round differently, but may show nothing else."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import pytest
import torch
from torch import Tensor

from make_demo_clip import PATH, demo_frames
from strobe.cli.app import app
from strobe.cli.compare import ClipFlags
from strobe.cli.demo import side_by_side, what_next, why_fast
from strobe.core.errors import Terminated
from strobe.engine.load import load
from strobe.engine.session import Session
from strobe.models.shapes.grammar import parse
from strobe.models.shapes.oracle import detect
from strobe.models.shapes.picture import palette
from strobe.quality.clips import read_clip
from terminal import Strobe


@pytest.fixture(scope="module")
def stored() -> Tensor:
    with av.open(str(PATH)) as container:
        return torch.stack([torch.from_numpy(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)])


@pytest.fixture(scope="module")
def made() -> Tensor:
    return demo_frames()


@pytest.mark.rest
def test_the_clip_is_the_stored_one(made: Tensor, stored: Tensor) -> None:
    assert made.shape == stored.shape
    difference = (made.double() - stored.double()) / 255
    assert float(-10 * torch.log10(difference.square().mean().clamp(min=1e-12))) >= 50


def test_the_oracle_reads_the_same_and_what_was_asked_for_ten_seconds(made: Tensor, stored: Tensor) -> None:
    flags, defaults = ClipFlags(), load().defaults
    script = flags.script(defaults)
    assert len(stored) / defaults.fps >= 10 and len(script.switches) == 2
    starts = [0, *(switch.frame_block for switch in script.switches), script.num_blocks]
    prompts = [flags.prompt, *(switch.prompt for switch in script.switches)]
    for (first, last), prompt in zip(pairwise(starts), prompts, strict=True):
        block = defaults.frame_block
        begin = defaults.stride.frames(0, first * block) + (4 if first else 0)  # the first frames after a switch cross-fade
        end = defaults.stride.frames(0, last * block)
        labels, expected = (detect(clip[begin:end].permute(0, 3, 1, 2)[None].float() / 255).labels for clip in (made, stored))
        assert torch.equal(labels, expected)
        assert (labels == torch.tensor(parse(prompt).attributes)).all(-1).double().mean() >= 0.95


RUN = Path(__file__).parents[2] / "benchmarks" / "presets-h200"


def test_one_sentence_says_what_made_the_fastest_preset_fast(strobe: Strobe, tmp_path: Path) -> None:
    found = strobe("report", RUN, "-o", tmp_path, "--json", "--quiet").document
    (said,) = why_fast(found)
    parts = sorted((row["share"], row["part"]) for row in found["parts"] if row["candidate"] == "ultra")
    assert said.startswith("ultra is 2.64 times as fast as baseline; what it saves in a frame block is above all ")
    assert f"{parts[-1][1]} ({100 * parts[-1][0]:.0f} %) and {parts[-2][1]} ({100 * parts[-2][0]:.0f} %)" in said
    slower = json.loads(json.dumps(found))
    for row in slower["speedups"]:
        row["low"] = 0.9
    assert list(why_fast(slower)) == [], "nothing is said of a difference that is not proven"


def test_two_frames_side_by_side_and_what_turbo_changed(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"runs": [str(RUN)], "speedups": [], "parts": []}
    monkeypatch.setattr("strobe.cli.demo.measure", lambda *given, **options: (0, found))
    folder, picture = tmp_path / "frames", tmp_path / "frames" / "baseline-turbo.png"
    result = strobe("demo", "--out", folder, "--blocks", 1, "--device", "cpu")
    assert result.code == 0 and (
        f"{picture}: the last frame of both, baseline on the left; turbo takes 3 denoise steps instead of 4, "
        "and its attention sees 8 latent frames instead of 12."
    ) in " ".join(result.out.split())
    (shown,) = read_clip(picture)
    left, right = (read_clip(RUN / "clips" / f"{name}.mp4")[-1] for name in ("baseline", "turbo"))
    zoom, side = 384 // len(left), left.shape[1]
    small = shown[::zoom, ::zoom]
    assert shown.shape[0] == zoom * len(left) and not torch.equal(left, right)
    assert torch.equal(small[:, :side], left) and torch.equal(small[:, -side:], right)
    assert list(side_by_side(tmp_path, picture, load().defaults, "cpu")) == [], "without clips there is nothing to show"


def test_the_next_commands_are_three_that_are_read() -> None:
    commands = [line.strip() for line in what_next(RUN)][1:]
    assert len(commands) == 3
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "strobe"
        app.parse_args(words, exit_on_error=False, print_error=False)


def test_who_ends_the_comparison_is_told_that_the_clip_is_kept(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*given: Any, **options: Any) -> Any:
        raise Terminated

    monkeypatch.setattr("strobe.cli.demo.measure", ended)
    result = strobe("demo", "--out", tmp_path, "--blocks", 1, "--device", "cpu")
    assert result.code == 143 and f"the clip is kept: {tmp_path / 'clip.mp4'}" in result.err and (tmp_path / "clip.mp4").exists()


def test_the_shape_of_the_demo_keeps_inside_the_frame() -> None:
    """The edges of every frame show the floor, so that nothing looks broken; the cross-fades of switches apart."""
    flags, model = ClipFlags(), load()
    script = flags.script(model.defaults)
    switched = {switch.frame_block for switch in script.switches}
    floors = torch.cat([palette(torch.device("cpu"))[1] * 255 * tone for tone in (0.7, 0.85, 1, 1.15, 1.3)])
    with Session(flags.prompt, model=model, preset="turbo", seed=flags.seed, device="cpu") as session:
        for block in session.stream(script.num_blocks, switches=script.switches):
            if block.index not in switched:
                frames = block.frames.float()
                edges = torch.cat((frames[:, 0], frames[:, -1], frames[:, :, 0], frames[:, :, -1]))
                assert torch.cdist(edges, floors).amin(-1).max() < 48, block.index
