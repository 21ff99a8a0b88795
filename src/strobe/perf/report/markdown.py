"""Renderer of a report as GitHub-flavoured Markdown: pictures become their tables, text from outside is escaped."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, assert_never

from strobe.core.printable import clean
from strobe.perf.report.model import (
    Banner,
    Block,
    Cell,
    Column,
    Figure,
    Headlines,
    Missing,
    Notes,
    Paragraph,
    Report,
    Row,
    Section,
    Table,
    Videos,
)
from strobe.perf.report.model import Text as TextCell
from strobe.perf.report.text import cell_note, cell_text

_SPECIAL: Final = re.compile(r"([\\`*_\[\]|~$#])")


@lru_cache(maxsize=8192)  # most cells of a long table are like another one
def escape(text: str) -> str:
    """Escape text so that Markdown shows it literally on one line, also inside a table cell."""
    text = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", text).replace("://", ":&#47;&#47;").replace("www.", "www&#46;")


def render_markdown(report: Report) -> str:
    """Return the whole report; the same report gives the same text."""
    lines = [f"# {escape(report.title)}", "", escape(report.subtitle), ""]
    lines += [f"* {escape(fact.name)}: {_cell(fact.value, Column(''))}" for fact in report.facts]
    lines.append("")
    for banner in report.banners:
        lines += _banner(banner)
    for number, section in enumerate(report.sections, start=1):
        lines += _section(number, section)
    return "\n".join(lines).rstrip("\n") + "\n"


def _banner(banner: Banner) -> list[str]:
    lines = [f"> **{escape(banner.title)}**", ">"]
    return [*lines, *(f"> * {escape(item)}" for item in banner.items), ""]


def _section(number: int, section: Section) -> list[str]:
    lines = [f"## {number}. {escape(section.title)}", ""]
    if section.lead:
        lines += [escape(section.lead), ""]
    for block in section.blocks:
        lines += _block(block)
    return lines


def _block(block: Block) -> list[str]:
    match block:
        case Paragraph(text=text):
            return [escape(text), ""]
        case Notes(items=items):
            return [*(f"* {escape(item)}" for item in items), ""]
        case Table():
            return _table(block)
        case Figure(table=table) | Headlines(table=table):
            return _table(table)
        case Videos(items=items):
            return [
                *(f"* [{escape(video.label)}](<{_target(video.path)}>) {escape(video.caption)}".rstrip() for video in items),
                "",
            ]
        case _:
            assert_never(block)


def _target(path: str) -> str:
    return re.sub(
        r"[^A-Za-z0-9._/-]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "replace")), path
    )


def _table(table: Table) -> list[str]:
    heads = [f"{escape(column.title)} ({column.unit})" if column.unit else escape(column.title) for column in table.columns]
    lines = [f"**{escape(table.caption)}**", "", "| " + " | ".join(heads) + " |"]
    lines.append("|" + "|".join(" ---: " if column.numeric else " --- " for column in table.columns) + "|")
    lines += [_row(row, table.columns) for row in table.rows]
    lines.append("")
    for note in table.notes:
        lines += [f"* {escape(note)}"]
    return [*lines, ""] if table.notes else lines


def _row(row: Row, columns: tuple[Column, ...]) -> str:
    """Format a row; of neighbours that are missing for the same reason the first one says it."""
    cells, reason = [], ""
    for cell, column in zip(row.cells, columns, strict=True):
        why = cell.reason if isinstance(cell, Missing) else ""
        cells.append(escape(cell_text(cell, column)) if why and why == reason else _cell(cell, column))
        reason = why
    return "| " + " | ".join(f"**{cell}**" if row.strong and cell else cell for cell in cells) + " |"


def _cell(cell: Cell, column: Column) -> str:
    text, note = escape(cell_text(cell, column)), escape(cell_note(cell))
    if isinstance(cell, TextCell) and cell.tone == "muted":
        return f"*{text}*" if text else ""
    return f"{text} ({note})" if note else text
