"""Mutants of a source file: copies of it with one small error each."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

Node = TypeVar("Node", bound=ast.AST)
SWAPPED: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
"""What stands in for an operator. `|` stays: it is mostly a union of types."""
RENAMED: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
LEFT_ALONE: Final = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)
"""What only says something, and what is checked for its own sake."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """A copy of a source file with one error.

    Args:
        key: names it for good, wherever its line moves.
        path: of the file, from the root of the checkout.
        lines: numbers of its lines that are wrong.
        before, after: what is wrong.
        source: the whole file with it.
    """

    key: str
    path: str
    lines: range
    before: str
    after: str
    source: str


def mutants(path: str, source: str) -> list[Mutant]:
    """List all mutants of a file, in the order of its lines."""
    text, found, seen = source.encode(), [], Counter[str]()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = source.splitlines()
    for node, after in _changes(ast.parse(source)):
        assert node.end_lineno is not None and node.end_col_offset is not None
        start, stop = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        before = text[start:stop].decode()
        if before.startswith("elif"):
            continue
        wrong = (text[:start] + after.encode() + text[stop:]).decode()
        try:
            compile(wrong, path, "exec")
        except SyntaxError:
            continue
        name = f"{path} {lines[node.lineno - 1].strip()} {before} {after}"
        seen[name] += 1
        key = hashlib.sha256(f"{name} {seen[name]}".encode()).hexdigest()[:10]
        span = range(node.lineno, node.end_lineno + 1)
        found.append(Mutant(key=key, path=path, lines=span, before=before, after=after, source=wrong))
    return found


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield each node with a text to replace it."""
    for node in _running(tree):
        if isinstance(node, ast.stmt):
            yield from _statements(node)
        elif isinstance(node, ast.expr):
            yield from ((node, f"({ast.unparse(other)})") for other in _expressions(node))
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield node.test, f"(not ({ast.unparse(node.test)}))"


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that have an effect at run time: no annotation, docstring, message or assertion."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, LEFT_ALONE):
                yield from _running(child)


def _statements(node: ast.stmt) -> Iterator[tuple[ast.stmt, str]]:
    if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield node, "return None"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "pass"
    elif isinstance(node, ast.Assign) and not any(isinstance(target, ast.Name | ast.Tuple) for target in node.targets):
        yield node, "pass"  # without a name the next line would fail
    elif isinstance(node, ast.AugAssign):
        yield from ((node, ast.unparse(other)) for other in _with_other_operators(node, [node.op]))
        yield node, "pass"
    elif isinstance(node, ast.Continue):
        yield node, "break"


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare):
        yield from _with_other_operators(node, node.ops)
    elif isinstance(node, ast.BinOp | ast.BoolOp):
        yield from _with_other_operators(node, [node.op])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        value = node.value
        yield ast.Constant(not value if isinstance(value, bool) else value + 1)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RENAMED:
        other = copy.deepcopy(node)
        other.func = ast.Name(RENAMED[node.func.id])
        yield other


def _with_other_operators(node: Node, operators: Sequence[ast.AST]) -> Iterator[Node]:
    """Return copies of a node, each with one operator swapped."""
    for index, operator in enumerate(operators):
        if type(operator) in SWAPPED:
            other = copy.deepcopy(node)
            swapped = SWAPPED[type(operator)]()
            if isinstance(other, ast.Compare):
                other.ops[index] = swapped  # type: ignore[call-overload]
            else:
                other.op = swapped  # type: ignore[attr-defined]
            yield other
