"""The budgets and manners of docs/architecture.md, read from the syntax trees."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from source import PACKAGE, Function, depth, functions, is_kernel, name_of, num_lines, num_parameters, parse, python_files

SOURCE = python_files("src")
EVERYTHING = python_files("src", "tests", "docs", "benchmarks", "examples")

FORBIDDEN_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py"}
SHAPE_LITERALS = {1560, 32760}
"""Tokens of a latent frame and of a clip of one particular model at one particular size: always derived, never written."""


def ids(paths: list[Path]) -> list[str]:
    return [name_of(path) for path in paths]


@pytest.mark.parametrize("path", EVERYTHING, ids=ids(EVERYTHING))
def test_a_file_keeps_its_budget(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines or path.name == "__init__.py", "an empty placeholder file"
    assert len(lines) <= (600 if is_kernel(path) else 400), "split it into a package of the same name"
    assert path.name not in FORBIDDEN_NAMES, "name the room after what is in it"


@pytest.mark.parametrize("path", EVERYTHING, ids=ids(EVERYTHING))
def test_a_function_keeps_its_budget(path: Path) -> None:
    longest = 150 if is_kernel(path) else 60
    # a public operator names all it takes; a custom operator's schema is flat
    flat = ("api.py", "video.py", "packed.py", "packed_video.py", "custom_ops.py")
    any_parameters = is_kernel(path) or (path.name in flat and path.parent.parent.name == "attention")
    any_parameters |= path.parent.name == "compat"  # the signatures are those of others
    for function in functions(parse(path)):
        where = f"{name_of(path)}:{function.lineno} {function.name}"
        assert num_lines(function) <= longest, f"{where}: {num_lines(function)} lines, {longest} allowed"
        assert depth(function) <= 4, f"{where}: nested {depth(function)} deep, 4 allowed"
        if not any_parameters:
            assert num_parameters(function) <= 8, f"{where}: {num_parameters(function)} parameters, 8 allowed"


def uses(tree: ast.Module, name: str) -> list[int]:
    """Lines that mention a name: a call like `print`, or an attribute like `os.environ`."""
    owner, _, attribute = name.rpartition(".")
    if not owner:
        return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == attribute and ast.unparse(node.value) == owner
    ]


@pytest.mark.parametrize("path", SOURCE, ids=ids(SOURCE))
def test_a_file_keeps_its_manners(path: Path) -> None:
    tree, room = parse(path), path.relative_to(PACKAGE).as_posix()
    if not room.startswith("cli/"):
        assert not uses(tree, "print"), "only the command line prints; return the value"
    if room != "core/settings.py":
        assert not uses(tree, "os.environ") and not uses(tree, "os.getenv"), "core/settings.py alone uses the environment"
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and room != "cli/main.py":
            caught = "" if node.type is None else ast.unparse(node.type)
            assert node.type is not None and not re.search(r"\b(Base)?Exception\b", caught), f"line {node.lineno}: name the error"
        if isinstance(node, ast.Constant) and type(node.value) is int:
            assert node.value not in SHAPE_LITERALS, f"line {node.lineno}: derive {node.value} from the shapes"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def f():\n    return 1", 0),
        ("def f():\n    if a:\n        pass\n    elif b:\n        pass\n    elif c:\n        pass", 1),
        ("def f():\n    for a in b:\n        with c:\n            if d:\n                pass", 3),
        ("def f():\n    if a:\n        pass\n    else:\n        if b:\n            pass\n        c()", 2),
        ("def f():\n    if a:\n        def g():\n            for b in c:\n                pass", 1),
    ],
)
def test_depth_counts_what_a_reader_counts(code: str, expected: int) -> None:
    function = ast.parse(code).body[0]
    assert isinstance(function, Function)
    assert depth(function) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [("def f(self, a, /, b, *, c=1): ...", 3), ("def f(cls, *args, **kwargs): ...", 2), ("def f(): ...", 0)],
)
def test_parameters_are_those_a_caller_gives(code: str, expected: int) -> None:
    function = ast.parse(code).body[0]
    assert isinstance(function, Function)
    assert num_parameters(function) == expected
