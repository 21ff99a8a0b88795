"""A deadline for what is queued on a GPU, where no call waits for it.

NCCL's own deadline is that of the whole group, ten minutes unless it was told otherwise, and it names no rank; a replayed CUDA
graph has none.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from strobe.attention.tree.faults import CollectiveError

POLL_S: Final = 0.05
IDLE_S: Final = 5.0
"""After so long with nothing to watch, the thread ends."""


@dataclass(kw_only=True, slots=True, eq=False)
class Queued:
    """Something that is under way.

    Args:
        done: whether it has ended; must not wait.
        begun: whether the GPU has come to it; must not wait. What is queued before it may take as long as it likes.
        late: called once, in another thread, if it has not ended in time.
        timeout_s: from the first look at which it had begun.
        since: that look.
    """

    done: Callable[[], bool]
    begun: Callable[[], bool]
    late: Callable[[], None]
    timeout_s: float
    since: float | None = None


class Watch:
    """Looks at what is queued, in a thread that lives while there is something to look at."""

    def __init__(self) -> None:
        self._queued: list[Queued] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(
        self, done: Callable[[], bool], late: Callable[[], None], timeout_s: float, *, begun: Callable[[], bool] = lambda: True
    ) -> None:
        """Watch one thing more."""
        with self._changed:
            self._queued.append(Queued(done=done, begun=begun, late=late, timeout_s=timeout_s))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, daemon=True, name="strobe-watch")
                self._thread.start()
            elif len(self._queued) == 1:
                self._changed.notify()

    def _run(self) -> None:
        _leave_captures_alone()
        while True:
            with self._changed:
                if not self._queued and not self._changed.wait(IDLE_S) and not self._queued:
                    self._thread = None
                    return
                queued = list(self._queued)
            left, over = look(queued, time.monotonic())
            if over:
                _tell(over[0])  # the others wait for the same rank
            with self._changed:
                self._queued = [] if over else left + self._queued[len(queued) :]  # others only append
            time.sleep(POLL_S)


def _tell(queued: Queued) -> None:
    """Say that it is late. Whoever waits for the queue to empty waits for this: it must not fail in silence."""
    done = False
    try:
        queued.late()
        done = True
    finally:
        if not done:
            end_process(CollectiveError("the GPU waits for another rank, and giving up failed"))


def look(queued: Sequence[Queued], now: float) -> tuple[list[Queued], list[Queued]]:
    """What has not ended, and what of it is late; the time of what has begun since the last look starts."""
    left = [each for each in queued if not _true(each.done)]
    for each in left:
        if each.since is None and _true(each.begun):
            each.since = now
    return left, [each for each in left if each.since is not None and now > each.since + each.timeout_s]


def reached(device: torch.device | None = None) -> Callable[[], bool]:
    """What says whether a GPU, by default the current one, has done all that its current stream has been given until now."""
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event.query


def _leave_captures_alone() -> None:
    """Let this thread ask for events while another one captures a CUDA graph, which would be spoilt by it otherwise."""
    if torch.cuda.is_initialized() and torch.version.cuda:
        relaxed = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED
        ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(relaxed))


def _true(asked: Callable[[], bool]) -> bool:
    try:
        return asked()
    except RuntimeError:  # the device or the communicator has failed: whoever uses it next is told
        return True


def end_process(error: CollectiveError) -> None:
    """Say what is wrong and end this process: what it waits for on the GPU cannot be given up otherwise.

    `torchrun` finds the message in the file where it looks for one, and shows it as the cause.
    """
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    sys.stderr.flush()
    try:
        raise error  # the launcher shows the traceback of what is being handled
    except CollectiveError:
        get_error_handler().record_exception(error)
    os._exit(1)
