"""What a run of the GPU suite found, its one line, and the table of runs: tests/gpu_runs.jsonl, shown by docs/testing.md.

python tools/gpu_runs.py add build/gpu/row.json      puts the row of a run first; `make gpu-row` does this
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from source import ROOT

TABLE, PAGE = ROOT / "tests" / "gpu_runs.jsonl", ROOT / "docs" / "testing.md"
HEADING = "\n## Runs on a GPU\n"
NO_RUN = "No run is recorded.\n"
SHOWN = ("date", "commit", "card", "passed", "failed", "unfinished")
Row = dict[str, Any]
"""date, commit, card, driver, torch, passed, failed, unfinished, skipped (tests by reason), wall_s; and of the newest run
`tests`: by file, the test functions of which a case passed and none failed or was left."""


def outcomes(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the outcome, seconds and last words of each test: `passed`, `failed`, `skipped`, or `unfinished`."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        test = found.setdefault(event["test"], {"outcome": "unfinished", "seconds": 0.0, "said": ""})
        test["seconds"] += event["seconds"]
        if event["phase"] in ("passed", "failed", "skipped") and test["outcome"] != "failed":
            test |= {"outcome": event["phase"], "said": event["said"]}
    return found


def row_of(found: Mapping[str, Mapping[str, Any]], facts: Mapping[str, str], wall_s: float) -> Row:
    """Return the row of a run."""
    count = Counter(test["outcome"] for test in found.values())
    skipped = Counter(test["said"] for test in found.values() if test["outcome"] == "skipped")
    functions: dict[tuple[str, str], set[str]] = {}
    for name, test in found.items():
        path, _, function = name.partition("[")[0].partition("::")
        functions.setdefault((path, function), set()).add(test["outcome"])
    passed: dict[str, list[str]] = {}
    for (path, function), came in sorted(functions.items()):
        if "passed" in came and came <= {"passed", "skipped"}:
            passed.setdefault(path, []).append(function)
    counts = {name: count[name] for name in ("passed", "failed", "unfinished")}
    return {**facts, **counts, "skipped": dict(skipped.most_common()), "wall_s": round(wall_s), "tests": passed}


def line_of(row: Mapping[str, Any]) -> str:
    """Say a row in one line."""
    counts = [f"{row['passed']} passed", f"{row['failed']} failed", f"{sum(row['skipped'].values())} skipped"]
    counts += [f"{row['unfinished']} unfinished"] if row["unfinished"] else []
    where = f"commit {row['commit']}, {row['card']}, driver {row['driver']}, torch {row['torch']}"
    return f"gpu suite, {row['date']}: {where}: {', '.join(counts)} in {row['wall_s']} s"


def read(place: Path = TABLE) -> list[Row]:
    """Read the rows, newest first; none if no run was ever recorded."""
    return [json.loads(line) for line in place.read_text("utf-8").splitlines()] if place.exists() else []


def add(row: Row, place: Path = TABLE) -> None:
    """Put a row first; which tests passed is kept of the newest alone."""
    older = [{name: value for name, value in each.items() if name != "tests"} for each in read(place)]
    place.write_text("".join(json.dumps(each, sort_keys=True) + "\n" for each in (row, *older)), "utf-8")


def page(rows: Sequence[Row], text: str) -> str:
    """Return a page with the first eight rows in its last section, below the paragraph there."""
    before, _, section = text.partition(HEADING)
    said = section.split("\n\n")[0].strip("\n")
    table = ["| " + " | ".join((*SHOWN, "skipped", "seconds")) + " |", "|---" * (len(SHOWN) + 2) + "|"]
    for row in rows[:8]:
        cells = [*(row[name] for name in SHOWN), sum(row["skipped"].values()), row["wall_s"]]
        table.append("| " + " | ".join(map(str, cells)) + " |")
    return f"{before}{HEADING}\n{said}\n\n" + ("\n".join(table) + "\n" if rows else NO_RUN)


def main(words: Sequence[str]) -> int:
    if len(words) != 2 or words[0] != "add":
        sys.stderr.write(__doc__ or "")
        return 2
    row = json.loads(Path(words[1]).read_text("utf-8"))
    add(row)
    PAGE.write_text(page(read(), PAGE.read_text("utf-8")), "utf-8")
    sys.stdout.write(f"{line_of(row)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
