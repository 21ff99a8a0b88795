"""Tables for notebooks and for `print`: plain, with every text escaped and nothing loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

MAX_ROWS = 20
"""Rows of a table that a notebook shows; `rows()` has all of them."""
MAX_TEXT = 48
"""Characters of a cell in a line of text."""


def html_table(caption: str, rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as an HTML table with their keys as its head, the first `MAX_ROWS` of them."""
    if not rows:
        return f"<p>{escape(caption)}: none.</p>"
    head = "".join(f"<th>{escape(key)}</th>" for key in rows[0])
    body = "".join(f"<tr>{''.join(f'<td>{escape(_text(value))}</td>' for value in row.values())}</tr>" for row in rows[:MAX_ROWS])
    more = len(rows) - MAX_ROWS
    left = f"<p>{more} more in .rows().</p>" if more > 0 else ""
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{left}"


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def text_table(rows: Sequence[Mapping[str, object]], columns: Sequence[str], most: int) -> list[str]:
    """Return the first rows as lines of text below a head; times in nanoseconds become milliseconds.

    Args:
        rows: with the same keys each.
        most: rows that are shown; a line says how many more there are.
    """
    head = [column.removesuffix("_ns").replace("_", " ") + (" ms" if column.endswith("_ns") else "") for column in columns]
    body = [[_short(row[column], column) for column in columns] for row in rows[:most]]
    widths = [max(len(line[at]) for line in (head, *body)) for at in range(len(columns))]
    right = [all(not isinstance(row[column], str) for row in rows[:most]) for column in columns]
    lines = [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width) for cell, width, number in zip(line, widths, right, strict=True)
        )
        for line in (head, *body)
    ]
    return [line.rstrip() for line in lines] + ([f"... and {len(rows) - most} more"] if len(rows) > most else [])


def _short(value: object, column: str) -> str:
    """Format a value for a line of text: four digits of a float."""
    if value is None:
        return "-"
    if column.endswith("_ns") and isinstance(value, int | float):
        return f"{value / 1e6:.4g}"
    text = f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."
