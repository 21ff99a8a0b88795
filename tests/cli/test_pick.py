"""`strobe generate --preset realtime` on the bundled model; time is a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import cast

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


@pytest.mark.parametrize("fps", [24, 10])
def test_a_clip_with_realtime_names_what_ran(strobe: Strobe, hold: Hold, tmp_path: Path, fps: float) -> None:
    hold(fps)
    out = tmp_path / "clip.mp4"
    quick = ("generate", PROMPT, "--model", "tiny", "--blocks", 1, "--device", "cpu", "--json")
    result = strobe(*quick, "--preset", "realtime", "-o", out)
    assert result.code == 0 and out.exists()
    (line,) = [line for line in result.err.splitlines() if line.startswith("realtime: ")]
    assert ("balanced has the best quality" if fps == 24 else "no preset holds 16 FPS") in line
    assert result.document["preset"] == "balanced" and f"realtime: {result.document['picked']}" == line
    named = strobe(*quick, "--preset", "balanced", "-o", tmp_path / "b.mp4")
    assert named.document["picked"] is None and (tmp_path / "b.mp4").read_bytes() == out.read_bytes()


def test_show_mentions_it(strobe: Strobe) -> None:
    assert "realtime: " in strobe("presets", "balanced", "--device", "cpu").out


def test_several_devices_are_not_measured() -> None:
    several = cast(DeviceGroup, object())
    with pytest.raises(ConfigError, match="measures one device and torchrun shares several; name another preset"):
        Engine(preset="realtime").choose(PROMPT, several, lambda done, total, what="": None)
