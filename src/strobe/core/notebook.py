"""HTML tables for notebooks: plain, with every text escaped and nothing loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

MAX_ROWS = 20
"""Rows of a table that a notebook shows; `rows()` has all of them."""


def html_table(caption: str, rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as an HTML table with their keys as its head, the first `MAX_ROWS` of them.

    Args:
        caption: what the rows are.
        rows: with the same keys each.
    """
    if not rows:
        return f"<p>{escape(caption)}: none.</p>"
    head = "".join(f"<th>{escape(key)}</th>" for key in rows[0])
    body = "".join(f"<tr>{''.join(f'<td>{escape(_text(value))}</td>' for value in row.values())}</tr>" for row in rows[:MAX_ROWS])
    more = len(rows) - MAX_ROWS
    left = f"<p>{more} more in .rows().</p>" if more > 0 else ""
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{left}"


def _text(value: object) -> str:
    """Format a value for a cell: six digits of a float, empty for None."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
