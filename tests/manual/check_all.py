"""Run every command and snippet of the README and docs, marked or not, and write docs/docs_check.md: `make docs-check-full`.

Usage: python tests/manual/check_all.py [--only TEXT] [--without MARK ...] [--page FILE]
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

import strobe
from manual_text import MARKS, PAGES, ROOT, commands, snippets
from sandbox import furnish, run, run_snippet
from strobe.perf.records.environment import cpu_cores, cpu_name

RESULT: Final = ROOT / "docs" / "docs_check.md"


@dataclass(frozen=True, kw_only=True)
class Item:
    """Something that a page tells the reader to run."""

    what: str
    marks: frozenset[str]
    run: Callable[[Path], str | None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of it: passed, failed with a reason, or left out with one."""

    item: Item
    state: str
    reason: str = ""


def items() -> Iterator[Item]:
    """Every command once, then every snippet."""
    seen: set[str] = set()
    for page in PAGES:
        for command in commands(page):
            if command.text not in seen and command.words[0] != "make":
                seen.add(command.text)
                yield Item(what=f"{command.page}: {command.text}", marks=command.marks, run=partial(run, command))
    for page in PAGES:
        for snippet in snippets(page):
            what = f"{snippet.page}:{snippet.line}: Python"
            yield Item(what=what, marks=snippet.marks, run=partial(run_snippet, snippet))


def left_out(item: Item, without: list[str]) -> str:
    """Why it does not run here; empty if it does."""
    if item.marks.intersection(without):
        return f"not asked for (--without {' '.join(without)})"
    if "needs-files" in item.marks:
        return "needs files that the repository does not have"
    if "network" in item.marks:
        return "needs a network"
    if "gpu" in item.marks and not torch.cuda.is_available():
        return "needs a GPU"
    return ""


def check(item: Item, folder: Path, without: list[str]) -> Outcome:
    """Run it if it can run here."""
    reason = left_out(item, without)
    if reason:
        return Outcome(item=item, state="left out", reason=reason)
    for clip in folder.glob("clip*"):
        clip.unlink()  # of an earlier page, which no command replaces without being told
    began = time.monotonic()
    try:
        failure = item.run(folder) or ""
    except Exception as error:  # noqa: BLE001
        failure = f"{type(error).__name__}: {error}"
    said = f"{'FAILED' if failure else 'ok'} {time.monotonic() - began:6.1f} s  {item.what} {failure}"
    sys.stdout.write(said + "\n")
    sys.stdout.flush()
    return Outcome(item=item, state="failed" if failure else "passed", reason=failure)


def page(outcomes: list[Outcome]) -> str:
    """The result as Markdown."""
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{cpu_name()}, {cpu_cores()} cores, no GPU"
    states = ("passed", "failed", "left out")
    rows = []
    for kind in ("not marked", *MARKS):
        counts = [sum(each.state == state and kind in kinds(each) for each in outcomes) for state in states]
        rows.append(f"| {kind} | {' | '.join(map(str, counts))} |")
    listed = [f"* `{o.item.what}`: {o.state}, {' '.join(o.reason.split())}" for o in outcomes if o.state != "passed"]
    return "\n".join(
        [
            "# Commands of the docs, run",
            "",
            "`make docs-check-full` runs every command and Python snippet of the README, these pages and `--help` as it stands, "
            "and writes this page. Those that are not marked also run in the test suite.",
            "",
            f"Last run: {date}, strobe {strobe.__version__}, torch {torch.__version__}, {device}.",
            "",
            "| marked | passed | failed | left out |",
            "|---|---:|---:|---:|",
            *rows,
            "",
            *(["What did not pass:", "", *listed, ""] if listed else []),
        ]
    )


def kinds(outcome: Outcome) -> frozenset[str]:
    """The rows of the table that it counts in."""
    return outcome.item.marks or frozenset({"not marked"})


def main() -> int:
    """Run them in a fresh folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="those with this text, and write no page")
    parser.add_argument("--without", nargs="*", default=[], choices=MARKS, help="leave out what is marked so")
    parser.add_argument("--page", type=Path, default=RESULT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        furnish(folder)
        outcomes = [check(item, folder, options.without) for item in items() if options.only in item.what]
    if not options.only:
        options.page.write_text(page(outcomes), encoding="utf-8")
    return int(any(outcome.state == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
