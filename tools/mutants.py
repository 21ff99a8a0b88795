"""Mutation testing: wrong lines that tests should notice are drawn at random and run, and the results are counted.

    python tools/mutants.py run --seed 1 --number 40     new mutants; `make mutants` does this
    python tools/mutants.py again                        those that survived so far, after tests were added
    python tools/mutants.py list                         the count, and the survivors
    python tools/mutants.py equivalent KEY REASON        a survivor that changes nothing anyone could see
    python tools/mutants.py survivor KEY REASON          why no test notices a survivor that changes something
    python tools/mutants.py page                         the section of docs/testing.md
    python tools/mutants.py map                          only find out which test runs which line
    python tools/mutants.py merge FILE ...               results from another machine; the file is made small again

A mutant runs the tests that run its line, of the folder that mirrors its package, the fastest first, until one fails. That test
must pass without the mutant, else it is left out from then on. Which tests run a line is found by running each test file once
under a tracer; that is kept in `build/mutants` (`--map`) until a source of the package, what its tests share or that file
changes, and can be taken to another machine with the same checkout.

`--processes N` run at a time, each in a copy of the checkout; `--shard 2/5` takes the second fifth of what is drawn; after
`--seconds S` nothing more is begun, and what has not ended does not count. What comes of each mutant is added at once to
`results.jsonl` in tests/mutants, or in the folder of `--out`; of one key the last line counts. `merge`, with or without files,
leaves one line for each survivor, and one for the keys of all killed mutants of a source.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maps_of_tests import Maps
from mutants_page import page
from mutate import Mutant, mutants
from testing_page import put
from warm_pool import Pool, pool, say
from warm_pytest import Answer, Warm

HERE = Path(__file__).resolve().parent
PACKAGES = (
    "engine", "cache", "attention", "eightbit", "perf/trace", "perf/analysis", "perf/measure", "perf/records",
)  # fmt: skip
SLACK_S, SLOWER = 30, 4
"""A run may take so many seconds, and so many times as long as its tests took under the tracer; then it hangs. A mutant that
hangs counts as killed if the same tests end without it."""
FIRST, ALIKE = 60, 4
"""Tests that a mutant runs first, and how many of them may be the same function; all others follow if none of them fails."""
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
    """

    root: Path
    name: str
    results: Path

    def entries(self) -> dict[str, Entry]:
        """Read the result of each mutant so far, by key."""
        return read(self.results)

    def candidates(self, packages: Iterable[str], pool: Pool, maps: Path) -> dict[str, tuple[Mutant, Tests]]:
        """List all mutants on lines that tests run, by key, with these tests and their seconds, the fastest first."""
        found = {}
        held = Maps(self.root, self.name, maps)
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


def limit(tests: Tests, warm: Warm) -> float:
    """Return the seconds after which a run of tests counts as hanging."""
    return min(SLACK_S + SLOWER * sum(seconds for _, seconds in tests), warm.left())


def passes(tests: list[str], limit_s: float, warm: Warm, sound: dict[str, bool]) -> bool:
    """Return whether tests pass without a mutant, in time; each is asked once."""
    named = " ".join(tests)
    if named not in sound:
        code = warm.run(["-x"], limit_s, only=tests)["code"]
        if code is None:
            return False
        sound[named] = code == 0
    return sound[named]


def outcome(mutant: Mutant, tests: Tests, warm: Warm, sound: dict[str, bool]) -> tuple[str, str]:
    """Run the tests of a mutant: "killed", "hung" or "survived", and the test that failed; empty if nothing can be said."""
    passed = 0
    for part in batches(tests):
        while part := [test for test in part if sound.get(test[0], True)]:
            limit_s = limit(part, warm)
            answer = wrong(mutant, part, warm, limit_s)
            passed += answer["passed"]
            if answer["code"] in (0, NO_TESTS):
                break
            if warm.left() <= 0:
                return "", ""
            # what must pass without the mutant: the test that failed, the tests of the file that did not load, or all
            failed = next(iter(answer["failed"]), "")
            asked = [test for test, _ in part if test == failed or test.split("::")[0] == failed] or [test for test, _ in part]
            hung = answer["code"] is None
            if passes(asked, limit_s, warm, sound):
                return ("hung", "") if hung else ("killed", failed)
            if hung or warm.left() <= 0:
                return "", ""  # the machine is too busy to know
            sound.update(dict.fromkeys(asked, False))
            say(f"left out, for it fails without a mutant too: {failed or asked}")
    return ("survived", "") if passed else ("", "")


def wrong(mutant: Mutant, tests: Tests, warm: Warm, limit_s: float) -> Answer:
    """Run tests until one fails, with a mutant in place of its source."""
    path = warm.root / mutant.path
    original = path.read_bytes()
    path.write_text(mutant.source, encoding="utf-8")
    try:
        return warm.run(["-x"], limit_s, only=[test for test, _ in tests])
    finally:
        path.write_bytes(original)


def run(workers: Pool, chosen: list[tuple[Mutant, Tests]], seed: int, results: Path) -> None:
    """Run mutants and keep their results."""

    def one(warm: Warm, pair: tuple[Mutant, Tests]) -> Entry | None:
        (mutant, tests), began = pair, time.perf_counter()
        if warm.left() <= 0:
            return None
        result, test = outcome(mutant, tests, warm, workers.sound)
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
        say(f"{unsaid} did not end in the time given, or have no test here, and do not count")


def read(results: Path) -> dict[str, Entry]:
    """Read the result of each mutant in a file, by key. A line may stand for all killed ones of one source."""
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    found = {}
    for entry in map(json.loads, lines):
        for key in entry.pop("keys", None) or (entry["key"],):
            found[key] = entry | {"key": key}
    return found


def packed(entries: Iterable[Entry]) -> str:
    """Format results as lines: one for each that is listed, one for all others of a source and outcome."""
    alike: dict[tuple[str, str], list[str]] = {}
    lines = []
    for entry in entries:
        if entry["outcome"] in LISTED:
            lines.append(entry)
        else:
            alike.setdefault((entry["path"], entry["outcome"]), []).append(entry["key"])
    lines += [{"path": path, "outcome": outcome, "keys": keys} for (path, outcome), keys in sorted(alike.items())]
    return "".join(json.dumps(line) + "\n" for line in lines)


def add(results: Path, entry: Entry) -> None:
    """Append the result of a mutant."""
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def name(file: Path, root: Path) -> str:
    """Return the name of a file in a checkout."""
    return file.relative_to(root).as_posix()


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Mutation testing.")
    parser.add_argument("what", choices=["run", "again", "list", "equivalent", "survivor", "page", "map", "merge"])
    parser.add_argument("words", nargs="*", help="of `equivalent` and `survivor`: key and reason; of `merge`: files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=40)
    parser.add_argument("--processes", "--jobs", type=int, default=2)
    parser.add_argument("--shard", default="1/1", help="k/n: the k-th of n parts of what is drawn")
    parser.add_argument("--seconds", type=float, help="in which to end")
    parser.add_argument("--packages", nargs="+", default=PACKAGES)
    parser.add_argument("--map", type=Path, help="folder of the maps; default: build/mutants")
    parser.add_argument("--out", type=Path, help="folder for results.jsonl; default: beside this file")
    return parser


def main(words: list[str], project: Project) -> None:
    """Run the command line of the module."""
    parser, began = _parser(), time.monotonic()
    asked, entries = parser.parse_args(words), project.entries()
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
    results = asked.out / "results.jsonl" if asked.out else project.results
    if asked.what in ("equivalent", "survivor"):
        key, reason = (*asked.words, "", "")[:2]
        if entries.get(key, {}).get("outcome") != "survived" or not reason:
            parser.error(f"{key} is no survivor, or has no reason; `list` shows the survivors")
        add(results, entries[key] | {"outcome": "equivalent" if asked.what == "equivalent" else "survived", "reason": reason})
    elif asked.what == "page":
        put(page(entries.values(), PACKAGES), project.root / "docs" / "testing.md")
    elif asked.what == "merge":
        for word in asked.words:
            for key, entry in read(Path(word)).items():
                if entries.get(key, {}).get("outcome") in (None, "survived"):
                    entries[key] = entry
        results.write_text(packed(entries.values()), encoding="utf-8")
    elif asked.what in ("run", "again", "map"):
        part, parts = map(int, asked.shard.split("/"))
        with pool(project.root, asked.processes, asked.seconds) as workers:
            found = project.candidates(asked.packages, workers, asked.map or project.root / "build" / "mutants")
            say(f"{len(found)} mutants on lines that tests run; {time.monotonic() - began:.0f} s so far")
            keys: list[str] = []
            if asked.what == "again":
                keys = [key for key, entry in entries.items() if entry["outcome"] == "survived" and key in found]
            elif asked.what == "run":
                fresh = sorted(found.keys() - entries.keys())
                keys = random.Random(asked.seed).sample(fresh, min(asked.number, len(fresh)))
                say(f"{len(keys)} of {len(fresh)} mutants that have not run")
            run(workers, [found[key] for key in keys[part - 1 :: parts]], asked.seed, results)
    say(summary(read(results).values()))


if __name__ == "__main__":
    main(sys.argv[1:], Project(root=HERE.parent, name="strobe", results=HERE.parent / "tests" / "mutants" / "results.jsonl"))
