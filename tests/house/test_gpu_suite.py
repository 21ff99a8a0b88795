"""The runner of the GPU suite, on made-up tests, and what pages say of a GPU "by test": a test of the suite that passed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import gpu_runs
import gpu_suite
from gpu_suite import gpu_tests
from source import ROOT, name_of
from testing_page import section

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
    how = gpu_suite.How(workers=2, large=2, timeout=timeout, budget=budget, out=folder / "out")
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
    found = gpu_suite.run([place], gpu_suite.How(workers=1, large=1, timeout=1, budget=1, out=tmp_path))
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
    assert {"test_gpu.py", "test_gates.py", "test_timing.py", "test_nccl.py"} <= found and "test_budgets.py" not in found


def test_nothing_runs_without_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu_suite.main([]) == 3 and "no CUDA device" in capsys.readouterr().err


GENERATED = {"api", "commands", "json", "records", "protocol", "testing"}
"""Pages that are made from the code or from results; the last has the promises, each of which names a test."""
PAGES = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.stem not in GENERATED)]
SAYS = re.compile(
    r"\bby (?:a )?tests?\b|\b(?:never|nothing|nobody) waits?\b|\bbit-equal\b|\bbit (?:for|by) bit\b|\bsame bits\b", re.IGNORECASE
)
OF_A_GPU = re.compile(r"\bGPUs?\b|\bCUDA\b|\bTriton\b|\b[HB]\d00\b|\bdevice\b")
NAMED = re.compile(r"`(?P<path>tests/[\w/]+\.py)::(?P<test>test_\w+)`")
FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1$", re.MULTILINE | re.DOTALL)


def sentences(text: str) -> Iterator[str]:
    """The sentences, items and rows of a page, without its code."""
    for block in re.split(r"\n\s*\n|\n(?=[|*#-] ?)", FENCE.sub("", text)):
        yield from re.split(r"(?<=[.!?]) (?=[A-Z`*(])", " ".join(block.split()))


def unproven(text: str, suite: Mapping[str, set[str]]) -> list[str]:
    """What is said of a GPU by test, without a test of the suite that holds it."""
    claims = [each for each in sentences(text) if SAYS.search(each) and OF_A_GPU.search(each)]
    return [each for each in claims if not any(test["test"] in suite.get(test["path"], ()) for test in NAMED.finditer(each))]


def named(text: str, suite: Mapping[str, set[str]]) -> set[tuple[str, str]]:
    """The tests of the suite that a text names."""
    return {(each["path"], each["test"]) for each in NAMED.finditer(text) if each["test"] in suite.get(each["path"], ())}


@pytest.fixture(scope="module")
def suite() -> dict[str, set[str]]:
    return gpu_tests()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_says_of_a_gpu_names_a_test_of_the_suite(page: Path, suite: dict[str, set[str]]) -> None:
    assert not (found := unproven(page.read_text("utf-8"), suite)), found


def test_every_test_that_a_page_names_exists(suite: dict[str, set[str]]) -> None:
    for page in (*PAGES, ROOT / "docs" / "testing.md"):
        for each in NAMED.finditer(page.read_text("utf-8")):
            path = ROOT / each["path"]
            assert path.exists() and re.search(rf"\bdef {each['test']}\(", path.read_text("utf-8")), f"{name_of(page)}: {each[0]}"


def left_unproven(rows: list[gpu_runs.Row], wanted: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Tests that did not pass in the newest of these runs; with no run there is nothing to hold them to."""
    passed = {(path, test) for path, tests in rows[0]["tests"].items() for test in tests} if rows else wanted
    return wanted - passed


def test_the_last_recorded_run_passed_what_pages_name(suite: dict[str, set[str]]) -> None:
    """As long as no run is recorded, the page of promises says so."""
    rows = gpu_runs.read()
    wanted = set().union(*(named(page.read_text("utf-8"), suite) for page in (*PAGES, gpu_runs.PAGE)))
    assert len(wanted) > 10
    assert (gpu_runs.NO_RUN in gpu_runs.PAGE.read_text("utf-8")) == (not rows)
    assert not (left := left_unproven(rows, wanted)), f"not passed in the last run, {gpu_runs.line_of(rows[0])}: {sorted(left)}"


def test_the_page_of_promises_shows_the_runs() -> None:
    text = gpu_runs.PAGE.read_text("utf-8")
    assert text == gpu_runs.page(gpu_runs.read(), text), "run `make gpu-row`"


# ------------------------------------------------------------------------------------------------- what is found, and what is not

SUITE = {"tests/a/test_gpu.py": {"test_it"}}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("On a GPU nothing waits. It is fast.", 1),
        ("On a GPU nothing waits (`tests/a/test_gpu.py::test_it`).", 0),
        ("On a GPU nothing waits (`tests/a/test_gpu.py::test_other`).", 1),
        ("On a GPU nothing waits (`tests/b/test_cpu.py::test_it`).", 1),
        ("It is held by a test. A GPU is fast.", 0),
        ("* CUDA graphs are bit-equal\n* others are not, on a GPU", 1),
        ("| a | the same bits on one device |\n| b | an H100 |", 1),
        ("```text\nOn a GPU nothing waits.\n```\n", 0),
        ("A stream is bit-equal.", 0),
    ],
)
def test_a_claim_without_a_test_is_found(text: str, number: int) -> None:
    assert len(unproven(text, SUITE)) == number


def test_a_test_that_did_not_pass_is_found() -> None:
    wanted = {("a.py", "test_a"), ("a.py", "test_b")}
    assert left_unproven([], wanted) == set()
    assert left_unproven([{"tests": {"a.py": ["test_a"]}}, {"tests": {"a.py": ["test_b"]}}], wanted) == {("a.py", "test_b")}
    assert left_unproven([{"tests": {}}], wanted) == wanted


def test_the_marker_is_found_wherever_it_stands(suite: dict[str, set[str]]) -> None:
    """On a module, a function, a method and a case."""
    for path, test in (
        ("tests/engine/test_gpu.py", "test_gpu_equals_cpu"),
        ("tests/attention/tree/test_nccl.py", "test_gradients"),
        ("tests/bench/test_operations.py", "test_the_budget_adds_up_on_a_gpu"),
        ("tests/models/text/test_umt5.py", "test_rows_of_a_gpu"),
        ("tests/eightbit/test_triton.py", "test_kernels_equal_the_reference"),
    ):
        assert test in suite[path]
    assert suite["tests/bench/test_operations.py"] == {"test_the_budget_adds_up_on_a_gpu"}


@pytest.mark.rest
def test_what_seldom_runs_names_what_exists_and_calls_it_as_it_is() -> None:
    """A type checker reads tests of a GPU and tools: what was renamed, takes something else, or is overridden otherwise than it
    is now would else be noticed there."""
    how = ("--follow-imports=silent", "--explicit-package-bases", "--implicit-reexport")
    places = os.pathsep.join(str(ROOT / folder) for folder in ("src", "tests/support", "tools"))
    tools = map(str, sorted((ROOT / "tools").rglob("*.py")))
    words, environment = [sys.executable, "-m", "mypy", *how, *gpu_tests(), *tools], {**os.environ, "MYPYPATH": places}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    names, calls = ("[attr-defined]", "[name-defined]"), ("[call-arg]", "[override]")
    told = done.stdout.splitlines()
    assert not [line for line in told if line.endswith(names) or (line.startswith("tests/") and line.endswith(calls))]


ROW = re.compile(r"^\| (?P<promise>[^|]+) \| `(?P<path>tests/[\w/]+\.py)::(?P<test>test_\w+)` \|$")
HEAD = ("| promise | test |", "|---|---|")
TEXTS = {"testing.md": section("Promises"), "diffusers.md": (ROOT / "docs" / "diffusers.md").read_text(encoding="utf-8")}
ROWS = [
    line
    for page, text in TEXTS.items()
    for line in text.splitlines()
    if line.startswith("|") and line not in HEAD and (page == "testing.md" or "::test_" in line)
]


def test_a_promise_names_one_test_and_is_not_made_twice() -> None:
    """That it exists is held by `test_every_test_that_a_page_names_exists`."""
    assert not [row for row in ROWS if not ROW.match(row)], "a promise, and `tests/PATH.py::TEST`"
    promises = [row.split("|")[1].strip() for row in ROWS]
    assert len(set(promises)) == len(promises) > 30
    assert all(promise.endswith(".") for promise in promises)
