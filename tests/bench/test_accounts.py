"""Every preset against the baseline has a whole account, from the clips that were timed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from strobe.bench.case import ComparePlan
from strobe.bench.cases.stream import Script, StreamCase
from strobe.bench.runner import run_case
from strobe.core import spans
from strobe.engine.graphs import Recorded
from strobe.engine.model import Model
from strobe.engine.presets import PRESETS, preset
from strobe.engine.prompts import Switch
from strobe.perf.analysis.ledger.account import CLIP_KINDS, Ledger
from strobe.perf.analysis.parts import Part
from strobe.perf.records.store import read_run
from strobe.perf.report.build import build_report
from strobe.perf.report.findings import find
from strobe.perf.report.study import load_study
from terminal import quiet

NAMES = [name for name in PRESETS if name not in ("baseline", "sparse")]  # a latent frame of the tiny model is less than a tile


@pytest.fixture(scope="module")
def folder(tiny: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One palindrome of all presets, FP8 simulated; one more runs its passes as recorded ones, as a GPU replays graphs."""
    configs = [replace(preset(name), simulate=True) for name in ("baseline", *NAMES)]
    replayed = replace(preset("quality"), name="replayed")
    script = Script(prompt="red circle", switches=(Switch(frame_block=6, prompt="blue square"),), num_blocks=8)
    case = StreamCase([*configs, replayed], script=script, model=tiny, device="cpu")
    case.prepare("replayed")
    case._sessions["replayed"][0]._stream._dit.runner = Recorded()
    folder = run_case(
        case, root=tmp_path_factory.mktemp("runs"), plan=ComparePlan(palindromes=1, traced_blocks=0, review=False), progress=quiet
    )
    yield folder


@pytest.mark.parametrize("name", [*NAMES, "replayed"])
def test_every_preset_has_a_whole_account(folder: Path, name: str) -> None:
    run = read_run(folder)
    (found,) = (each for each in find(load_study([folder])) if each.candidate.name == name)
    ledger, said = found.ledger, found.answer
    assert isinstance(ledger, Ledger), ledger
    assert said is not None
    for variant, whole in (("baseline", ledger.baseline_ns), (name, ledger.candidate_ns)):
        orders = {clip.order for clip in run.clips if clip.variant == variant and clip.phase == "timed"}
        assert whole == sum(span.value_ns for span in run.spans if span.name == spans.E2E and span.order in orders)
    shown = {part for line in said.lines for part in line.parts}
    assert {Part.ATTENTION_KERNEL, Part.ATTENTION_AROUND, Part.CROSS_ATTENTION, Part.FEED_FORWARD, Part.DECODING} <= shown
    assert {kind for kind, _, _ in said.kinds} == set(CLIP_KINDS)
    assert all(level.ratio for level in ledger.levels)
    assert 0 < said.explained_time_share <= 1


def test_the_page_begins_with_the_answers(folder: Path) -> None:
    report = build_report([folder])
    assert [section.id for section in report.sections[:3]] == ["answer", "headline", "answers"]
    assert [section.folded for section in report.sections[:3]] == [False, False, True]
    assert [len(section.blocks) for section in report.sections[:3:2]] == [1, len(NAMES)]
