"""Cuts the time of a trace into frame blocks and each frame block into labels, exactly.

Every nanosecond of a frame block belongs to one label, so the labels of a block add up to its length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from strobe.core.errors import DataError
from strobe.perf.analysis.device.owners import sums
from strobe.perf.analysis.runs.timeline import (
    DeviceTimeline,
    HostTimeline,
    Label,
    Overlap,
    RegionCall,
    Slice,
    bounds,
    timeline_of,
)
from strobe.perf.trace.events import Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """One frame block with its time by label: the values of `owned` add up to `end_ns - start_ns`."""

    index: int
    start_ns: int
    end_ns: int
    owned: Mapping[Label, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """Frame blocks of one trace, each cut into labels.

    Args:
        device: `cpu` or `cuda:N`.
        tiles: one per frame block. Where blocks follow each other, a tile ends where the next starts.
        calls: operators of the frame blocks' thread, or device events, that start in a tile or own time in one.
        overlap: activity of other host threads meanwhile (CPU only).
    """

    device: str
    tiles: tuple[Tile, ...]
    calls: tuple[RegionCall, ...]
    overlap: tuple[Overlap, ...]

    @property
    def indices(self) -> tuple[int, ...]:
        """Numbers of the frame blocks."""
        return tuple(tile.index for tile in self.tiles)

    @property
    def total_ns(self) -> int:
        """Length of all tiles together, ns."""
        return sum(tile.end_ns - tile.start_ns for tile in self.tiles)

    @property
    def owned(self) -> Counter[Label]:
        """Time of each label over all tiles."""
        total: Counter[Label] = Counter()
        for tile in self.tiles:
            total.update(tile.owned)
        return total


def partition(trace: Trace, *, device: int | None = None) -> Partition:
    """Cut a trace into frame blocks and labels: by its device events if it has any, else by its operators.

    Args:
        trace: a trace with `frame_block` spans.
        device: device number, if the frame blocks launched work on several; the busiest if not given.

    Raises:
        DataError: no frame blocks, or frame blocks that cannot be told apart.
    """
    return partition_of(timeline_of(trace, device))


def partition_of(timeline: HostTimeline | DeviceTimeline) -> Partition:
    """Cut a timeline into its frame blocks and labels."""
    owned, exclusive = sums(timeline.pieces(), bounds(timeline.windows), timeline.labels, timeline.num_events)
    return Partition(
        device=timeline.device,
        tiles=tuple(
            Tile(index=window.block, start_ns=window.start_ns, end_ns=window.end_ns, owned=labels)
            for window, labels in zip(timeline.windows, owned, strict=True)
        ),
        calls=tuple(timeline.calls(exclusive)),
        overlap=tuple(timeline.overlap()),
    )


def block_slices(timeline: HostTimeline | DeviceTimeline, index: int) -> tuple[Slice, ...]:
    """Return the slices of a timeline that tile one frame block.

    Raises:
        DataError: the timeline does not hold that frame block.
    """
    held = [window.block for window in timeline.windows]
    if index not in held:
        raise DataError(f"{timeline.trace.path}: no frame block {index}; the trace holds {', '.join(map(str, held))}")
    return tuple(timeline.slices(held.index(index)))
