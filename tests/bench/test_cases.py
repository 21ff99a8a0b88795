"""The cases that are compared: streams, attention calls, viewers of a server."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from live_server import serving
from strobe.attention.dense import impl as dense_impl
from strobe.attention.types import AttentionOutput
from strobe.bench import gate
from strobe.bench.case import ComparePlan
from strobe.bench.cases import attention
from strobe.bench.cases.attention import AttentionCase, measure_attention
from strobe.bench.cases.call import AttentionCall, AttentionPlan
from strobe.bench.cases.live import _Seen, run_load
from strobe.bench.cases.stream import GATE_BLOCKS, Script, StreamCase
from strobe.bench.cases.visits import Load, plan
from strobe.bench.runner import run_case
from strobe.core.errors import ConfigError, ImplUnavailableError, SessionError, StrobeError
from strobe.engine.config import EngineConfig
from strobe.engine.load import load
from strobe.engine.memory import claim_of, predict
from strobe.engine.model import Model
from strobe.engine.presets import balanced, preset
from strobe.engine.prompts import Switch
from strobe.engine.resolve import resolve
from strobe.engine.session import Session
from strobe.perf.analysis.runs.compare import compare_stage, figures_of, latencies
from strobe.perf.records.store import RunRecords, RunWriter, read_run
from strobe.perf.report.build import build_report
from strobe.perf.report.serve_page import load_table
from strobe.perf.table.model import Table
from strobe.quality.fidelity import COMPARED
from strobe.serve import protocol
from strobe.serve.client import Playback
from terminal import quiet

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
        found = [block.frames for block in case.blocks("turbo")]  # type: ignore[attr-defined]
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
    folder = run_case(case, root=tmp_path, plan=ComparePlan(palindromes=1), progress=quiet)
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
    eight = replace(balanced(), name="eight", sparsity=0.8, attention_format="int8", window=6, sink=3)  # runs no sparse kernel
    assert StreamCase([balanced(), eight], script=script, model=load("shapes"), device="cpu").gate("eight").passed


CALL = AttentionCall(q_tokens=70, kv_tokens=100, num_heads=4, num_kv_heads=2, head_dim=8)
VIDEO = AttentionCall(q_tokens=2 * 5 * 9, kv_tokens=2 * 5 * 9, num_heads=2, head_dim=32, grid=(2, 5, 9), sparsity=0.5)


def measured(folder: Path, case: AttentionCase, plan: AttentionPlan) -> RunRecords:
    with RunWriter(folder) as writer:
        measure_attention(case, writer, plan, quiet)
    return read_run(folder)


def test_a_call_is_gated_timed_and_traced(tmp_path: Path) -> None:
    said: list[tuple[int, int, str]] = []
    case = AttentionCase(CALL, ["sdpa", "reference"], device="cpu")
    with RunWriter(tmp_path / "run") as writer:
        plan = AttentionPlan(rounds=2, calls=5, traced_calls=3)
        measure_attention(case, writer, plan, lambda *step: said.append(step))
    run = read_run(tmp_path / "run")
    assert run.header.order == ("sdpa", "reference", "reference", "sdpa") and run.header.workload is None
    assert [(each.variant, each.passed) for each in run.gates] == [("sdpa", True), ("reference", True)]
    timed = [clip for clip in run.clips if clip.phase == "timed"]
    assert [clip.variant for clip in timed] == list(run.header.order) * 2
    assert {clip.num_spans for clip in timed} == {5}
    assert {span.name for span in run.spans} == {"attention_kernel"} and len(run.spans) == 8 * 5
    first = [span for span in run.spans if span.order == 0]
    assert [span.index for span in first] == list(range(5))
    assert all(one.start_ns + one.value_ns == two.start_ns for one, two in pairwise(first))
    assert compare_stage(run, "reference", "attention_kernel", per_call=True).interval is not None
    assert run.end is not None and run.end.status == "complete"
    assert [done for done, _, _ in said] == list(range(len(said))) and {total for _, total, _ in said} == {len(said)}
    for trace in run.traces:
        events = json.loads(gzip.decompress((run.folder / trace.path).read_bytes()))["traceEvents"]
        assert sum(event["name"] == "strobe::attention_kernel" for event in events) == 3


def test_the_settings_say_what_one_call_costs(tmp_path: Path) -> None:
    case = AttentionCase(CALL, ["sdpa"], device="cpu")
    run = measured(tmp_path / "run", case, AttentionPlan(rounds=1, calls=1, traced_calls=0))
    (variant,) = run.variants
    assert variant.sizes == {"batch": 1, "q_tokens": 70, "kv_tokens": 100, "heads": 4, "kv_heads": 2, "head_dim": 8}
    (cost,) = variant.costs
    assert (cost.flops, cost.dense_flops) == (4 * 4 * 8 * 70 * 100, None)
    assert cost.read_bytes + cost.write_bytes == 4 * (2 * 70 * 4 * 8 + 2 * 100 * 2 * 8)
    assert (variant.attention_impl, variant.dtype, variant.sparsity) == ("sdpa", "float32", 0.0)
    assert (run.header.order, run.traces) == (("sdpa",), ())


def test_sparse_attention_is_timed_as_kernel_and_as_section(tmp_path: Path) -> None:
    case = AttentionCase(VIDEO, ["sdpa", "sparse:cpu"], device="cpu")
    run = measured(tmp_path / "run", case, AttentionPlan(rounds=1, calls=2, traced_calls=1))
    assert {(span.variant, span.name) for span in run.spans} == {
        (name, what) for name in ("sdpa", "sparse:cpu") for what in ("attention_kernel", "attention")
    }
    first = [span for span in run.spans if span.order == 0]
    assert [span.name for span in first] == ["attention_kernel"] * 2 + ["attention"] * 2
    assert all(one.start_ns + one.value_ns == two.start_ns for one, two in pairwise(first)), "the section after the kernel"
    dense, sparse = (run.variant(name) for name in ("sdpa", "sparse:cpu"))
    assert sparse.costs[0].dense_flops == dense.costs[0].flops > sparse.costs[0].flops
    assert sparse.sparsity == pytest.approx(1 - sparse.costs[0].flops / dense.costs[0].flops)
    assert [trace.path for trace in run.traces] == ["traces/sdpa.json.gz", "traces/sparse-cpu.json.gz"]


def test_a_red_gate_has_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = AttentionCase(CALL, ["reference", "sdpa"], device="cpu")
    right = dense_impl.sdpa.F.scaled_dot_product_attention
    monkeypatch.setattr(dense_impl.sdpa.F, "scaled_dot_product_attention", lambda *args, **kw: right(*args, **kw) * 1.001)
    run = measured(tmp_path / "run", case, AttentionPlan(rounds=1, calls=2, traced_calls=0))
    assert [(each.variant, each.passed) for each in run.gates] == [("reference", True), ("sdpa", False)]
    assert "relative error to the reference in float64 <= 1e-05" in run.gates[1].rule
    assert {span.variant for span in run.spans} == {"reference"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_the_gate_holds_in_every_dtype(dtype: str) -> None:
    call = AttentionCall(q_tokens=33, kv_tokens=65, num_heads=2, head_dim=16, dtype=dtype)
    case = AttentionCase(call, ["sdpa", "reference"], device="cpu")
    for name, variant in case.variants.items():
        passed, rule, detail, _ = variant.check()
        assert passed, f"{name}: {rule}, {detail}"


def test_a_sparse_gate_sees_a_wrong_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    case = AttentionCase(VIDEO, ["sparse:cpu"], device="cpu")
    assert case.variants["sparse:cpu"].check()[0]
    right = attention.block_sparse_attention

    def wrong(*tensors: Any, impl: str) -> AttentionOutput:
        found = right(*tensors, impl=impl)
        if impl == "reference":
            return found
        return AttentionOutput(out=torch.cat((found.out[:, :-64], found.out[:, -64:] + 0.01), dim=1), lse=None)

    monkeypatch.setattr(attention, "block_sparse_attention", wrong)
    passed, rule, detail, _ = case.variants["sparse:cpu"].check()
    assert not passed and "3 tiles of the output" in rule and float(detail) > 1e-3


@pytest.mark.gpu
@pytest.mark.alone
def test_a_call_is_timed_in_a_full_queue_on_a_gpu(tmp_path: Path) -> None:
    call = AttentionCall(q_tokens=1024, kv_tokens=4096, num_heads=12, head_dim=128)
    run = measured(tmp_path / "run", AttentionCase(call, ["sdpa", "reference"], device="cuda"), AttentionPlan(rounds=2, calls=70))
    assert all(each.passed for each in run.gates) and {span.clock for span in run.spans} == {"cuda_event"}
    assert {variant.dtype for variant in run.variants} == {"bfloat16"}
    events = json.loads(gzip.decompress((run.folder / run.traces[0].path).read_bytes()))["traceEvents"]
    assert any(event.get("cat") == "kernel" for event in events)


def test_what_cannot_run_here_is_refused() -> None:
    with pytest.raises(ConfigError, match="name one implementation"):
        AttentionCase(CALL, [], device="cpu")
    with pytest.raises(ImplUnavailableError):
        AttentionCase(VIDEO, ["sparse:triton"], device="cpu")


EXAMPLES = ("a red circle moving left", "a blue square moving up")


@given(st.floats(0.5, 8), st.integers(0, 5), st.sampled_from(["poisson", "together"]), st.just(0.0) | st.floats(0.5, 20))
@settings(max_examples=60)
def test_a_plan_is_the_same_again_and_stays_inside_its_level(level: float, seed: int, arrivals: Any, every: float) -> None:
    level = float(round(level)) or 1.0 if arrivals == "together" else level
    load = Load(levels=(level,), seconds=40, arrivals=arrivals, stay_s=10, prompt_every_s=every, seed=seed)
    visits = plan(load, level, EXAMPLES)
    assert visits == plan(load, level, EXAMPLES)
    for visit in visits:
        assert 0 <= visit.at_s <= 40 and visit.at_s + visit.stay_s <= 40 + 1e-9
        moments = [at for at, _ in visit.prompts]
        assert moments == sorted(moments) and moments[0] == 0 and all(at < max(visit.stay_s, 1e-9) or at == 0 for at in moments)
        assert {text for _, text in visit.prompts} <= set(EXAMPLES)
    if arrivals == "together":
        assert [(visit.at_s, visit.stay_s) for visit in visits] == [(0, 40)] * int(level)


def test_a_poisson_load_is_as_many_viewers_at_once_as_asked_for() -> None:
    """Little's law, away from the ends of a level: 200 seeds, 4 viewers at once; the mean of as many has a spread of 0.14."""
    at_once = []
    for seed in range(200):
        visits = plan(Load(levels=(4.0,), seconds=100, stay_s=10, prompt_every_s=0, seed=seed), 4.0, EXAMPLES)
        at_once.append(sum(visit.at_s <= 70 < visit.at_s + visit.stay_s for visit in visits))
    assert 3.4 < fmean(at_once) < 4.6


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"levels": ()}, "--sessions none"), ({"levels": (0.0,)}, "above 0"), ({"seconds": 0.0}, "seconds 0"),
        ({"levels": (1.5,), "arrivals": "together"}, "whole numbers"),
        ({"prompt_every_s": -1.0}, "0 for no prompts"), ({"prompt_every_s": 1e-9}, "0 for no prompts"),
    ],
)  # fmt: skip
def test_a_load_that_cannot_be_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Load(**{"levels": (1.0,), "seconds": 1.0} | wrong)


def test_viewers_see_what_the_page_says(tmp_path: Path) -> None:
    load = Load(levels=(1.0, 2.0), seconds=5, arrivals="together", prompt_every_s=1.5, preset="turbo", codec="jpeg", seed=3)
    with serving() as here:
        folder = run_load(load, url=here.http, own=True, device="cpu", root=tmp_path, progress=quiet)
        with pytest.raises(SessionError, match="cosmic"):
            wrong = Load(levels=(1.0,), seconds=1, preset="cosmic")
            run_load(wrong, url=here.http, own=True, device="cpu", root=tmp_path, progress=quiet)
    run = read_run(folder)
    assert run.header.kind == "serve" and run.end is not None and run.end.status == "complete"
    assert run.server is not None and (run.server.model, run.server.fps) == ("shapes", 16)
    assert [(each.load, each.viewer) for each in sorted(run.viewers, key=lambda each: (each.load, each.viewer))] == [
        (1.0, 0), (2.0, 0), (2.0, 1),
    ]  # fmt: skip
    planned = [len(visit.prompts) - 1 for level in load.levels for visit in plan(load, level, EXAMPLES)]
    found = sorted(run.viewers, key=lambda each: (each.load, each.viewer))
    for each, prompts in zip(found, planned, strict=True):
        assert not each.refusal and each.painted == len(each.late_ns) > 0
        assert each.first_picture_ns is not None and 0 < each.first_picture_ns <= each.watched_ns
        assert 0 < len(each.prompt_to_pixel_ns) + each.unanswered <= prompts and all(ns > 0 for ns in each.prompt_to_pixel_ns)
        assert each.lost == 0 and {*each.prompt_parts_ns} == {"wait", "text", "block", "picture", "paint"}
        for whole, *parts in zip(each.prompt_to_pixel_ns, *each.prompt_parts_ns.values(), strict=True):
            assert 0 <= sum(parts) <= whole and min(parts) >= 0 and parts[2] > 0
    one, two = figures_of(run)
    assert (one.came, two.came, one.refused, one.failed) == (1, 2, 0, 0)
    frame_ns = 1e9 / 16
    for figures, viewers in ((one, found[:1]), (two, found[1:])):
        due = sum(each.painted + each.stall_ns / frame_ns for each in viewers)
        assert figures.on_time == pytest.approx(sum(ns <= frame_ns for each in viewers for ns in each.late_ns) / due)
        assert figures.stalls == sum(each.stalls for each in viewers)
    assert [each.load for each in run.served] == [1.0, 2.0] and [one.served, two.served] == list(run.served)
    for served, viewers in zip(run.served, (found[:1], found[1:]), strict=True):
        assert sum(each.painted for each in viewers) <= served.pictures <= 12 * (served.blocks + 2 * len(viewers))
        assert 0 < served.busy_ns <= served.wall_ns and served.encode_ns > 0 and served.stream_bytes is None
        assert (served.suspend_ns, served.wake_ns) == (None, None), "nothing was suspended"
    report = build_report([folder])
    assert [section.id for section in report.sections] == ["load", "prompts", "server", "viewers"]
    account = report.sections[1].blocks[0]
    assert isinstance(account, Table)
    in_all = [row.cells[2].ns for row in account.rows]  # type: ignore[union-attr]
    assert sum(in_all[:-1]) == in_all[-1] == sum(one.prompt_to_pixel_ns)
    assert len(load_table((one, two)).rows) == 2
    assert len(run.rows("viewers")) == 3


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="start `strobe serve`"):
        run_load(Load(levels=(1.0,), seconds=1), url="http://127.0.0.1:9/", own=False, device="", root=tmp_path, progress=quiet)
    assert not list(tmp_path.iterdir())


def picture(frame: int, epoch: int = 0, generation: int = 0) -> protocol.Picture:
    return protocol.Picture(codec="jpeg", key=True, generation=generation, frame=frame, epoch=epoch, made_us=0, data=b"")


def test_a_picture_that_never_came_is_lost_unless_a_prompt_took_its_place() -> None:
    seen = _Seen()
    for each in (picture(0), picture(1), picture(4), picture(9, epoch=1), picture(10, epoch=1), picture(0, 1, 1)):
        seen(each, 0.0)
    assert seen.lost == 2
    seen(protocol.Prompt(text="a"), 1.0)
    seen(protocol.Prompt(text="b"), 2.0)
    seen(protocol.Error(message="not understood"), 2.5)
    seen(protocol.Prompted(text="b", mode="recache", epoch=5, frame_block=9, typed_ms=0.0), 3.0)
    assert seen.asked_of == {5: 2.0} and not seen.asked


def test_a_stall_lasts_until_a_new_prompt_or_until_the_viewer_leaves() -> None:
    playback = Playback(fps=10, start_buffer_s=0.1)
    playback.arrive(picture(0), 0.0)
    assert playback.paint(0.0) is not None
    assert playback.paint(0.25) is None and playback.stalls == 1
    playback.end(3.1)
    assert playback.stall_s == pytest.approx(3.0)
    playback = Playback(fps=10, start_buffer_s=1.0)
    for frame in range(10):
        playback.arrive(picture(frame), 0.0)
    while playback.paint(5.0) is not None:
        pass
    assert playback.stalls == 1  # since 1.0, when the eleventh picture was due
    playback.arrive(picture(10, epoch=1), 6.0)
    assert playback.paint(6.0) is not None and playback.stall_s == pytest.approx(5.0)
    playback.end(30.0)
    assert playback.stall_s == pytest.approx(5.0)
