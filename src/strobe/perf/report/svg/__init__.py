"""Pictures as inline SVG in percent coordinates: text keeps its size at every width, and no script is needed to see them."""

from __future__ import annotations

import math
from html import escape as _escape
from typing import Final

from strobe.core.printable import clean

_COLOURS: Final = 9


def esc(text: str) -> str:
    """Escape text for element content and quoted attributes."""
    return _escape(clean(text), quote=True)


def colour(series: int) -> str:
    """Return the CSS class of a series; nine colours repeat."""
    return f"s{series % _COLOURS}"


def percent(part: float) -> str:
    """Format a fraction as a percent coordinate with three decimals, without trailing zeros."""
    text = f"{100 * part:.3f}".rstrip("0").rstrip(".")
    return f"{text or '0'}%"


def linear_ticks(low: float, high: float, count: int, *, whole: bool = False) -> list[float]:
    """Return about `count` round values in [low, high], with steps of 1, 2 or 5 times a power of ten, at least 1 if `whole`."""
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
    """Format a tick with as many decimals as ticks `step` apart need, without trailing zeros or a sign on zero."""
    text = f"{value + 0.0:.{max(0, 1 - math.floor(math.log10(step)))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
