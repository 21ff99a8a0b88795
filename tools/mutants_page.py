"""Render the section of docs/testing.md on mutants from the results of mutation testing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

HEAD = """## Mutants

A mutant is the program with one expression changed at random. `make mutants` makes mutants and runs the tests of the changed
line. If a test fails, the mutant is killed; otherwise, it survives. The column *change nothing* counts mutants that
compute what the program computes.
`python tools/mutants.py list` shows the survivors. `tests/mutants/results.jsonl` has every mutant.
`make mutants TIER=first` runs only the tests of `make test`; the last column has the result.
"""
OUTCOMES = ("killed", "survived", "equivalent")


def page(entries: Iterable[dict[str, Any]], first: Iterable[dict[str, Any]], packages: Sequence[str]) -> str:
    """Return the section: counts by package, of all tests and of the first tier alone."""
    held = tuple(entries)
    counts = Counter((_package(entry["path"], packages), _outcome(entry)) for entry in held)
    same_keys = {entry["key"] for entry in held if entry["outcome"] == "equivalent"}
    tried = [(_package(entry["path"], packages), _outcome(entry)) for entry in first if entry["key"] not in same_keys]
    head = "| package | killed | survived | killed, % | change nothing | killed by `make test` |"
    lines = [HEAD, head, "|---|---:|---:|---:|---:|---:|"]
    for name in (*packages, ""):
        killed, survived, same = (
            sum(number for (package, what), number in counts.items() if what == outcome and name in (package, ""))
            for outcome in OUTCOMES
        )
        share = f"{100 * killed / (killed + survived):.1f}" if killed + survived else "-"
        ran = [outcome for package, outcome in tried if name in (package, "")]
        by_first = f"{ran.count('killed')} of {len(ran)}" if ran else "-"
        lines.append(f"| {name or 'all'} | {killed} | {survived} | {share} | {same} | {by_first} |")
    return "\n".join(lines) + "\n"


def _outcome(entry: dict[str, Any]) -> str:
    return entry["outcome"] if entry["outcome"] in OUTCOMES else "killed"  # one that hangs is killed


def _package(path: str, packages: Sequence[str]) -> str:
    return next(name for name in packages if path.partition("/strobe/")[2].startswith(f"{name}/"))
