"""A file that is one JSON object with the stages and denoising steps of a request, as a server of video models writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from strobe.core.errors import DataError
from strobe.perf.logs.patterns import Kind

LARGEST_DUMP: Final = 16 << 20
"""Bytes of the largest file that is read whole to see whether it is one."""


def dumped(path: Path) -> list[tuple[Kind, str, str, int | None]]:
    """Return kind, name, milliseconds as written and step number of each time in the file; none if it is no such object.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read() if file.peek(1).startswith(b"{") else b""
    except OSError as error:
        raise DataError(f"cannot read log {path}: {error.strerror or error}; name a text file or a .gz of one") from error
    if not data.rstrip().endswith(b"}"):
        return []
    try:
        found = json.loads(data, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return []
    stages, steps = found.get("steps"), found.get("denoise_steps_ms")
    if not isinstance(stages, list) or not isinstance(steps, list | None):
        return []
    times = [_time("stage", one, one.get("name"), None) for one in stages if isinstance(one, dict)]
    for place, one in enumerate(steps or ()):
        if isinstance(one, dict):
            times.append(_time("step", one, "denoising step", place))
    total = found.get("total_duration_ms")
    times += [("e2e", "total", total, None)] if isinstance(total, str) else []
    return [time for time in times if time is not None]


def _time(kind: Kind, one: dict[str, Any], name: object, place: int | None) -> tuple[Kind, str, str, int | None] | None:
    value = one.get("duration_ms")
    return (kind, name, value, place) if isinstance(name, str) and isinstance(value, str) else None
