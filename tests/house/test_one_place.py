"""What every page of a report shares has one place: columns, lists cut short, bytes, the rule for a p99, kernels."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from source import PACKAGE, parse

TOWER = sorted(path for room in ("perf", "bench", "cli", "lint") for path in (PACKAGE / room).rglob("*.py"))
REPORT = [path for path in TOWER if PACKAGE / "perf" / "report" in path.parents]

PLACES = {
    r"[\"'] and \{len\(\w+\) - \w+\} more": "core/printable.py",  # `a, b and 3 more`
    r"[\"'](?:MiB|GiB|KiB)[\"']: ?1 ?<< ?\d0": "core/printable.py",
    r"\bP99_SAMPLES: Final\b|>= P99_SAMPLES": "perf/measure/stats.py",
    r"[\"'](?:TFLOP/s|of bandwidth)[\"'],": "perf/report/blocks/kernels.py",
    r"\bv=SCHEMA_VERSION": "perf/report/blocks/fields.py",
    r"[\"']Against the device's peaks[\"']": "perf/report/blocks/kernels.py",
    r"\bWhiskers\(references,": "perf/report/run_page.py",
    r"\{len\(\w+\) - top\} more": "perf/table/fields.py",
    r"\bSection\(\"kernels\"": "perf/report/blocks/kernels.py",
    r"normalised name of the group": "perf/analysis/device/kernels.py",
    r"\bregion_kernels\((?!partition)": "perf/report/blocks/kernels.py",
}
"""What is written once, as a pattern, and the file that it is written in."""


def made_by_hand(tree: ast.Module) -> Iterator[int]:
    """Lines that make a column with a head; one without is what a cell outside of a table is shown in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Column":
            (first, *others) = node.args or [None]
            bare = not others and not node.keywords and isinstance(first, ast.Constant) and first.value == ""
            if not bare:
                yield node.lineno


def test_a_column_is_described_with_its_cells() -> None:
    by_hand = {
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in REPORT
        if path.name not in ("fields.py", "model.py")
        for line in made_by_hand(parse(path))
    }
    assert not by_hand, f"describe the column once, with perf/table/fields: {', '.join(sorted(by_hand))}"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('Column("time", "ms", True)', [1]),
        ('Column("time")', [1]),
        ('Column("", numeric=True)', [1]),
        ("Column(name)", [1]),
        ('Column("")', []),
    ],
)
def test_a_column_made_by_hand_is_found(code: str, found: list[int]) -> None:
    assert list(made_by_hand(ast.parse(code))) == found


def places(pattern: str, files: list[Path]) -> set[str]:
    """Files with a line in which the pattern is found."""
    return {str(path.relative_to(PACKAGE)) for path in files if re.search(pattern, path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("pattern", PLACES)
def test_what_all_share_has_one_place(pattern: str) -> None:
    files = [*TOWER, *(PACKAGE / "core").rglob("*.py")]
    assert places(pattern, files) == {PLACES[pattern]}
