"""What README and docs say of a GPU "by test" names a test of the GPU suite, which passed in the last run that is recorded; and
those tests, which run where there is a GPU alone, name what exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import gpu_runs
from gpu_suite import gpu_tests
from source import ROOT, name_of
from testing_page import section

GENERATED = {"api", "commands", "json", "records", "protocol", "testing"}
"""Pages that are made from the code or from results; the last has the promises, each of which names a test."""
PAGES = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.stem not in GENERATED)]
SAYS = re.compile(
    r"\bby (?:a )?tests?\b|\b(?:never|nothing|nobody) waits?\b|\bbit-equal\b|\bbit (?:for|by) bit\b|\bsame bits\b",
    re.IGNORECASE,
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
        ("tests/bench/test_kernels.py", "test_the_budget_adds_up_on_a_gpu"),
        ("tests/models/text/test_umt5.py", "test_rows_of_a_gpu"),
        ("tests/eightbit/test_triton.py", "test_kernels_equal_the_reference"),
    ):
        assert test in suite[path]
    assert suite["tests/bench/test_kernels.py"] == {"test_the_budget_adds_up_on_a_gpu"}


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
