"""The section of docs/testing.md on the docs, from the results of the docs' commands and snippets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from check_results import Result
from manual_text import MARKS

Row = tuple[str, str, frozenset[str], str]
"""Where and what it is, its key, its marks, and what it needs that is not here."""
STATES: Final = ("passed", "failed", "not run")


def state(key: str, results: Mapping[str, Result]) -> str:
    """What became of it the last time."""
    known = results.get(key)
    return STATES[2] if known is None else STATES[0] if known.passed else STATES[1]


def page(rows: Sequence[Row], results: Mapping[str, Result]) -> str:
    """The section: counts by mark, and what failed."""
    counts = Counter((kind, state(key, results)) for _, key, marks, _ in rows for kind in (marks or {"not marked"}))
    ran = [results[key] for _, key, _, _ in rows if key in results]
    devices = sorted({(each.device, each.torch) for each in ran})
    dates = sorted(each.date for each in ran)
    return "\n".join(
        [
            "## Commands of the docs",
            "",
            "`make docs-check-full` runs every command and Python snippet of the README, the docs and `--help`. A command may "
            "have a mark, which names what it needs. Commands without a mark also run as tests. The table counts the last result "
            "of each command (`tests/manual/results.jsonl`).",
            "",
            *(
                [f"Run between {dates[0]} and {dates[-1]}, on {'; '.join(f'{d}, torch {t}' for d, t in devices)}.", ""]
                if ran
                else []
            ),
            "| marked | passed | failed | not run |",
            "|---|---:|---:|---:|",
            *(f"| {kind} | {' | '.join(str(counts[kind, each]) for each in STATES)} |" for kind in ("not marked", *MARKS)),
            *_failed(rows, results),
        ]
    )


def _failed(rows: Sequence[Row], results: Mapping[str, Result]) -> list[str]:
    """A line for each command that failed the last time."""
    failed = [(row, results[row[1]]) for row in rows if state(row[1], results) == "failed"]
    lines = [f"* `{_cell(row[0])}`: failed on {known.date}, {known.reason}" for row, known in failed]
    return ["", *lines] if lines else []


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
