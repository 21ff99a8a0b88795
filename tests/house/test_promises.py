"""Every promise names a test that exists, and promises something."""

from __future__ import annotations

import ast
import re

import pytest

from source import ROOT
from testing_page import section

ROW = re.compile(r"^\| (?P<promise>[^|]+) \| `(?P<path>tests/[\w/]+\.py)::(?P<test>test_\w+)` \|$")
HEAD = ("| promise | test |", "|---|---|")
ROWS = [line for line in section("Promises").splitlines() if line.startswith("|") and line not in HEAD]


def named_in(path: str) -> set[str]:
    """Names of the tests in a file, those in classes too."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("row", ROWS)
def test_a_promise_names_a_test_that_exists(row: str) -> None:
    found = ROW.match(row)
    assert found is not None, "a promise, and `tests/PATH.py::TEST`"
    assert found["test"] in named_in(found["path"])


def test_no_promise_is_made_twice() -> None:
    promises = [row.split("|")[1].strip() for row in ROWS]
    assert len(set(promises)) == len(promises) > 30
    assert all(promise.endswith(".") for promise in promises)
