"""Figures of a loaded server: by load, what viewers waited for and what came late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from strobe.core.errors import DataError
from strobe.perf.records.store import RunRecords
from strobe.perf.records.viewers import Served, Viewer

HELD: Final = 0.99
"""Share of pictures on time at which a load counts as held, if nobody was refused or lost its connection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadFigures:
    """Figures of the viewers of one load. Times are ns, pooled over all viewers who were let in.

    Args:
        load: viewers at once on average, as asked for.
        at_once: viewers who really watched at once, on average over the level.
        on_time: share of the pictures that were due and were painted at most one frame time late; None if none was due.
        play_ratio: time played over time played and stalled; None if nothing was played.
        served: the server's own account of the load; None if it does not show its counters.
    """

    load: float
    at_once: float
    came: int
    refused: int
    failed: int
    on_time: float | None
    play_ratio: float | None
    first_picture_ns: tuple[int, ...]
    prompt_to_pixel_ns: tuple[int, ...]
    unanswered: int
    block_gaps_ns: tuple[int, ...]
    late_ns: tuple[int, ...]
    stalls: int
    stall_ns: int
    lost: int
    served: Served | None = None

    @property
    def held(self) -> bool:
        """Everybody was let in and saw at least `HELD` of the pictures on time."""
        return self.on_time is not None and self.on_time >= HELD and not self.refused and not self.failed and not self.lost


def is_load(run: RunRecords) -> bool:
    """Return whether the run loaded a server."""
    return run.header.kind == "serve"


def figures_of(run: RunRecords) -> tuple[LoadFigures, ...]:
    """Return the figures of each load, in order of the load.

    Raises:
        DataError: the run has no server or no viewer.
    """
    if run.server is None or not run.viewers:
        raise DataError(f"{run.folder} holds no viewer of a server: it was stopped before the first one left")
    loads = sorted({each.load for each in run.viewers})
    servers = {each.load: each for each in run.served}
    return tuple(
        _figures(load, [each for each in run.viewers if each.load == load], run.server.fps, servers.get(load)) for load in loads
    )


def _figures(load: float, viewers: Sequence[Viewer], fps: int, served: Served | None) -> LoadFigures:
    let_in = [each for each in viewers if not each.refusal]
    stall_ns = sum(each.stall_ns for each in let_in)
    painted = sum(each.painted for each in let_in)
    frame_ns = 1e9 / fps
    missed = stall_ns / frame_ns  # pictures that were due while a viewer stood still
    on_time = sum(late <= frame_ns for each in let_in for late in each.late_ns)
    played_ns = painted * frame_ns
    length_ns = max(each.arrived_ns + each.watched_ns for each in viewers)
    return LoadFigures(
        load=load,
        at_once=sum(each.watched_ns for each in let_in) / length_ns,
        came=len(viewers),
        refused=sum(each.refusal == "refused" for each in viewers),
        failed=sum(each.refusal == "failed" for each in viewers),
        on_time=on_time / (painted + missed) if painted else None,
        play_ratio=played_ns / (played_ns + stall_ns) if painted else None,
        first_picture_ns=tuple(each.first_picture_ns for each in let_in if each.first_picture_ns is not None),
        prompt_to_pixel_ns=tuple(ns for each in let_in for ns in each.prompt_to_pixel_ns),
        unanswered=sum(each.unanswered for each in let_in),
        block_gaps_ns=tuple(ns for each in let_in for ns in each.block_gaps_ns),
        late_ns=tuple(ns for each in let_in for ns in each.late_ns),
        stalls=sum(each.stalls for each in let_in),
        stall_ns=stall_ns,
        lost=sum(each.lost for each in let_in),
        served=served,
    )
