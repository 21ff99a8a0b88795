"""Our own pages have no finding; a record changed in one place has one."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strobe.core.errors import DataError
from strobe.lint.check import files_of, lint_file
from strobe.lint.rules.recorded import RULES
from strobe.perf.records.lines import seal
from strobe.perf.report.build import build_report
from strobe.perf.report.write import render

ROOT = Path(__file__).parents[2]
RUN = ROOT / "benchmarks" / "presets-h200"
PAGES = [
    ROOT / "README.md",
    ROOT / "benchmarks" / "README.md",
    ROOT / "src" / "strobe" / "models" / "shapes" / "bundle" / "MODEL_CARD.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("path", PAGES, ids=[path.relative_to(ROOT).as_posix() for path in PAGES])
def test_our_pages_are_clean(path: Path) -> None:
    assert lint_file(path) == ()


@pytest.fixture(scope="module")
def json_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's report.json."""
    path = tmp_path_factory.mktemp("report") / "report.json"
    path.write_text(render(build_report([RUN], into=RUN), "json"))
    return path


def test_our_records_and_report_are_clean(tmp_path: Path) -> None:
    assert files_of(RUN) == (RUN / "records.jsonl.gz",)
    page = tmp_path / "report.md"
    page.write_bytes(gzip.decompress((RUN / "report.md.gz").read_bytes()))
    assert files_of(tmp_path) == (page,)
    assert lint_file(RUN / "records.jsonl.gz") == lint_file(page) == ()


def test_our_json_report_is_clean(json_report: Path) -> None:
    assert json_report in files_of(json_report.parent)
    assert lint_file(json_report) == ()


def test_what_cannot_be_linted(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "none.md", "cannot be read"),
        (tmp_path / "page.html", "Markdown"),
        (tmp_path / "no.jsonl", "no records"),
    ):
        with pytest.raises(DataError, match=words):
            lint_file(path)
    with pytest.raises(DataError, match="name the files"):
        files_of(tmp_path)


# ---------------------------------------------------------------------------------------------------------------- records


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    """A run made small: the header, its variants, and the clips and spans of one variant's first two clips."""
    rows = [json.loads(line) for line in gzip.decompress((RUN / "records.jsonl.gz").read_bytes()).splitlines()]
    kept = ("header", "variant", "quality", "end")
    return [
        row
        for row in rows
        if row["record"] in kept or (row["record"] in ("span", "clip") and row["variant"] == "ultra" and row["clip"] < 2)
    ]


def _first(rows: list[dict[str, Any]], **wanted: Any) -> int:
    return next(number for number, row in enumerate(rows) if all(row.get(name) == value for name, value in wanted.items()))


Change = Callable[[list[dict[str, Any]]], tuple[int, str]]


def _no_calls(rows: list[dict[str, Any]]) -> tuple[int, str]:
    number = _first(rows, record="variant", name="ultra")
    calls, rows[number]["calls_per_stage"] = rows[number]["calls_per_stage"], {}
    return number, f"denoise_step {calls['denoise_step']}"


def _wrong_calls(rows: list[dict[str, Any]]) -> tuple[int, str]:
    number = _first(rows, record="variant", name="ultra")
    rows[number]["calls_per_stage"]["recache"] += 1
    return number, str(rows[number]["calls_per_stage"]["recache"] - 1)


def _lost_span(rows: list[dict[str, Any]]) -> tuple[int, str]:
    number = _first(rows, record="clip")
    rows[number]["num_spans"] += 1
    return number, str(rows[number]["num_spans"] - 1)


def _frames(rows: list[dict[str, Any]]) -> tuple[int, str]:
    rows[0]["workload"]["frames"] += 3
    return 0, str(rows[0]["workload"]["frames"] - 3)


def _steps(rows: list[dict[str, Any]]) -> tuple[int, str]:
    number = _first(rows, record="variant", name="balanced")
    steps = rows[number]["steps"]
    rows[number]["steps"] -= 1
    return number, f"{(steps - 1) * rows[0]['workload']['frame_blocks']} calls, or {steps} steps"


def _short_parent(rows: list[dict[str, Any]]) -> tuple[int, str]:
    number = _first(rows, record="span", name="frame_block", index=3)
    inside = sum(
        row["value_ns"]
        for row in rows
        if row["record"] == "span" and row["parent"] == 3 and row["clip"] == 0 and row["thread"] == 0
    )
    rows[number]["value_ns"] //= 4
    return number, str(inside)


def _no_reference(rows: list[dict[str, Any]]) -> tuple[int, str]:
    number = _first(rows, record="quality", metric="ssim")
    rows[number]["reference"] = " "
    return number, "name the reference"


def _serialised(rows: list[dict[str, Any]]) -> tuple[int, str]:
    rows[0]["machine"]["launch_blocking"] = True
    return 0, "measure again"


def _changed(rows: list[dict[str, Any]]) -> tuple[int, str]:
    """Seal every line, then change a word of one."""
    number = _first(rows, record="quality", metric="ssim")
    for at, row in enumerate(rows, start=1):
        row |= json.loads(seal(json.dumps(row, separators=(",", ":")).encode(), at))
    rows[number]["note"] = "another"
    return number, "measure again"


CHANGES: dict[str, tuple[Change, ...]] = {
    "recorded-lines": (_changed,),
    "recorded-calls": (_no_calls, _wrong_calls),
    "recorded-spans": (_lost_span,),
    "recorded-workload": (_frames, _steps),
    "recorded-parent": (_short_parent,),
    "recorded-reference": (_no_reference,),
    "recorded-serialised": (_serialised,),
}


def _written(rows: list[dict[str, Any]], folder: Path) -> Path:
    path = folder / "records.jsonl"
    path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    return path


def test_the_small_run_is_clean(lines: list[dict[str, Any]], tmp_path: Path) -> None:
    assert lint_file(_written(lines, tmp_path)) == ()
    assert set(CHANGES) == {rule.id for rule in RULES}


@pytest.mark.parametrize(("rule", "change"), [(rule, change) for rule, changes in CHANGES.items() for change in changes])
def test_one_change_one_finding(rule: str, change: Change, lines: list[dict[str, Any]], tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = json.loads(json.dumps(lines))
    number, right = change(rows)
    (found,) = lint_file(_written(rows, tmp_path))
    assert (found.rule, found.place.line) == (rule, number + 1)
    assert right in found.corrected


def test_a_figure_of_the_json_report(json_report: Path, tmp_path: Path) -> None:
    report = json.loads(json_report.read_text())
    section = next(section for section in report["sections"] if section["id"] == "latency")
    row = next(row for row in section["blocks"][0]["rows"] if row["cells"][0]["text"].startswith("latent FPS"))
    row["cells"][3]["value"] *= 1.2
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    (found,) = lint_file(path)
    assert (found.rule, found.place.line, found.place.column) == ("fps-latency", 0, "balanced")
    assert found.place.row.startswith("latent FPS")
    assert float(found.corrected.split()[0]) == pytest.approx(row["cells"][3]["value"] / 1.2, rel=1e-3)
