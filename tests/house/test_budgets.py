"""The budgets and manners of docs/architecture.md, read from the syntax trees."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from source import (
    PACKAGE,
    ROOT,
    Function,
    depth,
    functions,
    is_kernel,
    name_of,
    num_lines,
    num_parameters,
    parse,
    python_files,
    statements,
)  # fmt: skip

EVERYTHING = python_files("src", "tests", "tools", "docs", "benchmarks", "examples")

FORBIDDEN_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py"}
SHAPE_LITERALS = {1560, 32760}
"""Tokens of a latent frame and of a clip of one particular model at one particular size: always derived, never written."""


def file_faults(path: Path) -> Iterator[str]:
    """What a file is too long for, or named after."""
    lines = path.read_text(encoding="utf-8").splitlines()
    most = 600 if is_kernel(path) else 1000
    if not lines and path.name != "__init__.py":
        yield "an empty placeholder file"
    if len(lines) > most:
        yield f"{len(lines)} lines, {most} allowed: split it into a package of the same name"
    if path.name in FORBIDDEN_NAMES:
        yield "name the room after what is in it"


def function_faults(path: Path, tree: ast.Module) -> Iterator[str]:
    """Functions that are too long, too deep, or take too much."""
    longest = 150 if is_kernel(path) else 80
    # a public operator names all it takes; a custom operator's schema is flat
    flat = ("api.py", "video.py", "packed.py", "packed_video.py", "custom_ops.py")
    any_parameters = is_kernel(path) or (path.name in flat and path.parent.parent.name == "attention")
    any_parameters |= path.parent.name == "compat"  # the signatures are those of others
    public = ("sparsify",) if path.parent.parent.name == "integrations" else ()
    for function in functions(tree):
        where = f"{function.lineno} {function.name}"
        if num_lines(function) > longest:
            yield f"{where}: {num_lines(function)} lines, {longest} allowed"
        if depth(function) > 4:
            yield f"{where}: nested {depth(function)} deep, 4 allowed"
        if not any_parameters and function.name not in public and num_parameters(function) > 8:
            yield f"{where}: {num_parameters(function)} parameters, 8 allowed"


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


CATCHES_ALL = ("cli/main.py", "serve/worker.py", "core/libraries.py")
"""Where whatever ends a piece of work is told to whoever waits for it: the command line, the thread that owns a device, and what
other packages wrote."""


def manner_faults(path: Path, tree: ast.Module) -> Iterator[str]:
    """What the package does in one place alone, or nowhere."""
    room, text = path.relative_to(PACKAGE).as_posix(), path.read_text(encoding="utf-8")
    if not room.startswith("cli/") and "print" in text and uses(tree, "print"):
        yield "only the command line prints; return the value"
    if room != "core/settings.py" and any(name in text and uses(tree, f"os.{name}") for name in ("environ", "getenv")):
        yield "core/settings.py alone uses the environment"
    for node in statements(tree):
        if isinstance(node, ast.ExceptHandler) and room not in CATCHES_ALL:
            caught = "" if node.type is None else ast.unparse(node.type)
            if node.type is None or re.search(r"\b(Base)?Exception\b", caught):
                yield f"line {node.lineno}: name the error"
    if any(str(literal) in text.replace("_", "") for literal in SHAPE_LITERALS):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and type(node.value) is int and node.value in SHAPE_LITERALS:
                yield f"line {node.lineno}: derive {node.value} from the shapes"


def faults(path: Path) -> list[str]:
    """Everything that a file may not."""
    tree = parse(path)
    found = [*file_faults(path), *function_faults(path, tree)]
    if path.is_relative_to(PACKAGE):
        found += manner_faults(path, tree)
    return [f"{name_of(path)}: {fault}" for fault in found]


def test_every_file_keeps_its_budget_and_manners() -> None:
    found = [fault for path in EVERYTHING for fault in faults(path)]
    assert not found, "\n".join(found)


_BLOCKS = ("def f():", "for a in b:", "while c:", "with d:", "if e:", "try:", "x = 1")
DEEP = "".join("    " * level + line + "\n" for level, line in enumerate(_BLOCKS))
WRONG = {
    "core/wrong.py": ("x = 1\n" * 1001, "1001 lines, 1000 allowed"),
    "core/helpers.py": ("x = 1", "name the room after what is in it"),
    "core/empty.py": ("", "an empty placeholder file"),
    "core/long.py": ("def f():\n" + "    x = 1\n" * 80, "1 f: 81 lines, 80 allowed"),
    "core/deep.py": (DEEP + "                    finally:\n                        y = 2\n", "nested 5 deep, 4 allowed"),
    "core/many.py": ("def f(a, b, c, d, e, f, g, h, i): ...", "9 parameters, 8 allowed"),
    "core/says.py": ("print(1)", "only the command line prints"),
    "core/environment.py": ("import os\nx = os.environ", "core/settings.py alone"),
    "core/catches.py": ("try:\n    x = 1\nexcept Exception:\n    pass", "line 3: name the error"),
    "core/literal.py": ("x = 1560", "line 1: derive 1560"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_a_file_may_not_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, said = WRONG[name]
    path = tmp_path / "src" / "strobe" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    for module in ("source", __name__):
        monkeypatch.setattr(sys.modules[module], "PACKAGE", tmp_path / "src" / "strobe")
    monkeypatch.setattr(sys.modules["source"], "ROOT", tmp_path)
    (found,) = faults(path)
    assert said in found


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


NOUNS = re.compile(r"^\| `(?P<room>[\w/]+)` \| (?P<most>\d+) \|$", re.MULTILINE)


def noun_budgets() -> dict[str, int]:
    """Public classes that each room may have, as docs/architecture.md lists them."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return {found["room"]: int(found["most"]) for found in NOUNS.finditer(page)}


def public_classes(place: Path) -> list[str]:
    """Public classes of a file or room, those inside others too."""
    return [name for path in (place.rglob("*.py") if place.is_dir() else [place]) for name in classes_of(path)]


@functools.cache
def classes_of(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    nodes = statements(ast.parse(text)) if "class " in text else ()
    return [node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


@pytest.mark.parametrize("room", noun_budgets())
def test_a_room_keeps_its_budget_of_nouns(room: str) -> None:
    found, most = public_classes(PACKAGE / room), noun_budgets()[room]
    assert found, f"{room} has no classes: take it off the list in docs/architecture.md"
    assert len(found) <= most, f"{room}: {len(found)} public classes, {most} allowed: can an existing one be it?"
    assert len(found) == most, f"{room}: {len(found)} public classes, {most} allowed: lower the budget in docs/architecture.md"


def test_every_room_with_classes_has_a_budget_of_nouns() -> None:
    rooms = {path.relative_to(PACKAGE).parts for path in PACKAGE.rglob("*.py") if public_classes(path)}
    names = {"/".join(parts[: 2 if parts[0] == "perf" else 1]) for parts in rooms}
    assert names <= set(noun_budgets()), sorted(names - set(noun_budgets()))


def test_a_public_class_is_counted_wherever_it_stands(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "one.py").write_text("class A:\n    class B: ...\n\nclass _C: ...\n")
    (tmp_path / "inner" / "two.py").write_text("def f():\n    class D: ...\n")
    assert sorted(public_classes(tmp_path)) == ["A", "B", "D"]
