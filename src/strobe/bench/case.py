"""Interface between the runner and what it compares: a workload, its variants, and the amounts to measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from strobe.perf.measure.profile import Capture
from strobe.perf.records.record import Absent, Gate, Model, Quality, Variant, Video, Workload

Progress = Callable[[int, int, str], None]
"""Callback `(done, total, next)`, called between units of work, never inside one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparePlan:
    """Amounts of a comparison: palindromes, traces, review.

    Args:
        palindromes: rounds `B C1 C2 C2 C1 B`; each gives one mirrored pair per candidate, an interval needs 2.
        traced_blocks: frame blocks of each variant to profile in a run of their own, at most; 0 for no trace.
        traced_from: the first of them, and then as many as were asked for; None: where caches are full and no prompt switches.
        whole_clip: on a GPU, trace a whole clip without operators instead, so that frame blocks of every kind are in the trace.
        capture: contents of that trace; without options that distort times.
        attribution: one more trace of each variant, of one frame block, with such options; None for none.
        review: judge the quality of each variant, and keep a clip of it.
        alone: a case without candidates is measured too, each palindrome being one clip.
        memory: read the memory that the process holds after each frame block of a timed clip.
    """

    palindromes: int = 4
    traced_blocks: int = 3
    traced_from: int | None = None
    whole_clip: bool = True
    capture: Capture = field(default_factory=Capture)
    attribution: Capture | None = None
    review: bool = True
    alone: bool = False
    memory: bool = False


class Case(Protocol):
    """A workload and the variants that run it. Names are those of the records.

    Attributes:
        slug: part of the run folder's name.
        baseline: name of the variant that every candidate is compared with.
        candidates: names of the variants that are compared with the baseline.
        absent: requested variants that cannot run here; not among the candidates.
        model: that the variants run; None if they run none.
    """

    slug: str
    baseline: str
    candidates: tuple[str, ...]
    absent: tuple[Absent, ...]
    device: torch.device
    model: Model | None
    workload: Workload

    def gate(self, name: str) -> Gate:
        """Check a candidate against its reference."""

    def prepare(self, name: str) -> None:
        """Bring a variant to the start of its clip. Not timed."""

    def blocks(self, name: str) -> Iterator[object]:
        """Make the clip, one frame block per item. Timed."""

    def launched(self, name: str) -> AbstractContextManager[None] | None:
        """Return a context in which a variant launches its kernels one by one instead of replaying graphs; None: it has none."""

    def settings(self, name: str) -> Variant:
        """Return the settings of a variant after it ran; the runner adds the calls it counted."""

    def review(self, name: str, folder: Path) -> Iterator[Quality | Video]:
        """Judge a variant's quality, after everything was measured; files go under `folder`."""
