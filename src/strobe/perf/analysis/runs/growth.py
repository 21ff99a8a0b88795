"""Growth of frame block times and memory over a long clip: its first part against its last part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

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
class LongClip:
    """Frame block times and memory of a long clip.

    Args:
        variant: name of the variant whose clip it is.
        blocks_ns: length of every frame block.
        memory: memory held after each.
        settled: first frame block that counts: before it the cache fills, and what is compiled or captured is.
        switches: frame blocks that begin with a prompt switch; those whose length holds its work are in neither part.
        first, last: frame blocks of the two parts.
        times: median and max.
        held: kinds of memory that are known.
        drift: change of a frame block's length over 1,000 of them, as a share of the median: the median of all slopes between two
            frame blocks (Theil and Sen); None with fewer than 100.
    """

    variant: str
    blocks_ns: tuple[int, ...]
    memory: tuple[Memory, ...]
    settled: int
    switches: frozenset[int]
    first: tuple[int, ...]
    last: tuple[int, ...]
    times: tuple[Compared, ...]
    held: tuple[Compared, ...]
    drift: float | None


def growths_of(run: RunRecords) -> tuple[LongClip, ...]:
    """Read the growth of each variant whose memory was read after each frame block, over the last clip of it.

    Variants with too few frame blocks to compare are left out, see `_counted`.
    """
    last = {line.variant: line.clip for line in run.memory}
    found = (_growth(run, settings, last[settings.name]) for settings in run.variants if settings.name in last)
    return tuple(each for each in found if each is not None)


def _growth(run: RunRecords, settings: Variant, clip: int) -> LongClip | None:
    work = run.header.workload
    assert work is not None
    own = (span for span in run.spans if (span.variant, span.clip, span.name) == (settings.name, clip, FRAME_BLOCK))
    blocks = tuple(span.value_ns for span in sorted(own, key=lambda span: span.index or 0))
    memory = tuple(line for line in run.memory if (line.variant, line.clip) == (settings.name, clip))
    steady = _counted(settings, work, len(blocks))
    if len(steady) < 2:
        return None
    part = min(PART, len(steady) // 2)
    first, last = tuple(steady[:part]), tuple(steady[-part:])
    return LongClip(
        variant=settings.name,
        blocks_ns=blocks,
        memory=memory,
        settled=_settled(settings, work),
        switches=_switches(work),
        first=first,
        last=last,
        times=tuple(_times(blocks, first, last)),
        held=tuple(_held(memory, first, last)),
        drift=_drift(steady, [blocks[index] for index in steady]),
    )


def _counted(settings: Variant, work: Workload, num_blocks: int) -> list[int]:
    """Return the frame blocks of a clip to compare: the cache is full, and their length holds no work of a prompt switch.

    Where frames come late (knob `late_frames`), the length of each is mostly work on the next one, and that of the last is short.
    """
    settled, switches = _settled(settings, work), _switches(work)
    late = any(knob.name == "late_frames" and knob.on for knob in settings.knobs)
    return [index for index in range(settled, num_blocks - late) if index + late not in switches]


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
