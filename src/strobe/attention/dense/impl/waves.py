"""Waves of a kernel that gives every tile of queries a multiprocessor of its own, and how to fill the last one.

A head of `S_q` queries makes `ceil(S_q / tile)` programs of equal length, and a GPU runs `multiprocessors` of them at a time: 444
programs on 132 take four waves, the last one a third full. Queries of the last wave may attend to the keys in several parts, each
by a program of its own and so much shorter, merged by lse: then the last wave is fuller, and short.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_MOST_PARTS: Final = 4
"""As many as are merged in one launch."""
_LEAST_GAIN: Final = 0.06
"""Share of the time that must be saved on paper: a GPU at its power limit clocks a full wave lower, and part of it is lost."""
_MORE_PARTS: Final = 0.03
"""Share of the time that more parts must save beyond fewer ones: they are more results to merge, and of lower precision."""
_ONCE: Final = 500
"""What a program costs beside its keys, in keys: it loads its queries and stores its result."""
_MERGE: Final = 900
"""What a merge costs at least, in keys: a program takes 11 ns for a key, the launch and its gap 10 us."""
_MERGED: Final = 1 / 86
"""And for every row of a head, read from each part and written once: 256 bytes at 2 TB/s, in keys."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Queries that attend to all keys at once, and the parts of the keys for the rest.

    Args:
        first: how many queries come first; 0 to all but one.
        parts: equal parts of the keys, at least 2.
    """

    first: int
    parts: int


@lru_cache(maxsize=256)
def split_last_wave(q_len: int, kv_len: int, heads: int, tile: int, multiprocessors: int) -> Split | None:
    """Return how a call is cut so that it ends soonest, or None where that gains little.

    Args:
        q_len, kv_len: queries and keys; parts divide the keys evenly.
        heads: heads of all samples.
        tile: queries of a program.
        multiprocessors: programs that run at a time.
    """
    tiles = max(1, -(-q_len // tile))
    whole = float(_waves(tiles * heads, multiprocessors) * (kv_len + _ONCE))
    best, limit = None, whole * (1 - _LEAST_GAIN)
    for parts in (part for part in range(2, _MOST_PARTS + 1) if kv_len % part == 0):
        times = {}
        for first in range(tiles):
            rest = (tiles - first) * heads * parts
            programs = _waves(first * heads, multiprocessors) * (kv_len + _ONCE)
            programs += _waves(rest, multiprocessors) * (kv_len // parts + _ONCE)
            times[first] = programs + _MERGE + (q_len - first * tile) * heads * (parts + 1) * _MERGED
        first = min(times, key=lambda each: times[each])
        if times[first] < limit:
            best, limit = Split(first=first * tile, parts=parts), times[first] - whole * _MORE_PARTS
    return best


def _waves(programs: int, multiprocessors: int) -> int:
    return -(-programs // multiprocessors)
