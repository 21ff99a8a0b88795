"""Writers of events as trace files in every layout that occurs, digit for digit."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Events = Sequence[dict[str, Any]]
Layout = Callable[[Events, dict[str, Any]], str]


def exact(value: Any) -> Any:
    """Mark the text of every time, so that `_digits` writes it as a number."""
    return {key: f"@{one}@" if key in ("ts", "dur") and isinstance(one, str) else one for key, one in value.items()}


def _digits(text: str) -> str:
    """Replace `"@12.500@"` by the number 12.500."""
    return text.replace('"@', "").replace('@"', "")


def _halves(meta: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    items = list(meta.items())
    return dict(items[: len(items) // 2]), dict(items[len(items) // 2 :])


def indented(events: Events, meta: dict[str, Any]) -> str:
    """Write as `json.dump(indent=2)` does, with metadata on both sides."""
    before, after = _halves(meta)
    return _digits(json.dumps(before | {"traceEvents": [*map(exact, events)]} | after, indent=2))


def kineto(events: Events, meta: dict[str, Any]) -> str:
    """Write every key on its own line, with metadata on both sides."""
    before, after = _halves(meta)
    lines = (",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in exact(event).items()) for event in events)
    body = ",\n".join(f"  {{\n{line}\n  }}" for line in lines)
    head, tail = json.dumps(before)[:-1], json.dumps({**after, "traceName": "out/a.json"})[1:]
    return _digits(f'{head}{"," if before else ""}\n  "traceEvents": [\n{body}\n  ],\n{tail}\n')


def compact(events: Events, meta: dict[str, Any]) -> str:
    """Write one line, with the events last."""
    return _digits(json.dumps(meta | {"traceEvents": [*map(exact, events)]}, separators=(",", ":")))


def turned(events: Events, meta: dict[str, Any]) -> str:
    """Write the keys of each event in reverse order, after metadata that looks like events."""
    decoy = {"note": {"traceEvents": [{"ph": "X"}], "s": '"traceEvents": ['}}
    backwards = [dict(reversed(exact(event).items())) for event in events]
    return _digits(json.dumps(decoy | {"traceEvents": backwards} | meta))


def bare(events: Events, meta: dict[str, Any]) -> str:
    """Write a list without metadata."""
    return _digits(json.dumps([*map(exact, events)]))


LAYOUTS: tuple[Layout, ...] = (indented, kineto, compact, turned, bare)


def shuffled(events: Events, seed: int = 4) -> list[dict[str, Any]]:
    """Write the events in another order."""
    return random.Random(seed).sample(list(events), len(events))


def write(path: Path, text: str | bytes) -> Path:
    """Write a file, compressed if its name ends so."""
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
