"""Tables and banners of a report as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rich.text import Text

from strobe.cli.console import columns, joined_lines, styled
from strobe.core.printable import clean

if TYPE_CHECKING:
    from strobe.perf.table.model import Banner, Table

MAX_ROWS: Final = 30
MAX_NAME: Final = 64
_NARROW: Final = 18
"""Characters of a cell that is not the first of its row, where lines keep to a width."""


def table_text(table: Table, max_rows: int = MAX_ROWS, *, notes: bool = True) -> Text:
    """Return a table as text: caption, head, rows and notes. A narrow terminal shows the columns that fit."""
    from strobe.perf.table.model import cell_text

    heads = [f"{column.title} {column.unit}".strip() for column in table.columns]
    rows = [
        [cell_text(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)] for row in table.rows[:max_rows]
    ]
    most = columns()
    cuts = [
        MAX_NAME if most is None or (at and column.numeric) else 2 * most // 5 if at == 0 else _NARROW  # no number is cut
        for at, column in enumerate(table.columns)
    ]
    lines = [[_cut(clean(text), cut) for text, cut in zip(row, cuts, strict=True)] for row in (heads, *rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    order = sorted(range(len(widths)), key=lambda at: (at > 0, at > 0 and not table.columns[at].numeric, at))
    shown = sorted(_fitting(widths, order, most))
    hidden = [head for at, head in enumerate(heads) if head and at not in shown]
    padded = [
        "  ".join(
            line[at].rjust(widths[at]) if table.columns[at].numeric else line[at].ljust(widths[at]) for at in shown
        ).rstrip()
        for line in lines
    ]
    more = [f"{len(table.rows) - max_rows} more rows"] if len(table.rows) > max_rows else []
    narrow = [f"More columns, on the page or in a wider terminal: {', '.join(hidden)}"] if hidden else []
    said = [f"* {note}" for note in table.notes] if notes else []
    return joined_lines((table.caption, styled((padded[0], "bold")), *padded[1:], *more, *narrow, *said, ""))


def _fitting(widths: Sequence[int], order: Sequence[int], most: int | None) -> Iterator[int]:
    """Yield the first of the columns in an order, and each later one for which there is room beside those before it."""
    used = -2
    for at in order:
        if most is None or used < 0 or used + 2 + widths[at] <= most:
            used += 2 + widths[at]
            yield at


def banner_texts(banners: Iterable[Banner], levels: tuple[str, ...] = ("stop", "caution")) -> Iterator[Text]:
    """Yield the banners of some levels as text."""
    for banner in banners:
        if banner.level in levels:
            title = styled((banner.title, "bold red" if banner.level == "stop" else "bold yellow"))
            yield joined_lines((title, *(f"  {item}" for item in banner.items), ""))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
