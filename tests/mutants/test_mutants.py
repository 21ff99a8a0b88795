"""The mutation tool: what it makes wrong, which tests it runs, what it counts."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from maps_of_tests import left_out
from mutants import PACKAGES, Project, batches, main, page, read
from mutate import mutants
from source import ROOT
from testing_page import section

SOURCE = '''"""A module."""
from dataclasses import dataclass

LIMIT = 3


@dataclass
class Kept:
    size: int = 1


def clamp(x: int | None, least=0) -> int:
    """At least 1 of 2."""
    assert x != 5
    if x is None or x < least:
        raise ValueError(f"{x + 1} is below")
    return min(x, LIMIT)


def unseen(x):
    return x + 1
'''
TESTS = """
from toy.room.clamp import Kept, clamp

def test_high():
    assert clamp(9) == 3

def test_low():
    assert clamp(2) == 2

def test_kept():
    assert Kept().size == 1
"""


def test_what_is_made_wrong() -> None:
    found = mutants("clamp.py", SOURCE)
    assert [(each.lines[0], each.before, each.after) for each in found] == [
        (4, "3", "(4)"),
        (9, "1", "(2)"),
        (12, "0", "(1)"),
        (15, "x is None or x < least", "(not (x is None or x < least))"),
        (15, "x is None or x < least", "(x is None and x < least)"),
        (15, "x is None", "(x is not None)"),
        (15, "x < least", "(x <= least)"), (17, "return min(x, LIMIT)", "return None"),
        (17, "min(x, LIMIT)", "(max(x, LIMIT))"), (21, "return x + 1", "return None"), (21, "x + 1", "(x - 1)"),
        (21, "1", "(2)"),
    ]  # fmt: skip
    assert all(each.source != SOURCE and each.source.count("\n") == SOURCE.count("\n") for each in found)
    moved = mutants("clamp.py", SOURCE.replace("LIMIT = 3", "\n\nLIMIT = 3"))
    assert [each.key for each in moved] == [each.key for each in found] and len({each.key for each in found}) == len(found)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setattr("warm_pytest.LIBRARIES", ())  # the toy needs none
    for name, text in {
        "src/toy/__init__.py": "",
        "src/toy/room/__init__.py": "",
        "src/toy/room/clamp.py": SOURCE,
        "tests/conftest.py": "def pytest_addoption(parser):\n    parser.addoption('--tier')\n",
        "tests/room/conftest.py": "import toy.room.clamp",
        "tests/room/test_clamp.py": TESTS,
        "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['src']\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return Project(root=tmp_path, name="toy", results=tmp_path / "results.jsonl")


@pytest.mark.rest
def test_survivors_are_found_and_counted(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "--number", "3", "--packages", "room"], project)
    first = project.entries()
    assert len(first) == 3 and "3 of 9 mutants that have not run" in capsys.readouterr().out  # none of what no test runs
    main(["run", "--packages", "room", "--jobs", "1"], project)
    entries = {entry["after"]: entry for entry in project.entries().values()}
    assert len(entries) == 9 and {key: project.entries()[key] for key in first} == first
    survivors = {after: entry["key"] for after, entry in entries.items() if entry["outcome"] == "survived"}
    assert survivors.keys() == {"(1)", "(x <= least)", "(x is None and x < least)"}
    assert "6 of 9 mutants killed (66.7 %)" in capsys.readouterr().out
    assert entries["(2)"]["test"] == "tests/room/test_clamp.py::test_kept"
    assert entries["(2)"]["tests"] == entries["(4)"]["tests"] == 3  # at import, for every test that uses the file
    assert entries["(x <= least)"]["tests"] == 2

    (project.root / "tests/room/test_clamp.py").write_text(f"{TESTS}\ndef test_zero():\n    assert clamp(0) == 0\n")
    main(["again", "--packages", "room"], project)
    assert "8 of 9 mutants killed" in capsys.readouterr().out
    main(["equivalent", survivors["(x is None and x < least)"], "None is refused by the comparison"], project)
    found = capsys.readouterr().out
    assert "8 of 8 mutants killed (100.0 %); 1 more change nothing" in found and "(None is refused by the comparison)" in found
    with pytest.raises(SystemExit):
        main(["equivalent", survivors["(1)"], "it was killed"], project)


def test_the_page_counts_by_package(project: Project) -> None:
    main(["run", "--packages", "room"], project)
    said = page(({**entry, "path": "src/strobe/room/clamp.py"} for entry in project.entries().values()), (), ("room",))
    assert "| room | 6 | 3 | 66.7 | 0 | - |" in said and "| all | 6 | 3 | 66.7 | 0 | - |" in said


def test_the_page_of_the_docs_is_of_the_results() -> None:
    whole, first = (read(ROOT / "tests" / "mutants" / f"{name}.jsonl").values() for name in ("results", "first"))
    assert section("Mutants") == page(whole, first, PACKAGES)


@pytest.mark.rest
def test_a_constant_is_tested_by_those_who_import_it(project: Project) -> None:
    """They run no other line of its module."""
    (project.root / "src/toy/room/sizes.py").write_text("MOST = 3\n\n\ndef twice(x):\n    return 2 * x\n")
    test = "from toy.room.sizes import MOST\n\ndef test_most():\n    assert MOST == 3\n"
    (project.root / "tests/room/test_sizes.py").write_text(test)
    main(["run", "--packages", "room", "--processes", "1"], project)
    (found,) = (entry for entry in project.entries().values() if entry["path"].endswith("sizes.py"))
    assert (found["before"], found["outcome"], found["test"]) == ("3", "killed", "tests/room/test_sizes.py::test_most")


@pytest.mark.rest
def test_what_fails_without_a_mutant_is_left_out(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = "\n\ndef test_wrong():\n    clamp(2)\n    assert False\n"
    (project.root / "tests/room/test_clamp.py").write_text(TESTS + wrong)
    (project.root / "tests/room/test_lost.py").write_text("import a_library_that_is_not_there\n")
    main(["run", "--packages", "room", "--processes", "1"], project)
    found = capsys.readouterr().out
    assert (
        "tests/room/test_clamp.py: 1 tests fail without a mutant" in found
        and "tests/room/test_lost.py: no map, its tests are left out" in found
    )
    assert "6 of 9 mutants killed" in found


def test_a_copy_has_every_package(tmp_path: Path) -> None:
    """A package may have the name of a folder that is left out of the root."""
    for name in ("runs/run.txt", "src/toy/runs/run.py", "build/lib.py", "src/toy/build/page.py", "src/toy/__pycache__/run.pyc"):
        (tmp_path / "root" / name).parent.mkdir(parents=True)
        (tmp_path / "root" / name).touch()
    shutil.copytree(tmp_path / "root", tmp_path / "copy", ignore=left_out(tmp_path / "root"))
    found = {path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*.*")}
    assert found == {"src/toy/runs/run.py", "src/toy/build/page.py"}


@pytest.mark.rest
def test_a_test_that_fails_only_elsewhere_kills_nothing(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    none = ("--number", "0", "--packages", "room")
    main(["run", *none], project)
    (kept,) = (project.root / "build/mutants/all/room").iterdir()
    found = json.loads(gzip.decompress(kept.read_bytes()))
    assert [test for test, _ in found["tests"]] == [f"tests/room/test_clamp.py::test_{name}" for name in ("high", "low", "kept")]
    flag = project.root / "elsewhere"  # a map that was made where the test passed
    test = f"\n\ndef test_it_is_here():\n    clamp(2)\n    from pathlib import Path\n    assert Path({str(flag)!r}).exists()\n"
    (project.root / "tests/room/test_clamp.py").write_text(TESTS + test)
    flag.touch()
    main(["run", *none], project)
    flag.unlink()
    main(["run", "--packages", "room", "--processes", "1"], project)
    said = capsys.readouterr().out
    assert "left out, for it fails without a mutant too: tests/room/test_clamp.py::test_it_is_here" in said
    assert "6 of 9 mutants killed" in said


@pytest.mark.rest
def test_one_that_hangs_is_killed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.root / "src/toy/room/clamp.py").write_text("def count(x):\n    while x > 0:\n        x -= 1\n    return x\n")
    (project.root / "tests/room/test_clamp.py").write_text(
        "from toy.room.clamp import count\n\ndef test_count():\n    assert count(2) == 0\n"
    )
    (project.root / "tests/room/conftest.py").unlink()
    monkeypatch.setattr("mutants.SLACK_S", 5)
    main(["run", "--packages", "room"], project)
    outcomes = {entry["after"]: entry["outcome"] for entry in project.entries().values()}
    assert outcomes["x += 1"] == outcomes["pass"] == "hung" and outcomes["return None"] == "killed", outcomes


@pytest.mark.rest
def test_the_first_tier_runs_the_mutants_that_all_tests_ran(project: Project) -> None:
    main(["run", "--number", "2", "--packages", "room"], project)
    main(["run", "--tier", "first", "--packages", "room"], project)
    assert read(project.results.with_name("first.jsonl")).keys() == project.entries().keys() and len(project.entries()) == 2


def test_fast_tests_of_different_functions_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mutants.FIRST", 3)
    monkeypatch.setattr("mutants.ALIKE", 1)
    tests = [("a.py::x[1]", 1.0), ("a.py::x[2]", 2.0), ("b.py::y", 3.0), ("a.py::z", 4.0), ("b.py::w", 5.0)]
    assert [[test for test, _ in part] for part in batches(tests)] == [
        ["a.py::x[1]", "a.py::z", "b.py::y"],
        ["a.py::x[2]", "b.py::w"],
    ]
