"""Render docs/mutants.md from the results of mutation testing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

HEAD = """# Mutation tests

`make mutants` changes single expressions of the code at random, one at a time, and runs the tests that run the changed line. A
mutant that no test notices survives: a test is missing, or nobody can see the change. Only lines that tests run on a CPU are
changed. Results add up in `tests/mutants/results.jsonl`; survivors run again after tests were added. `make mutants TIER=first`
runs those mutants against the tests of `make test` alone; the last column counts how many of them ran, and were killed.
"""
OUTCOMES = ("killed", "survived", "equivalent")


def page(entries: Iterable[dict[str, Any]], first: Iterable[dict[str, Any]], packages: Sequence[str]) -> str:
    """Return the page: counts by package, survivors, and mutants that change nothing, each with its reason."""
    held = sorted(entries, key=lambda entry: (entry["path"], entry.get("line", 0)))
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
    for outcome, title in (("survived", "Survivors"), ("equivalent", "Mutants that change nothing anyone could see")):
        lines += ["", f"## {title}", "", "| line | before | after | reason |", "|---|---|---|---|"]
        lines += [_row(entry) for entry in held if entry["outcome"] == outcome]
    return "\n".join(lines) + "\n"


def _outcome(entry: dict[str, Any]) -> str:
    return entry["outcome"] if entry["outcome"] in OUTCOMES else "killed"  # one that hangs is killed


def _package(path: str, packages: Sequence[str]) -> str:
    return next(name for name in packages if path.partition("/strobe/")[2].startswith(f"{name}/"))


def _row(entry: dict[str, Any]) -> str:
    before, after = (" ".join(entry[name].split()).replace("|", "\\|") for name in ("before", "after"))
    where = f"{entry['path'].partition('/strobe/')[2]}:{entry['line']}"
    return f"| {where} | `{before}` | `{after}` | {entry.get('reason', 'a test is missing')} |"
