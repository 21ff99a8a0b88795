"""A deadline for work that is queued on a GPU and that no call waits for.

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
    """One piece of queued work with its deadline.

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
    """A thread that looks at the queued work, and lives while there is any."""

    def __init__(self) -> None:
        self._queued: list[Queued] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(
        self, done: Callable[[], bool], late: Callable[[], None], timeout_s: float, *, begun: Callable[[], bool] = lambda: True
    ) -> None:
        """Add work to the watch, and start its thread if none runs."""
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
    """Call `late`, and end the process if it fails: the thread that waits for the queue to empty would wait for ever."""
    done = False
    try:
        queued.late()
        done = True
    finally:
        if not done:
            end_process(CollectiveError("the GPU waits for another rank, and giving up failed"))


def look(queued: Sequence[Queued], now: float) -> tuple[list[Queued], list[Queued]]:
    """Return the work that has not ended, and the late part of it; start the time of work that has begun since the last look."""
    left = [each for each in queued if not _true(each.done)]
    for each in left:
        if each.since is None and _true(each.begun):
            each.since = now
    return left, [each for each in left if each.since is not None and now > each.since + each.timeout_s]


def reached(device: torch.device | None = None) -> Callable[[], bool]:
    """Record an event on a GPU's current stream (default: the current GPU); return the function that asks if it is done."""
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event.query


def _leave_captures_alone() -> None:
    """Let this thread query events while another thread captures a CUDA graph; without this a query would break the capture."""
    if torch.cuda.is_initialized() and torch.version.cuda:
        relaxed = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED
        ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(relaxed))


def _true(asked: Callable[[], bool]) -> bool:
    try:
        return asked()
    except RuntimeError:  # the device or the communicator has failed: whoever uses it next is told
        return True


def end_process(error: CollectiveError) -> None:
    """Write the error and end this process, because work that waits on the GPU cannot be stopped in another way.

    `torchrun` finds the message in the file where it looks for one, and shows it as the cause.
    """
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    sys.stderr.flush()
    try:
        raise error  # the launcher shows the traceback of what is being handled
    except CollectiveError:
        get_error_handler().record_exception(error)
    os._exit(1)
