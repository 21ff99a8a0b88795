"""Placement of keys and queries: global positions, sinks counted once, causal and windowed visibility.

Plain integers, no torch: what a rank computes on is decided before any tensor is touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import gcd
from operator import index
from typing import Any, Literal

from strobe.core.errors import ShapeError, StrobeError

Span = tuple[int, int]
"""Half-open range `[start, stop)`."""


def in_short(given: object) -> str:
    """Describe an argument for an error: its type and at most 60 characters on one line."""
    said = " ".join(repr(given).split())
    return f"{type(given).__name__} {said if len(said) <= 60 else said[:57] + '...'}"


def whole_number(what: str, given: Any, least: int | None = 0, error: type[StrobeError] = ShapeError) -> int:
    """Check a count or a position and return it as an int; a tensor or an array with one whole number will do.

    Raises:
        ShapeError: it is no whole number, or less than `least`; or what is given as `error`.
    """
    try:
        number = None if isinstance(given, bool) else index(given)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        raise error(f"{what}: got {in_short(given)}, expected a whole number{'' if least is None else f' of at least {least}'}")
    return number


def whole_numbers(what: str, given: Any, least: int = 0) -> list[int]:
    """Check a sequence of counts.

    Raises:
        ShapeError: it is no sequence of whole numbers of at least `least`.
    """
    try:
        return [whole_number(what, each, least) for each in given]
    except TypeError as error:
        raise ShapeError(f"{what}: got {in_short(given)}, expected a sequence of whole numbers, one for each rank") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A run of keys in a rank's buffer.

    Args:
        start: global position of its first key.
        length: keys of the run.
        owned: False: a copy of keys that another rank owns; they are neither read nor counted.
    """

    start: int
    length: int
    owned: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class KVShards:
    """The global positions of every rank's key and value rows, in the order of the rows.

    Positions may have gaps (a rolling cache that forgot its middle), shards may be empty, and rows past a rank's segments are
    never read. Every position has one owner.

    Args:
        ranks: for each rank the segments of its buffer, first row first.

    Raises:
        ShapeError: two ranks own a position, a length or position is negative or no whole number, or `ranks` is something else.
    """

    ranks: tuple[tuple[Segment, ...], ...]

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "ranks", tuple(tuple(segments) for segments in self.ranks))
        except TypeError as error:
            raise ShapeError(f"ranks: got {in_short(self.ranks)}, expected for each rank a tuple of its segments") from error
        owned: list[tuple[int, int, int]] = []
        for rank, segments in enumerate(self.ranks):
            for segment in segments:
                if not isinstance(segment, Segment):
                    raise ShapeError(f"ranks: got {in_short(segment)} for rank {rank}, expected Segment(start=..., length=...)")
                if type(segment.length) is not int or type(segment.start) is not int:
                    raise ShapeError(f"shards: rank {rank} has {segment}, expected a start and a length that are whole numbers")
                if segment.length < 0 or segment.start < 0:
                    raise ShapeError(f"shards: rank {rank} has {segment}, expected start and length of at least 0")
                if segment.owned and segment.length:
                    owned.append((segment.start, segment.start + segment.length, rank))
        owned.sort()
        for (_, stop, first), (start, _, second) in pairwise(owned):
            if start < stop:
                raise ShapeError(
                    f"shards: ranks {first} and {second} both own position {start}; "
                    "mark all copies but one with Segment(owned=False), or use replicated="
                )

    @classmethod
    def contiguous(cls, lengths: Sequence[int], *, replicated: int = 0, owner: int = 0) -> KVShards:
        """Place runs in rank order; the first `replicated` rows of every buffer are one sink at position 0, owned by `owner`.

        Args:
            lengths: keys of each rank without the sink; 0 is allowed.
            replicated: keys of the sink that lies at the front of every rank's buffer.
            owner: the rank that counts the sink.
        """
        lengths = whole_numbers("lengths", lengths)
        replicated, owner = whole_number("replicated", replicated), _rank("owner", owner, len(lengths))
        starts = accumulate(lengths, initial=replicated)
        return cls(
            ranks=tuple(
                _with_sink((Segment(start=start, length=length),), replicated, rank == owner)
                for rank, (start, length) in enumerate(zip(starts, lengths, strict=False))
            )
        )

    @classmethod
    def even(cls, num_keys: int, num_ranks: int) -> KVShards:
        """Place `num_keys` in rank order; the first ranks hold one more where they do not divide."""
        spans = split(whole_number("num_keys", num_keys), whole_number("num_ranks", num_ranks, 1))
        return cls.contiguous([stop - start for start, stop in spans])

    @classmethod
    def interleaved(cls, num_keys: int, num_ranks: int, *, run: int = 1, replicated: int = 0, owner: int = 0) -> KVShards:
        """Deal runs of `run` keys (tokens of a frame: whole frames) to the ranks in turn, after a sink as in `contiguous`."""
        num_keys, num_ranks = whole_number("num_keys", num_keys), whole_number("num_ranks", num_ranks, 1)
        run, replicated = whole_number("run", run, 1), whole_number("replicated", replicated)
        owner = _rank("owner", owner, num_ranks)
        dealt: list[list[Segment]] = [[] for _ in range(num_ranks)]
        for turn, start in enumerate(range(0, num_keys, run)):
            length = min(run, num_keys - start)
            dealt[turn % num_ranks].append(Segment(start=replicated + start, length=length))
        return cls(ranks=tuple(_with_sink(tuple(each), replicated, rank == owner) for rank, each in enumerate(dealt)))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Rows of each rank's buffer that the segments describe."""
        return tuple(sum(segment.length for segment in segments) for segments in self.ranks)

    @property
    def num_keys(self) -> int:
        """Keys that are owned, by whichever rank."""
        return sum(segment.length for segments in self.ranks for segment in segments if segment.owned)

    @property
    def end(self) -> int:
        """One past the last owned position; 0 without keys."""
        owned = (each for segments in self.ranks for each in segments if each.owned and each.length)
        return max((segment.start + segment.length for segment in owned), default=0)


def _rank(what: str, given: Any, num_ranks: int) -> int:
    rank = whole_number(what, given)
    if rank and rank >= num_ranks:
        raise ShapeError(f"{what}: got {rank}, expected a rank from 0 to {num_ranks - 1}")
    return rank


def _with_sink(segments: tuple[Segment, ...], replicated: int, owned: bool) -> tuple[Segment, ...]:
    return (Segment(start=0, length=replicated, owned=owned), *segments) if replicated else segments


@dataclass(frozen=True, kw_only=True, slots=True)
class Mask:
    """The rule by which a query sees a key, by global position: query `i`, key `j`.

    Args:
        causal: only `j <= i`.
        window: only `|i - j| < window`; None: any distance.
        sinks: keys `j < sinks` are seen at any distance.
        q_start: global position of query 0.
    """

    causal: bool = False
    window: int | None = None
    sinks: int = 0
    q_start: int = 0

    @property
    def hides(self) -> bool:
        """Whether anything can be hidden at all."""
        return self.causal or self.window is not None


Seen = Literal["all", "some"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferRun:
    """Rows `[row, row + length)` of a buffer, at positions from `start` on, that all queries or some of them see."""

    row: int
    start: int
    length: int
    seen: Seen


def pieces(segments: Sequence[Segment], mask: Mask, queries: Span) -> Iterator[BufferRun]:
    """Split the rows that a run of queries sees into pieces that all of the queries see or only some.

    Args:
        segments: of a buffer that holds only what it owns.
        queries: rows of the queries; their global positions are `mask.q_start` later.
    """
    first, last = queries[0] + mask.q_start, queries[1] + mask.q_start - 1
    row = 0
    for segment in segments:
        if segment.length and last >= first:
            yield from _cut(row, segment, mask, (first, last))
        row += segment.length


def _cut(row: int, segment: Segment, mask: Mask, queries: Span) -> Iterator[BufferRun]:
    """Cut a segment at every position where its visibility can change."""
    first, last = queries
    edges = {segment.start, segment.start + segment.length}
    if mask.causal:
        edges |= {first + 1, last + 1}
    if mask.window is not None:
        edges |= {mask.sinks, first - mask.window + 1, last - mask.window + 1, first + mask.window, last + mask.window}
    inside = sorted(edge for edge in edges if segment.start <= edge <= segment.start + segment.length)
    for start, stop in pairwise(inside):
        seen = _seen(start, mask, first, last)  # the same for every position of [start, stop)
        if seen is not None:
            yield BufferRun(row=row + start - segment.start, start=start, length=stop - start, seen=seen)


def _seen(position: int, mask: Mask, first: int, last: int) -> Seen | None:
    """Return `all`, `some` or None: how many of the queries `first..last` see a key."""
    low, high = first, last  # the queries that see it are one run of positions
    if mask.causal:
        low = max(low, position)
    if mask.window is not None and position >= mask.sinks:
        low, high = max(low, position - mask.window + 1), min(high, position + mask.window - 1)
    if low > high:
        return None
    return "all" if (low, high) == (first, last) else "some"


def split(number: int, parts: int) -> tuple[Span, ...]:
    """Cut `range(number)` into `parts` runs; the first ones are one longer where it does not divide, the last may be empty."""
    each, more = divmod(number, parts)
    stops = list(accumulate((each + (part < more) for part in range(parts)), initial=0))
    return tuple(pairwise(stops))


def legal_grid(num_kv_heads: int, num_ranks: int) -> tuple[int, int]:
    """Return `(tree, heads)` with the most ranks over heads that divide evenly: `heads = gcd(num_kv_heads, num_ranks)`."""
    num_ranks = whole_number("num_ranks", num_ranks, 1)
    heads = gcd(whole_number("num_kv_heads", num_kv_heads, 1), num_ranks)
    return num_ranks // heads, heads
