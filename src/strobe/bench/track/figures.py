"""Figures of one run: what it took, what it printed, or the levels of a run folder that it wrote."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from strobe.bench.track.commands import Ran
from strobe.core import spans
from strobe.core.errors import ConfigError, DataError
from strobe.perf.records.history import Followed
from strobe.perf.records.packed import FILES
from strobe.perf.records.store import RunRecords, read_run

TAKEN: Final = ("wall", "cpu", "peak_memory")
"""What every command has, whatever it prints."""
LEVELS: Final = {spans.E2E: "e2e", spans.FRAME_BLOCK: "block", spans.DENOISE_STEP: "step"}
_LISTED: Final = 12


def followed(names: Sequence[str], higher: Sequence[str]) -> tuple[Followed, ...]:
    """Return the figures of a case.

    Args:
        names: in order; none: wall time.
        higher: those of which more is better.

    Raises:
        ConfigError: a name twice, or one in `higher` that is not followed.
    """
    asked = tuple(names) or ("wall",)
    if len(set(asked)) < len(asked):
        raise ConfigError(f"--figure: a name is there twice: {' '.join(asked)}")
    odd = [name for name in higher if name not in asked]
    if odd:
        raise ConfigError(f"--higher {odd[0]}: it is no figure of the case; --figure {odd[0]} makes it one")
    return tuple(Followed(name=name, unit=_unit(name), higher=name in higher) for name in asked)


def _unit(name: str) -> Any:
    level = name.rpartition(".")[2] in LEVELS.values() and "." in name
    if name in ("wall", "cpu") or name.endswith("_ns") or level:
        return "ns"
    return "bytes" if name == "peak_memory" or name.endswith("_bytes") else ""


def figures_of(ran: Ran, left: Path, asked: Sequence[Followed]) -> dict[str, float]:
    """Read the figures of a run.

    Args:
        ran: what the command printed and took.
        left: folder that it may have written to.

    Raises:
        DataError: there is no such figure, or no positive number.
    """
    known: dict[str, float | None] = {"wall": float(ran.wall_ns), "cpu": float(ran.cpu_ns), "peak_memory": ran.peak_bytes}
    if any(each.name not in TAKEN for each in asked):
        known |= _printed(ran.stdout)
        for folder in run_folders(left):
            known |= _levels(read_run(folder))
    found = {}
    for each in asked:
        value = known.get(each.name)
        if value is None:
            there = [name for name in known if name not in TAKEN]
            told = ", ".join(there[:_LISTED]) or "no JSON object with numbers, and no run folder"
            raise DataError(f"no figure {each.name!r}; the command gave: {told}")
        if not (math.isfinite(value) and value > 0):
            raise DataError(f"figure {each.name!r} is {value:g}; a ratio needs positive numbers")
        found[each.name] = value
    return found


def run_folders(left: Path) -> list[Path]:
    """Run folders within a folder, in order."""
    return sorted({path.parent for name in FILES for path in left.rglob(name) if not path.is_symlink()})


def _printed(text: str) -> dict[str, float | None]:
    """Numbers of the JSON object that is all of a text, else its last line that is one; keys within joined by dots."""
    for piece in (text, *reversed(text.splitlines())):
        try:
            document = json.loads(piece)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            found: dict[str, float | None] = {}
            _collect("", document, found)
            return found
    return {}


def _collect(path: str, value: Any, found: dict[str, float | None]) -> None:
    if isinstance(value, dict | list) and path.count(".") < 20:
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in pairs:
            _collect(f"{path}.{key}" if path else str(key), each, found)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found[path] = float(value)


def _levels(run: RunRecords) -> dict[str, float | None]:
    """`VARIANT.e2e`, `.block`, `.step`: medians over the timed clips of a run, ns."""
    timed = {(clip.variant, clip.clip) for clip in run.clips if clip.phase == "timed"}
    values: dict[str, list[int]] = defaultdict(list)
    for span in run.spans:
        if (span.variant, span.clip) in timed and span.name in LEVELS:
            values[f"{span.variant}.{LEVELS[span.name]}"].append(span.value_ns)
    return {name: float(statistics.median(own)) for name, own in values.items()}
