"""The runner of the GPU suite, on made-up tests: whatever a test does, the run ends, and its line says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gpu_runs
import gpu_suite

MADE_UP = """
import os, time
import pytest

pytestmark = pytest.mark.gpu

@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.large
def test_good(number): pass

@pytest.mark.parametrize("number", [1, 2])
def test_half(number): assert number == 1, "two is not one"

def test_dies(): os._exit(9)

def test_hangs(): time.sleep(60)

def test_lacks(): pytest.importorskip("no_such_library")

@pytest.mark.alone
@pytest.mark.skipif(True, reason="two GPUs are needed")
def test_of_two(): pass

@pytest.mark.alone
def test_alone(): assert os.environ["PYTEST_XDIST_WORKER_COUNT"] == "1"

class TestOf:
    @pytest.fixture
    def broken(self): raise ValueError("no fixture")

    def test_in_a_class(self, broken): pass
"""
FACTS = {"date": "2026-01-31", "commit": "0123456789", "card": "NVIDIA H100", "driver": "580.1", "torch": "2.11.0"}


def run(folder: Path, *texts: str, timeout: int, budget: float) -> tuple[gpu_runs.Row, dict[str, str]]:
    """The row of a run of these test files, and the outcome of each test in them."""
    for number, text in enumerate(texts):
        (folder / f"test_{number}.py").write_text(text)
    how = gpu_suite.How(workers=2, timeout=timeout, budget=budget, out=folder / "out")
    found = gpu_suite.run([folder], how)
    row = gpu_runs.row_of(found, FACTS, 12.4)
    (folder / "said.txt").write_text(gpu_suite.report(found, row, folder / "out"))
    return row, {name.removeprefix("test_0.py::"): test["outcome"] for name, test in found.items()}


def test_each_outcome_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of files that cannot be imported: without an optional library they are skipped, else they are red."""
    (tmp_path / "diffusers.py").write_text("raise ModuleNotFoundError(\"No module named 'diffusers'\")")  # as if it were not here
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    row, found = run(tmp_path, MADE_UP, "import diffusers", "import gone", timeout=3, budget=60)
    passed, skipped = ("test_good[1]", "test_good[2]", "test_half[1]", "test_alone"), ("test_lacks", "test_of_two", "test_1.py")
    failed = ("test_half[2]", "test_dies", "test_hangs", "TestOf::test_in_a_class", "test_2.py")
    outcomes = (("passed", passed), ("skipped", skipped), ("failed", failed))
    assert found == {test: outcome for outcome, tests in outcomes for test in tests}
    assert row["tests"] == {"test_0.py": ["test_alone", "test_good"]}
    lacks = "could not import 'no_such_library': No module named 'no_such_library'"
    assert row["skipped"] == {lacks: 1, "two GPUs are needed": 1, "No module named 'diffusers'": 1}
    *_, line = (said := (tmp_path / "said.txt").read_text()).splitlines()
    where = "commit 0123456789, NVIDIA H100, driver 580.1, torch 2.11.0"
    assert line == f"gpu suite, 2026-01-31: {where}: 4 passed, 5 failed, 3 skipped in 12 s"
    assert "two is not one" in said and f"skipped 1: {lacks}" in said and "slowest:" in said
    assert json.loads((tmp_path / "out" / "row.json").read_text()) == row
    assert "no fixture" in (tmp_path / "out" / "failures.txt").read_text()
    assert (tmp_path / "out" / "junit-alone.xml").exists()


@pytest.mark.rest
def test_the_budget_ends_a_run_and_the_rest_is_unfinished(tmp_path: Path) -> None:
    text = "import time, pytest\npytestmark = pytest.mark.gpu\ndef test_a(): pass\n"
    text += "".join(f"def test_{name}(): time.sleep(60)\n" for name in "bcd")
    row, found = run(tmp_path, text, timeout=50, budget=6)
    assert found == {"test_a": "passed", "test_b": "unfinished", "test_c": "unfinished", "test_d": "unfinished"}
    assert gpu_runs.line_of(row).endswith("1 passed, 0 failed, 0 skipped, 3 unfinished in 12 s")


def test_what_a_run_never_listed_is_unfinished(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A pass whose time was over before pytest listed its tests left no word of them, and the run counted as whole."""
    monkeypatch.setattr(gpu_suite, "PASSES", ())
    place = gpu_suite.ROOT / "tests" / "perf" / "measure" / "test_timing.py"
    found = gpu_suite.run([place], gpu_suite.How(workers=1, timeout=1, budget=1, out=tmp_path))
    assert found.keys() == {
        f"tests/perf/measure/test_timing.py::{name}" for name in gpu_suite.gpu_tests()[gpu_suite.name_of(place)]
    }
    assert {test["outcome"] for test in found.values()} == {"unfinished"}
    assert gpu_suite.not_begun(dict.fromkeys(f"{name}[case]" for name in found), [place]) == []


def test_the_newest_run_is_first_and_alone_says_which_tests_passed(tmp_path: Path) -> None:
    place = tmp_path / "runs.jsonl"
    for commit in ("first", "second"):
        gpu_runs.add(gpu_runs.row_of({"a.py::test_a[1]": {"outcome": "passed"}}, FACTS | {"commit": commit}, 1.0), place)
    rows = gpu_runs.read(place)
    assert [row["commit"] for row in rows] == ["second", "first"]
    assert rows[0]["tests"] == {"a.py": ["test_a"]} and "tests" not in rows[1]


def test_every_file_with_a_test_for_a_gpu_is_run() -> None:
    """The runner looks for the marker; a file that is not imported has no other spelling of it."""
    found = {path.name for path in gpu_suite.gpu_files()}
    assert {"test_gpu.py", "test_gates.py", "test_timing.py", "test_nccl.py"} <= found and "test_imports.py" not in found


def test_nothing_runs_without_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu_suite.main([]) == 3 and "no CUDA device" in capsys.readouterr().err
