from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from strobe.bench.operations import SWITCHES, profile_kernels
from strobe.engine.model import Model
from strobe.engine.presets import preset
from strobe.perf.analysis.runs.breakdown import REGIONS, KernelProfile

CPU = torch.device("cpu")
PROMPTS = ("red circle moving", "blue square")


def profiled(tiny: Model, name: str, iterations: int, said: list[tuple[int, int, str]] | None = None) -> KernelProfile:
    heard = [] if said is None else said
    config = replace(preset(name), simulate=True)
    return profile_kernels(tiny, config, PROMPTS, device=CPU, iterations=iterations, progress=lambda *step: heard.append(step))


def test_a_model_in_shots_has_no_recache_and_no_fresh_noise(tiny: Model) -> None:
    defaults = replace(tiny.defaults, past="shots", sampler="unipc", positions="absolute", window=12, sink=3)
    found = profiled(replace(tiny, defaults=defaults), "balanced", 4)
    names = {each.name for each in (*found.step.operations, *found.decode.operations, *found.reference)}
    assert "kv_open" in names and not names & {"recache", "renoise"}


@pytest.mark.parametrize("name", ["ultra", "baseline"])
def test_the_budget_adds_up_to_the_measured_step(tiny: Model, name: str) -> None:
    said: list[tuple[int, int, str]] = []
    found = profiled(tiny, name, 8, said)
    step = found.step
    assert len(step.times_ns) == len(found.fine_ns) == 8 and min(step.times_ns) > 0
    assert sum((ns for _, ns in step.by_kind()), Fraction(0)) + step.difference_ns == Fraction(sum(step.times_ns), 8)
    assert sum(in_situ for *_, in_situ in found.by_region()) == step.mean_ns
    for at, fine in enumerate(found.fine_ns):
        assert 0 < sum(found.regions_ns[region][at] for region in REGIONS) < fine
    for each in (*step.operations, *found.decode.operations, *found.reference):
        assert len(each.times_ns) == 8 and min(each.times_ns) > 0, each.name
    blocks = 8 // (2 if name == "ultra" else 4)
    assert {stage: len(times) for stage, times in found.stages_ns.items()} == {
        "frame_block": blocks, "commit": blocks, "vae_decode": blocks, "recache": SWITCHES
    }  # fmt: skip
    assert found.decode.times_ns == found.stages_ns["vae_decode"]
    assert [done for done, _, _ in said] == list(range(len(said))) and {total for _, total, _ in said} == {len(said)}


def test_a_prompt_switch_is_timed_by_itself_and_as_it_runs(tiny: Model) -> None:
    found = profiled(tiny, "ultra", 30)
    recache = next(each for each in found.reference if each.name == "recache")
    assert len(recache.times_ns) == 20  # a long call: no more than that
    assert len(found.stages_ns["recache"]) == SWITCHES
    assert {each.name for each in found.reference} >= {"kv_local_window_read", "kv_sink_read", "kv_window_concat", "kv_open"}


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("name", ["ultra", "baseline"])
def test_the_budget_adds_up_on_a_gpu(tiny: Model, name: str) -> None:
    device = torch.device("cuda", 0)
    found = profile_kernels(tiny, preset(name), PROMPTS, device=device, iterations=8, cold=True, progress=lambda *step: None)
    assert sum((ns for _, ns in found.step.by_kind()), Fraction(0)) + found.step.difference_ns == found.step.mean_ns
    assert sum(in_situ for *_, in_situ in found.by_region()) == found.step.mean_ns
    for at, fine in enumerate(found.fine_ns):
        inside = sum(found.regions_ns[region][at] for region in REGIONS)
        assert inside == 0 if preset(name).knobs.cuda_graphs else 0 < inside < fine  # a graph is replayed without regions
    for each in (*found.step.operations, *found.decode.operations, *found.reference):
        assert min(each.times_ns) > 0 or each.name == "conditions", each.name  # tables are looked up without the device
