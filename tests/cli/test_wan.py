"""Flags of a Wan model as a new user gets them wrong, streams of the kind of Wan2.2, and the memory that is predicted."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from safetensors.torch import save_file

from strobe.bench.cases.stream import StreamCase
from strobe.cli.console import Output
from strobe.cli.model import ModelFlags, parse_lora, settings_notes
from strobe.cli.run_folder import tell_case
from strobe.engine import load as loading
from strobe.engine.load import load
from strobe.models.vae.wan.config import WAN22
from strobe.models.wan.config import SIZES, WanConfig
from strobe.models.wan.dit import CausalWan
from strobe.quality.clips import read_clip
from terminal import Strobe


def test_a_checkpoint_that_does_not_fit_is_told_in_one_line(strobe: Strobe, tmp_path: Path) -> None:
    small = CausalWan(WanConfig(dim=24, ffn_dim=24, freq_dim=8, text_dim=8, text_len=4, num_heads=1, num_layers=2)).state_dict()
    save_file(small, tmp_path / "model.safetensors")
    result = strobe("generate", "a fox", "--model", "wan-1.3b", "--weights", tmp_path, "-o", tmp_path / "fox.mp4")
    assert result.code == 3 and len(result.err.strip().splitlines()) == 1
    assert "looks like a transformer of 2 layers, 24 wide, not wan-1.3b (30 layers, 1536 wide); give a" in result.err


def test_what_replaces_the_recipe_is_told() -> None:
    """The recipe is printed in full, so what a preset or a flag says instead is too; a model without one has nothing to add."""
    model = load("shapes")
    recipe = replace(model, notes=("recipe longlive (window 12, sink 3): it holds generator",))
    asked = ModelFlags(window=9, timesteps="1000,500", shift=3.0).config("balanced")
    told = "balanced runs it with timesteps 1000, 500, shift 3.0, window 9 instead"
    assert settings_notes(recipe, asked) == (*recipe.notes, told)
    assert settings_notes(recipe, ModelFlags().config("turbo"))[1:] == (
        "turbo runs it with timesteps 1000, 500, 250, window 8 instead",
    )
    assert settings_notes(recipe, ModelFlags(window=12).config("balanced")) == recipe.notes
    assert settings_notes(model, asked) == ()


def test_window_and_schedule_by_flags() -> None:
    flags = ModelFlags(window=9, sink=0, positions="absolute", timesteps="1000,500", shift=8.0)
    config = flags.config("turbo")
    assert (config.window, config.sink, config.positions, config.timesteps, config.shift) == (9, 0, "absolute", (1000, 500), 8)
    assert ModelFlags().config("balanced").window is None and ModelFlags(sink=0).config("turbo").window == 8


def test_loras_and_their_strengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b.pt").write_bytes(b"")
    found = [parse_lora(text) for text in ("style.pt", "style.pt=0.8", "a=b.pt", "a=b.pt=-1")]
    assert found == [(Path("style.pt"), 1.0), (Path("style.pt"), 0.8), (Path("a=b.pt"), 1.0), (Path("a=b.pt"), -1.0)]


def test_how_settings_were_chosen_is_told_by_every_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    absent = SimpleNamespace(variant="turbo", reason="no GPU")
    tell_case(cast(StreamCase, SimpleNamespace(notes=("LoRA a.pt: scale 4",), absent=(absent,))), Output())
    assert capsys.readouterr().err.splitlines() == ["LoRA a.pt: scale 4", "turbo: not on this machine: no GPU"]


class TestMemory:
    def test_it_is_predicted_part_by_part(self, strobe: Strobe) -> None:
        flags = ("doctor", "--preset", "balanced", "--model", "wan-1.3b", "--device", "cpu", "--json")
        memory = strobe(*flags).document["memory"]
        parts = {part["name"]: part["num_bytes"] for part in memory["parts"]}
        assert parts["transformer weights"] == 1_418_996_800 * torch.float32.itemsize and memory["frame_size"] == [480, 832]
        assert memory["total_bytes"] == sum(parts.values()) and memory["free_bytes"] > 2**20
        small = strobe(*flags, "--size", "240x416", "--samples", 2).document["memory"]
        halves = {part["name"]: part["num_bytes"] for part in small["parts"]}
        assert 2 * halves["keys and values"] == parts["keys and values"]  # a quarter of the tokens, twice the streams
        assert halves["text keys and values"] == 2 * parts["text keys and values"]

    def test_the_page_for_people_has_the_same(self, strobe: Strobe) -> None:
        out = strobe("doctor", "--preset", "ultra", "--device", "cpu").out
        assert "memory of ultra, shapes, 128x128, 1 sample(s), float32, in MiB" in out and "text encoder is not counted" in out
        assert re.search(r"transformer weights +[1-9]\d*\.\d\d", out), "a unit in which a small model is not 0.00"
        assert "in MiB" not in strobe("doctor", "--device", "cpu").out


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
    asked = ("--model", "wan-5b", "--random-weights", "--size", "32x64", "--blocks", 2, "-o", clip, *flags)
    done = strobe("generate", "x", *asked, *(() if "--recipe" in flags else ("--switch", "block=1: y", "--mode", "shot")))
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
