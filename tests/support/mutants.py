"""Mutation testing: wrong lines that tests should notice are drawn at random and run, and the results are counted.

    python tests/support/mutants.py run --seed 1 --number 40     new mutants; `make mutants` does this
    python tests/support/mutants.py again                        those that survived so far, after tests were added
    python tests/support/mutants.py list                         the count, and the survivors
    python tests/support/mutants.py equivalent KEY REASON        a survivor that changes nothing anyone could see

A mutant runs the tests that run its line, of the folder that mirrors its package, the fastest first, until one fails. Which those
are is found by running all of them once under a tracer; that is kept in `build/mutants` until a source or a test changes. What
comes of each mutant is added to `results.jsonl` beside this file; of one key the last line counts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutate import Mutant, mutants

HERE = Path(__file__).resolve().parent
PACKAGES = (
    "engine", "cache", "attention", "eightbit", "perf/trace", "perf/analysis", "perf/measure", "perf/records",
)  # fmt: skip
NOT_COPIED = (".git", ".venv", "build", "runs", "dist", "__pycache__", ".hypothesis", ".*_cache")
SLACK_S, SLOWER = 60, 4
"""A mutant may take so many seconds, and so many times as long as its tests took under the tracer; then it hangs, and counts as
killed."""
NO_TESTS = 5
"""Exit code of pytest for a file without any, such as one for a device that is not there."""
Entry = dict[str, Any]


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
        lines = self.results.read_text(encoding="utf-8").splitlines() if self.results.exists() else []
        return {entry["key"]: entry for entry in map(json.loads, lines)}

    def add(self, entry: Entry) -> None:
        """Append the result of a mutant."""
        with self.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def covered(self, package: str, jobs: int) -> Entry:
        """Return the tests of a package and the lines that each runs, cached until a source or a test changes."""
        tests, digest = self.root / "tests" / package, hashlib.sha256()
        for path in sorted([*(self.root / "src" / self.name / package).rglob("*.py"), *tests.rglob("*.py")]):
            digest.update(f"{path.relative_to(self.root)} {len(path.read_bytes())} ".encode() + path.read_bytes())
        name = package.replace("/", ".")
        folder = self.root / "build" / "mutants" / f"{name}-{digest.hexdigest()[:16]}"
        if not folder.exists():
            say(f"{package}: finding out which test runs which line")
            for old in folder.parent.glob(f"{name}-*"):
                shutil.rmtree(old)
            folder.mkdir(parents=True)
        found: Entry = {"tests": [], "lines": defaultdict(lambda: defaultdict(list))}
        with ThreadPoolExecutor(jobs) as pool:
            for each in pool.map(lambda file: self._map(package, file, folder), sorted(tests.rglob("test_*.py"))):
                first = len(found["tests"])
                found["tests"] += each["tests"]
                for path, lines in each["lines"].items():
                    for line, numbers in lines.items():
                        found["lines"][path][line] += [first + number for number in numbers]
        return found

    def _map(self, package: str, file: Path, folder: Path) -> Entry:
        """Make the map of one test file, and keep it at once, so that an interrupted run loses little."""
        kept = folder / f"{str(file.relative_to(self.root)).replace('/', '.')}.json"
        if not kept.exists():
            source, beside = self.root / "src" / self.name / package, kept.with_suffix(".partial")
            options = ["-p", "covered", f"--covered={source}", f"--covered-to={beside}", str(file)]
            done = pytest(options, self.root, path=HERE)
            if done.returncode not in (0, NO_TESTS) or json.loads(beside.read_text(encoding="utf-8"))["failed"]:
                raise SystemExit(f"the tests of {package} fail without a mutant; mend them first\n{done.stdout[-2000:]}")
            beside.replace(kept)
        result: Entry = json.loads(kept.read_text(encoding="utf-8"))
        return result

    def candidates(self, packages: Iterable[str], jobs: int) -> dict[str, tuple[Mutant, list[tuple[str, float]]]]:
        """List all mutants on lines that tests run, by key, with these tests and their seconds, the fastest first."""
        found = {}
        for package in packages:
            covered = self.covered(package, jobs)
            for path, lines in covered["lines"].items():
                for mutant in mutants(path, (self.root / path).read_text(encoding="utf-8")):
                    numbers = {number for line in mutant.lines for number in lines.get(str(line), ())}
                    tests = sorted((covered["tests"][number] for number in numbers), key=lambda test: test[1])
                    if tests:
                        found[mutant.key] = mutant, tests
        return found


def pytest(options: list[str], root: Path, *, path: Path | None = None, limit_s: float | None = None) -> Any:
    """Run pytest on one thread in a checkout, with its own sources, and another folder, to import from."""
    paths = os.pathsep.join(map(str, [root / "src", *([path] if path else [])]))
    variables = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True, timeout=limit_s, check=False)


def outcome(mutant: Mutant, tests: list[tuple[str, float]], root: Path) -> tuple[str, str]:
    """Run the tests of a mutant in a copy of the checkout: "killed", "hung" or "survived", and the test that failed."""
    original = (root / mutant.path).read_text(encoding="utf-8")
    names = root / "tests.txt"
    names.write_text("\n".join(name for name, _ in tests), encoding="utf-8")
    (root / mutant.path).write_text(mutant.source, encoding="utf-8")
    try:
        done = pytest(["-x", f"@{names}"], root, limit_s=SLACK_S + SLOWER * sum(seconds for _, seconds in tests))
    except subprocess.TimeoutExpired:
        return "hung", ""
    finally:
        (root / mutant.path).write_text(original, encoding="utf-8")
    failed = next((line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))), "")
    return ("survived", "") if done.returncode == 0 else ("killed", failed)


def run(project: Project, chosen: list[tuple[Mutant, list[tuple[str, float]]]], jobs: int, seed: int) -> None:
    """Run mutants, `jobs` at a time, each in a copy of the checkout, and keep their results."""
    with tempfile.TemporaryDirectory() as folder:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(jobs):
            copies.put(Path(folder) / str(number))
            shutil.copytree(project.root, Path(folder) / str(number), ignore=shutil.ignore_patterns(*NOT_COPIED))

        def one(mutant: Mutant, tests: list[tuple[str, float]]) -> Entry:
            copy, began = copies.get(), time.perf_counter()
            result, test = outcome(mutant, tests, copy)
            copies.put(copy)
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

        with ThreadPoolExecutor(jobs) as pool:
            for entry in pool.map(lambda pair: one(*pair), chosen):
                project.add(entry)
                say(described(entry))


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
    return "\n".join([first, *(described(entry) for entry in held if entry["outcome"] in ("survived", "equivalent"))])


def say(line: str) -> None:
    """Write a line and flush it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(words: list[str], project: Project) -> None:
    """Run the command line of the module."""
    parser = argparse.ArgumentParser(description="Mutation testing.")
    parser.add_argument("what", choices=["run", "again", "list", "equivalent"])
    parser.add_argument("key", nargs="?", help="of a survivor that is equivalent")
    parser.add_argument("reason", nargs="?", help="why nobody could see it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--packages", nargs="+", default=PACKAGES)
    asked, entries = parser.parse_args(words), project.entries()
    if asked.what == "equivalent":
        if entries.get(asked.key, {}).get("outcome") != "survived" or not asked.reason:
            parser.error(f"{asked.key} is no survivor, or has no reason; `list` shows the survivors")
        project.add(entries[asked.key] | {"outcome": "equivalent", "reason": asked.reason})
    elif asked.what in ("run", "again"):
        found = project.candidates(asked.packages, asked.jobs)
        if asked.what == "again":
            keys = [key for key, entry in entries.items() if entry["outcome"] == "survived" and key in found]
        else:
            fresh = sorted(found.keys() - entries.keys())
            keys = random.Random(asked.seed).sample(fresh, min(asked.number, len(fresh)))
            say(f"{len(keys)} of {len(fresh)} mutants that have not run")
        run(project, [found[key] for key in keys], asked.jobs, asked.seed)
    say(summary(project.entries().values()))


if __name__ == "__main__":
    main(sys.argv[1:], Project(root=HERE.parents[1], name="strobe", results=HERE.parent / "mutants" / "results.jsonl"))
