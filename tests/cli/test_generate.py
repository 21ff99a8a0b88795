"""`strobe generate`: the clip, what is said about it, and what an interruption leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import av
import pytest

from strobe.engine.session import Session
from strobe.engine.stream import FrameBlock
from terminal import Strobe

PROMPT = "a red circle moving left"


def num_frames(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def test_a_clip_with_two_switches(strobe: Strobe, tmp_path: Path) -> None:
    out = tmp_path / "clip.mp4"
    switches = ["--switch", "0.7s:a blue square moving up", "--switch", "block=3:a green star moving right"]
    result = strobe("generate", PROMPT, *switches, "--blocks", 4, "--preset", "ultra", "--device", "cpu", "--json", "-o", out)
    assert result.code == 0, result.err
    document = result.document
    assert document["frame_blocks"] == 4 and document["frames"] == num_frames(out) == 45
    assert document["prompts"] == [
        {"frame_block": 0, "text": PROMPT},
        {"frame_block": 2, "text": "a blue square moving up"},
        {"frame_block": 3, "text": "a green star moving right"},
    ]
    assert (document["preset"], document["device"], document["fps"]) == ("ultra", "cpu", 16)


def test_the_same_command_gives_the_same_clip(strobe: Strobe, tmp_path: Path) -> None:
    clips = [tmp_path / "first.mp4", tmp_path / "second.mp4"]
    for out in clips:
        assert strobe("generate", PROMPT, "--blocks", 1, "--seed", 7, "--device", "cpu", "-q", "-o", out).code == 0
    assert clips[0].read_bytes() == clips[1].read_bytes()


def test_an_interrupted_clip_is_closed_and_told(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Session.stream

    def interrupted(self: Session, *arguments: object, **options: object) -> Iterator[FrameBlock]:
        blocks = whole(self, *arguments, **options)
        yield next(blocks)
        yield next(blocks)
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "stream", interrupted)
    out = tmp_path / "clip.mp4"
    result = strobe("generate", PROMPT, "--blocks", 5, "--preset", "ultra", "--device", "cpu", "-o", out)
    assert result.code == 130
    assert num_frames(out) == 21 and "21 frames" in result.out
    assert [entry.name for entry in tmp_path.iterdir()] == ["clip.mp4"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a red cicle moving left"], "circle"),
        ([PROMPT, "--switch", "later:a blue square moving up"], "block=12"),
        ([PROMPT, "--switch", "block=9:a blue square moving up"], "would never take effect"),
        ([PROMPT, "--seconds", "0"], "seconds > 0"),
        ([PROMPT, "--seconds", "1"], "--blocks, not both"),
        ([PROMPT, "--model", "shape"], "shapes"),
    ],
)
def test_bad_input_leaves_no_file(strobe: Strobe, tmp_path: Path, arguments: list[str], words: str) -> None:
    blocks = [] if "--seconds" in arguments and "0" in arguments else ["--blocks", 2]
    result = strobe("generate", *arguments, *blocks, "--device", "cpu", "-o", tmp_path / "clip.mp4")
    assert result.code == 2 and words in result.err and result.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
