"""Mutation testing: wrong lines that tests should notice are drawn at random and run, and the results are counted.

    python tools/mutants.py run --seed 1 --number 40     new mutants; `make mutants` does this
    python tools/mutants.py again                        those that survived so far, after tests were added
    python tools/mutants.py list                         the count, and the survivors
    python tools/mutants.py equivalent KEY REASON        a survivor that changes nothing anyone could see
    python tools/mutants.py survivor KEY REASON          why no test notices a survivor that changes something
    python tools/mutants.py page                         the section of docs/testing.md

A mutant runs the tests that run its line, of the folder that mirrors its package, the fastest first, until one fails. That test
must pass without the mutant, else it is left out from then on. Which tests run a line is found by running each test file once
under a tracer; that is kept in `build/mutants` until a source of the package, what its tests share or that file changes.

`--tier first` runs them against the first tier of the tests (see tests/support/tiers.py): the same mutants that ran against all,
with results in a file of their own, `first.jsonl`.

`--processes N` run at a time, each in a copy of the checkout. What comes of each mutant is added at once to `results.jsonl` in
tests/mutants; of one key the last line counts. A line may stand for the keys of all killed mutants of a source.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from maps_of_tests import Maps, Pool, pool, say
from mutate import Mutant, mutants
from testing_page import put
from warm_pytest import Answer, Warm

HERE = Path(__file__).resolve().parent
PACKAGES = (
    "engine", "cache", "attention", "eightbit", "perf/trace", "perf/analysis", "perf/measure", "perf/records",
    "serve", "integrations", "models", "bench", "quality",
)  # fmt: skip
SLACK_S, SLOWER = 30, 4
"""A run may take so many seconds, and so many times as long as its tests took under the tracer; then it hangs. A mutant that
hangs counts as killed if the same tests end without it."""
FIRST, ALIKE = 60, 4
"""Tests that a mutant runs first, and how many of them may be the same function; all others follow if none of them fails."""
FIRST_RESULTS = "first.jsonl"
"""Beside the results of the whole suite: those of its first tier."""
NO_TESTS = 5
"""Exit code of pytest when no test was chosen."""
LISTED = ("survived", "equivalent")
Entry = dict[str, Any]
Tests = list[tuple[str, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """A checkout and the place of its results.

    Args:
        root: of the checkout: `src/NAME` and, mirroring it, `tests`.
        name: of its package.
        results: one JSON object per line.
        tier: of the tests that run.
    """

    root: Path
    name: str
    results: Path
    tier: str = "all"

    def entries(self) -> dict[str, Entry]:
        """Read the result of each mutant so far, by key."""
        return read(self.results)

    def candidates(self, packages: Iterable[str], pool: Pool, maps: Path) -> dict[str, tuple[Mutant, Tests]]:
        """List all mutants on lines that tests run, by key, with these tests and their seconds, the fastest first."""
        found = {}
        held = Maps(self.root, self.name, maps / self.tier, self.tier)
        held.make(packages, pool)
        for package in packages:
            covered = held.covered(package)
            for path, lines in covered["lines"].items():
                for mutant in mutants(path, (self.root / path).read_text(encoding="utf-8")):
                    numbers = {number for line in mutant.lines for number in lines.get(str(line), ())}
                    tests = sorted((tuple(covered["tests"][number]) for number in numbers), key=lambda test: test[1])
                    if tests:
                        found[mutant.key] = mutant, tests
        return found


def batches(tests: Tests) -> list[Tests]:
    """Split tests into some fast ones of different functions and all others, both ordered by file."""
    alike, first = Counter[str](), []
    for test in tests:
        function = test[0].split("[")[0]
        if len(first) < FIRST and alike[function] < ALIKE:
            alike[function] += 1
            first.append(test)
    chosen = {test for test, _ in first}
    parts = [first, [test for test in tests if test[0] not in chosen]]
    ordered = []
    for part in filter(None, parts):
        files = {test.split("::")[0]: index for index, (test, _) in reversed(list(enumerate(part)))}
        ordered.append(sorted(part, key=lambda test: (files[test[0].split("::")[0]], test[1])))
    return ordered


def passes(tests: list[str], limit_s: float, warm: Warm, workers: Pool) -> bool:
    """Return whether tests pass without a mutant, in time; each is asked once."""
    named, sound = " ".join(tests), workers.sound
    if named not in sound:
        code = warm.run(["-x", f"--tier={workers.tier}"], limit_s, only=tests)["code"]
        if code is None:
            return False
        sound[named] = code == 0
    return sound[named]


def outcome(mutant: Mutant, tests: Tests, warm: Warm, workers: Pool) -> tuple[str, str]:
    """Run the tests of a mutant: "killed", "hung" or "survived", and the test that failed; empty if nothing can be said."""
    passed, sound = 0, workers.sound
    for part in batches(tests):
        while part := [test for test in part if sound.get(test[0], True)]:
            limit_s = SLACK_S + SLOWER * sum(seconds for _, seconds in part)
            answer = wrong(mutant, part, warm, limit_s, workers.tier)
            passed += answer["passed"]
            if answer["code"] in (0, NO_TESTS):
                break
            # what must pass without the mutant: the test that failed, the tests of the file that did not load, or all
            failed = next(iter(answer["failed"]), "")
            asked = [test for test, _ in part if test == failed or test.split("::")[0] == failed] or [test for test, _ in part]
            hung = answer["code"] is None
            if passes(asked, limit_s, warm, workers):
                return ("hung", "") if hung else ("killed", failed)
            if hung:
                return "", ""  # the machine is too busy to know
            sound.update(dict.fromkeys(asked, False))
            say(f"left out, for it fails without a mutant too: {failed or asked}")
    return ("survived", "") if passed else ("", "")


def wrong(mutant: Mutant, tests: Tests, warm: Warm, limit_s: float, tier: str) -> Answer:
    """Run tests until one fails, with a mutant in place of its source."""
    path = warm.root / mutant.path
    original = path.read_bytes()
    path.write_text(mutant.source, encoding="utf-8")
    try:
        return warm.run(["-x", f"--tier={tier}"], limit_s, only=[test for test, _ in tests])
    finally:
        path.write_bytes(original)


def run(workers: Pool, chosen: list[tuple[Mutant, Tests]], seed: int, results: Path) -> None:
    """Run mutants and keep their results."""

    def one(warm: Warm, pair: tuple[Mutant, Tests]) -> Entry | None:
        (mutant, tests), began = pair, time.perf_counter()
        result, test = outcome(mutant, tests, warm, workers)
        if not result:
            return None
        took = round(time.perf_counter() - began, 1)
        entry = {"key": mutant.key, "outcome": result, "path": mutant.path, "line": mutant.lines[0]}
        return entry | {
            "before": mutant.before,
            "after": mutant.after,
            "test": test,
            "tests": len(tests),
            "s": took,
            "seed": seed,
        }

    unsaid = 0
    for entry in workers.map(one, chosen):
        if entry is None:
            unsaid += 1
            continue
        add(results, entry)
        say(described(entry))
    if unsaid:
        say(f"{unsaid} have no test here that ends, and do not count")


def read(results: Path) -> dict[str, Entry]:
    """Read the result of each mutant in a file, by key. A line may stand for all killed ones of one source."""
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    found = {}
    for entry in map(json.loads, lines):
        for key in entry.pop("keys", None) or (entry["key"],):
            found[key] = entry | {"key": key}
    return found


def add(results: Path, entry: Entry) -> None:
    """Append the result of a mutant."""
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def described(entry: Entry) -> str:
    """Format a mutant and its result on one line."""
    before, after = (" ".join(entry[name].split())[:70] for name in ("before", "after"))
    reason = f"  ({entry['reason']})" if "reason" in entry else ""
    return f"{entry['outcome']:10} {entry['key']}  {entry['path']}:{entry['line']}  {before}  ->  {after}{reason}"


def summary(entries: Iterable[Entry]) -> str:
    """Format the count of killed mutants, and list the survivors."""
    held = list(entries)
    counted = [entry for entry in held if entry["outcome"] != "equivalent"]
    killed = sum(entry["outcome"] != "survived" for entry in counted)
    share = f"{100 * killed / len(counted):.1f} %" if counted else "none"
    first = f"{killed} of {len(counted)} mutants killed ({share}); {len(held) - len(counted)} more change nothing"
    return "\n".join([first, *(described(entry) for entry in held if entry["outcome"] in LISTED)])


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Mutation testing.")
    parser.add_argument("what", choices=["run", "again", "list", "equivalent", "survivor", "page"])
    parser.add_argument("words", nargs="*", help="of `equivalent` and `survivor`: key and reason")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=40)
    parser.add_argument("--processes", "--jobs", type=int, default=2)
    parser.add_argument("--tier", choices=["first", "all"], default="all", help="of the tests")
    parser.add_argument("--packages", nargs="+", default=PACKAGES)
    return parser


def main(words: list[str], project: Project) -> None:
    """Run the command line of the module."""
    parser, began = _parser(), time.monotonic()
    asked, whole = parser.parse_args(words), project.entries()
    if asked.tier == "first":
        project = replace(project, tier="first", results=project.results.with_name(FIRST_RESULTS))
    entries, results = project.entries(), project.results
    if asked.what in ("equivalent", "survivor"):
        key, reason = (*asked.words, "", "")[:2]
        if entries.get(key, {}).get("outcome") != "survived" or not reason:
            parser.error(f"{key} is no survivor, or has no reason; `list` shows the survivors")
        add(results, entries[key] | {"outcome": "equivalent" if asked.what == "equivalent" else "survived", "reason": reason})
    elif asked.what == "page":
        first = read(project.results.with_name(FIRST_RESULTS)).values()
        put(page(whole.values(), first, PACKAGES), project.root / "docs" / "testing.md")
    elif asked.what in ("run", "again"):
        with pool(project.root, asked.processes, project.tier) as workers:
            found = project.candidates(asked.packages, workers, project.root / "build" / "mutants")
            say(f"{len(found)} mutants on lines that tests run; {time.monotonic() - began:.0f} s so far")
            if asked.what == "again":
                keys = [key for key, entry in entries.items() if entry["outcome"] == "survived" and key in found]
            else:
                drawn = found.keys() if project.tier == "all" else found.keys() & whole.keys()
                fresh = sorted(drawn - entries.keys())
                keys = random.Random(asked.seed).sample(fresh, min(asked.number, len(fresh)))
                say(f"{len(keys)} of {len(fresh)} mutants that have not run")
            run(workers, [found[key] for key in keys], asked.seed, results)
    say(summary(read(results).values()))


if __name__ == "__main__":
    main(sys.argv[1:], Project(root=HERE.parent, name="strobe", results=HERE.parent / "tests" / "mutants" / "results.jsonl"))
