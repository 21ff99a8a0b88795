"""Schedules, presets, and configurations resolved for a model and a device."""

from __future__ import annotations

import math
import os
from dataclasses import astuple, fields, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
import torch

from strobe.core.device import Card
from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.core.shapes import VaeStride
from strobe.engine import resolve as resolve_module
from strobe.engine.config import EngineConfig, Knobs, ModelDefaults, NoiseSchedule, replace_knobs
from strobe.engine.presets import PRESETS, diff, preset
from strobe.engine.resolve import idle_knobs, lacking, resolve


@pytest.mark.parametrize("shift", [1.0, 2.0, 5.0, 8.0])
def test_equals_the_official_table(shift: float) -> None:
    """A table in float32, read at whole timesteps; rounding the exact value would often give its neighbour."""
    s = torch.linspace(1, 0, 1001)[:-1]
    table = (shift * s / (1 + (shift - 1) * s)) * 1000
    schedule = NoiseSchedule(timesteps=tuple(range(1000, 0, -1)), shift=shift)
    assert schedule.warped == tuple(table.tolist())
    exact = [float(Fraction(int(shift) * t, 1000 + (int(shift) - 1) * t)) for t in range(1000, 0, -1)]
    assert schedule.sigmas == pytest.approx(exact, rel=1e-15)


def test_timesteps_between_the_whole_ones() -> None:
    schedule = NoiseSchedule(timesteps=(1000, 333.25), shift=5.0)
    assert schedule.warped[1] == pytest.approx(1000 * schedule.sigmas[1], rel=2e-7)


@pytest.mark.parametrize("timesteps", [(), (999, 500), (1000, 500, 500), (1000, 500, 750), (0,), (1000, -5)])
def test_impossible_timesteps(timesteps: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="start at 1000"):
        NoiseSchedule(timesteps=timesteps, shift=5)
    with pytest.raises(ConfigError, match="shift"):
        NoiseSchedule(timesteps=(1000,), shift=0)


def test_a_last_step_is_told_0_and_takes_away_the_weakest_noise_of_the_table() -> None:
    schedule = NoiseSchedule(timesteps=(1000, 500, 0), shift=5.0)
    assert schedule.warped[-1] == 0
    assert math.isclose(schedule.sigmas[-1], 0.005 / 1.004)
    assert schedule.sigmas[:2] == NoiseSchedule(timesteps=(1000, 500), shift=5.0).sigmas


DEFAULTS = ModelDefaults(
    frame_size=(32, 32), fps=16, stride=VaeStride(), frame_block=3, timesteps=(1000.0, 750.0, 500.0, 250.0), shift=5.0
)


def knobs_on(config: EngineConfig) -> set[str]:
    return {each.name for each in fields(Knobs) if getattr(config.knobs, each.name)}


def test_each_lossless_preset_keeps_what_the_one_before_turns_on() -> None:
    sets = [knobs_on(preset(name)) for name in ("baseline", "quality", "balanced", "speed")]
    assert sets[0] == set() and sets[-1] == {each.name for each in fields(Knobs)}
    assert all(first < second for first, second in pairwise(sets))


def simulated(name: str) -> EngineConfig:
    return replace(preset(name), simulate=True)


@pytest.mark.parametrize("name", ["turbo_fp8", "ultra"])
def test_fp8_without_hardware_for_it_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with pytest.raises(
        ImplUnavailableError,
        match=f"^preset '{name}' cannot run: it runs linear layers in FP8, and cpu has .* preset 'turbo' .* --simulate",
    ):
        resolve(preset(name), DEFAULTS, torch.device("cpu"))
    nvidia = [(Card(vendor="nvidia", capability=capability), capability >= (8, 9)) for capability in ((8, 0), (8, 9), (9, 0))]
    for card, there in (*nvidia, (Card(vendor="amd", architecture="gfx942"), False)):
        monkeypatch.setattr(resolve_module, "card_of", lambda _, card=card: card)
        assert bool(lacking(preset(name), torch.device("cuda", 0))) == (not there)
        assert not lacking(simulated(name), torch.device("cuda", 0))


def test_graphs_need_a_pass_that_stays_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.engine.resolve.broken", lambda module: "")
    monkeypatch.setattr("strobe.engine.resolve.shutil.which", lambda name: name)
    gpu = torch.device("cuda", 0)
    assert resolve(EngineConfig(), DEFAULTS, gpu).knobs.cuda_graphs
    config = EngineConfig(knobs=replace_knobs(Knobs(), rope_table=False))
    assert not resolve(config, DEFAULTS, gpu).knobs.cuda_graphs
    assert "knob rope_table is off" in idle_knobs(config, DEFAULTS, gpu)["cuda_graphs"]


def test_a_knob_that_does_nothing_here_is_off_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.engine.resolve.OVERLAP_CORES", 4)
    balanced, cpu = preset("balanced"), torch.device("cpu")
    knobs, idle = resolve(balanced, DEFAULTS, cpu).knobs, idle_knobs(balanced, DEFAULTS, cpu)
    assert not knobs.compile and "CUDA" in idle["compile"]
    assert knobs.ring_cache and "ring_cache" not in idle
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert not resolve(balanced, DEFAULTS, cpu).knobs.overlap_decode
    for cores in (2, 4):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        on, idle = resolve(balanced, DEFAULTS, cpu).knobs.overlap_decode, idle_knobs(balanced, DEFAULTS, cpu)
        assert on == ("overlap_decode" not in idle) == (cores == 4) and (on or "2 CPU core(s)" in idle["overlap_decode"])
    baseline = preset("baseline")
    assert not any(astuple(resolve(baseline, DEFAULTS, cpu).knobs)) and not idle_knobs(baseline, DEFAULTS, cpu)


def test_late_frames_need_something_to_run_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.engine.resolve.OVERLAP_CORES", 4)
    late = EngineConfig(knobs=Knobs(late_frames=True))
    assert resolve(late, DEFAULTS, torch.device("cuda", 0)).knobs.late_frames
    for config, cores, device in (
        (replace(late, knobs=Knobs(late_frames=True, overlap_decode=False)), 64, torch.device("cuda", 0)),
        (late, 1, torch.device("cpu")),
    ):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert not resolve(config, DEFAULTS, device).knobs.late_frames
        assert "overlap_decode, which is off here" in idle_knobs(config, DEFAULTS, device)["late_frames"]


@pytest.mark.parametrize(
    ("tools", "reason"),
    [({"triton", "clang"}, ""), ({"gcc"}, "needs Triton: triton is not installed"), ({"triton"}, "gcc nor clang")],
)
def test_a_gpu_takes_bfloat16_and_compiles_with_compilers(monkeypatch: pytest.MonkeyPatch, tools: set[str], reason: str) -> None:
    monkeypatch.setattr("strobe.engine.resolve.broken", lambda _: "" if "triton" in tools else "triton is not installed")
    monkeypatch.setattr("strobe.engine.resolve.shutil.which", lambda tool: tool if tool in tools else None)
    config = resolve(preset("balanced"), DEFAULTS, torch.device("cuda", 0))
    told = idle_knobs(config.asked, DEFAULTS, torch.device("cuda", 0)).get("compile", "")
    assert config.knobs.compile == (not told) == (not reason) and reason in told
    assert config.dtype == torch.bfloat16
    assert resolve(replace(preset("balanced"), dtype="float32"), DEFAULTS, torch.device("cuda", 0)).dtype == torch.float32


def test_timesteps_may_be_a_list() -> None:
    config = EngineConfig(timesteps=[1000, 250])  # type: ignore[arg-type]
    assert config == EngineConfig(timesteps=(1000, 250)) and hash(config)


def test_diff_has_a_row_for_every_setting() -> None:
    rows = diff([make() for make in PRESETS.values()])
    assert set(rows) == {each.name for kind in (EngineConfig, Knobs) for each in fields(kind)} - {"name", "knobs"}
    steps = dict(zip(PRESETS, rows["timesteps"], strict=True))
    assert {steps[name] for name in ("baseline", "quality", "balanced", "low_memory", "sparse", "speed")} == {"model"}
    assert steps["turbo"] == steps["turbo_fp8"] == "1000, 500, 250" and steps["ultra"] == "1000, 250"
    by_preset = {name: dict(zip(PRESETS, values, strict=True)) for name, values in rows.items()}
    assert {name for name, value in by_preset["sparsity"].items() if value != "0.0"} == {"sparse"}
    assert {name for name, value in by_preset["ring_cache"].items() if value == "off"} == {"baseline"}
    assert len(set(rows["positions"])) == 1
    assert {name for name, value in by_preset["late_frames"].items() if value == "on"} == {"speed", "turbo", "turbo_fp8", "ultra"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_format": "int4"}, "unknown kv_format 'int4'"),
        ({"linear_format": "fp6"}, "unknown linear_format 'fp6'"),
        ({"kv_format": "int8", "sparsity": 0.5}, "does not go with sparsity 0.5"),
        ({"attention_format": "fp8"}, "unknown attention_format 'fp8'"),
        ({"attention_format": "int8", "kv_format": "int8"}, "'int8' does not go with kv_format 'int8'"),
        ({"attention_format": "int8", "sparsity": 0.5}, "'int8' does not go with sparsity 0.5: use attention_format 'native'"),
        ({"attention_format": "int8", "knobs": replace_knobs(Knobs(), ring_cache=False)}, "does not go with knob ring_cache off"),
        ({"kv_format": "fp8", "knobs": replace_knobs(Knobs(), ring_cache=False)}, "does not go with knob ring_cache off"),
        ({"positions": "rebase"}, "did you mean 'rebased'"),
        ({"dtype": "float16"}, "allowed: auto, float32, bfloat16"),
        ({"sparsity": 1.0}, "sparsity 1.0 is not valid: give 0"),
        ({"sparsity": 0.5, "knobs": replace_knobs(Knobs(), ring_cache=False)}, "needs knob ring_cache"),
        ({"window": 5, "sink": 3}, "largest sink with window 5: 2"),
    ],
)
def test_wrong_settings_name_what_is_allowed(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve(EngineConfig(**changes), DEFAULTS, torch.device("cpu"))


def test_replace_knobs_changes_only_what_is_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fused_qkv'"):
        replace_knobs(Knobs(), fused_kv=True)
    assert knobs_on(EngineConfig(knobs=replace_knobs(Knobs(), compile=False))) == knobs_on(EngineConfig()) - {"compile"}
