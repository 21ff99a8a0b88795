"""Recorder that waits for the device inside a pass, as code with synchronisations does."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from strobe.perf.measure.timing import FINE, TimingRecorder


class WaitingRecorder(TimingRecorder):
    """Times as `TimingRecorder` does, and waits for the device before every region inside a pass: several times in each layer.

    Code that reads an index back from the device (`.item()`) pays the same. On a CPU there is nothing to wait for.
    """

    def region(self, name: str, index: int | None) -> AbstractContextManager[object]:
        """Return a context manager that measures the region, after a wait if it lies inside a pass."""
        if name not in FINE:
            return super().region(name, index)
        self.synchronize()
        return nullcontext()
