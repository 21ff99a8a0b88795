"""Cells on this machine: what a cell is, its processes, and many of them side by side."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Literal, Protocol, TypeAlias, TypeVar
from uuid import uuid4

from strobe.bench.executor import leash, processes
from strobe.core.errors import ConfigError, StrobeError
from strobe.perf.records.record import cpu_cores

Status = Literal["done", "failed", "timeout", "cancelled", "lost"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """Resources that a cell occupies while it runs.

    Args:
        cpus: cores.
        gpus: whole GPUs.
        exclusive: it measures times, so no other cell may run on its machine.
    """

    cpus: int = 1
    gpus: int = 0
    exclusive: bool = True

    def __post_init__(self) -> None:
        if self.cpus < 1 or self.gpus < 0:
            raise ConfigError(f"resources: got {self.cpus} cores and {self.gpus} GPUs, expected 1 or more, and 0 or more")

    def __str__(self) -> str:
        """Return the resources in words."""
        return f"a machine of {self.cpus} CPU and {self.gpus} GPU{', nothing else there' if self.exclusive else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One command in processes of its own.

    Args:
        argv: the command; nothing is looked at by a shell. It runs in a folder of its own. A first word that is this Python
            becomes that of the machine where it runs.
        env: set in addition to the environment of whoever starts it there.
        files: put into the folder before, by relative path.
        resources: resources that it occupies.
        timeout_s: it is ended when it has run that long.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    resources: Resources = Resources()
    timeout_s: float

    def __post_init__(self) -> None:
        if not self.argv or self.timeout_s <= 0:
            raise ConfigError(f"cell: got argv {self.argv} and a timeout of {self.timeout_s:g} s, expected a command and above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """Result of a cell: status, exit code, output and files.

    Args:
        status: `done`: exit code 0; `failed`: another one, or a signal (then negative); `timeout`, `cancelled`: it was ended;
            `lost`: its machine was lost, more often than is retried; stderr holds the reason.
        code: exit code of the process; None if it never began, or is not known.
        stdout, stderr: the last 64 kB of each.
        swept: processes of the cell that outlived its first one, and were ended.
        files: files left in its folder, by relative path, without the given files that did not change.
        node: the machine it ran on, as the executor names it; empty: this one.
        lost: machines that were lost while it ran there, before it ran on `node`.
    """

    status: Status
    code: int | None
    stdout: str
    stderr: str
    swept: int
    files: Mapping[str, bytes] = field(default_factory=dict)
    node: str = ""
    lost: tuple[str, ...] = ()


class Executor(Protocol):
    """Interface that runs cells, here or elsewhere."""

    def at_once(self, resources: Resources) -> int:
        """Return how many cells with these resources to submit before waiting for the first."""
        ...

    def submit(self, cell: Cell) -> Any:
        """Start a cell, or queue it; the handle that is returned is what `wait` and `cancel` take."""
        ...

    def wait(self, handle: Any) -> Finished:
        """Wait for the cell's end, at most its timeout and a few seconds once it runs; repeated calls give the same result."""
        ...

    def cancel(self, handle: Any) -> Finished:
        """End the cell now; a finished cell stays finished."""
        ...


T = TypeVar("T")
Job: TypeAlias = Generator[Cell, Finished, T]
"""Generator around one cell: yields the cell, receives its `Finished`, returns a result."""


def spread(jobs: Iterable[Job[T]], executor: Executor) -> Iterator[T]:
    """Run every job; a refused cell raises inside its job. On Ctrl-C all cells are ended, and all jobs told."""
    under_way: deque[tuple[Job[T], Any]] = deque()

    def first() -> Any:
        job, handle = under_way[0]
        return _ended(job.send, executor.wait(handle))

    try:
        for job in jobs:
            cell = next(job)
            while under_way and len(under_way) >= executor.at_once(cell.resources):
                yield first()
                under_way.popleft()
            try:
                under_way.append((job, executor.submit(cell)))
            except StrobeError as error:
                yield _ended(job.throw, error)
        while under_way:
            yield first()
            under_way.popleft()
    except KeyboardInterrupt:
        for job, handle in under_way:
            executor.cancel(handle)
            with suppress(KeyboardInterrupt, StopIteration):
                job.throw(KeyboardInterrupt())
        raise
    finally:
        for job, handle in under_way:
            executor.cancel(handle)
            job.close()


def _ended(resume: Callable[[Any], object], given: object) -> Any:
    """Return the result of a job that is told what became of its one cell."""
    try:
        resume(given)
    except StopIteration as end:
        return end.value
    raise AssertionError("a job has one cell")


GRACE_S: Final = 3.0
KEPT_BYTES: Final = 65_536
_BARE: Final = (sys.executable, "-I", "-S")


@dataclass(kw_only=True, eq=False)
class Running:
    """A running cell of this machine.

    Args:
        mark: in the environment of all its processes.
        folder: where it runs.
        keeper: ends the cell and removes its folder when its standard input closes.
        process: the first of the cell.
    """

    cell: Cell
    mark: str
    folder: Path
    keeper: subprocess.Popen[bytes]
    process: subprocess.Popen[bytes]
    output: tuple[IO[bytes], IO[bytes]]
    started: float = field(default_factory=time.monotonic)
    finished: Finished | None = None


class LocalExecutor:
    """Executor of this machine; cells that measure times run one at a time.

    Every cell has a folder and a session of its own and a mark in its environment. When it ends, for whatever reason, all
    processes with the mark are ended, also those that left the session; when this process ends, so do they.

    Args:
        grace_s: between asking a cell to end and ending it.
    """

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._running: list[Running] = []

    def at_once(self, resources: Resources) -> int:
        """Return 1 for cells that measure times, else as many as the cores allow."""
        return 1 if resources.exclusive else max(1, cpu_cores() // resources.cpus)

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
        mark, folder, running = uuid4().hex, Path(tempfile.mkdtemp(prefix="strobe-cell-")), None
        keeper = subprocess.Popen(
            [*_BARE, str(Path(processes.__file__)), mark, str(self._grace_s), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            running = _start(cell, mark, folder, keeper)
            self._running.append(running)
        except OSError as error:
            raise StrobeError(f"cannot start {cell.argv[0]}: {error.strerror}") from error
        finally:
            if running is None:
                _dismiss(keeper, folder)
        return running

    def wait(self, handle: Running) -> Finished:
        """Wait for the end of a cell; at its timeout or on Ctrl-C it is ended."""
        while (found := self.poll(handle, handle.cell.timeout_s)) is None:
            pass
        return found

    def poll(self, running: Running, seconds: float) -> Finished | None:
        """Wait for the end of a cell for at most `seconds`; None: it is still running."""
        if running.finished is not None:
            return running.finished
        left = max(0.0, running.started + running.cell.timeout_s - time.monotonic())
        try:
            code = running.process.wait(min(left, seconds))
        except subprocess.TimeoutExpired:
            return self._close(running, "timeout") if left <= seconds else None
        except KeyboardInterrupt:
            self._close(running, "cancelled")
            raise
        return self._close(running, "failed" if code else "done")

    def cancel(self, handle: Running) -> Finished:
        """End a cell now."""
        return handle.finished or self._close(handle, "cancelled")

    def _close(self, running: Running, status: Status) -> Finished:
        swept = processes.end(running.mark, self._grace_s)
        running.process.kill()  # one that is so young that it has no mark yet
        code = running.process.wait()
        texts = [_tail(file) for file in running.output]
        files = _left(running.folder, running.cell)
        _dismiss(running.keeper, running.folder)
        running.finished = Finished(status=status, code=code, stdout=texts[0], stderr=texts[1], swept=swept, files=files)
        self._running.remove(running)
        return running.finished


def _start(cell: Cell, mark: str, folder: Path, keeper: subprocess.Popen[bytes]) -> Running:
    for name, content in cell.files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    output = (tempfile.TemporaryFile(), tempfile.TemporaryFile())  # noqa: SIM115  # closed when the cell is
    settings = [f"{name}={value}" for name, value in {**cell.env, processes.MARK: mark}.items()]
    process = subprocess.Popen(
        [*_BARE, str(Path(leash.__file__)), str(os.getpid()), "env", *settings, *cell.argv],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output[0],
        stderr=output[1],
        start_new_session=True,
    )
    return Running(cell=cell, mark=mark, folder=folder, keeper=keeper, process=process, output=output)


def _dismiss(keeper: subprocess.Popen[bytes], folder: Path) -> None:
    """Let the keeper look once more for processes and end; remove the folder."""
    assert keeper.stdin is not None
    keeper.stdin.close()
    keeper.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _left(folder: Path, cell: Cell) -> dict[str, bytes]:
    """Return the contents of the plain files that a cell left or changed."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    return {name: content for name, content in found.items() if cell.files.get(name) != content}


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, 2)
    file.seek(max(0, size - KEPT_BYTES))
    text = file.read().decode(errors="replace")
    file.close()
    return text
