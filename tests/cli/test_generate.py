"""`strobe generate`: the clip, what is said about it, and what an interruption leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from strobe.engine.load import shapes_defaults
from strobe.engine.session import Session
from strobe.engine.stream import FrameBlock
from strobe.engine.video import read_image
from terminal import Strobe

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


def test_a_file_that_is_no_picture(strobe: Strobe, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no picture")
    for name in ("notes.txt", "none.png"):
        result = strobe(
            "generate", PROMPT, "--image", tmp_path / name, "--blocks", 1, "--device", "cpu", "-o", tmp_path / "c.mp4"
        )
        assert result.code == 2 and "cannot read the picture" in result.err and result.err.count("\n") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--preset", "ultra"], 3, "preset 'ultra' cannot run"),
        (["--switch", "4x:foo"], 2, "cannot read the prompt switch"),
        (["--switch", "4s:a (red:1.4) circle moving left"], 2, "weighs some of its words"),
        (["--negative-prompt", "blurry"], 2, "Unknown option: --negative-prompt. The models here are distilled without guidance"),
        (["--guidance-scale=5"], 2, "Unknown option: --guidance-scale. The models here are distilled without guidance"),
        (["--image", "none.png"], 2, "cannot read the picture"),
        (["--preset", "ultr"], 2, "did you mean 'ultra'"),
        (["--blocks", "0"], 2, "give 1 or more"),
        (["-o", "clip.avi"], 2, "unknown suffix"),
    ],
)
def test_what_needs_no_model_is_told_before_one_is_loaded(
    strobe: Strobe, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    monkeypatch.setattr("strobe.engine.load.load", lambda *_: pytest.fail("a model was loaded"))
    result = strobe("generate", PROMPT, *arguments, "--device", "cpu")
    assert result.code == code and words in result.err and result.err.count("\n") == 1


def test_a_file_that_cannot_be_opened_is_no_success(strobe: Strobe) -> None:
    result = strobe("generate", PROMPT, "--blocks", 1, "--device", "cpu", "--json", "-o", "/proc/clip.mp4")
    assert result.code == 3 and result.out == "" and "cannot write /proc/clip.mp4" in result.err


def test_the_autoencoder_may_run_elsewhere(strobe: Strobe, tmp_path: Path) -> None:
    for place, code, words in (("cuda:99", 3, "CUDA device"), ("gpu", 2, "unknown device 'gpu'")):
        result = strobe(
            "generate", PROMPT, "--blocks", 1, "--device", "cpu", "--decode-device", place, "-o", tmp_path / "clip.mp4"
        )
        assert result.code == code and words in result.err and result.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


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
