"""`strobe generate`: the clip, what is said about it, what it begins with, and streams made again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch

from strobe.engine.load import load, shapes_defaults
from strobe.engine.presets import preset
from strobe.engine.session import Session
from strobe.engine.stream import FrameBlock
from strobe.engine.video import VideoFile, read_image
from strobe.models.shapes.grammar import parse
from strobe.quality.clips import read_clip
from strobe.serve.protocol import write
from strobe.serve.streams import LiveStream, Origin, SpareSessions
from terminal import Strobe
from train_shapes.render import advance, render

PROMPT = "a red circle moving left"


def num_frames(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def test_a_clip_with_two_switches(strobe: Strobe, tmp_path: Path) -> None:
    out = tmp_path / "clip.mp4"
    switches = ["--switch", "0.7s:a blue square moving up", "--switch", "block=3:a green star moving right"]
    result = strobe("generate", PROMPT, *switches, "--blocks", 4, "--preset", "turbo", "--device", "cpu", "--json", "-o", out)
    assert result.code == 0, result.err
    document = result.document
    assert document["frame_blocks"] == 4 and document["frames"] == num_frames(out) == 45
    assert document["prompts"] == [
        {"frame_block": 0, "text": PROMPT},
        {"frame_block": 2, "text": "a blue square moving up"},
        {"frame_block": 3, "text": "a green star moving right"},
    ]
    assert (document["preset"], document["device"], document["fps"]) == ("turbo", "cpu", 16)


def test_a_clip_that_begins_with_a_picture(strobe: Strobe, tmp_path: Path) -> None:
    """Wider and larger than the frame: scaled to its height, left and right cut off."""
    picture = np.zeros((300, 900, 3), dtype=np.uint8)
    picture[:, 300:600] = (250, 20, 20)  # the middle third is what is kept
    with av.open(str(tmp_path / "start.png"), "w") as file:
        stream = file.add_stream("png")
        stream.width, stream.height, stream.pix_fmt = 900, 300, "rgb24"
        file.mux([*stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")), *stream.encode(None)])
    size = shapes_defaults().frame_size
    frame = read_image(tmp_path / "start.png", size)
    assert frame.shape == (1, *size, 3) and frame.dtype == torch.uint8
    expected = torch.tensor([250, 20, 20]).expand(*size, 3)
    inside = slice(2, -2)  # edges are between two colours
    assert size[0] == size[1] and (frame[0, :, inside].int() - expected[:, inside]).abs().max() <= 2
    out = tmp_path / "clip.mp4"
    result = strobe("generate", PROMPT, "--image", tmp_path / "start.png", "--seconds", 1, "--device", "cpu", "--json", "-o", out)
    assert result.code == 0, result.err
    assert result.document["frames"] == num_frames(out) == 25  # 1, then 12 at a time, for at least 16
    with av.open(str(out)) as container:
        first = next(container.decode(video=0)).to_ndarray(format="rgb24")
    assert first[8:-8, 8:-8].astype(int).mean((0, 1)) == pytest.approx([250, 20, 20], abs=40)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--preset", "ultra"], 3, "preset 'ultra' cannot run"),
        (["--switch", "4x:foo"], 2, "cannot read the prompt switch"),
        (["--switch", "4s:a (red:1.4) circle moving left"], 2, "weighs words or one prompt alone"),
        (["--image", "none.png"], 2, "cannot read the picture"),
        (["-o", "clip.avi"], 2, "unknown suffix"),
    ],
)
def test_what_needs_no_model_is_told_before_one_is_loaded(
    strobe: Strobe, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    monkeypatch.setattr("strobe.engine.load.load", lambda *_: pytest.fail("a model was loaded"))
    result = strobe("generate", PROMPT, *arguments, "--device", "cpu")
    assert result.code == code and words in result.err and result.err.count("\n") == 1


def test_an_interrupted_clip_is_closed_and_told(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Session.stream

    def interrupted(self: Session, *arguments: object, **options: object) -> Iterator[FrameBlock]:
        blocks = whole(self, *arguments, **options)
        yield next(blocks)
        yield next(blocks)
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "stream", interrupted)
    out = tmp_path / "clip.mp4"
    result = strobe("generate", PROMPT, "--blocks", 5, "--preset", "turbo", "--device", "cpu", "-o", out)
    assert result.code == 130
    assert num_frames(out) == 21 and "21 frames" in result.out
    assert [entry.name for entry in tmp_path.iterdir()] == ["clip.mp4"]
    out.write_bytes(b"an earlier one")
    result = strobe("generate", PROMPT, "--blocks", 5, "--preset", "turbo", "--device", "cpu", "-o", out, "--force")
    own = tmp_path / "clip.partial.mp4"
    assert result.code == 130 and f"{own}: 21 frames" in result.out
    assert num_frames(own) == 21 and out.read_bytes() == b"an earlier one"


def test_a_clip_that_is_there_is_replaced_only_by_force(strobe: Strobe, tmp_path: Path) -> None:
    out = tmp_path / "clip.mp4"
    out.write_bytes(b"an earlier one")
    small = ("--blocks", 2, "--preset", "turbo", "--device", "cpu", "-o", out)
    refused = strobe("generate", PROMPT, *small)
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert f"{out} exists; --force replaces it, -o names another" in refused.err
    assert out.read_bytes() == b"an earlier one"
    for given in (["a red circel moving left"], [PROMPT, "--switch", "block=1:a blue square moving"]):
        wrong = strobe("generate", *given, *small)
        assert (wrong.code, wrong.err.count("\n")) == (2, 1) and "for example" in wrong.err and "exists" not in wrong.err
    assert strobe("generate", PROMPT, *small, "--force").code == 0 and num_frames(out) == 21


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_full_disk_is_no_success(strobe: Strobe, tmp_path: Path, flags: list[str]) -> None:
    out = tmp_path / "clip.mp4"
    out.symlink_to("/dev/full")
    result = strobe("generate", PROMPT, "--blocks", 2, "--preset", "turbo", "--device", "cpu", "-o", out, *flags)
    assert (result.code, result.out) == (3, "") and result.err.count("\n") == 1
    assert "cannot write" in result.err and "the disk is full" in result.err


STAR = "a green star moving up fast on a forest background"


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


def made(strobe: Strobe, out: Path, *flags: object, prompt: str = STAR) -> tuple[dict[str, object], torch.Tensor]:
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
    wrong = strobe("generate", STAR, "--device", "cpu", "-o", tmp_path / "d.mp4", "--follow", clip, "--strength", 0.1)
    assert wrong.code == 2 and "strength 0.1 leaves no denoise step" in wrong.err and not (tmp_path / "d.mp4").exists()


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    """Of a stream of four frame blocks with a switch before the third."""
    stream = LiveStream(
        name="s",
        sessions=SpareSessions(load("shapes"), torch.device("cpu"), most=0),
        origin=Origin(prompt="a red circle moving left", seed=5, preset="turbo"),
        config=preset("turbo"),
    )
    stream.open()
    stream.make(), stream.make()
    stream.prompt("a blue square moving up", "recache", 4)
    stream.make(), stream.make()
    found: dict[str, Any] = json.loads(write(stream.recipe()))
    stream.close()
    return found


def saved(tmp_path: Path, recipe: dict[str, Any], **changes: Any) -> str:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(recipe | changes))
    return str(path)


def test_the_clip_is_that_of_the_same_prompts(strobe: Strobe, tmp_path: Path, recipe: dict[str, Any]) -> None:
    again, plain = tmp_path / "again.mp4", tmp_path / "plain.mp4"
    result = strobe("generate", "--replay", saved(tmp_path, recipe), "-o", str(again), "--device", "cpu")
    assert result.code == 0 and "may differ" not in result.err, result.err
    at = recipe["prompts"][1]["frame_block"]
    switch = f"block={at}:a blue square moving up"
    flags = ("--switch", switch, "--seed", "5", "--preset", "turbo", "--blocks", "4", "--device", "cpu")
    assert strobe("generate", "a red circle moving left", *flags, "-o", str(plain)).code == 0
    assert again.read_bytes() == plain.read_bytes()


def test_what_differs_is_named(strobe: Strobe, tmp_path: Path, recipe: dict[str, Any]) -> None:
    path = saved(tmp_path, recipe, device="NVIDIA H200", frame_blocks=1, versions=recipe["versions"] | {"torch": "2.0"})
    result = strobe("generate", "--replay", path, "-o", str(tmp_path / "a.mkv"), "--device", "cpu")
    assert result.code == 0
    assert "device: NVIDIA H200 then" in result.err and "torch: 2.0 then" in result.err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": "0" * 64}, "weights 000000000000"),
        ({"v": 99}, "version 99"),
        ({"prompts": []}, "no prompt for frame block 0"),
        ({"image": "AAAA", "image_sha256": "0"}, "sha256 differs"),
        ({"image": "%"}, "damaged"),
        ({"seed": "five"}, "no recipe"),
    ],
)
def test_what_is_no_recipe_of_this_model_is_one_line(
    strobe: Strobe, tmp_path: Path, recipe: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    clip = tmp_path / "a.mkv"
    result = strobe("generate", "--replay", saved(tmp_path, recipe, **changes), "-o", str(clip), "--device", "cpu")
    assert result.code == 2 and words in result.err and not clip.exists(), result.err


def test_a_recipe_stands_alone(strobe: Strobe, tmp_path: Path, recipe: dict[str, Any]) -> None:
    assert "leave them out" in strobe("generate", "a red circle moving left", "--replay", saved(tmp_path, recipe)).err
