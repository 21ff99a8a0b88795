"""Text that terminals and pages can show: untrusted text escaped, long lists cut short, bytes in a unit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

# C0 and C1 controls, soft hyphen, zero-width and bidirectional marks, line separators, surrogates, byte order mark
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufff9-\uffff]"
)
_NOT_IN_LINES: Final = re.compile(_UNPRINTABLE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))

ByteUnit = Literal["KiB", "MiB", "GiB", "MB"]
_BYTES: Final[dict[ByteUnit, float]] = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "MB": 1e6}


def clean(text: str) -> str:
    r"""Make text from outside printable on one line: control and direction marks become `\x1b`-like escapes."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def clean_lines(text: str) -> str:
    r"""Make text of several lines printable: as `clean`, but for line ends and tabs; escapes are `\u001b`, as JSON has them."""
    return _NOT_IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def first_of(texts: Sequence[str], most: int, others: str = "", *, between: str = ", ") -> str:
    """Return the first of several texts and the number of the others: `a, b and 3 more`.

    Args:
        most: number of texts that are given in full.
        others: what the others are called, such as `files`.
        between: stands between two texts.
    """
    left = f" and {len(texts) - most} more {others}".rstrip() if len(texts) > most else ""
    return between.join(texts[:most]) + left


def counted(n: int, noun: str) -> str:
    """Return a number of things in words: `1 event`, `2 events`."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def bytes_in(num_bytes: float, unit: ByteUnit) -> float:
    """Convert bytes to `unit`."""
    return num_bytes / _BYTES[unit]
