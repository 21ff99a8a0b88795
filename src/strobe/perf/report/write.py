"""Writer of a report's files: the page, its Markdown and its JSON twin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import starmap
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from strobe.core.files import write_together
from strobe.perf.report.html import render_html
from strobe.perf.report.markdown import render_markdown
from strobe.perf.report.model import Block, Figure, Headlines, Paragraph, Report, Table, encode_report

Format = Literal["html", "md", "json"]
FORMATS: Final[tuple[Format, ...]] = ("html", "md", "json")
MAX_PAGE_BYTES: Final = 300_000


class _Room(NamedTuple):
    """Limits of a page: rows shown at once, rows of a table opened by a click, and tables of a section."""

    seen: int
    folded: int
    tables: int


_ROOMS: Final = tuple(
    starmap(
        _Room,
        (
            (200, 50, 99), (100, 30, 99), (50, 20, 50), (40, 12, 40), (30, 8, 30), (30, 8, 24), (30, 5, 16), (20, 5, 12),
            (20, 3, 8), (12, 3, 6), (8, 3, 4), (5, 2, 3), (2, 1, 2),
        ),
    )
)  # fmt: skip


def render(report: Report, format: Format, *, alone: bool = False) -> str:
    """Return the report in one format; the same report gives the same text.

    An HTML page above `MAX_PAGE_BYTES` keeps only the first rows of its tables, then only the first tables of its sections, and
    says so; the other formats are always complete.

    Args:
        alone: a page stands by itself, without the other formats beside it.
    """
    match format:
        case "md":
            return render_markdown(report)
        case "json":
            return encode_report(report).decode()
        case "html":
            shown = report
            for room in _ROOMS:
                if least_bytes(shown) <= MAX_PAGE_BYTES:
                    page = render_html(shown, alone=alone)
                    if len(page.encode()) <= MAX_PAGE_BYTES:
                        return page
                shown = _shortened(report, room)
            return render_html(shown, alone=alone)


def write_report(report: Report, folder: Path, formats: Iterable[Format] = FORMATS) -> tuple[Path, ...]:
    """Write `report.html`, `report.md` and `report.json`, or the named ones of them, all or none; return their paths."""
    return write_together({folder / f"report.{each}": render(report, each) for each in FORMATS if each in set(formats)})


def least_bytes(report: Report) -> int:
    """Return a lower bound of the bytes of a page's tables, to find pages that are far too large without rendering them."""
    tables = [table for section in report.sections for block in section.blocks if (table := _table_of(block)) is not None]
    per_row = [
        len("<tr></tr>") + sum(len("<td class=n></td>" if one.numeric else "<td></td>") for one in table.columns)
        for table in tables
    ]
    return sum(len(table.rows) * least for table, least in zip(tables, per_row, strict=True))


def _table_of(block: Block) -> Table | None:
    match block:
        case Table():
            return block
        case Figure(table=table) | Headlines(table=table):
            return table
        case _:
            return None


def _shortened(report: Report, room: _Room) -> Report:
    sections = tuple(
        msgspec.structs.replace(section, blocks=tuple(_short_blocks(section.blocks, room))) for section in report.sections
    )
    return msgspec.structs.replace(report, sections=sections)


def _short_blocks(blocks: Iterable[Block], room: _Room) -> Iterator[Block]:
    num_tables = 0
    for block in blocks:
        is_table = isinstance(block, Table | Figure | Headlines)
        num_tables += is_table
        if not is_table or num_tables <= room.tables:
            yield _short_block(block, room)
    if num_tables > room.tables:
        yield Paragraph(f"{num_tables - room.tables} more tables of this section stand in report.md and report.json.")


def _short_block(block: Block, room: _Room) -> Block:
    match block:
        case Table(collapsed=collapsed):
            return _short_table(block, room.folded if collapsed else room.seen)
        case Figure(table=table, table_open=is_open):
            return msgspec.structs.replace(block, table=_short_table(table, room.seen if is_open else room.folded))
        case Headlines(table=table):
            return msgspec.structs.replace(block, table=_short_table(table, room.folded))
        case _:
            return block


def _short_table(table: Table, rows: int) -> Table:
    plain = [row for row in table.rows if not row.strong]
    if len(plain) <= rows:
        return table
    kept = set(map(id, plain[:rows]))
    note = f"The first {rows} of {len(plain)} rows, so that the page stays small; report.json has all of them."
    shown = tuple(row for row in table.rows if row.strong or id(row) in kept)
    return msgspec.structs.replace(table, rows=shown, notes=(*table.notes, note))
