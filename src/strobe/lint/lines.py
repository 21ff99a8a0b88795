"""Printed output as a table: lines such as `comp_attention : 7.950 ± 0.844 (total: 23.851)` under their group headings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from strobe.lint.document import DocumentSection, Row, Table, TableCell, caption_unit, read_cell
from strobe.lint.quantity import Quantity, Unit, quantities

_LABELLED: Final = re.compile(
    r"^(?P<indent>\s*)(?P<label>[^\s:=|][^:=|]{0,78}?)\s*[:=]\s*(?P<rest>[~≈<>±+\-−]?\s*[(]?\s*[-+−]?\d.*)$"
)
_GROUP: Final = re.compile(r"^\s*(?P<title>[A-Za-z\[][^:]{0,78}?)\s*:\s*$")
_NAMED: Final = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_.% ]{0,18}?)\s*[:=]\s*$")
VALUE: Final = "value"


def lines_table(lines: Sequence[tuple[int, str]], section: DocumentSection, intro: str = "") -> Table | None:
    """Read numbered lines of output into one table, or None if fewer than two of them are `label: number ...`.

    Args:
        lines: number and text of each line.
        intro: the text before the block; it may declare the unit.
    """
    rows: list[tuple[Row, dict[str, TableCell]]] = []
    caption, group = "", ""
    hint = caption_unit(intro)
    for number, text in lines:
        hint = hint or caption_unit(text)
        labelled, heading = _LABELLED.match(text), _GROUP.match(text)
        if labelled:
            depth = len(labelled["indent"].expandtabs(4))
            label = TableCell(text=labelled["label"].strip(), line=number)
            rows.append(
                (Row(cells=(label,), line=number, depth=depth, group=group), _named_cells(labelled["rest"], number, hint))
            )
        elif heading:
            caption, group = caption or ("" if group or rows else heading["title"]), heading["title"]
        elif not rows and not caption and text.strip(" =-*#"):
            caption = text.strip()
    if len(rows) < 2:
        return None
    titles = list(dict.fromkeys(title for _, cells in rows for title in cells))
    blank = {title: TableCell(text="", line=0) for title in titles}
    full = tuple(
        Row(cells=(*row.cells, *(blank | cells).values()), line=row.line, depth=row.depth, group=row.group) for row, cells in rows
    )
    return Table(section=section, caption=caption, header=("", *titles), rows=full, line=full[0].line, origin="lines")


def _named_cells(rest: str, line: int, hint: Unit | None) -> dict[str, TableCell]:
    """Split the text after a label into cells by name: `7.95 ± 0.84 (total: 23.85)` gives value, ± and total."""
    cells: dict[str, TableCell] = {}
    for each in quantities(rest):
        title = _title(each, rest)
        if title not in cells:
            unit = hint if each.unit is None and title != "count" else None
            cells[title] = read_cell(rest[each.start : each.stop].strip(), line, unit)
    return cells


def _title(each: Quantity, rest: str) -> str:
    if each.mark == "spread":
        return "±"
    named = _NAMED.search(rest[: each.start])
    if named:
        return named["name"].strip()
    if each.dimension == "percent":
        return "%"
    return "count" if each.dimension == "count" else VALUE
