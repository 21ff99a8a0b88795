"""One table of tolerances; what tests still write beside it may only become less."""

from __future__ import annotations

import ast

import torch

from source import name_of, parse, python_files
from strobe.core.tolerances import TOLERANCES, tolerance

BESIDE = 0
"""Tolerances of tensors that tests write as numbers. Whoever moves one into the table lowers this."""


def tables(tree: ast.Module) -> list[str]:
    """Names of module-level tables of tolerances."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    named = [
        target.id
        for node in assigned
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and not isinstance(node.value, ast.Constant)
    ]
    return [name for name in named if "TOLERANCES" in name]


def written(tree: ast.Module) -> int:
    """Tolerances of tensors that are numbers, and not 0."""
    given = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg in ("atol", "rtol")]
    return sum(isinstance(value, ast.Constant) and value.value != 0 for value in given)


def test_there_is_one_table() -> None:
    found = [name_of(path) for path in python_files("src", "tests", "tools") if tables(parse(path))]
    assert found == ["src/strobe/core/tolerances.py"]


def test_tests_write_no_new_tolerance_beside_it() -> None:
    found = {name_of(path): written(parse(path)) for path in python_files("tests", "tools")}
    assert sum(found.values()) <= BESIDE, {name: count for name, count in found.items() if count}


def test_wider_dtypes_have_tighter_tolerances() -> None:
    for measure, row in TOLERANCES.items():
        values = [row[name] for name in ("float64", "float32", "float16", "bfloat16") if name in row]
        assert values == sorted(values) and all(0 < value < 1 for value in values), measure
    assert tolerance("call", torch.float16) == tolerance("call", "float16") == 2e-3
