"""Finds the processes of a cell by a mark in their environment, which children inherit in any session.

Run as a file, by an interpreter that imports nothing else, it is the keeper of a cell: `python -I -S processes.py MARK GRACE_S
FOLDER` leaves a process behind, child of nobody, which ends all processes of the mark and removes the folder when its standard
input is closed: by whoever started it, or by their death.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

MARK: Final = "STROBE_CELL"
"""Variable that names the cell a process belongs to."""


def alive(mark: str) -> list[int]:
    """Return the ids of this user's processes that carry a mark and have not ended."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        with suppress(OSError):
            carries = wanted in (place / "environ").read_bytes().split(b"\0")
            if carries and (place / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(int(place.name))
    return sorted(found)


def end(mark: str, grace_s: float) -> int:
    """End all processes with a mark: by SIGTERM, after `grace_s` by SIGKILL. Return their number.

    New ones may be born meanwhile, so it goes on until there is none.
    """
    first = alive(mark)
    send(first, signal.SIGTERM)
    send(first, signal.SIGCONT)  # one that is stopped would not hear it
    deadline = time.monotonic() + grace_s
    while (left := alive(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    while left:
        send(left, signal.SIGKILL)
        time.sleep(0.02)
        left = alive(mark)
    return len(first)


def send(processes: list[int], number: signal.Signals) -> None:
    """Send a signal to each that is still there."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


if __name__ == "__main__":
    if os.fork():  # what ends with its parent's children does not end the keeper
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end(sys.argv[1], float(sys.argv[2]))
    shutil.rmtree(sys.argv[3], ignore_errors=True)
