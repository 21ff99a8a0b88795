"""A report's tables as lines for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.markup import escape

if TYPE_CHECKING:
    from strobe.perf.report.model import Table

MAX_ROWS: Final = 30
MAX_NAME: Final = 64


def table_text(table: Table, max_rows: int = MAX_ROWS, *, notes: bool = True) -> str:
    """Caption, head, rows and notes, as rich markup; a terminal narrower than the table wraps it, only long names are cut."""
    from strobe.perf.report.text import cell_text, clean

    heads = [f"{column.title} {column.unit}".strip() for column in table.columns]
    rows = [
        [cell_text(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)] for row in table.rows[:max_rows]
    ]
    lines = [[_cut(clean(text)) for text in row] for row in (heads, *rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    padded = [
        "  ".join(
            text.rjust(width) if column.numeric else text.ljust(width)
            for text, width, column in zip(line, widths, table.columns, strict=True)
        ).rstrip()
        for line in lines
    ]
    more = [f"{len(table.rows) - max_rows} more rows"] if len(table.rows) > max_rows else []
    said = [f"* {clean(note)}" for note in table.notes] if notes else []
    head = f"[bold]{escape(padded[0])}[/]"
    return "\n".join((escape(clean(table.caption)), head, *map(escape, (*padded[1:], *more, *said)), ""))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 3]}..."
