"""Flags of a Wan model, as a new user would get them wrong; and the memory that `strobe doctor` predicts."""

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
from strobe.engine.load import load
from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan
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
