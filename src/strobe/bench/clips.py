"""Numbers of the clips of a run, given as they finish."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from strobe.perf.measure.memory import peak_bytes
from strobe.perf.records.clocks import Clocks
from strobe.perf.records.record import Clip, Phase

if TYPE_CHECKING:
    import torch


class ClipNumbers:
    """Counter that numbers each finished clip among its variant's clips and in the run."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._done: Counter[str] = Counter()

    def finish(self, name: str, phase: Phase, lap: int | None, num_spans: int, clocks: Clocks) -> Clip:
        """Return the record of a variant's clip that ends now, with the peak memory since its start."""
        clip = Clip(
            variant=name,
            clip=self._done[name],
            order=self._done.total(),
            palindrome=lap,
            phase=phase,
            num_spans=num_spans,
            peak_bytes=peak_bytes(self._device),
            clocks=clocks,
        )
        self._done[name] += 1
        return clip
