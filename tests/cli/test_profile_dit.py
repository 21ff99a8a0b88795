"""`strobe profile dit` on tiny models: records, the page of seven sections, requirements, a user's own pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports import decode_report
from strobe.perf.records.store import read_run
from strobe.perf.report.build import build_report
from strobe.perf.report.dit_page import paired, per_step
from strobe.perf.report.study import load_study
from strobe.perf.table.model import Number, Ratio, Report, Share, Table, Text
from terminal import Strobe

SECTIONS = ["settings", "stages", "attention", "kernels", "sections", "answer", "notes"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dit") / "traces"


@pytest.fixture
def run(folder: Path, strobe: Strobe) -> Path:
    """One small run of Wan, dense against two sparsities, for all tests of this file."""
    if not folder.exists():
        arguments = ("--model", "wan-1.3b", "--tiny", "--sparsity", "0.5", "0.8", "--rounds", "2", "--steps", "3")
        done = strobe("profile", "dit", *arguments, "-o", folder, "--json")
        assert done.code == 0 and done.document["red"] == {} and done.document["kept"] == []
    return folder


def tables(report: Report, section: str) -> list[Table]:
    return [block for each in report.sections if each.id == section for block in each.blocks if isinstance(block, Table)]


def test_the_page_has_the_seven_sections(run: Path) -> None:
    report = decode_report((run / "report.json").read_bytes())
    assert [section.id for section in report.sections] == SECTIONS
    stage = tables(report, "stages")[0]
    names = [row.cells[0].text for row in stage.rows if isinstance(row.cells[0], Text)]
    assert names[0] == "run_01" and names[-2:] == ["avg_all_rounds", "avg_excl_warmup"]
    assert build_report([run]) == report, "`strobe report` gives the same page"
    assert "128x96 pixels, 17 frames" in report.subtitle


def test_bounds_follow_from_the_columns_beside_them(run: Path) -> None:
    report = decode_report((run / "report.json").read_bytes())
    study = load_study([run])
    steps = {subject.label: per_step(subject) for subject in study.subjects}
    dense = steps["dense"]
    assert not isinstance(dense, str) and dense.section is not None
    assert 0 < dense.kernel <= dense.operator < dense.section and dense.step > 0
    rows = {row.cells[0].text: row for row in _first(report).rows if isinstance(row.cells[0], Text)}
    assert list(rows) == ["vsa-50", "vsa-80"]
    for name, row in rows.items():
        own = steps[name]
        assert not isinstance(own, str) and own.section is not None
        saved = dense.kernel - own.operator
        bound = dense.step / (dense.step - saved)
        e2e = row.cells[5]
        assert isinstance(e2e, Ratio)
        assert row.cells[2] == Ratio(dense.kernel / own.kernel)
        assert row.cells[4] == Ratio(dense.section / own.section)
        assert row.cells[7] == Ratio(bound) and row.cells[8] == Share(e2e.value / bound)
        assert row.cells[9] == Number(100 * (own.section / (dense.section - saved) - 1), 1, "%")


def _first(report: Report) -> Table:
    return tables(report, "answer")[0]


def test_accounts_add_up_and_records_say_what_ran(run: Path) -> None:
    study = load_study([run])
    for finding, *_ in paired(study, ()):
        ledger = finding.ledger
        assert not isinstance(ledger, str) and sum(line.saved_ns for line in ledger.lines) == ledger.saved_ns
        assert finding.answer is not None and finding.answer.unit == "denoise step"
    records = read_run(run)
    assert records.header.workload is not None and records.header.workload.unit == "denoise step"
    assert records.header.model is not None and records.header.model.name == "wan-1.3b, tiny, random weights"
    assert {variant.name: variant.sparsity for variant in records.variants} == {"dense": 0, "vsa-50": 0.5, "vsa-80": 0.8}
    assert all(quality.n == 0 and quality.note == "random weights" for quality in records.quality)
    assert records.variant("vsa-50").tokens_per_block == 5 * 6 * 8


def test_a_former_run_is_kept_and_compared_runs_are_refused(run: Path, strobe: Strobe, tmp_path: Path) -> None:
    two = strobe("report", run, run)
    assert two.code == 2 and "holds forward passes over a whole clip: report it without other runs" in two.err
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "mine.txt").write_text("mine")
    again = strobe(
        "profile", "dit", "--model", "ltx-2", "--tiny", "--sparsity", "0.5", "--rounds", "1", "--steps", "3", "-o",
        tmp_path / "t", "--no-trace", "--require", "e2e~>0.001", "--json",
    )  # fmt: skip
    assert again.code == 0 and again.document["kept"] == [str(tmp_path / "t.1")]
    assert (tmp_path / "t.1" / "mine.txt").read_text() == "mine"


PIPE = """
import torch
from diffusers import WanTransformer3DModel

def make():
    torch.manual_seed(0)
    model = WanTransformer3DModel(num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16,
                                  freq_dim=16, ffn_dim=32, num_layers=1)
    return model, {"hidden_states": torch.randn(1, 4, 5, 12, 14), "timestep": torch.full((1,), 500),
                   "encoder_hidden_states": torch.randn(1, 7, 16)}

def nothing():
    return torch.nn.Linear(2, 2), {}
"""


def test_a_users_own_function_runs_and_it_says_so(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_pipe_for_dit.py").write_text(PIPE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ("--rounds", "1", "--steps", "3", "--sparsity", "0.5", "--no-trace", "-o", tmp_path / "t")
    done = strobe("profile", "dit", "--pipe", "own_pipe_for_dit:make", *arguments)
    assert done.code == 0 and "runs your code: own_pipe_for_dit:make" in done.err
    records = read_run(tmp_path / "t")
    assert records.header.model is not None and records.header.model.name == "WanTransformer3DModel of own_pipe_for_dit:make"
    assert {quality.metric for quality in records.quality} == {"forward_error"}
    for wrong, said in (("nothing", "returned no transformer"), ("none", "has no attribute 'none'")):
        assert said in strobe("profile", "dit", "--pipe", f"own_pipe_for_dit:{wrong}", *arguments).err
    assert "write module:function" in strobe("profile", "dit", "--pipe", "own", *arguments).err
