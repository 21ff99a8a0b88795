"""Frozen values: everything that stored runs, traces and logs say today, and the differences to it later.

A subject is one document that a user can ask for: records as `read_run` gives them, a run's `compare_runs`, the data of a page
(`report.json`), a trace's `read_trace`, a pair's `compare_traces`, a log's `strobe extract ... --json`. Documents are kept whole;
of the records, which are large and tracked themselves, one digest for each column of each table.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import lzma
import math
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from published import DOORS, ROOT, run_page
from strobe.cli.main import main
from strobe.perf.records.store import FILES, read_run
from strobe.perf.report.build import report_and_findings
from strobe.perf.report.documents.api import compare_traces, read_trace
from strobe.perf.report.documents.runs import run_document
from strobe.perf.report.write import render
from strobe.perf.table.rows import to_json

VALUES: Final = ROOT / "tests" / "oracle" / "values.json.xz"
COMMAND: Final = "python tests/oracle/freeze.py"
OTHERS: Final = "STROBE_TEST_TRACES"
"""Environment variable: folder with traces of others, which the project does not hold."""
EXACT_TO: Final = 1e-11
"""Relative difference of two floats that comes from the order of a sum alone. Integers are equal or they are not."""
_PLACES: Final = ("benchmarks", "tests/data")
_PASSES: Final = ".passes.json.gz"
_PAIRS: Final = (
    ("tests/data/h200/pair/traces/sdpa.json.gz", "tests/data/h200/pair/traces/sparse-triton.json.gz"),
    ("benchmarks/presets-h200/traces/balanced.json.gz", "benchmarks/presets-h200/traces/ultra.json.gz"),
    ("benchmarks/engine-h200/compare/traces/speed.json.gz", "benchmarks/engine-h200/compare/traces/turbo.json.gz"),
)
_OTHER_PAIRS: Final = (
    ("h100_bert_small.json.gz", "mi300_bert_small.json.gz"),
    ("h100_vit_falconsai.json.gz", "mi300_vit_falconsai.json.gz"),
)

Document = Callable[[], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One document, made in the folder `place`, so that its paths are the same on every machine."""

    name: str
    place: Path
    make: Document

    def value(self) -> Any:
        """Make the document: plain JSON."""
        with contextlib.chdir(self.place):
            return json.loads(json.dumps(self.make()))


def subjects() -> dict[str, Subject]:
    """Return everything that the project stores, by name."""
    found = [*_runs(), *_pages(), *_traces(), *_logs()]
    found += [_subject(f"pair {' '.join(pair)}", partial(_pair, pair)) for pair in _PAIRS]
    return {each.name: each for each in found}


def other_subjects() -> dict[str, Subject] | None:
    """Return the traces of other projects; None if their folder is missing."""
    folder = Path(os.environ.get(OTHERS, ""))
    if not os.environ.get(OTHERS) or not folder.is_dir():
        return None
    found = [
        _subject(f"other trace {file.name}", partial(_trace, file.name), folder) for file in sorted(folder.glob("*.json.gz"))
    ]
    pairs = [pair for pair in _OTHER_PAIRS if all((folder / name).exists() for name in pair)]
    found += [_subject(f"other pair {' '.join(pair)}", partial(_pair, pair), folder) for pair in pairs]
    return {each.name: each for each in found}


def differences(name: str, frozen: Any, now: Any) -> list[str]:
    """Return one line for each value that is not what it was, with its path, in the order of the document."""
    return [line for line, _ in moves(name, frozen, now)]


def moves(name: str, frozen: Any, now: Any) -> list[tuple[str, bool]]:
    """Return the lines of `differences`, and whether a number changed, disappeared or is new in each."""
    old, new = dict(_leaves(frozen)), dict(_leaves(now))
    return [
        (f"{name}: {path}: frozen {_shown(old, path)}, now {_shown(new, path)}", _is_number(old, path) or _is_number(new, path))
        for path in dict.fromkeys((*old, *new))
        if path not in old or path not in new or not _same(old[path], new[path])
    ]


def read_frozen() -> dict[str, Any]:
    """Return the content of the packed file: the command that made it, and `values` by subject."""
    content: dict[str, Any] = json.loads(lzma.decompress(VALUES.read_bytes()))
    return content


def write_frozen(values: dict[str, Any]) -> None:
    """Write the packed file; equal values of one commit make equal bytes."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    content = {"command": COMMAND, "commit": asked.stdout.strip(), "values": values}
    VALUES.write_bytes(lzma.compress(json.dumps(content, separators=(",", ":")).encode(), preset=9 | lzma.PRESET_EXTREME))


# ------------------------------------------------------------------------------------------------------------- subjects


def _subject(name: str, make: Document, place: Path = ROOT) -> Subject:
    return Subject(name=name, place=place, make=make)


def _files(pattern: str) -> list[str]:
    return sorted(file.relative_to(ROOT).as_posix() for place in _PLACES for file in (ROOT / place).rglob(pattern))


def _runs() -> Iterator[Subject]:
    for file in (file for name in FILES for file in _files(name)):
        folder = file.rpartition("/")[0]
        yield _subject(f"records {folder}", partial(_columns, folder))


def _columns(folder: str) -> Any:
    """Digest every table of a run: the number of rows, and one digest for each column."""
    run = read_run(folder)
    alone = {"header": run.header, "cell": run.cell, "surroundings": run.surroundings, "links": run.links}
    tables: dict[str, list[dict[str, Any]]] = {name: [msgspec.to_builtins(each)] for name, each in alone.items() if each}
    for name in ("variants", "spans", "clips", "traces", "videos", "quality", "gates", "excluded", "memory", "predictions"):
        tables[name] = run.rows(name)
    return {
        name: {"rows": len(rows), **{key: _digest([row.get(key) for row in rows]) for key in (rows[0] if rows else {})}}
        for name, rows in tables.items()
    } | {"damage": run.damage, "end": msgspec.to_builtins(run.end)}


def _digest(column: list[Any]) -> str:
    return hashlib.sha256(json.dumps(column).encode()).hexdigest()[:12]


def _pages() -> Iterator[Subject]:
    for folder, door in DOORS.items():
        place = f"benchmarks/{folder}"
        if door is run_page:
            yield _subject(f"run {place}", partial(_run, place))
        else:
            yield _subject(f"page {place}", partial(_page, door, place))


def _page(door: Callable[[Path], Any], place: str) -> Any:
    return json.loads(render(door(ROOT / place), "json"))


def _run(place: str) -> Any:
    """Return the data of a run's page and its `compare_runs`, from one analysis."""
    folder = ROOT / place
    report, findings = report_and_findings([folder], into=folder)
    found = json.dumps(to_json(run_document([read_run(folder)], report, findings, ()))).replace(f"{ROOT}/", "")
    return {"report": json.loads(render(report, "json")), "compare_runs": json.loads(found)}


def _traces() -> Iterator[Subject]:
    for file in _files("*.json.gz"):
        if not file.endswith(_PASSES):
            yield _subject(f"trace {file}", partial(_trace, file))


def _trace(file: str) -> Any:
    return to_json(read_trace(file))


def _pair(pair: tuple[str, str]) -> Any:
    return to_json(compare_traces(*pair))


def _logs() -> Iterator[Subject]:
    for file in _files("*.log"):
        yield _subject(f"log {file}", partial(_log, file))


def _log(file: str) -> Any:
    flags = ("--patterns", "tests/data/logs/patterns.toml", "--json", "--quiet")
    return {
        "stages": _verb("extract", "stages", file, "--stage", ".", *flags),
        "attention": _verb("extract", "attention", "--candidate-log", file, *flags),
    }


def _verb(*argv: str) -> Any:
    """Run a verb in this process; return its exit code and its document."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main(list(argv))
    return {"code": code, "document": json.loads(out.getvalue()) if out.getvalue() else None}


# ------------------------------------------------------------------------------------------------------------ comparing


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf value with its path; an empty list or object is a leaf."""
    inside: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not inside or not value:
        yield path, value
        return
    for key, each in inside:
        step = f"[{key}]" if isinstance(value, list) else f".{key}" if path else str(key)
        yield from _leaves(each, path + step)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=EXACT_TO, abs_tol=0.0)
    return type(one) is type(other) and bool(one == other)


def _shown(values: dict[str, Any], path: str) -> str:
    return json.dumps(values[path])[:120] if path in values else "nothing"


def _is_number(values: dict[str, Any], path: str) -> bool:
    return isinstance(values.get(path), int | float)
