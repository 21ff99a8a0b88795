"""Growth of frame block times and memory in a soak: the first part of a long stream against its last part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from strobe.core.errors import DataError
from strobe.core.spans import FRAME_BLOCK
from strobe.perf.measure.stats import percentile
from strobe.perf.records.record import Memory, Variant, Workload
from strobe.perf.records.store import RunRecords

PART: Final = 100
"""Most frame blocks of the first and of the last part."""
MEDIAN_MAY_GROW: Final = 0.02
MAX_MAY_GROW: Final = 0.05
"""Largest allowed growth of median and longest frame block from the first part to the last, as a share."""
MAY_GROW_BYTES: Final[dict[str, int]] = {"allocated": 1 << 20, "reserved": 1 << 20, "resident": 32 << 20}
"""Largest allowed growth of peak memory from the first part to the last, bytes; the host's includes the run's own buffers."""
_LEAST: Final = 100
_MOST: Final = 1000
"""Most frame blocks that the slope is computed from; of a longer stream an even selection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One figure of the first part and of the last part.

    Args:
        what: median, max (of frame blocks, ns), or a kind of memory (most held, bytes).
        may_grow: the most that `last - first` may be; `holds` says whether it is.
    """

    what: str
    first: int
    last: int
    may_grow: float

    @property
    def growth(self) -> int:
        """Last minus first."""
        return self.last - self.first

    @property
    def holds(self) -> bool:
        """Whether the last part exceeds the first by no more than allowed."""
        return self.growth <= self.may_grow


@dataclass(frozen=True, kw_only=True, slots=True)
class Soak:
    """Frame block times and memory of a long stream.

    Args:
        blocks_ns: length of every frame block, from one delivery to the next.
        memory: memory held after each.
        settled: first frame block that counts: before it the cache fills, and what is compiled or captured is.
        switches: frame blocks that begin with a prompt switch; those whose length holds its work are in neither part.
        first, last: frame blocks of the two parts.
        times: median and max.
        held: kinds of memory that are known.
        drift: change of a frame block's length over 1,000 of them, as a share of the median: the median of all slopes between two
            frame blocks (Theil and Sen); None with fewer than 100.
    """

    blocks_ns: tuple[int, ...]
    memory: tuple[Memory, ...]
    settled: int
    switches: frozenset[int]
    first: tuple[int, ...]
    last: tuple[int, ...]
    times: tuple[Compared, ...]
    held: tuple[Compared, ...]
    drift: float | None


def is_soak(run: RunRecords) -> bool:
    """Return whether memory was read after each frame block."""
    return bool(run.memory)


def soak_of(run: RunRecords) -> Soak:
    """Read a soak's records, complete or not.

    Raises:
        DataError: it is none, or has too few frame blocks, see `counted`.
    """
    spans = sorted((span for span in run.spans if span.name == FRAME_BLOCK), key=lambda span: span.index or 0)
    work = run.header.workload
    if not is_soak(run) or work is None or not run.variants:
        raise DataError(f"{run.folder} holds no soak; `strobe bench soak` makes one")
    blocks = tuple(span.value_ns for span in spans)
    steady = counted(run.variants[0], work, len(blocks))
    part = min(PART, len(steady) // 2)
    first, last = tuple(steady[:part]), tuple(steady[-part:])
    return Soak(
        blocks_ns=blocks,
        memory=run.memory,
        settled=_settled(run.variants[0], work),
        switches=_switches(work),
        first=first,
        last=last,
        times=tuple(_times(blocks, first, last)),
        held=tuple(_held(run.memory, first, last)),
        drift=_drift(steady, [blocks[index] for index in steady]),
    )


def counted(settings: Variant, work: Workload, num_blocks: int) -> list[int]:
    """Return the frame blocks of a soak to compare: the cache is full, and their length holds no work of a prompt switch.

    Where frames come late (knob `late_frames`), the length of each is mostly work on the next one, and that of the last is short.

    Raises:
        DataError: they are fewer than 2.
    """
    settled, switches = _settled(settings, work), _switches(work)
    late = any(knob.name == "late_frames" and knob.on for knob in settings.knobs)
    found = [index for index in range(settled, num_blocks - late) if index + late not in switches]
    if len(found) < 2:
        seldom = ", and switch less often" if switches else ""
        raise DataError(
            f"{num_blocks} frame blocks are too few: from number {settled} on the cache is full, and two must follow without a "
            f"prompt switch; give {settled + late + 2} or more{seldom}"
        )
    return found


def _settled(settings: Variant, work: Workload) -> int:
    return 2 + -(-(settings.window or 0) // work.latents_per_block)


def _switches(work: Workload) -> frozenset[int]:
    return frozenset(prompt.frame_block for prompt in work.prompts if prompt.frame_block)


def _times(blocks: Sequence[int], first: Sequence[int], last: Sequence[int]) -> list[Compared]:
    sides = [sorted(blocks[index] for index in part) for part in (first, last)]
    median, longest = [percentile(side, 0.5) for side in sides], [side[-1] for side in sides]
    return [
        Compared(what="median", first=median[0], last=median[1], may_grow=MEDIAN_MAY_GROW * median[0]),
        Compared(what="max", first=longest[0], last=longest[1], may_grow=MAX_MAY_GROW * longest[0]),
    ]


def _held(memory: Sequence[Memory], first: Sequence[int], last: Sequence[int]) -> list[Compared]:
    of_block = {line.frame_block: line for line in memory}
    found = []
    for kind, may_grow in MAY_GROW_BYTES.items():
        sides = [[getattr(of_block[index], f"{kind}_bytes") for index in part if index in of_block] for part in (first, last)]
        if all(side and None not in side for side in sides):
            most = [max(side) for side in sides]
            found.append(Compared(what=kind, first=most[0], last=most[1], may_grow=may_grow))
    return found


def _drift(at: Sequence[int], lengths: Sequence[int]) -> float | None:
    """Compute Theil and Sen's slope over 1,000 frame blocks / the median; of very many blocks an even selection."""
    if len(at) < _LEAST:
        return None
    chosen = np.unique(np.linspace(0, len(at) - 1, min(len(at), _MOST)).round().astype(np.int64))
    x, y = np.asarray(at, np.float64)[chosen], np.asarray(lengths, np.float64)[chosen]
    before, after = np.triu_indices(len(x), k=1)
    slope = float(np.median((y[after] - y[before]) / (x[after] - x[before])))
    return 1000 * slope / float(np.median(y))
