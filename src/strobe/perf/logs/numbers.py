"""Exact numbers from logs: decimal point or comma, grouped thousands, exponents, without floats."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

Mark = Literal[".", ","]
"""The decimal mark of a number."""
Reason = Literal["nan", "infinite", "negative", "ambiguous", "unreadable", "unknown unit"]
"""Reason why a value is left out of every statistic."""

_GROUPING: Final = "_'’\u00a0\u202f"
NUMBER: Final = rf"[+-]?(?i:nan|inf(?:inity)?|(?:\d(?:[\d.,{_GROUPING}]*\d)?|\.\d+)(?:e[+-]?\d+)?)"
"""Regular expression for every number that `read` parses or rejects with a reason."""

_OTHER: Final[dict[Mark, Mark]] = {".": ",", ",": "."}
_PLAIN: Final = re.compile(r"(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d{1,9}))?", re.ASCII)
_PARTS: Final = re.compile(rf"(?P<sign>[+-]?)(?P<body>[\d.,{_GROUPING}]*\d)(?:e(?P<exponent>[+-]?\d{{1,9}}))?", re.ASCII | re.I)
_GROUPS: Final = re.compile(rf"[1-9]\d{{0,2}}(?:([.,{_GROUPING}])\d{{3}})(?:\1\d{{3}})*", re.ASCII)
_LARGEST: Final = 40
"""Largest power of ten that a time in any unit can have."""


class Number(NamedTuple):
    """Exact decimal number, `digits` x 10 ** `exponent`."""

    digits: int
    exponent: int


def decides(text: str) -> Mark | None:
    """Return the decimal mark that the text itself shows, or None: `7` has none, and `7,200` may be read in two ways."""
    parts = _PARTS.fullmatch(text)
    marks = [] if parts is None else [mark for mark in parts["body"] if mark in ".,"]
    if parts is None or not marks:
        return None
    last: Mark = "." if marks[-1] == "." else ","
    if len(marks) > 1:
        return last if len(set(marks)) == 2 else _OTHER[last]
    return None if _GROUPS.fullmatch(parts["body"]) and not parts["exponent"] else last


def read(text: str, mark: Mark | None) -> Number | Reason:
    """Parse a number, or return the reason why it is none.

    Args:
        text: what `NUMBER` matches.
        mark: the decimal mark that the numbers beside it show; None if they show none, or both. A text that shows its own is read
            by that. Where nothing shows it, `7.200` is 7.2, because programs print points, and `7,200` is ambiguous.
    """
    plain = _PLAIN.fullmatch(text)
    if plain is not None and (mark != "," or plain[2] is None):
        return _number(*plain.groups(""))
    parts = _PARTS.fullmatch(text)
    if parts is None:
        word = text.lower()
        return "nan" if "nan" in word else "infinite" if "inf" in word else "unreadable"
    own = decides(text) or mark
    if own is None and "," in parts["body"]:
        return "ambiguous"
    whole, _, fraction = parts["body"].partition(own or ".")
    groups = _GROUPS.fullmatch(whole)
    whole = whole if groups is None else whole.replace(groups[1], "")
    if not (whole + fraction).isdecimal():
        return "unreadable"
    number = _number(whole, fraction, parts["exponent"] or "")
    return "negative" if parts["sign"] == "-" and isinstance(number, Number) and number.digits else number


def _number(whole: str, fraction: str, exponent: str) -> Number | Reason:
    power = int(exponent or 0) - len(fraction)
    if abs(power) > _LARGEST or len(whole) > _LARGEST:
        return "unreadable"
    return Number(int(whole + fraction), power)
