"""The two tiers of tests: each test is in one, those that draw examples are in both, and `make test-all` runs both."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import tiers
from source import ROOT

SAMPLE = """
import pytest
from hypothesis import given, strategies

def test_plain(): ...

@pytest.mark.rest
def test_long(): ...

@pytest.mark.few(1)
@pytest.mark.parametrize("x", ["a", pytest.param("gpu", marks=pytest.mark.gpu), "b", "c"])
def test_counted(x): ...

@pytest.mark.few("b")
@pytest.mark.parametrize("x", ["a", "b"])
def test_named(x): ...

@given(strategies.integers())
def test_drawn(x): ...
"""
FIRST = {"test_plain", "test_counted[a]", "test_counted[gpu]", "test_named[b]", "test_drawn"}
REST = {"test_long", "test_counted[b]", "test_counted[c]", "test_named[a]", "test_drawn"}


class Chooser:
    """A plugin of pytest that keeps the names of the tests of a tier, and runs none."""

    def __init__(self, tier: str) -> None:
        self.tier, self.kept = tier, set[str]()

    def pytest_configure(self, config: pytest.Config) -> None:
        for marker in (*tiers.MARKERS, "gpu"):
            config.addinivalue_line("markers", marker)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        self.kept = {item.name for item in tiers.chosen(items, self.tier, config.args)}


def kept(tier: str, folder: Path, text: str = SAMPLE, test: str = "") -> Any:
    """The tests that a tier keeps of a file, or the exit code of pytest if it refuses."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    file = folder / f"{folder.name}.py"  # a name of its own, for modules stay loaded
    file.write_text(text)
    chooser = Chooser(tier)
    alone = ["--noconftest", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:terminal", "--import-mode=importlib"]
    code = pytest.main([f"--rootdir={folder}", "-c", str(folder / "pytest.ini"), *alone, "--collect-only",
                        f"{file}{test}"], plugins=[chooser])  # fmt: skip
    return chooser.kept if code == 0 else code


def test_each_test_is_in_one_tier_and_a_drawn_one_in_both(tmp_path: Path) -> None:
    assert kept("first", tmp_path) == FIRST
    assert kept("rest", tmp_path) == REST
    assert kept("all", tmp_path) == FIRST | REST


def test_a_test_that_is_named_runs_in_every_tier(tmp_path: Path) -> None:
    assert kept("first", tmp_path, test="::test_long") == {"test_long"}
    assert kept("first", tmp_path, test="::test_named[a]") == {"test_named[a]"}
    assert kept("rest", tmp_path, test="::test_plain") == {"test_plain"}


def test_a_case_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert kept("first", tmp_path, SAMPLE.replace('few("b")', 'few("gone")')) == pytest.ExitCode.USAGE_ERROR


def made(*targets: str) -> list[str]:
    """The lines that make would run for targets in a set-up checkout, those of pytest alone."""
    command = ["make", "--dry-run", "--old-file=setup", "--old-file=.venv/.ready", *targets]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return [line for line in told.stdout.splitlines() if "-m pytest" in line]


def test_both_tiers_have_a_target_and_no_test_runs_twice_in_ci() -> None:
    (first,) = made("test")
    assert "--tier" not in first
    both = made("test-all")
    assert both[0] == first and "--tier rest" in both[1] and len(both) == 2
    assert made("test", "test-all") == both
    assert "make test test-all" in (ROOT / ".ci" / "run").read_text().splitlines()
