"""Owners of each nanosecond: slices of time get labels, are cut at tiles and are added up, exactly.

A label is a place and an activity. The caller gives each event a place: the regions that were open at its launch, or
whether it is focal or takes part in a section. The activity is the kind of the running event, or the cause of idle time. Labels
are numbers here, so that millions of slices cost no more than columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np

from strobe.perf.analysis.device.device_work import BUSY, NONE, EventView, Slices
from strobe.perf.analysis.device.idle import CAUSES
from strobe.perf.analysis.device.intervals import Intervals, Ints, overlaps, totals
from strobe.perf.trace.events import DEVICE_KINDS

ACTIVITIES: Final = (*DEVICE_KINDS, *CAUSES)
"""Activities of a device; the label of a place and an activity has the number `place * len(ACTIVITIES) + activity`."""
L = TypeVar("L", bound=Hashable)


class LabelSlices(NamedTuple):
    """Columns of slices in order that tile each tile.

    Args:
        start, end: nanoseconds.
        tile: number of the tile.
        label: number of the label.
        event: position of the event that owns the slice, `NONE` where none runs.
    """

    start: Ints
    end: Ints
    tile: Ints
    label: Ints
    event: Ints


def label_slices(work: EventView, slices: Slices, place: Ints, tiles: Intervals) -> LabelSlices:
    """Label the slices of a device and cut them at tiles.

    Args:
        work: the events that the slices count into.
        slices: tile a stretch that holds the tiles.
        place: place of each slice.
        tiles: disjoint and in order; they may be empty.
    """
    busy = slices.cause == BUSY
    owner = np.where(busy, slices.event, NONE)
    activity = np.where(busy, work.kind[owner], len(DEVICE_KINDS) + slices.cause)
    whole = LabelSlices(slices.start, slices.end, np.zeros_like(owner), place * len(ACTIVITIES) + activity, owner)
    return cut_at(whole, tiles)


def cut_at(pieces: LabelSlices, tiles: Intervals) -> LabelSlices:
    """Cut the pieces at tiles, which are disjoint and in order; return the parts inside, each with the number of its tile."""
    shared = overlaps(Intervals(pieces.start, pieces.end), tiles)
    return LabelSlices(shared.start, shared.end, shared.b, pieces.label[shared.a], pieces.event[shared.a])


def sums(pieces: LabelSlices, tiles: Intervals, labels: Sequence[L], num_events: int) -> tuple[list[Counter[L]], Ints]:
    """Sum the time of each label in each tile, labels in order of first occurrence, and of each event in all tiles.

    Args:
        pieces: tile the tiles.
        labels: labels by number.
        num_events: number of events that the pieces count into.
    """
    length = pieces.end - pieces.start
    keys, first, inverse = np.unique(pieces.tile * len(labels) + pieces.label, return_index=True, return_inverse=True)
    total = totals(length, inverse, len(keys))
    owned: list[Counter[L]] = [Counter() for _ in tiles.start]
    for at in np.argsort(first).tolist():
        tile, label = divmod(int(keys[at]), len(labels))
        owned[tile][labels[label]] = int(total[at])
    tiled = [labelled.total() for labelled in owned]
    assert tiled == (tiles.end - tiles.start).tolist(), "a tile does not add up"
    runs = pieces.event != NONE
    return owned, totals(length[runs], pieces.event[runs], num_events)


def tile_of(moments: Ints, tiles: Intervals) -> Ints:
    """Return the number of the tile that each moment lies in; `NONE` for none."""
    if not len(tiles.start):
        return np.full(len(moments), NONE)
    place = np.searchsorted(tiles.start, moments, "right") - 1
    return np.where((place >= 0) & (moments < tiles.end[place]), place, NONE)
