"""Reader of `report.json`: its tables and sentences, every figure with all the digits it was written with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from strobe.core.errors import DataError
from strobe.lint.document import Document, DocumentSection, Row, Sentence, Table, TableCell, read_cell
from strobe.lint.quantity import UNITS, readable

_NS: Final = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9}

Node = dict[str, Any]


def read_report(data: bytes, path: str) -> Document:
    """Parse `report.json`, the JSON form of a report.

    Raises:
        DataError: not JSON, or not a report.
    """
    try:
        report = _plain(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}); give a report.json, a records.jsonl or Markdown") from error
    if not isinstance(report, dict) or not isinstance(report.get("sections"), list):
        raise DataError(f"{path}: JSON, but no report; give the report.json that `strobe report` writes, or its records.jsonl")
    try:
        return _document(report, path)
    except (AttributeError, TypeError, KeyError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: not a report as `strobe report` writes it ({error}); write it again") from error


def _plain(value: Any) -> Any:
    """Return the same JSON value with `readable` applied to every text."""
    match value:
        case str():
            return readable(value)
        case list():
            return [_plain(one) for one in value]
        case dict():
            return {key: _plain(one) for key, one in value.items()}
        case _:
            return value


def _document(report: Node, path: str) -> Document:
    tables, sentences = [], [Sentence(text=text, line=0, section=DocumentSection()) for text in _texts(report.get("subtitle"))]
    for number, node in enumerate(report["sections"]):
        section = DocumentSection(path=(0, number), titles=(str(report.get("title", "")), str(node.get("title", ""))))
        sentences += [Sentence(text=text, line=0, section=section) for text in _texts(node.get("lead"))]
        for block in node.get("blocks", ()):
            if isinstance(block, dict):
                tables += [_table(table, section) for table in _tables(block)]
                texts = (block.get("text"), *(block.get("items") or ()))
                sentences += [Sentence(text=text, line=0, section=section) for each in texts for text in _texts(each)]
    return Document(path=path, tables=tuple(tables), sentences=tuple(sentences))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str) and value:
        yield value


def _tables(block: Node) -> Iterator[Node]:
    if "columns" in block and "rows" in block:
        yield block
    inner = block.get("table")
    if isinstance(inner, dict):
        yield inner


def _table(node: Node, section: DocumentSection) -> Table:
    columns = node["columns"]
    header = tuple(
        f"{column.get('title', '')} ({column['unit']})" if column.get("unit") else str(column.get("title", ""))
        for column in columns
    )
    rows = tuple(
        Row(cells=tuple(_cell(cell, column) for cell, column in zip(row.get("cells", ()), columns, strict=False)), line=0)
        for row in node["rows"]
    )
    notes = tuple(str(note) for note in node.get("notes") or ())
    return Table(section=section, caption=str(node.get("caption", "")), header=header, rows=rows, line=0, notes=notes)


def _cell(node: Node, column: Node) -> TableCell:
    unit = column.get("unit") or "ms"
    note = node.get("note") or node.get("reason") or ""
    text = _text(node, unit, bool(column.get("unit")))
    return read_cell(f"{text} ({note})" if note else text, 0, UNITS[unit] if column.get("unit") else None)


def _text(node: Node, unit: str, named: bool) -> str:
    match node.get("type"):
        case "time" | "exacttime":
            value = f"{node['ns'] / _NS[unit]:.6f}"
            return value if named else f"{value} {unit}"
        case "ratio":
            bounds = "" if node.get("low") is None else f" [{node['low']:.6g}, {node['high']:.6g}]"
            return f"{node['value']:.6g}x{bounds}"
        case "share":
            return f"{100 * node['value']:.4f} %"
        case "number":
            return f"{node['value']:.{node['digits']}f} {node.get('unit', '')}".strip()
        case "count":
            return str(node["value"])
        case "missing":
            return str(node.get("label", "not measured"))
    return str(node.get("text", ""))
