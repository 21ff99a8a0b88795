"""Choice of the stream that makes its next frame block, and admission of streams: pure functions of plain values.

One device makes one frame block at a time. A stream with `ahead_s` of video beyond what its viewer has painted runs dry after
that time: its deadline. Earliest deadline first is optimal on one device for jobs that cannot be interrupted only as long as none
is much longer than the others' slack; admission therefore also holds the longest single piece of work against the slack of all.
Source: C. L. Liu and J. W. Layland, Scheduling algorithms for multiprogramming in a hard-real-time environment, 1973.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from strobe.core.errors import StrobeError

FULL: Final = 0.97
"""Share of a device's time that steady frame blocks may take; the rest is for switches, resumes and slow blocks."""

ENOUGH: Final = 8
"""Steady frame blocks that are needed before their median replaces a prediction."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """One stream's need for frame blocks.

    Args:
        ahead_s: seconds of video that are made and not painted yet.
        target_s: how many it wants; it is not made any further ahead.
        running: it is playing, and its viewer is there and keeps up.
        steered: its viewer waits for the first frames of a new prompt, whatever is made of the old one.
        opened_s: when it was opened, any clock: the older goes first if deadlines are equal.
    """

    stream: str
    ahead_s: float
    target_s: float
    running: bool = True
    steered: bool = False
    opened_s: float = 0.0


def choose(demands: Sequence[Demand]) -> str | None:
    """Return the stream that is next: one that is steered, else that with the earliest deadline; None if none wants more."""
    wanting = [demand for demand in demands if demand.running and (demand.steered or demand.ahead_s < demand.target_s)]
    if not wanting:
        return None
    return min(wanting, key=lambda demand: (not demand.steered, demand.ahead_s, demand.opened_s, demand.stream)).stream


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamCost:
    """The time and memory that a stream of a preset needs.

    Args:
        block_s: time of a steady frame block on the device.
        longest_s: the longest piece of work that cannot be interrupted: a block after a prompt switch.
        content_s: seconds of video in a frame block.
    """

    block_s: float
    longest_s: float
    content_s: float
    stream_bytes: int

    @property
    def share(self) -> float:
        """Share of the device's time that a stream takes at its frame rate."""
        return self.block_s / self.content_s


def learn(predicted: StreamCost, steady_s: Sequence[float], switched_s: Sequence[float]) -> StreamCost:
    """Return the cost of a preset as its running streams show it.

    The median of at least `ENOUGH` steady frame blocks replaces the predicted time. The longest work is the longest frame block
    that began with a prompt switch; until one was seen, the predicted ratio to a steady block holds.

    Args:
        predicted: the cost before any stream of the preset ran.
        steady_s: times of the last frame blocks without a prompt switch.
        switched_s: times of the last frame blocks that began with one.
    """
    block_s = median(steady_s) if len(steady_s) >= ENOUGH else predicted.block_s
    longest_s = max(switched_s) if switched_s else predicted.longest_s * block_s / predicted.block_s
    return replace(predicted, block_s=block_s, longest_s=max(block_s, longest_s))


class NotOpenedError(StrobeError):
    """A stream is not opened, or not taken over.

    Args:
        kind: of the reason, for counters; "time", "memory" or "streams" if it does not fit.
        fits: presets that would fit, the best first.
        retry_s: when to try again; None: never.
    """

    def __init__(self, kind: str, reason: str, *, fits: tuple[str, ...] = (), retry_s: float | None = None) -> None:
        super().__init__(reason)
        self.kind, self.fits, self.retry_s = kind, fits, retry_s


def refusal(
    asked: str,
    open_streams: Sequence[StreamCost],
    costs: Mapping[str, StreamCost],
    *,
    free_bytes: int,
    start_buffer_s: float,
    most: int,
) -> NotOpenedError | None:
    """Say why a stream of preset `asked` does not fit beside those that are open; None if it does.

    Alone on the device a stream is let in if its memory is there, however slow it is: it stalls nobody else. Beside others all
    steady frame blocks must take at most `FULL` of the device's time, the new stream must fit into `free_bytes`, and while
    the longest piece of any stream runs, no other may run dry: it and one block of every stream must fit into the start buffer
    and one block's video.

    Args:
        open_streams: costs of the streams that are open and not suspended.
        costs: of every preset that runs here, the best quality first.
        free_bytes: device memory that is free.
        start_buffer_s: seconds of video that a viewer has before it begins to play.
        most: streams that may be open at all.
    """
    if len(open_streams) >= most:
        return NotOpenedError("streams", f"{most} streams are open, and more are not allowed here")
    told = _obstacle(costs[asked], open_streams, free_bytes, start_buffer_s)
    if told is None:
        return None
    fits = tuple(name for name, cost in costs.items() if _obstacle(cost, open_streams, free_bytes, start_buffer_s) is None)
    return NotOpenedError(*told, fits=fits)


def _obstacle(
    cost: StreamCost, open_streams: Sequence[StreamCost], free_bytes: int, start_buffer_s: float
) -> tuple[str, str] | None:
    """Return kind and sentence of what keeps a stream out; None if nothing does."""
    if cost.stream_bytes > free_bytes:
        wanted, free = cost.stream_bytes / 2**30, free_bytes / 2**30
        return "memory", f"a stream takes {wanted:.1f} GiB of device memory, and {free:.1f} GiB are free"
    if not open_streams:
        return None
    together = (*open_streams, cost)
    busy = sum(each.share for each in together)
    if busy > FULL:
        return "time", (
            f"{len(together)} streams would keep the device busy {busy:.0%} of the time, and {FULL:.0%} is the most at which "
            "none of them stalls"
        )
    slack = start_buffer_s + min(each.content_s for each in together)
    worst = max(each.longest_s - each.block_s for each in together) + sum(each.block_s for each in together)
    if worst > slack:
        return "time", (
            f"a prompt switch of one of {len(together)} streams would hold the device for {worst:.2f} s, and the others have "
            f"{slack:.2f} s of video to show meanwhile"
        )
    return None
