"""docs/docs_check.md from the results of the docs' commands and snippets."""

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
    """The page: counts by mark, what did not pass, and the date and result of each marked command."""
    counts = Counter((kind, state(key, results)) for _, key, marks, _ in rows for kind in (marks or {"not marked"}))
    marked = [row for row in rows if row[2]]
    ran = [results[key] for _, key, _, _ in rows if key in results]
    devices = sorted({(each.device, each.torch) for each in ran})
    dates = sorted(each.date for each in ran)
    return "\n".join(
        [
            "# Commands of the docs, run",
            "",
            "`make docs-check-full` runs every command and Python snippet of the README, these pages and `--help` as it stands, "
            "and writes this page. Those that are not marked also run in the test suite. Results add up: the last counts.",
            "",
            *(
                [f"Run between {dates[0]} and {dates[-1]}, on {'; '.join(f'{d}, torch {t}' for d, t in devices)}.", ""]
                if ran
                else []
            ),
            "| marked | passed | failed | not run |",
            "|---|---:|---:|---:|",
            *(f"| {kind} | {' | '.join(str(counts[kind, each]) for each in STATES)} |" for kind in ("not marked", *MARKS)),
            "",
            *_unmarked([row for row in rows if not row[2]], results),
            "| marked command | last run | on | result | s |",
            "|---|---|---|---|---:|",
            *(_line(row, results) for row in marked),
            "",
        ]
    )


def _unmarked(rows: Sequence[Row], results: Mapping[str, Result]) -> list[str]:
    """A line for each command that is not marked and failed."""
    failed = [(row, results[row[1]]) for row in rows if state(row[1], results) == "failed"]
    lines = [f"* `{_cell(row[0])}`: failed on {known.date}, {known.reason}" for row, known in failed]
    return ["Not marked, and failed:", "", *lines, ""] if lines else []


def _line(row: Row, results: Mapping[str, Result]) -> str:
    what, key, marks, obstacle = row
    known = results.get(key)
    command = f"`{_cell(what)}` ({', '.join(sorted(marks))})"
    if known is None:
        return f"| {command} | never |  | not run: {obstacle or 'not yet'} |  |"
    place = "CPU" if "no GPU" in known.device else known.device
    result = "passed" if known.passed else f"failed: {_cell(known.reason)}"
    return f"| {command} | {known.date} | {place} | {result} | {known.seconds:.0f} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
