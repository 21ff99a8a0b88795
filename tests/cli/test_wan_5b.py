"""The command line with Wan2.2's kind: 48 channels, its own autoencoder, UniPC, shots; small sizes stand in for the released."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strobe.engine import load as loading
from strobe.models.vae.wan.config import WAN22
from strobe.models.wan.config import SIZES
from strobe.quality.clips import read_clip
from terminal import Strobe

RED = "a red circle moving left on a black background"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = replace(SIZES["wan-5b"], dim=48, ffn_dim=64, freq_dim=16, text_dim=16, text_len=8, num_heads=2, num_layers=2)
    monkeypatch.setitem(SIZES, "wan-5b", sizes)
    monkeypatch.setattr(loading, "WAN22", replace(WAN22, width=2, decoder_width=2))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("flags", [(), ("--vae", "tiny"), ("--recipe", "causal-wan")], ids=["longlive-2", "tiny", "causal-wan"])
def test_random_weights_stream(strobe: Strobe, tmp_path: Path, flags: tuple[str, ...]) -> None:
    clip = tmp_path / "clip.mkv"
    asked = (
        "generate",
        "x",
        "--model",
        "wan-5b",
        "--random-weights",
        "--size",
        "32x64",
        "--blocks",
        2,
        "--preset",
        "balanced",
        "-o",
        clip,
        *flags,
    )
    done = strobe(*asked, *(() if "--recipe" in flags else ("--switch", "block=1: y", "--mode", "shot")))
    assert done.code == 0, done.err
    assert "random weights" in done.out + done.err
    assert read_clip(clip).shape == (1 + 15 * 4, 32, 64, 3)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--preset", "turbo"), "turbo has window 8; the shots of this model pin frames beside the sink, so give a window of 14"),
        (("--recipe", "krea", "--sink", 2), "so its sink is 1; balanced has 2"),
        (("--shift", 0), "shift 0.0 is not a positive number"),
    ],
)
def test_settings_are_refused_before_any_weight_is_drawn(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[object, ...], said: str
) -> None:
    monkeypatch.setattr("strobe.engine.load.random_transformer", lambda config: pytest.fail("ten gigabytes were drawn"))
    done = strobe("generate", "x", "--model", "wan-5b", "--random-weights", "-o", tmp_path / "x.mkv", *flags)
    assert done.code == 2 and said in done.err, done.err
    assert len(done.err.strip().splitlines()) == 1


@pytest.mark.parametrize("name", ["longlive-2", "wan-5b"])
def test_doctor_says_what_it_takes(strobe: Strobe, name: str) -> None:
    done = strobe("doctor", "--model", name, "--preset", "low_memory")
    assert "704x1280" in done.out and "autoencoder weights" in done.out
    assert ("model_bf16.pt (10.0 GB)" in done.out) == (name == "longlive-2")
