"""Units of time and their spellings in logs."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Final, Literal, get_args

from strobe.core.errors import ConfigError, UnitError, nearest

Unit = Literal["ns", "µs", "ms", "s"]

UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
POWER: Final[dict[Unit, int]] = {"ns": 0, "µs": 3, "ms": 6, "s": 9}
"""Power of ten of each unit, in nanoseconds."""
_SPELLINGS: Final[dict[Unit, tuple[str, ...]]] = {
    "ns": ("ns", "nsec", "nsecs", "nanosecond", "nanoseconds"),
    "µs": ("µs", "μs", "us", "usec", "usecs", "microsecond", "microseconds"),  # micro sign, Greek mu
    "ms": ("ms", "msec", "msecs", "millisecond", "milliseconds"),
    "s": ("s", "sec", "secs", "second", "seconds"),
}
_UNIT_OF: Final = {word: unit for unit, words in _SPELLINGS.items() for word in words}
UNIT: Final = rf"(?i:{'|'.join(sorted(_UNIT_OF, key=len, reverse=True))})(?![^\W\d_])"
"""Regular expression for any spelling of a unit, not followed by a letter."""


def is_unit(text: str) -> bool:
    """Return whether the text spells a unit."""
    return text.lower() in _UNIT_OF


def parse_unit(text: str) -> Unit:
    """Return the unit that a spelling means: `us`, `msec`, `Seconds`.

    Raises:
        UnitError: no unit of time.
    """
    unit = _UNIT_OF.get(text.strip().lower())
    if unit is None:
        raise UnitError(f"unknown unit {text!r}{nearest(text, _UNIT_OF)}; allowed: ns, us, ms, s")
    return unit


def parse_duration(text: str) -> int:
    """Return a duration such as `5ms`, `0.05 s` or `250us` in nanoseconds.

    Raises:
        ConfigError: no number with a unit, negative, or not a whole number of nanoseconds.
    """
    found = re.fullmatch(rf"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d{{1,2}})?)\s*({UNIT})\s*", text, re.ASCII)
    try:
        value = Decimal(found[1]).scaleb(POWER[parse_unit(found[2])]) if found else None
    except InvalidOperation:
        value = None
    if value is None or value != value.to_integral_value():
        raise ConfigError(f"{text!r} is not a duration; write a number and its unit, such as 5ms or 0.05s, whole in nanoseconds")
    return int(value)
