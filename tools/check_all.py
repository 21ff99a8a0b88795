"""Run the commands and snippets of the README and docs, marked or not; docs/testing.md counts them: `make docs-check-full`.

Results add up in tests/manual/results.jsonl, so that a run may take a few of them, be interrupted, and go on another day.

Usage: python tools/check_all.py [--only TEXT] [--without MARK ...] [--since DATE] [--timeout SECONDS] [--folder DIR]
       python tools/check_all.py --render
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import torch

from check_results import Result, latest, read, text_key, write
from check_results_page import page
from manual_text import MARKS, PAGES, ROOT, commands, snippets
from sandbox import TIMEOUT_S, furnish, run, run_alone, run_snippet
from strobe.perf.records.record import cpu_cores, cpu_name
from testing_page import PAGE, put

RESULTS: Final = ROOT / "tests" / "manual" / "results.jsonl"


@dataclass(frozen=True, kw_only=True)
class Item:
    """Something that a page tells the reader to run."""

    what: str
    key: str
    marks: frozenset[str]
    run: Callable[[Path], str | None]


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


def obstacle(marks: frozenset[str]) -> str:
    """What it needs that is not here; empty if it can run."""
    if "needs-files" in marks:
        return "needs files that the repository does not have"
    if "network" in marks:
        return "needs a network"
    if "gpu" in marks and not torch.cuda.is_available():
        return "needs a GPU"
    if "gpus" in marks and torch.cuda.device_count() < 4:
        return "needs four GPUs"
    return ""


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


def main() -> int:
    """Run them in one folder, and keep each result as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="those with this text")
    parser.add_argument("--without", nargs="*", default=[], choices=MARKS, help="leave out what is marked so")
    parser.add_argument("--since", default="", metavar="DATE", help="leave out what passed on this day (2026-11-20) or later")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS", help="of a marked command")
    parser.add_argument("--folder", type=Path, help="run in this folder and keep it, for commands that read what others wrote")
    parser.add_argument("--render", action="store_true", help="run nothing; write the page from the results")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    failed = False
    everything = list(items(options.timeout))
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        if not folder.is_dir() or not any(folder.iterdir()):
            folder.mkdir(parents=True, exist_ok=True)
            furnish(folder)
        for item in everything:
            known = latest(read(options.results)).get(item.key)
            done = options.since and known is not None and known.passed and known.date >= options.since
            left = options.render or options.only not in item.what or item.marks.intersection(options.without)
            if left or done or obstacle(item.marks):
                continue
            result = check(item, folder.resolve())
            write(options.results, result, keep={each.key for each in everything})
            failed |= not result.passed
    rows = [(each.what, each.key, each.marks, obstacle(each.marks)) for each in everything]
    put(page(rows, latest(read(options.results))), options.page)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
