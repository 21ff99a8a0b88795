"""The mutation tool: what it makes wrong, which tests it runs, what it counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutants import Project, main
from mutate import mutants

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
        (15, "x < least", "(x <= least)"),
        (17, "return min(x, LIMIT)", "return None"),
        (17, "min(x, LIMIT)", "(max(x, LIMIT))"),
        (21, "return x + 1", "return None"),
        (21, "x + 1", "(x - 1)"),
        (21, "1", "(2)"),
    ]
    assert all(each.source != SOURCE and each.source.count("\n") == SOURCE.count("\n") for each in found)
    moved = mutants("clamp.py", SOURCE.replace("LIMIT = 3", "\n\nLIMIT = 3"))
    assert [each.key for each in moved] == [each.key for each in found] and len({each.key for each in found}) == len(found)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    for name, text in {
        "src/toy/__init__.py": "",
        "src/toy/room/__init__.py": "",
        "src/toy/room/clamp.py": SOURCE,
        "tests/room/conftest.py": "import toy.room.clamp",
        "tests/room/test_clamp.py": TESTS,
        "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['src']\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return Project(root=tmp_path, name="toy", results=tmp_path / "results.jsonl")


def test_survivors_are_found_and_counted(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # nine times quickly
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


def test_tests_that_fail_are_no_map(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (project.root / "tests/room/test_clamp.py").write_text("def test_wrong():\n    assert False\n")
    with pytest.raises(SystemExit, match="the tests of room fail without a mutant"):
        main(["run", "--packages", "room"], project)
