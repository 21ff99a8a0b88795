"""Lanes of a `Timeline` from the slices of steps, with as many rectangles as a page can hold and no hole in a step."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from strobe.perf.report.blocks.fields import Field, exact_time, heads, rows_of
from strobe.perf.report.model import GAPS, Code, Count, ExactTime, Kind, Lane, Row, Table, Text, Timeline

MAX_SLICES: Final = 700
"""Most slices drawn in all lanes together, so that the file stays small for any trace."""
MAX_SLICES_BY_CLASS: Final = 450
"""Most slices drawn where joined ones are drawn by class: few enough to tell the classes of a group apart."""
_JOINED: Final = " short slices"


class Piece(NamedTuple):
    """One slice of a lane, ns from the lane's start; `joined`: it stands for several short ones."""

    start_ns: int
    end_ns: int
    name: str
    kind: Kind
    joined: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneSlices:
    """All slices of one lane: in order, disjoint, without a hole, from 0."""

    label: str
    series: int
    pieces: Sequence[Piece]


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Join neighbouring slices that look the same."""
    found: list[Piece] = []
    for piece in pieces:
        if found and found[-1][1:] == (piece.start_ns, *piece[2:]):
            found[-1] = found[-1]._replace(end_ns=piece.end_ns)
        else:
            found.append(piece)
    return found


def draw_lanes(lanes: Sequence[LaneSlices], kinds: Sequence[Kind], apart: Kind, *, by_class: bool = False) -> Timeline:
    """Lay out the lanes on one axis.

    Args:
        lanes: at least one, none without slices.
        kinds: the order of the classes; those that do not occur are left out.
        apart: the class whose slices are not joined with others, unless they alone would be too many.
        by_class: draw joined slices one class after the other, each as long as its slices, work before gaps; otherwise as one,
            in the class that owns most of it.
    """
    present = {piece.kind for lane in lanes for piece in lane.pieces}
    shown = tuple(kind for kind in kinds if kind in present)
    limit = (MAX_SLICES_BY_CLASS if by_class else MAX_SLICES) // len(lanes)
    drawn = [_joined(lane.pieces, limit, apart, by_class) for lane in lanes]
    names = tuple(sorted({piece.name for pieces in drawn for piece in pieces}))
    rows = tuple(_lane(lane, pieces, names, shown) for lane, pieces in zip(lanes, drawn, strict=True))
    return Timeline(max(row.length_ns for row in rows), names, shown, rows, by_class)


def _lane(lane: LaneSlices, drawn: Sequence[Piece], names: tuple[str, ...], kinds: tuple[Kind, ...]) -> Lane:
    return Lane(
        label=lane.label,
        series=lane.series,
        length_ns=drawn[-1].end_ns,
        start_ns=tuple(piece.start_ns for piece in drawn),
        duration_ns=tuple(piece.end_ns - piece.start_ns for piece in drawn),
        name=tuple(bisect_left(names, piece.name) for piece in drawn),
        kind=tuple(kinds.index(piece.kind) for piece in drawn),
        num_total=len(lane.pieces),
        num_joined=len(lane.pieces) - sum(not piece.joined for piece in drawn),
    )


def _joined(pieces: Sequence[Piece], limit: int, apart: Kind, by_class: bool) -> Sequence[Piece]:
    """Join short neighbours until at most `limit` slices remain; together they still tile the step."""
    between = len({piece.kind for piece in pieces}) if by_class else 1  # rectangles of the slices joined between two of them
    alone = apart if (1 + between) * sum(piece.kind == apart for piece in pieces) < limit else None
    drawn, length = pieces, pieces[-1].end_ns
    shortest = length // limit
    while len(drawn) > limit and shortest <= length:
        drawn = [piece for group in _groups(pieces, shortest, alone) for piece in _drawn(group, by_class)]
        # by class, the number of rectangles falls about as the length rises; of single ones a small step is enough
        shortest = max(shortest + 1, shortest * len(drawn) // limit) if by_class else shortest + shortest // 2 + 1
    return drawn


def _groups(pieces: Sequence[Piece], shortest: int, apart: Kind | None) -> Iterator[list[Piece]]:
    """Yield slices one by one, and runs of neighbours that are too short to be drawn alone as one group."""
    group: list[Piece] = []
    for piece in pieces:
        whole = piece.end_ns - piece.start_ns >= shortest or apart in (piece.kind, group[-1].kind if group else piece.kind)
        if group and (whole or piece.end_ns - group[0].start_ns > shortest):
            yield group
            group = []
        group.append(piece)
    yield group


def _drawn(group: Sequence[Piece], by_class: bool) -> list[Piece]:
    if len(group) == 1:
        return [group[0]]
    owned, counts = Counter[Kind](), Counter[Kind]()
    for piece in group:
        owned[piece.kind] += piece.end_ns - piece.start_ns
        counts[piece.kind] += 1
    start = group[0].start_ns
    if not by_class:
        most = max(owned, key=lambda kind: (owned[kind], kind.style))
        return [Piece(start, group[-1].end_ns, f"{len(group)}{_JOINED}", most, joined=True)]
    drawn = []
    for kind in sorted(owned, key=lambda kind: (kind.style in GAPS, kind.style)):
        drawn.append(Piece(start, start + owned[kind], f"{counts[kind]}{_JOINED}", kind, joined=True))
        start += owned[kind]
    return drawn


def class_table(lanes: Sequence[LaneSlices], picture: Timeline, caption: str, whole: str, *, drawn: bool) -> Table:
    """Build the table of each lane's time by class of slices, to stand under the picture.

    Args:
        caption: what the time is of.
        whole: words for all of it.
        drawn: count the rectangles of the picture too.
    """
    sums: list[Counter[Kind]] = [Counter() for _ in lanes]
    for own, lane in zip(sums, lanes, strict=True):
        for piece in lane.pieces:
            own[piece.kind] += piece.end_ns - piece.start_ns
    fields: tuple[Field[Kind], ...] = (
        Field("class", lambda kind: kind.label if kind.style != "focal" or not picture.by_class else Code(kind.label)),
        *(exact_time(lane.label, (+own).get) for lane, own in zip(lanes, sums, strict=True)),
    )
    rows = [
        *rows_of(fields, picture.kinds),
        Row((Text(whole), *(ExactTime(lane.length_ns) for lane in picture.lanes)), strong=True),
        Row((Text("slices"), *(Count(lane.num_total) for lane in picture.lanes))),
    ]
    if drawn:
        rows.append(Row((Text("rectangles drawn"), *(Count(len(lane.start_ns)) for lane in picture.lanes))))
    return Table(f"{caption}; every nanosecond is in one class.", heads(fields), tuple(rows))
