"""`strobe generate` from a clip, behind a clip and with a file of prompts; one line for each wrong input."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from strobe.engine.video import VideoFile
from strobe.models.shapes.grammar import parse
from strobe.models.shapes.render import advance, render
from strobe.quality.clips import read_clip
from terminal import Strobe

PROMPT = "a green star moving up fast on a forest background"


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """22 frames of a red circle, as a video of twice the model's size."""
    scene = torch.tensor([parse("a red circle moving left slowly on a navy background").attributes])[:, None].expand(-1, 22, -1)
    frames = render(scene, advance(torch.zeros(1, 2), scene), torch.zeros(1, 2), torch.tensor([24.0]))[0]
    large = frames.repeat_interleave(2, -1).repeat_interleave(2, -2).permute(0, 2, 3, 1)
    path = tmp_path / "clip.mkv"
    with VideoFile(path, fps=16) as video:
        video.write((large * 255).round().to(torch.uint8))
    return path


def made(strobe: Strobe, out: Path, *flags: object, prompt: str = PROMPT) -> tuple[dict[str, object], torch.Tensor]:
    result = strobe("generate", prompt, "--preset", "turbo", "--device", "cpu", "--json", "-o", out, *flags)
    assert result.code == 0, result.err
    return result.document, read_clip(out).float()


def test_a_clip_is_begun_with_and_followed(strobe: Strobe, clip: Path, tmp_path: Path) -> None:
    given = read_clip(clip)[:21, ::2, ::2].float()
    document, begun = made(strobe, tmp_path / "a.mkv", "--start", clip, "--blocks", 3)
    assert document["frame_blocks"] == 3 and (begun[:21] - given).abs().mean() < 4
    square = "a red square moving left slowly on a navy background"
    document, followed = made(strobe, tmp_path / "b.mkv", "--follow", clip, "--strength", 0.5, prompt=square)
    assert document["frame_blocks"] == 2 and len(followed) == 21  # as long as the clip; its last frame fills no group of four
    _, remade = made(strobe, tmp_path / "c.mkv", "--follow", clip, "--strength", 1, prompt=square)
    near, far = ((each[:21] - given).abs().mean().item() for each in (followed, remade))
    assert 1 < near < far / 2  # the square stands where the clip's circle stood


def test_prompts_come_from_a_file(strobe: Strobe, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("# a walk\n0s: a red circle moving left\nblock=1 soft: a blue square moving up\n", encoding="utf-8")
    result = strobe(
        "generate", "--prompts", file, "--preset", "turbo", "--device", "cpu", "--json", "-o", tmp_path / "a.mkv", "--blocks", 2
    )
    assert result.code == 0, result.err
    told = result.document["prompts"]
    assert told == [
        {"frame_block": 0, "text": "a red circle moving left"},
        {"frame_block": 1, "text": "a blue square moving up"},
    ]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--start", "a.mp4", "--follow", "b.mp4"], "a clip has one beginning: give --start or --follow, not both"),
        (["--strength", "0.5"], "--strength 0.5: it goes with --follow CLIP"),
        (["--follow", "no.mp4"], "cannot read the clip no.mp4: no such file; give a video or a folder of pictures"),
        (["--follow", "CLIP", "--strength", "2"], "--strength 2: give more than 0, up to 1"),
        (["--follow", "CLIP", "--strength", "0.1"], "strength 0.1 leaves no denoise step"),
        (["--prompts", "no.txt"], "cannot read the prompts no.txt: No such file or directory"),
        (["--prompts", "FILE"], "line 1: cannot read 'soon: a red circle'; write for example"),
    ],
)
def test_a_wrong_input_is_one_line_and_no_clip(strobe: Strobe, clip: Path, tmp_path: Path, flags: list[str], said: str) -> None:
    (tmp_path / "prompts.txt").write_text("soon: a red circle\n", encoding="utf-8")
    places = {"CLIP": str(clip), "FILE": str(tmp_path / "prompts.txt")}
    out = tmp_path / "out.mp4"
    result = strobe("generate", PROMPT, "--device", "cpu", "-o", out, *(places.get(each, each) for each in flags))
    assert result.code == 2 and said in result.err and len(result.err.strip().splitlines()) == 1, result.err
    assert not out.exists()
