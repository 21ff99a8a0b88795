"""The source tree for the house rules: files, syntax trees, functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "strobe"
H200 = ROOT / "tests" / "data" / "h200"
"""Our own captures of an H200."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

NESTING = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)


def python_files(*folders: str) -> list[Path]:
    """List every Python file under the given folders of the checkout."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    """Return the path relative to the checkout, as rules and messages write it."""
    return path.relative_to(ROOT).as_posix()


def is_kernel(path: Path) -> bool:
    """Whether a file is a kernel file, which may be longer: an operator's implementations and a model's fused kernels."""
    return path.parent.name in ("impl", "kernels")


def parse(path: Path) -> ast.Module:
    """Parse the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=name_of(path))


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """List every statement and what holds some, such as `except`, without the inside of expressions, which is most of a tree."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        todo += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]


def functions(tree: ast.Module) -> Iterator[Function]:
    """List every function and method, nested ones too."""
    return (node for node in statements(tree) if isinstance(node, Function))


def num_lines(function: Function) -> int:
    """Count the lines from `def` to the last statement, without the docstring."""
    first = function.body[0]
    documented = ast.get_docstring(function, clean=False) is not None and len(function.body) > 1
    return function.end_lineno - function.lineno + 1 - (first.end_lineno - first.lineno + 1 if documented else 0)


def num_parameters(function: Function) -> int:
    """Count the parameters that a caller can give, without `self` and `cls`."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in named) + bool(arguments.vararg) + bool(arguments.kwarg)


def depth(node: ast.AST, level: int = 0) -> int:
    """Return the deepest nesting of compound statements; an `elif` is as deep as its `if`, nested functions count apart."""
    deepest = level
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.expr):
            continue
        is_elif = isinstance(node, ast.If) and node.orelse == [child] and isinstance(child, ast.If)
        deepest = max(deepest, depth(child, level + (isinstance(child, NESTING) and not is_elif)))
    return deepest
