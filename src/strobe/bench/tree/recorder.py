"""Recorder of one call: start and end of each marked region on this rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Self

import torch

from strobe.bench.tree.request import Mark, Taken
from strobe.core.spans import recording
from strobe.perf.records.grids import MEETING, MESSAGE

Moment = int | torch.cuda.Event


class MarkRecorder:
    """Recorder without waits: the host clock on a CPU, events on the current stream of a GPU.

    Args:
        device: where the call works.
        meet: serialised: called before each collective, returns when all ranks are there; the device is drained before and after.
    """

    def __init__(self, device: torch.device, meet: Callable[[], object] | None = None) -> None:
        self._on_gpu = device.type == "cuda"
        self.meet = meet
        self.done: list[tuple[str, str, Moment, Moment]] = []

    def region(self, name: str, index: int | None) -> AbstractContextManager[object]:
        """Return a context manager that marks the region; `tree_message:gather` is the part `gather` of `tree_message`."""
        region, _, part = name.partition(":")
        return _Region(self, region, part)

    def now(self) -> Moment:
        """Return this moment, on the clock of the device."""
        if not self._on_gpu:
            return time.perf_counter_ns()
        if self.meet is not None:
            torch.cuda.synchronize()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def take(self, run: Callable[[], object]) -> Taken:
        """Run one call and return its marked regions."""
        self.done.clear()
        with recording(self):
            start = self.now()
            run()
            stop = self.now()
        if self._on_gpu:
            torch.cuda.synchronize()
        marks = [Mark(name, _between(start, first), _between(first, last), part) for name, part, first, last in self.done]
        return Taken(total_ns=_between(start, stop), marks=tuple(sorted(marks, key=lambda mark: mark.start_ns)))


class _Region:
    __slots__ = ("first", "name", "part", "recorder")

    def __init__(self, recorder: MarkRecorder, name: str, part: str) -> None:
        self.recorder = recorder
        self.name = name
        self.part = part

    def __enter__(self) -> Self:
        recorder = self.recorder
        if recorder.meet is not None and self.name == MESSAGE:
            first = recorder.now()
            recorder.meet()
            recorder.done.append((MEETING, "", first, recorder.now()))
        self.first = recorder.now()
        return self

    def __exit__(self, *_: object) -> None:
        self.recorder.done.append((self.name, self.part, self.first, self.recorder.now()))


def _between(first: Moment, last: Moment) -> int:
    if isinstance(first, int) and isinstance(last, int):
        return last - first
    assert isinstance(first, torch.cuda.Event) and isinstance(last, torch.cuda.Event)
    elapsed_ms: float = first.elapsed_time(last)
    return round(elapsed_ms * 1e6)
