from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from strobe.bench import gate
from strobe.bench.case import ComparePlan
from strobe.bench.cases.stream import GATE_BLOCKS, Script, StreamCase
from strobe.bench.runner import run_case
from strobe.core.errors import ConfigError, StrobeError
from strobe.engine.config import EngineConfig
from strobe.engine.load import load
from strobe.engine.memory import claim_of, predict
from strobe.engine.model import Model
from strobe.engine.presets import balanced, preset
from strobe.engine.prompts import Switch
from strobe.engine.resolve import resolve
from strobe.engine.session import Session
from strobe.perf.analysis.runs.compare import latencies
from strobe.perf.records.store import read_run
from strobe.quality.fidelity import COMPARED

SCRIPT = Script(prompt="red circle moving", switches=(Switch(frame_block=4, prompt="blue square"),), num_blocks=8, seed=3)
EXACT, FEW = ("quality", "balanced"), ("turbo", "ultra")


@pytest.fixture(scope="module")
def case(tiny: Model) -> StreamCase:
    configs = [replace(preset(name), simulate=True) for name in ("baseline", *EXACT, *FEW)]
    return StreamCase(configs, script=SCRIPT, model=tiny, device="cpu", review_samples=2)


@pytest.mark.parametrize("name", [*EXACT, *FEW])
def test_presets_pass_their_gates(case: StreamCase, name: str) -> None:
    gate = case.gate(name)
    assert gate.passed, gate.detail
    assert gate.exact is (name in EXACT)
    assert f"first {GATE_BLOCKS} frame blocks" in gate.rule


@pytest.mark.parametrize("damage", [lambda weight: weight * 1.01, lambda weight: weight * torch.nan])
def test_a_candidate_that_computes_something_else_is_stopped(case: StreamCase, damage: Callable[[Tensor], Tensor]) -> None:
    assert case.gate("balanced").passed
    weight = case._session("balanced")._stream._dit.dit.layers[0].ffn[0].weight
    before = weight.clone()
    weight.copy_(damage(weight))
    try:
        gate = case.gate("balanced")
    finally:
        weight.copy_(before)
    assert not gate.passed
    assert "largest" in gate.detail
    assert case.gate("balanced").passed


def test_a_clip_is_that_of_a_fresh_session_however_often_it_is_made(case: StreamCase, tiny: Model) -> None:
    with Session(SCRIPT.prompt, preset="turbo", model=tiny, seed=SCRIPT.seed, device="cpu") as session:
        expected = [block.frames for block in session.stream(SCRIPT.num_blocks, switches=SCRIPT.switches)]
    for _ in range(2):
        case.prepare("turbo")
        found = [block.frames for block in case.blocks("turbo")]
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_settings_are_what_ran(case: StreamCase, tiny: Model) -> None:
    found = {name: case.settings(name) for name in ("baseline", "ultra")}
    assert (found["ultra"].window, found["ultra"].sink, found["ultra"].timesteps, found["ultra"].steps) == (6, 1, (1000, 250), 2)
    assert (found["baseline"].dtype, found["baseline"].shift, found["baseline"].lora) == ("float32", 5.0, None)
    assert found["baseline"].tokens_per_block == 3 * 2 * 2
    assert not any(knob.on for knob in found["baseline"].knobs)
    compile_knob = next(knob for knob in found["ultra"].knobs if knob.name == "compile")
    assert (compile_knob.on, bool(compile_knob.reason), found["ultra"].compile_mode) == (False, True, None)
    assert found["ultra"].attention_impl
    assert (found["ultra"].linear_format, found["ultra"].kv_format) == ("fp8, simulated", "native")
    assert found["baseline"].linear_format == "native"
    predicted = predict(tiny, resolve(replace(preset("ultra"), simulate=True), tiny.defaults, torch.device("cpu")))
    assert found["ultra"].predicted_bytes == sum(predicted.values())
    assert (case.workload.frames, case.workload.frames_first_block, case.workload.frames_per_block) == (93, 9, 12)
    assert [(prompt.frame_block, prompt.mode) for prompt in case.workload.prompts] == [(0, "start"), (4, "recache")]


def test_all_sessions_must_fit_together(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is known before any is open: two copies of what fits once are refused."""
    monkeypatch.setattr("strobe.bench.cases.stream.resolve_device", lambda _: torch.device("cuda", 0))
    once = [replace(preset("baseline"), name=name) for name in ("a", "b")]
    config = resolve(once[0], tiny.defaults, torch.device("cuda", 0))
    held, passing = claim_of(predict(tiny, config), config)
    free = held + passing
    monkeypatch.setattr("strobe.bench.cases.stream.free_bytes", lambda device: free)
    assert StreamCase(once[:1], script=SCRIPT, model=tiny).candidates == ()
    with pytest.raises(StrobeError, match=r"2 sessions open at a time .*cuda:0 .*the first 1 would fit"):
        StreamCase(once, script=SCRIPT, model=tiny)
    free += held
    assert StreamCase(once, script=SCRIPT, model=tiny).candidates == ("b",)


def test_the_start_of_a_stream_takes_no_memory(case: StreamCase) -> None:
    for name in ("baseline", "turbo"):
        case.prepare(name)
        cache = case._sessions[name][1].cache
        assert all(tensor.untyped_storage().nbytes() <= 8 for tensor in (cache.keys, cache.values) if tensor.numel())


def test_a_whole_comparison(tmp_path: Path, tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    case = StreamCase(["baseline", "quality", "turbo"], script=SCRIPT, model=tiny, device="cpu", review_samples=2)
    clips, prepare, judged = case._clips, case.prepare, []

    def judge(config: EngineConfig) -> Tensor:
        assert not case._sessions, "clips for quality need the memory of the sessions"
        judged.append(config.name)
        return clips(config)

    def begin(name: str) -> None:
        assert not judged, "everything is measured before quality is judged"
        prepare(name)

    monkeypatch.setattr(case, "_clips", judge)
    monkeypatch.setattr(case, "prepare", begin)
    folder = run_case(case, root=tmp_path, plan=ComparePlan(palindromes=1), progress=lambda *step: None)
    case.close()
    assert judged == ["quality", "baseline", "turbo"]
    run = read_run(folder)
    assert all(gate.passed for gate in run.gates)
    assert run.header.model is not None
    assert run.header.model.weights_sha256 == "0" * 64
    calls = run.variant("turbo").calls_per_stage
    stages = {"e2e": 1, "frame_block": 8, "denoise_step": 24, "commit": 8, "vae_decode": 8, "text": 8, "draw": 8, "recache": 1}
    assert calls == stages
    found = latencies(run, "turbo")
    assert [(switch.frame_block, switch.mode) for switch in found.switches] == [(4, "recache")]
    psnr = {quality.variant: quality for quality in run.quality if quality.metric == "psnr"}
    assert (psnr["quality"].value, psnr["quality"].note) == (None, "every frame equals the reference")
    assert psnr["turbo"].value is not None
    assert psnr["baseline"].value is None or psnr["baseline"].value > 45
    assert {quality.reference for quality in run.quality} == {"quality, float32, cpu"}
    assert Counter(quality.n for quality in run.quality) == {2: 3 * len(COMPARED)}
    for video in run.videos:
        assert (run.folder / video.path).stat().st_size > 0
        assert (video.frames, video.fps) == (93, 16)
    assert len(run.videos) == 3


def test_impossible_comparisons_are_refused(tiny: Model) -> None:
    with pytest.raises(ConfigError, match="did you mean 'turbo'"):
        StreamCase(["baseline", "turbbo"], script=SCRIPT, model=tiny, device="cpu")
    with pytest.raises(ConfigError, match="square"):
        StreamCase(["baseline", "turbo"], script=Script(prompt="red squaer"), model=tiny, device="cpu")
    with pytest.raises(ConfigError, match="never take effect"):
        Script(prompt="red", switches=(Switch(frame_block=9, prompt="blue"),), num_blocks=9)


def test_a_configuration_of_ones_own_is_called_custom(tiny: Model) -> None:
    own = EngineConfig(name="mine", timesteps=(1000, 500), window=9, sink=3)
    case = StreamCase([balanced(), own], script=SCRIPT, model=tiny, device="cpu")
    assert (case.settings("mine").preset, case.settings("balanced").preset) == ("custom", "balanced")
    assert case.gate("mine").passed


def test_a_sparse_stream_has_no_number_without_a_gate_on_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(prompt="a red circle moving left", num_blocks=8)
    case = StreamCase(["quality", "sparse"], script=script, model=load("shapes"), device="cpu")
    assert gate.recorded(case._sparse_choice(preset("sparse")), case.device)[0]
    monkeypatch.setattr(gate, "recorded", lambda *_: gate.GateResult(False, "triton passed its gate on this card", "not run"))
    found = case.gate("sparse")
    assert not found.passed and (found.rule, found.detail) == ("triton passed its gate on this card", "not run")
