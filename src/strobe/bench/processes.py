"""A command that leaves no process behind, unless this process is killed.

Its processes carry a mark in their environment, which children inherit in any session.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

MARK: Final = "STROBE_CELL"
"""Variable that names the command a process belongs to."""
GRACE_S: Final = 3.0


def run_swept(
    argv: Sequence[str], folder: Path, env: Mapping[str, str], timeout_s: float, grace_s: float = GRACE_S
) -> subprocess.CompletedProcess[str]:
    """Run a command in a session of its own. When it ends, for whatever reason, all processes that came of it are ended.

    Args:
        argv: the command; nothing is looked at by a shell.
        env: set in addition to this process's environment.
        grace_s: between asking a process to end and ending it.

    Raises:
        subprocess.TimeoutExpired: it ran for `timeout_s`.
    """
    mark = uuid4().hex
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        started = subprocess.Popen(
            ["env", *(f"{name}={value}" for name, value in {**env, MARK: mark}.items()), *argv],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            code = started.wait(timeout_s)
        finally:
            end(mark, grace_s)
            started.kill()  # one that is so young that it has no mark yet
            started.wait()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(argv, code, out.read(), err.read())


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


def end(mark: str, grace_s: float) -> None:
    """End all processes with a mark: by SIGTERM, after `grace_s` by SIGKILL.

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


def send(processes: list[int], number: signal.Signals) -> None:
    """Send a signal to each that is still there."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)
