"""On a GPU eager and compiled variants of a tiny transformer are measured, traced and reported; `test_case` is the CPU twin."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from strobe.bench.case import ComparePlan
from strobe.bench.dit import DitCase, Shot, load_named, variants_of
from strobe.bench.runner import run_case
from strobe.perf.records.store import read_run
from strobe.perf.report.build import build_report
from strobe.perf.report.run_page import PerStep, paired, per_step
from strobe.perf.report.study import load_study


@pytest.mark.gpu
@pytest.mark.large
@pytest.mark.parametrize("name", ["wan-1.3b", "hunyuan-video-1.5"])
def test_compiled_and_eager_variants_have_accounts(name: str, tmp_path: Path) -> None:
    device = torch.device("cuda")
    shot = Shot(height=256, width=256, frames=33)
    loaded = load_named(name, shot=shot, tiny=True, weights=None, device=device, dtype=torch.bfloat16, seed=0)
    variants = variants_of(("dense", "vsa"), (0.5,), (False, True), masked=loaded.masked)
    case = DitCase(loaded, variants, steps=4, device=device, backend="native")
    folder = run_case(case, root=tmp_path, plan=ComparePlan(palindromes=2), progress=lambda *_: None)
    case.close()
    assert all(gate.passed for gate in read_run(folder).gates)
    study = load_study([folder])
    steps = {subject.name: per_step(subject) for subject in study.subjects}
    assert all(isinstance(each, PerStep) for each in steps.values()), steps
    ledgers = {finding.candidate.name: finding.ledger for finding, alike, _ in paired(study, ()) if alike}
    assert {"vsa-50", "vsa-50-compile"} <= set(ledgers) and not any(isinstance(each, str) for each in ledgers.values()), ledgers
    assert [section.id for section in build_report([folder]).sections][-2:] == ["answer", "notes"]
