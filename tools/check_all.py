"""Run the commands and snippets of the README and docs, marked or not; docs/testing.md counts them: `make docs-check-full`.

Results add up in tests/manual/results.jsonl, a line for the last run of each, so that a run may take a few of them and go on
another day.

Usage: python tools/check_all.py [--only TEXT] [--without MARK ...] [--since DATE] [--timeout SECONDS] [--folder DIR]
       python tools/check_all.py --render
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import torch

from manual_text import MARKS, PAGES, ROOT, commands, snippets
from sandbox import TIMEOUT_S, furnish, run, run_alone, run_snippet
from strobe.perf.records.record import cpu_cores, cpu_name
from testing_page import put

RESULTS: Final = ROOT / "tests" / "manual" / "results.jsonl"
STATES: Final = ("passed", "failed", "not run")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run of a command or snippet.

    Args:
        key: text of the command, or the digest of a snippet.
        date: day of the run, UTC.
        passed: whether it ended as the docs promise.
        reason: what went wrong, empty if nothing.
        seconds: how long it took.
        device: what it ran on.
        torch: version.
    """

    key: str
    date: str
    passed: bool
    reason: str
    seconds: float
    device: str
    torch: str


@dataclass(frozen=True, kw_only=True)
class Item:
    """Something that a page tells the reader to run."""

    what: str
    key: str
    marks: frozenset[str] = frozenset()
    run: Callable[[Path], str | None]


def text_key(code: str) -> str:
    """Name a snippet by its text, so that it is the same one after lines were added above it."""
    return f"python {hashlib.sha256(code.encode()).hexdigest()[:12]}"


def items(timeout_s: float = TIMEOUT_S) -> Iterator[Item]:
    """Every command once, then every snippet; a marked command runs in a process of its own, which can be stopped."""
    seen: set[str] = set()
    for place in PAGES:
        for command in commands(place):
            if command.text not in seen and command.words[0] != "make":
                seen.add(command.text)
                how = partial(run_alone, command, timeout_s=timeout_s) if command.marks else partial(run, command)
                yield Item(what=f"{command.page}: {command.text}", key=command.text, marks=command.marks, run=how)
    for place in PAGES:
        for snippet in snippets(place):
            what = f"{snippet.page}:{snippet.line}: Python"
            yield Item(what=what, key=text_key(snippet.code), marks=snippet.marks, run=partial(run_snippet, snippet))


def lacks(marks: frozenset[str]) -> bool:
    """Return whether it needs what is not here: files, a network, GPUs."""
    gpus = 4 if "gpus" in marks else 1 if "gpu" in marks else 0
    return bool(marks & {"needs-files", "network"}) or torch.cuda.device_count() < gpus


def check(item: Item, folder: Path) -> Result:
    """Run it and say what became of it."""
    for clip in folder.glob("clip*"):
        clip.unlink()  # of an earlier page, which no command replaces without being told
    date, began = datetime.now(UTC), time.monotonic()
    try:
        failure = item.run(folder) or ""
    except Exception as error:  # noqa: BLE001
        failure = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - began
    sys.stdout.write(f"{'FAILED' if failure else 'ok'} {seconds:6.1f} s  {item.what} {failure}\n")
    sys.stdout.flush()
    return Result(
        key=item.key,
        date=date.strftime("%Y-%m-%d"),
        passed=not failure,
        reason=" ".join(failure.split()),
        seconds=round(seconds, 1),
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else f"{cpu_name()}, {cpu_cores()} cores, no GPU",
        torch=torch.__version__,
    )


def read(path: Path) -> dict[str, Result]:
    """Return the last result of each key in a file; none without a file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {each.key: each for each in (Result(**json.loads(line)) for line in lines)}


def write(path: Path, result: Result, *, keep: Set[str]) -> None:
    """Put a result into the file in place of an earlier one, and drop those whose commands the docs no longer have."""
    known = read(path) | {result.key: result}
    lines = [json.dumps(asdict(known[key])) for key in sorted(known) if key in keep]
    beside = path.with_suffix(".part")
    beside.write_text("\n".join(lines) + "\n", encoding="utf-8")
    beside.replace(path)


def page(rows: Sequence[Item], results: Mapping[str, Result]) -> str:
    """Return the section of docs/testing.md: counts by mark, and what failed."""
    ran = {row.what: results[row.key] for row in rows if row.key in results}
    states = {row.what: STATES[2] if row.what not in ran else STATES[not ran[row.what].passed] for row in rows}
    counts = Counter((kind, states[row.what]) for row in rows for kind in (row.marks or {"not marked"}))
    devices = sorted({(each.device, each.torch) for each in ran.values()})
    dates = sorted(each.date for each in ran.values())
    when = [f"Run between {dates[0]} and {dates[-1]}, on {'; '.join(f'{d}, torch {t}' for d, t in devices)}.", ""] if ran else []
    names = {row.what: row.what.replace("|", "\\|") for row in rows}
    failed = [f"* `{names[what]}`: failed on {each.date}, {each.reason}" for what, each in ran.items() if not each.passed]
    return "\n".join(
        [
            "## Commands of the docs",
            "",
            "`make docs-check-full` runs every command and Python snippet of the README, the docs and `--help`. A command may "
            "have a mark, which names what it needs. Commands without a mark also run as tests. The table counts the last result "
            "of each command (`tests/manual/results.jsonl`).",
            "",
            *when,
            "| marked | passed | failed | not run |",
            "|---|---:|---:|---:|",
            *(f"| {kind} | {' | '.join(str(counts[kind, each]) for each in STATES)} |" for kind in ("not marked", *MARKS)),
            *(["", *failed] if failed else []),
        ]
    )


def main() -> int:
    """Run them in one folder, and keep each result as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="those with this text")
    parser.add_argument("--without", nargs="*", default=[], choices=MARKS, help="leave out what is marked so")
    parser.add_argument("--since", default="", metavar="DATE", help="leave out what passed on this day (2026-11-20) or later")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS", help="of a marked command")
    parser.add_argument("--folder", type=Path, help="run in this folder and keep it, for commands that read what others wrote")
    parser.add_argument("--render", action="store_true", help="run nothing; write the page from the results")
    options = parser.parse_args()
    failed = False
    everything = list(items(options.timeout))
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        if not folder.is_dir() or not any(folder.iterdir()):
            folder.mkdir(parents=True, exist_ok=True)
            furnish(folder)
        for item in everything:
            known = read(RESULTS).get(item.key)
            done = options.since and known is not None and known.passed and known.date >= options.since
            left = options.render or options.only not in item.what or item.marks.intersection(options.without)
            if left or done or lacks(item.marks):
                continue
            result = check(item, folder.resolve())
            write(RESULTS, result, keep={each.key for each in everything})
            failed |= not result.passed
    put(page(everything, read(RESULTS)))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
