"""Tables and banners of a report as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from rich.text import Text

from strobe.cli.console import joined_lines, styled
from strobe.core.printable import clean

if TYPE_CHECKING:
    from strobe.perf.report.model import Banner, Table

MAX_ROWS: Final = 30
MAX_NAME: Final = 64


def table_text(table: Table, max_rows: int = MAX_ROWS, *, notes: bool = True) -> Text:
    """Return a table as text: caption, head, rows and notes. A narrow terminal wraps it; only long names are cut."""
    from strobe.perf.report.model import cell_text

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
    said = [f"* {note}" for note in table.notes] if notes else []
    return joined_lines((table.caption, styled((padded[0], "bold")), *padded[1:], *more, *said, ""))


def banner_texts(banners: Iterable[Banner], levels: tuple[str, ...] = ("stop", "caution")) -> Iterator[Text]:
    """Yield the banners of some levels as text."""
    for banner in banners:
        if banner.level in levels:
            title = styled((banner.title, "bold red" if banner.level == "stop" else "bold yellow"))
            yield joined_lines((title, *(f"  {item}" for item in banner.items), ""))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 3]}..."
