"""Decimal microseconds as text into integer nanoseconds, exactly; a whole column at a time where the digits are plain.

No float is involved: the microseconds of a real trace (up to 7.9e12, or 1.7e15 in old ones) with three decimals do not fit one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

LIMIT: Final = 1 << 62  # a start plus a duration then fits 64 bits
_MICROSECONDS: Final = re.compile(rb"(-?)([0-9]{1,16})(?:\.([0-9]{1,3}))?")
_MAX_WHOLE: Final = 16
_MAX_DECIMALS: Final = 3
_COMMA, _DOT, _ZERO = b",.0"


def nanoseconds(digits: bytes) -> int:
    """Turn decimal microseconds into integer nanoseconds, exactly; digits below 1 ns are rounded half to even.

    Raises:
        ValueError: not a finite number, or beyond 64 bits.
    """
    match = _MICROSECONDS.fullmatch(digits)
    if match:
        sign, whole, fraction = match.groups(b"")
        value = int(sign + whole + fraction.ljust(_MAX_DECIMALS, b"0"))
    else:
        try:
            microseconds = Decimal(digits.decode("ascii").strip('"'))
        except InvalidOperation as error:
            raise ValueError(f"not a number: {digits!r}") from error
        if not microseconds.is_finite() or microseconds.adjusted() > _MAX_WHOLE - 1:
            raise ValueError(f"not a time in microseconds: {digits!r}")
        value = int(microseconds.scaleb(_MAX_DECIMALS).to_integral_value(ROUND_HALF_EVEN))
    if abs(value) >= LIMIT:
        raise ValueError(f"beyond 64 bits in nanoseconds: {digits!r}")
    return value


def column_ns(texts: Sequence[msgspec.Raw]) -> tuple[Integers, Flags]:
    """Convert each text as `nanoseconds` does; return the times and a mask of texts that are no time (0 there)."""
    if not texts:
        return np.empty(0, np.int64), np.empty(0, np.bool_)
    values, rest = _plain(b",".join(texts) + b",", len(texts))
    bad = np.zeros(len(texts), np.bool_)
    for row in np.flatnonzero(rest).tolist():
        try:
            values[row] = nanoseconds(bytes(texts[row]))
        except ValueError:
            values[row], bad[row] = 0, True
    return values, bad


def _plain(text: bytes, count: int) -> tuple[Integers, Flags]:
    """Parse the plain numbers in `text`, each followed by a comma; return them and a mask of those that are not plain."""
    codes = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(codes == _COMMA)
    if len(ends) != count:  # a comma inside a text
        return np.zeros(count, np.int64), np.ones(count, np.bool_)
    lengths = np.diff(ends, prepend=-1) - 1
    width = min(int(lengths.max()), _MAX_WHOLE + 1 + _MAX_DECIMALS) or 1
    if int(lengths.min()) == width:
        columns = np.ascontiguousarray(codes.reshape(count, width + 1)[:, width - 1 :: -1].T)
    else:
        places = np.arange(1, width + 1)[:, None]
        columns = np.where(places <= lengths, codes.take(ends - places, mode="clip"), _ZERO)
    dots = columns == _DOT
    decimals = dots.argmax(0)
    dotted = dots.any(0)
    plain = (((columns - np.uint8(_ZERO)) < 10) | dots).all(0) & (dots.sum(0) <= 1) & (lengths > 0) & (lengths <= width)
    plain &= ~dotted | ((decimals >= 1) & (decimals <= _MAX_DECIMALS))
    whole = lengths - dotted - decimals
    plain &= (whole >= 1) & (whole <= _MAX_WHOLE)
    values = np.zeros(count, np.uint64)
    for many in np.flatnonzero(np.bincount(decimals[plain])).tolist():
        rows = plain & (decimals == many)
        digits = columns if rows.all() else columns[:, rows]
        values[rows] = _horner(digits, many) * np.uint64(10 ** (_MAX_DECIMALS - many))
    plain &= values < LIMIT
    return values.astype(np.int64), ~plain


def _horner(columns: npt.NDArray[np.uint8], decimals: int) -> npt.NDArray[np.uint64]:
    """Return the digits of each number (last digit first) as an integer, without the dot before `decimals` digits."""
    values = np.zeros(columns.shape[1], np.uint64)
    for place in range(len(columns) - 1, -1, -1):
        if decimals == 0 or place != decimals:
            values *= np.uint64(10)
            values += columns[place] - np.uint8(_ZERO)
    return values
