"""Pictures as inline SVG in percent coordinates: text keeps its size at every width, nothing needs a script to be seen."""

from __future__ import annotations

import math
from html import escape as _escape
from typing import Final

from strobe.core.printable import clean

_COLOURS: Final = 9


def esc(text: str) -> str:
    """Foreign or own text, safe in element content and in quoted attributes."""
    return _escape(clean(text), quote=True)


def colour(series: int) -> str:
    """Class of a series; the page has nine colours."""
    return f"s{series % _COLOURS}"


def percent(part: float) -> str:
    """A fraction as a percent coordinate with three decimals, trailing zeros dropped."""
    text = f"{100 * part:.3f}".rstrip("0").rstrip(".")
    return f"{text or '0'}%"


def linear_ticks(low: float, high: float, count: int, *, whole: bool = False) -> list[float]:
    """About `count` round values in [low, high], steps of 1, 2 or 5 times a power of ten; no step below 1 for whole numbers."""
    if high <= low:
        return [low]
    raw, power = (high - low) / count, 1.0
    while power * 10 <= raw:
        power *= 10
    while power > raw:
        power /= 10
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    step = max(1.0, step) if whole else step
    first = -(-low // step)
    ticks = []
    while first * step <= high * (1 + 1e-9):
        ticks.append(first * step)
        first += 1
    return ticks


def tick_text(value: float, step: float = 1e-3) -> str:
    """A tick label with as many decimals as ticks `step` apart need, without trailing zeros or a sign on zero."""
    text = f"{value + 0.0:.{max(0, 1 - math.floor(math.log10(step)))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
