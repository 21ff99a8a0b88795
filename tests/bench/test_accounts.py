"""Every preset against the baseline has a whole account, on a GPU too, and growth over a long clip."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from made_records import header_of, span_of, workload_of
from strobe.bench.case import ComparePlan
from strobe.bench.cases.stream import Script, StreamCase
from strobe.bench.runner import run_case
from strobe.core import spans
from strobe.core.errors import ImplUnavailableError
from strobe.engine.graphs import Recorded
from strobe.engine.model import Model
from strobe.engine.presets import PRESETS, preset
from strobe.engine.prompts import Switch
from strobe.models.wan.dit import CausalWan
from strobe.perf.analysis.ledger.account import CLIP_KINDS, Ledger
from strobe.perf.analysis.ledger.speedup import Answer
from strobe.perf.analysis.parts import Part
from strobe.perf.analysis.runs.compare import growths_of
from strobe.perf.records.record import Clip, End, Knob, Memory, Variant
from strobe.perf.records.store import RunRecords, RunWriter, read_run
from strobe.perf.report.build import build_report
from strobe.perf.report.findings import Finding, find
from strobe.perf.report.study import Profile, load_study
from strobe.perf.report.write import render_markdown
from terminal import quiet

ON_A_GPU = [name for name in PRESETS if name != "baseline"]
NAMES = [name for name in ON_A_GPU if name != "sparse"]  # a latent frame of the tiny model is less than a tile
SCRIPT = Script(prompt="red circle", switches=(Switch(frame_block=6, prompt="blue square"),), num_blocks=8)


@pytest.fixture(scope="module")
def folder(tiny: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One palindrome of all presets, FP8 simulated; one more runs its passes as recorded ones, as a GPU replays graphs."""
    configs = [replace(preset(name), simulate=True) for name in ("baseline", *NAMES)]
    replayed = replace(preset("quality"), name="replayed")
    case = StreamCase([*configs, replayed], script=SCRIPT, model=tiny, device="cpu")
    case.prepare("replayed")
    case._sessions["replayed"][0]._stream._dit.runner = Recorded()
    folder = run_case(
        case, root=tmp_path_factory.mktemp("runs"), plan=ComparePlan(palindromes=1, traced_blocks=0, review=False), progress=quiet
    )
    yield folder


def check_account(run: RunRecords, found: Finding) -> Answer:
    """Hold the account of a candidate against the clips that were timed; return its answer."""
    ledger, said, name = found.ledger, found.answer, found.candidate.name
    assert isinstance(ledger, Ledger), ledger
    assert said is not None
    for variant, whole in (("baseline", ledger.baseline_ns), (name, ledger.candidate_ns)):
        orders = {clip.order for clip in run.clips if clip.variant == variant and clip.phase == "timed"}
        assert whole == sum(span.value_ns for span in run.spans if span.name == spans.E2E and span.order in orders)
    shown = {part for line in said.lines for part in line.parts}
    assert {Part.ATTENTION_KERNEL, Part.ATTENTION_AROUND, Part.CROSS_ATTENTION, Part.FEED_FORWARD, Part.DECODING} <= shown
    assert {kind for kind, _, _ in said.kinds} == set(CLIP_KINDS)
    return said


@pytest.mark.parametrize("name", [*NAMES, "replayed"])
def test_every_preset_has_a_whole_account(folder: Path, name: str) -> None:
    (found,) = (each for each in find(load_study([folder])) if each.candidate.name == name)
    said = check_account(read_run(folder), found)
    assert all(level.ratio for level in found.ledger.levels)  # type: ignore[union-attr]
    assert 0 < said.explained_time_share <= 1


def test_the_page_begins_with_the_answers(folder: Path) -> None:
    report = build_report([folder])
    assert [section.id for section in report.sections[:3]] == ["answer", "headline", "answers"]
    assert [section.folded for section in report.sections[:3]] == [False, False, True]
    assert [len(section.blocks) for section in report.sections[:3:2]] == [1, len(NAMES)]


@dataclass(frozen=True, kw_only=True)
class Accounts:
    """One run of every preset that this machine has the libraries for; `missing` says why it lacks the others."""

    run: RunRecords
    findings: Mapping[str, Finding]
    missing: Mapping[str, str]


@pytest.fixture(scope="module")
def accounts(tiny: Model, tmp_path_factory: pytest.TempPathFactory) -> Accounts:
    """On a GPU all presets in one palindrome: whole clips are traced, passes run as CUDA graphs, FP8 is simulated if need be."""
    torch.manual_seed(8)
    dit = CausalWan(replace(tiny.dit.config, dim=64))  # frames that fill tiles, and heads that the kernels for tiles take
    model = replace(tiny, dit=dit, defaults=replace(tiny.defaults, frame_size=(128, 128)))
    configs, missing = [replace(preset("baseline"), simulate=True)], {}
    for name in ON_A_GPU:
        config = replace(preset(name), simulate=True)
        try:
            StreamCase([config], script=SCRIPT, model=model, device="cuda").prepare(name)
        except ImplUnavailableError as error:
            missing[name] = str(error)
            continue
        configs.append(config)
    case = StreamCase(configs, script=SCRIPT, model=model, device="cuda")
    plan = ComparePlan(palindromes=1, traced_blocks=3, review=False)
    folder = run_case(case, root=tmp_path_factory.mktemp("runs"), plan=plan, progress=quiet)
    findings = {each.candidate.name: each for each in find(load_study([folder]))}
    return Accounts(run=read_run(folder), findings=findings, missing=missing)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("name", ON_A_GPU)
def test_accounts_of_a_gpu_are_whole_and_kernels_of_graphs_keep_their_labels(accounts: Accounts, name: str) -> None:
    if name in accounts.missing:
        pytest.skip(accounts.missing[name])
    assert all(gate.passed for gate in accounts.run.gates if gate.variant == name), accounts.run.gates
    said = check_account(accounts.run, accounts.findings[name])
    assert Part.PASS not in {part for line in said.lines for part in line.parts}
    assert any(side.traced_ns for side in said.sides) and said.explained_time_share >= 0.97, said
    candidate = accounts.findings[name].candidate
    profile = candidate.profile
    assert isinstance(profile, Profile), profile
    (graphs,) = (knob for knob in candidate.settings.knobs if knob.name == "cuda_graphs")
    assert (profile.replays is not None) == graphs.on
    if profile.replays is not None:
        assert not profile.replays.reason and profile.replays.attributed == profile.replays.launches > 0
        assert profile.replays.matched >= 0.97 * profile.replays.kernels


FILLING = 2 + 12 // 3
"""Frame blocks until a window of twelve latent frames has filled and evicted."""


@pytest.fixture
def soaked(tmp_path: Path) -> Callable[..., RunRecords]:
    """Return `make(times, switches)`: a run of one clip with these lengths (ns)."""

    def make(times: Sequence[int], switches: Sequence[int]) -> RunRecords:
        with RunWriter(tmp_path / "soaked") as writer:
            work = workload_of(len(times), *switches)
            writer.append(header_of(("soaked",), workload=work), Variant(name="soaked", preset="custom", window=12))
            at, start = {"clip": 0, "order": 0, "palindrome": 0}, 0
            for index, length in enumerate(times):
                memory = Memory(variant="soaked", clip=0, frame_block=index, resident_bytes=1 << 20)
                writer.append(span_of("soaked", "frame_block", length, index=index, start_ns=start, **at), memory)
                start += length
            clip = Clip(variant="soaked", phase="timed", num_spans=len(times), **at)
            writer.append(clip, End(status="complete", date="2026-01-01T00:00:00Z", wall_ns=start))
        return read_run(writer.folder)

    return make


def test_memory_is_read_after_each_frame_block_of_a_timed_clip(fake: Callable[..., Any], tmp_path: Path) -> None:
    plan = ComparePlan(palindromes=1, traced_blocks=0, review=False, alone=True, memory=True)
    run = read_run(run_case(fake("mine"), root=tmp_path, plan=plan, progress=quiet))
    (timed,) = (clip.clip for clip in run.clips if clip.phase == "timed")
    assert [(line.clip, line.frame_block) for line in run.memory] == [(timed, number) for number in range(6)]
    assert all(line.resident_bytes and line.allocated_bytes is None for line in run.memory)
    assert not growths_of(run)  # six frame blocks are too few


def test_a_stream_with_switches_leaves_them_out(soaked: Callable[..., RunRecords]) -> None:
    times = [1000] * 20
    times[10] = times[15] = 5000
    run = soaked(times, (10, 15))
    (found,), page = growths_of(run), render_markdown(build_report([run.folder]))
    assert "| 6 | 0.001000 |" in page and "| 5 | 0.001000 |" not in page, (
        "a point of each frame block from the first that counts on"
    )
    assert {10, 15}.isdisjoint(found.first + found.last) and len(found.first) == (20 - FILLING - 2) // 2
    assert [each.what for each in found.held] == ["resident"]
    assert all(each.holds for each in found.times) and found.drift is None


def test_frames_that_come_late_carry_the_work_of_the_next(soaked: Callable[..., RunRecords]) -> None:
    """With `late_frames` a switch makes the frame block before it longer, and the last one only waits."""
    times = [1000] * 19 + [10]
    times[9] = times[14] = 5000
    run = soaked(times, (10, 15))
    late = msgspec.structs.replace(run.variants[0], knobs=(Knob(name="late_frames", value="on", on=True),))
    (found,) = growths_of(replace(run, variants=(late,)))
    assert (found.first, found.last) == ((6, 7, 8, 10, 11), (13, 15, 16, 17, 18))
