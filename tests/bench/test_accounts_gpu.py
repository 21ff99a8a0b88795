"""The accounts of `test_accounts` on a GPU: whole clips are traced, passes run as CUDA graphs, and kernels keep their labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from strobe.bench.case import ComparePlan
from strobe.bench.cases.stream import Script, StreamCase
from strobe.bench.runner import run_case
from strobe.core import spans
from strobe.core.errors import ImplUnavailableError
from strobe.engine.model import Model
from strobe.engine.presets import PRESETS, preset
from strobe.engine.prompts import Switch
from strobe.models.wan.dit import CausalWan
from strobe.perf.analysis.ledger.account import CLIP_KINDS, Ledger
from strobe.perf.analysis.parts import Part
from strobe.perf.records.store import RunRecords, read_run
from strobe.perf.report.findings import Finding, find
from strobe.perf.report.study import Profile, load_study

pytestmark = [pytest.mark.gpu, pytest.mark.alone]
NAMES = [name for name in PRESETS if name != "baseline"]
SCRIPT = Script(prompt="red circle", switches=(Switch(frame_block=6, prompt="blue square"),), num_blocks=8)


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """One run of every preset that this machine has the libraries for; `missing` says why it lacks the others."""

    run: RunRecords
    findings: Mapping[str, Finding]
    missing: Mapping[str, str]


def measure(tiny: Model, device: str, root: Path) -> Accounts:
    """Measure all presets in one palindrome; FP8 is simulated where the device has none."""
    torch.manual_seed(8)
    dit = CausalWan(replace(tiny.dit.config, dim=64))  # frames that fill tiles, and heads that the kernels for tiles take
    model = replace(tiny, dit=dit, defaults=replace(tiny.defaults, frame_size=(128, 128)))
    configs, missing = [replace(preset("baseline"), simulate=True)], {}
    for name in NAMES:
        config = replace(preset(name), simulate=True)
        try:
            StreamCase([config], script=SCRIPT, model=model, device=device).prepare(name)
        except ImplUnavailableError as error:
            missing[name] = str(error)
            continue
        configs.append(config)
    case = StreamCase(configs, script=SCRIPT, model=model, device=device)
    plan = ComparePlan(palindromes=1, traced_blocks=3, review=False)
    folder = run_case(case, root=root, plan=plan, progress=lambda done, total, what: None)
    findings = {each.candidate.name: each for each in find(load_study([folder]))}
    return Accounts(run=read_run(folder), findings=findings, missing=missing)


@pytest.fixture(scope="module")
def accounts(tiny: Model, tmp_path_factory: pytest.TempPathFactory) -> Accounts:
    return measure(tiny, "cuda", tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_has_a_whole_account(accounts: Accounts, name: str) -> None:
    if name in accounts.missing:
        pytest.skip(accounts.missing[name])
    run = accounts.run
    assert all(gate.passed for gate in run.gates if gate.variant == name), run.gates
    found = accounts.findings[name]
    ledger, said = found.ledger, found.answer
    assert isinstance(ledger, Ledger), ledger
    assert said is not None
    for variant, whole in (("baseline", ledger.baseline_ns), (name, ledger.candidate_ns)):
        orders = {clip.order for clip in run.clips if clip.variant == variant and clip.phase == "timed"}
        assert whole == sum(span.value_ns for span in run.spans if span.name == spans.E2E and span.order in orders)
    shown = {part for line in said.lines for part in line.parts}
    assert {Part.ATTENTION_KERNEL, Part.ATTENTION_AROUND, Part.CROSS_ATTENTION, Part.FEED_FORWARD, Part.DECODING} <= shown
    assert Part.PASS not in shown and {kind for kind, _, _ in said.kinds} == set(CLIP_KINDS)
    assert any(side.traced_ns for side in said.sides) and said.explained_time_share >= 0.97, said


@pytest.mark.parametrize("name", NAMES)
def test_kernels_of_graphs_keep_their_labels(accounts: Accounts, name: str) -> None:
    if name in accounts.missing:
        pytest.skip(accounts.missing[name])
    candidate = accounts.findings[name].candidate
    profile = candidate.profile
    assert isinstance(profile, Profile), profile
    (graphs,) = (knob for knob in candidate.settings.knobs if knob.name == "cuda_graphs")
    assert (profile.replays is not None) == graphs.on
    if profile.replays is not None:
        assert not profile.replays.reason and profile.replays.attributed == profile.replays.launches > 0
        assert profile.replays.matched >= 0.97 * profile.replays.kernels
