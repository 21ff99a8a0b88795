"""Conversion of cells and foreign strings to plain text. The one place where nanoseconds become milliseconds."""

from __future__ import annotations

import math
import re
from typing import Final

from strobe.core.printable import ByteUnit, bytes_in, clean
from strobe.perf.report.model import Cell, Code, Column, Count, ExactTime, Missing, Number, Ratio, Share, Text, Time

MAX_NAME: Final = 120
_NOISE: Final = re.compile(r"^void |\b(?:at::native|at|c10|std)::|\(anonymous namespace\)::")
_NS: Final = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9}


def shorten(name: str) -> str:
    """Clean a name; if it is long, remove PyTorch's namespaces and cut its middle, since kernel names differ at their ends."""
    text = clean(name)
    if len(text) <= MAX_NAME:
        return text
    text = _NOISE.sub("", text)
    if len(text) <= MAX_NAME:
        return text
    keep = (MAX_NAME - 3) // 2
    return f"{text[:keep]}...{text[-keep:]}"


def significant(value: float, digits: int = 4) -> str:
    """Format a number with a fixed count of significant digits, without exponent and with all digits before the point."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value: 999.96 is 1000
    return f"{value:.{max(0, digits - 1 - exponent)}f}"


def time_text(ns: float, unit: str = "ms") -> str:
    """Format nanoseconds in `unit` with four significant digits, without the unit's name."""
    return significant(ns / _NS[unit])


def bytes_cell(num_bytes: float, unit: ByteUnit, digits: int) -> Number:
    """Return the cell of a number of bytes in `unit`."""
    return Number(bytes_in(num_bytes, unit), digits, unit)


def exact_ms(ns: int) -> str:
    """Format integer nanoseconds as milliseconds with six decimals, so that printed lines add up to their printed sum."""
    sign, ns = ("-" if ns < 0 else ""), abs(ns)
    return f"{sign}{ns // 1_000_000}.{ns % 1_000_000:06d}"


def ratio_text(ratio: Ratio) -> str:
    """Format a ratio as `1.25x`, or `1.253x [1.247, 1.259]` with its interval."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}x"
    return f"{ratio.value:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}]"


def _number_text(cell: Number) -> str:
    text = f"{cell.value:.{cell.digits}f}"
    return f"{text} {cell.unit}" if cell.unit else text


def cell_text(cell: Cell, column: Column) -> str:
    """Return the cell's main text; `cell_note` returns its note or reason."""
    match cell:
        case Text(text=text):
            return clean(text)
        case Code(text=text):
            return shorten(text)
        case Count(value=value):
            return str(value)
        case Time(ns=ns):
            return time_text(ns, column.unit or "ms") + ("" if column.unit else " ms")
        case ExactTime(ns=ns):
            return exact_ms(ns) + ("" if column.unit else " ms")
        case Ratio():
            return ratio_text(cell)
        case Share(value=value):
            return f"{round(100 * value, 1) + 0.0:.1f} %"  # no minus sign on zero
        case Number():
            return _number_text(cell)
        case Missing(label=label):
            return clean(label)


def cell_note(cell: Cell) -> str:
    """Return the small print of a cell: the reference of a number, or the reason why it is missing."""
    match cell:
        case Text(note=note) | Time(note=note) | Number(note=note) | Missing(reason=note):
            return clean(note)
        case _:
            return ""


def cell_sort_key(cell: Cell) -> float | None:
    """Return the number by which a column sorts the cell; None if the cell is none."""
    match cell:
        case Count(value=value) | Share(value=value) | Number(value=value) | Ratio(value=value):
            return float(value)
        case Time(ns=ns) | ExactTime(ns=ns):
            return float(ns)
        case _:
            return None
