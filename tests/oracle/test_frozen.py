"""What stored runs, pages, traces and logs say is what they said when `tests/oracle/freeze.py` last ran."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest

from frozen import COMMAND, OTHERS, VALUES, Subject, differences, other_subjects, read_frozen, subjects

_SHOWN = 12
SUBJECTS = subjects()
LARGE = "benchmarks/engine-h200/compare"
"""Of the largest run, and the traces of its nine presets, two traces are in the first tier, one of them sparse: the run and the
traces of benchmarks/presets-h200 are of the same kinds, and smaller."""
FIRST = (f"trace {LARGE}/traces/sparse.json.gz", f"trace {LARGE}/traces/ultra.json.gz")
REST = ("page ", f"run {LARGE}", f"trace {LARGE}")  # of pages that are no run's, tests/benchmarks compares every letter
CASES = [pytest.param(name, marks=() if name in FIRST or not name.startswith(REST) else pytest.mark.rest) for name in SUBJECTS]


@functools.cache
def frozen() -> dict[str, Any]:
    return read_frozen()["values"]


def moved(subject: Subject) -> str:
    """The first values that differ, one line each; empty if all are the same."""
    found = differences(subject.name, frozen().get(subject.name), subject.value())
    more = [f"... and {len(found) - _SHOWN} more; if all are meant, run `{COMMAND}`"] if len(found) > _SHOWN else []
    return "\n".join([*found[:_SHOWN], *more])


@pytest.mark.parametrize("name", CASES)
def test_a_stored_subject_says_what_it_said(name: str) -> None:
    text = moved(SUBJECTS[name])
    assert not text, text


def test_traces_of_others_say_what_they_said() -> None:
    others = other_subjects()
    if others is None:
        pytest.skip(f"{OTHERS} names no folder with traces")
    text = "\n".join(filter(None, map(moved, others.values())))
    assert not text, text


def test_nothing_that_is_stored_is_left_out() -> None:
    assert {name for name in frozen() if not name.startswith("other ")} == set(SUBJECTS)
    assert VALUES.stat().st_size < 1_500_000


def test_a_value_that_moved_is_named() -> None:
    name = "page benchmarks/tree-cpu/ws2"
    was = frozen()[name]
    now = copy.deepcopy(was)
    cell = next(cell for block in now["sections"] for cell in _cells(block) if isinstance(cell.get("ns"), float))
    cell["ns"] *= 1 + 1e-9
    (line,) = differences(name, was, now)
    assert line.startswith(f"{name}: sections[") and ".ns: frozen " in line
    cell["ns"] = was
    assert differences(name, was, now)


def test_what_is_new_and_what_is_gone_differs() -> None:
    assert differences("x", {"a": [1, 2]}, {"a": [1]}) == ["x: a[1]: frozen 2, now nothing"]
    assert differences("x", {"a": 1}, {"a": 1, "b": None}) == ["x: b: frozen nothing, now null"]
    assert differences("x", {"a": 1}, {"a": 1.0}) == ["x: a: frozen 1, now 1.0"]
    assert differences("x", {"a": 0.1 + 0.2}, {"a": 0.3}) == []


def _cells(value: Any) -> list[dict[str, Any]]:
    """Every object inside a section."""
    if isinstance(value, list):
        return [cell for each in value for cell in _cells(each)]
    return [value, *(cell for each in value.values() for cell in _cells(each))] if isinstance(value, dict) else []
