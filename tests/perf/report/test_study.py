"""What a report reads beside the records: traces and passes, and what becomes of files that are not those that were recorded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strobe.perf.analysis.parts import Part
from strobe.perf.records.store import read_run
from strobe.perf.report.build import report_and_findings
from strobe.perf.report.findings import Finding
from strobe.perf.report.study import damage_of, only_pair
from strobe.perf.table.model import Report

COMPARED = Path(__file__).parents[3] / "benchmarks" / "engine-h200" / "compare"
PASSES = "traces/ultra.passes.json.gz"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A published run of an H200; `quality` launches its kernels one by one, `ultra` replays graphs."""
    (tmp_path / "traces").mkdir()
    for name in ("records.jsonl.gz", "traces/quality.json.gz", "traces/ultra.json.gz", PASSES, "traces/sparse.passes.json.gz"):
        shutil.copyfile(COMPARED / name, tmp_path / name)
    return tmp_path


def built(run: Path) -> tuple[Report, Finding]:
    report, findings = report_and_findings([run], into=run, pair=("quality", "ultra"), allow_different=())
    return report, findings[0]


def parts(finding: Finding) -> set[Part]:
    assert finding.answer is not None
    return {part for line in finding.answer.lines for part in line.parts}


def test_the_files_of_a_published_run_are_those_that_were_recorded(run: Path) -> None:
    report, finding = built(run)
    assert damage_of(only_pair(read_run(run), ("quality", "ultra"))) == ()
    assert not any(PASSES in item for banner in report.banners for item in banner.items)
    assert Part.ATTENTION_KERNEL in parts(finding) and Part.PASS not in parts(finding)


@pytest.mark.few("another's", "gone")
@pytest.mark.parametrize("damage", ["another's", "cut", "gone", "link"])
def test_passes_that_were_not_recorded_label_nothing_and_are_said(run: Path, damage: str) -> None:
    file = run / PASSES
    data = file.read_bytes()
    file.unlink()
    if damage == "another's":
        shutil.copyfile(run / "traces/sparse.passes.json.gz", file)
    elif damage == "cut":
        file.write_bytes(data[:-20])
    elif damage == "link":
        file.symlink_to(COMPARED / PASSES)
    report, finding = built(run)
    (banner,) = (banner for banner in report.banners if any(PASSES in item for item in banner.items))
    assert banner.level == "stop" and any("the graphs of ultra are not told apart" in item for item in banner.items)
    assert Part.PASS in parts(finding) and Part.ATTENTION_KERNEL not in parts(finding)


def test_a_trace_that_was_not_recorded_is_said_above_the_figures(run: Path) -> None:
    shutil.copyfile(run / "traces/quality.json.gz", run / "traces/ultra.json.gz")
    report, _ = built(run)
    (banner,) = (banner for banner in report.banners if banner.level == "stop")
    assert [item.partition(": ")[2].split()[0] for item in banner.items] == ["traces/ultra.json.gz"]
