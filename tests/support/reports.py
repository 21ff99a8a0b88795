"""Reports and pages as tests read them back."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec

from strobe.perf.analysis.device.intervals import Window
from strobe.perf.report.study import TraceOptions, TraceStudy, trace_labels
from strobe.perf.table.model import Figure, Headlines, Missing, Notes, Report, Row, Section, Table
from strobe.perf.trace import Trace


def decode_report(data: bytes) -> Report:
    """Read a report back from its JSON twin."""
    return msgspec.json.decode(data, type=Report)


def section(report: Report, name: str) -> Section:
    """Return a section by its id."""
    return next(each for each in report.sections if each.id == name)


def tables(part: Section | None) -> list[Table]:
    """Return the tables of a section, also those under pictures."""
    assert part is not None
    return [
        block.table if isinstance(block, Figure | Headlines) else block
        for block in part.blocks
        if hasattr(block, "table") or isinstance(block, Table)
    ]


def notes(part: Section | None) -> str:
    """Return the remarks of a section and those under its tables, a line each."""
    assert part is not None
    found = [item for block in part.blocks if isinstance(block, Notes) for item in block.items]
    return "\n".join([*found, *(note for table in tables(part) for note in table.notes)])


def column(table: Table, title: str, rows: list[Row] | None = None) -> list[Any]:
    """Return the cells of a column, of some rows or of all."""
    at = [each.title for each in table.columns].index(title)
    return [row.cells[at] for row in (table.rows if rows is None else rows)]


def values(table: Table, title: str, rows: list[Row] | None = None) -> list[Any]:
    """Return the times, numbers or texts of a column; 0 where one is missing."""
    cells = column(table, title, rows)
    return [0 if isinstance(c, Missing) else getattr(c, "ns", getattr(c, "value", getattr(c, "text", None))) for c in cells]


def by_title(table: Table) -> list[dict[str, Any]]:
    """Return the cells of each row by the titles of their columns."""
    titles = [each.title for each in table.columns]
    return [dict(zip(titles, row.cells, strict=True)) for row in table.rows]


def study_of(*traces: Trace, window: Window | None = None, labels: tuple[str, ...] = (), **options: Any) -> TraceStudy:
    """Return a study of traces."""
    named = labels or trace_labels(traces)
    return TraceStudy(traces=traces, labels=named, windows=(window,) * len(traces), options=TraceOptions(**options))


def records(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a run."""
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def rewrite(folder: Path, lines: list[dict[str, Any]]) -> Path:
    """Give a run other records; returns its folder."""
    (folder / "records.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


VOID = {"meta", "link"}


class Page(HTMLParser):
    """Elements in order, with the text of each, and what is left open."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def titles(self) -> list[str]:
        """Return the text of each `title`, of the page and of its pictures."""
        return [text for tag, text in self.texts if tag == "title"]

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of every element of a kind."""
        return [attrs for name, attrs in self.elements if name == tag]
