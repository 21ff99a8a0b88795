"""What became of the commands and snippets of the docs: one line of JSON per command or snippet, the last one that ran."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Set
from dataclasses import asdict, dataclass
from pathlib import Path


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


def text_key(code: str) -> str:
    """Name a snippet by its text, so that it is the same one after lines were added above it."""
    return f"python {hashlib.sha256(code.encode()).hexdigest()[:12]}"


def read(path: Path) -> list[Result]:
    """All results of the file; none without a file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Result(**json.loads(line)) for line in lines if line]


def latest(results: Iterable[Result]) -> dict[str, Result]:
    """The last result of each key."""
    return {each.key: each for each in results}


def write(path: Path, result: Result, *, keep: Set[str]) -> None:
    """Put a result into the file in place of an earlier one, and drop those whose commands the docs no longer have."""
    known = latest([*read(path), result])
    lines = [json.dumps(asdict(known[key])) for key in sorted(known) if key in keep]
    beside = path.with_suffix(".part")
    beside.write_text("\n".join(lines) + "\n", encoding="utf-8")
    beside.replace(path)
