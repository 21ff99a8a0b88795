"""Prose is never data: no code decides by what a sentence says, or by how a name is spelled. Records have fields for that."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from source import PACKAGE, name_of, parse
from strobe.perf.records.record import LINES
from strobe.perf.records.store import parts_of

READERS: Final = ("perf/logs", "perf/trace", "lint")
"""Rooms whose work is to read text of others."""
TAKES_APART: Final = {
    "startswith", "endswith", "removeprefix", "removesuffix", "find", "rfind", "index", "rindex", "count", "split", "rsplit",
    "partition", "rpartition", "casefold",
}  # fmt: skip
PATTERNS: Final = {"search", "match", "fullmatch", "findall", "finditer", "split"}
NAMES: Final = {"name", "metric", "variant"}
"""Fields that name something: they are equal to a name or they are not."""
ROOMS_OF_NAMES: Final = ("perf/records", "perf/report", "perf/analysis/runs", "perf/analysis/ledger", "bench", "cli")
NAMES_OF_OTHERS: Final = {
    "perf/records/store.py": "folders that were moved out of the way",
    "perf/report/trace_page/structure.py": "ranges of a trace, and operators of torch",
    "perf/analysis/runs/log_times.py": "a timer that the user names by a pattern",
    "bench/tree/machine.py": "folders of the kernel",
}


def prose_fields() -> set[str]:
    """Fields that the records declare as prose."""
    found = set()
    for kind in {part for line in LINES for part in (line, *parts_of(line))}:
        for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[union-attr]
            if isinstance(field.type, msgspec.inspect.Metadata) and (field.type.extra or {}).get("prose"):
                found.add(field.encode_name)
    return found


def readings(tree: ast.AST, fields: set[str]) -> Iterator[tuple[int, str]]:
    """Lines that take the text of such a field apart, or compare it with a text."""

    def is_field(node: ast.expr) -> bool:
        return isinstance(node, ast.Attribute) and node.attr in fields

    for node in ast.walk(tree):
        found = False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            taken = node.func.attr in TAKES_APART and is_field(node.func.value)
            found = taken or (node.func.attr in PATTERNS and any(map(is_field, node.args)))
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            pairs = list(zip(sides, node.ops, sides[1:], strict=False))
            found = any(isinstance(op, ast.In | ast.NotIn) and is_field(right) for _, op, right in pairs)
            found |= any(is_field(one) and _is_text(other) for a, _, b in pairs for one, other in ((a, b), (b, a)))
        elif isinstance(node, ast.Match):
            found = is_field(node.subject)
        if found:
            yield node.lineno, ast.unparse(node)[:100]  # type: ignore[attr-defined]


def _is_text(node: ast.expr) -> bool:
    """A text that is not empty, or several; whether there is a text at all may be asked."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value != ""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Tuple | ast.Set | ast.List) and any(map(_is_text, node.elts)))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def files() -> list[Path]:
    paths = PACKAGE.rglob("*.py")
    return sorted(path for path in paths if not room(path).startswith(READERS) and "lint" not in path.parts)


def test_no_decision_hangs_on_prose() -> None:
    fields = prose_fields()
    found = [f"{name_of(path)}:{at}: {text}" for path in files() for at, text in readings(parse(path), fields)]
    assert not found, "\n".join(found)


def test_no_name_of_a_record_is_taken_apart() -> None:
    chosen = [path for path in files() if room(path).startswith(ROOMS_OF_NAMES) and room(path) not in NAMES_OF_OTHERS]
    found = [
        f"{name_of(path)}:{at}: {text}"
        for path in chosen
        for at, text in readings(ast.Module(body=calls(parse(path)), type_ignores=[]), NAMES)
    ]
    assert not found, "\n".join(found)


def calls(tree: ast.Module) -> list[ast.stmt]:
    """Methods that take a text apart; comparisons of names are left out."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    return [ast.Expr(node) for node in found if node.func.attr in TAKES_APART]  # type: ignore[attr-defined]


def test_records_say_what_is_prose() -> None:
    assert prose_fields() >= {"cause", "rule", "detail", "message", "definition", "note", "reason", "caption", "reference"}


@pytest.mark.parametrize(
    "code",
    [
        'entry.reason.startswith("red")', 'line.definition.endswith("flop")', "EXACT in gate.rule", 'line.cause == "warm-up"',
        're.search("no memory", end.message)', 'line.note in ("a", "b")', 'line.reference.partition(", ")',
    ],
)  # fmt: skip
def test_a_reading_is_found(code: str) -> None:
    assert [text for _, text in readings(ast.parse(code), prose_fields())]


@pytest.mark.parametrize("code", ["if entry.reason: pass", 'line.note == ""', 'print(f"{gate.rule}")', "entry.outcome == 'red'"])
def test_what_decides_nothing_is_not(code: str) -> None:
    assert not list(readings(ast.parse(code), prose_fields()))
