"""Cells as processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final
from uuid import uuid4

from strobe.bench.executor import leash
from strobe.bench.executor.cell import Cell, Finished, Handle, Status
from strobe.bench.executor.processes import MARK, end
from strobe.core.errors import ConfigError, StrobeError
from strobe.perf.records.environment import cpu_cores

GRACE_S: Final = 3.0
KEPT_BYTES: Final = 65_536


@dataclass(kw_only=True, eq=False)
class Running:
    """A cell of this machine.

    Args:
        mark: in the environment of all its processes.
        process: the first of them.
    """

    cell: Cell
    mark: str
    process: subprocess.Popen[bytes]
    output: tuple[IO[bytes], IO[bytes]]
    started: float = field(default_factory=time.monotonic)
    finished: Finished | None = None


class LocalExecutor:
    """Runs cells on this machine, one at a time if they take times.

    Every cell has a session of its own and a mark in its environment. When it ends, for whatever reason, all processes with the
    mark are ended, also those that left the session; when this process ends, so does the cell.

    Args:
        grace_s: between asking a cell to end and ending it.
    """

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._running: list[Running] = []

    def submit(self, cell: Cell) -> Running:
        """Start a cell now.

        Raises:
            ConfigError: it needs the machine for itself and another is running, or the other way round, or more cores than there
                are.
            StrobeError: the command cannot be started.
        """
        if self._running and (cell.resources.exclusive or any(each.cell.resources.exclusive for each in self._running)):
            raise ConfigError("a cell that takes times runs alone on its machine; wait for the one that is running")
        if cell.resources.cpus > cpu_cores():
            raise ConfigError(f"cell: got {cell.resources.cpus} cores, this machine has {cpu_cores()}; ask for fewer")
        mark = uuid4().hex
        output = (tempfile.TemporaryFile(), tempfile.TemporaryFile())  # noqa: SIM115  # closed when the cell is
        settings = [f"{name}={value}" for name, value in {**cell.env, MARK: mark}.items()]
        leashed = [sys.executable, "-I", "-S", str(Path(leash.__file__)), str(os.getpid())]
        try:
            process = subprocess.Popen(
                [*leashed, "env", *settings, *cell.argv],
                stdin=subprocess.DEVNULL,
                stdout=output[0],
                stderr=output[1],
                start_new_session=True,
            )
        except OSError as error:
            raise StrobeError(f"cannot start {cell.argv[0]}: {error.strerror}") from error
        running = Running(cell=cell, mark=mark, process=process, output=output)
        self._running.append(running)
        return running

    def wait(self, handle: Handle) -> Finished:
        """Wait for the end of a cell; at its timeout it is ended. On Ctrl-C it is ended too."""
        running = _own(handle)
        if running.finished is not None:
            return running.finished
        left = running.started + running.cell.timeout_s - time.monotonic()
        try:
            code = running.process.wait(max(0.0, left))
        except subprocess.TimeoutExpired:
            return self._close(running, "timeout")
        except KeyboardInterrupt:
            self._close(running, "cancelled")
            raise
        return self._close(running, "failed" if code else "done")

    def cancel(self, handle: Handle) -> Finished:
        """End a cell now."""
        running = _own(handle)
        return running.finished or self._close(running, "cancelled")

    def _close(self, running: Running, status: Status) -> Finished:
        wall_s = time.monotonic() - running.started
        swept = end(running.mark, self._grace_s)
        running.process.kill()  # one that is so young that it has no mark yet
        code = running.process.wait()
        texts = [_tail(file) for file in running.output]
        running.finished = Finished(status=status, code=code, wall_s=wall_s, stdout=texts[0], stderr=texts[1], swept=swept)
        self._running.remove(running)
        return running.finished


def _own(handle: Handle) -> Running:
    if not isinstance(handle, Running):
        raise ConfigError(f"handle: got {handle!r}, expected one that this executor gave")
    return handle


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, 2)
    file.seek(max(0, size - KEPT_BYTES))
    text = file.read().decode(errors="replace")
    file.close()
    return text
