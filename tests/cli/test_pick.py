"""`strobe presets pick` and `--preset realtime` on the bundled model; time is a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from strobe.cli.generate import Engine
from strobe.core.errors import ConfigError
from strobe.engine import pick as module
from strobe.engine.parallel import DeviceGroup
from terminal import Strobe

PROMPT = "a red circle moving left"
Hold = Callable[[float], None]


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Hold:
    """Let every frame block of two short presets come at a number of pixel frames per second."""
    monkeypatch.setattr(module, "LADDER", ("balanced", "turbo", "turbo_fp8"))
    monkeypatch.setattr(module, "BLOCKS", 2)
    whole = module.pick

    def at(fps: float) -> None:
        clock = count(step=round(12e9 / fps)).__next__
        monkeypatch.setattr(module, "pick", lambda *arguments, **options: whole(*arguments, clock=clock, **options))

    return at


def test_the_choice_and_what_was_measured(strobe: Strobe, hold: Hold) -> None:
    hold(24)
    result = strobe("presets", "pick", "--model", "tiny", "--device", "cpu", "--json")
    assert result.code == 0, result.err
    document = result.document
    assert (document["preset"], document["holds"], document["fps"], document["needed_fps"]) == ("balanced", True, 16, 20.8)
    assert document["model"] == "tiny" and "balanced has the best quality" in document["why"]
    taken, other, last = document["presets"]
    assert taken["blocks_ns"] == [500_000_000] * 2 and taken["slowest_fps"] == taken["median_fps"] == 24 and taken["spread"] == 1
    assert taken["reason"] == "" and other["blocks_ns"] is None and "not measured" in other["reason"] and "not" in last["reason"]


def test_if_none_holds_the_exit_code_and_the_table_say_so(strobe: Strobe, hold: Hold) -> None:
    hold(10)
    result = strobe("presets", "pick", "--model", "tiny", "--device", "cpu", "--fps", 12)
    assert result.code == 1, result.err
    assert "no preset holds 12 FPS" in result.out and "balanced, the fastest" in result.out
    for words in ("turbo: its slowest frame block came at 10.0 FPS, below 15.6", "turbo_fp8: ", "no FP8 matrix units"):
        assert words in result.out
    assert "balanced: its slowest" not in result.out


def test_ctrl_c_shows_what_was_measured(strobe: Strobe, hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    hold(10)
    opened = module.Session

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if options["preset"].name == "turbo":
            raise KeyboardInterrupt
        return opened(*arguments, **options)

    monkeypatch.setattr(module, "Session", interrupted)
    result = strobe("presets", "pick", "--model", "tiny", "--device", "cpu")
    assert result.code == 130
    slow = "presets "  # a line of progress, which a machine shows that takes long
    assert [line for line in result.err.splitlines() if not line.startswith(slow)] == [
        "balanced: 10.0 FPS, the slowest of 2 frame blocks 10.0",
        "error: interrupted",
    ]


@pytest.mark.parametrize("fps", [24, 10])
def test_a_clip_with_realtime_names_what_ran(strobe: Strobe, hold: Hold, tmp_path: Path, fps: float) -> None:
    hold(fps)
    out = tmp_path / "clip.mp4"
    result = strobe(
        "generate", PROMPT, "--model", "tiny", "--preset", "realtime", "--blocks", 1, "--device", "cpu", "--json", "-o", out
    )
    assert result.code == 0 and out.exists()
    (line,) = [line for line in result.err.splitlines() if line.startswith("realtime: ")]
    assert ("balanced has the best quality" if fps == 24 else "no preset holds 16 FPS") in line
    assert result.document["preset"] == "balanced" and f"realtime: {result.document['picked']}" == line
    named = strobe(
        "generate",
        PROMPT,
        "--model",
        "tiny",
        "--preset",
        "balanced",
        "--blocks",
        1,
        "--device",
        "cpu",
        "--json",
        "-o",
        tmp_path / "b.mp4",
    )
    assert named.document["picked"] is None and (tmp_path / "b.mp4").read_bytes() == out.read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "baseline", "realtime"],
        ["presets", "show", "realtime"],
        ["doctor", "--preset", "realtime"],
        ["compare", "balanced", "--vary", "preset=balanced,realtime"],
        ["compare", "realtime", "--vary", "window=6,8"],
        ["profile", "stream", "realtime"],
        ["bench", "shapes", "realtime"],
    ],
)
def test_other_verbs_say_how_to_find_it(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = strobe(*arguments, "--device", "cpu")
    assert result.code == 2 and "run `strobe presets pick` and name the preset that it takes" in result.err
    assert result.err.count("\n") == 1 and result.out == "" and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["presets", "pick", "--fps", "0"], "--fps 0: give more than 0"),
        (["presets", "pick", "--fps", "nan"], "--fps nan: give more than 0"),
        (["presets", "pick", "--prompt", "a red cirle"], "did you mean 'circle'"),
        (["presets", "pick", "--model", "shape"], "did you mean 'shapes'"),
        (["presets", "pick", "--decode-device", "gpu"], "unknown device 'gpu'"),
        (["generate", PROMPT, "--preset", "realtme"], "did you mean 'realtime'"),
        (["generate", "a red cirle", "--preset", "realtime"], "did you mean 'circle'"),
    ],
)
def test_wrong_inputs(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str) -> None:
    monkeypatch.chdir(tmp_path)
    result = strobe(*arguments, "--device", "cpu")
    assert result.code == 2 and words in result.err and result.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_show_mentions_it(strobe: Strobe) -> None:
    assert "realtime: " in strobe("presets", "show", "balanced", "--device", "cpu").out


def test_several_devices_are_not_measured() -> None:
    several = cast(DeviceGroup, object())
    with pytest.raises(ConfigError, match="measures one device and torchrun shares several; name another preset"):
        Engine(preset="realtime").choose(PROMPT, several, lambda done, total, what="": None)
