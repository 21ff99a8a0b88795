"""Handling of Ctrl-C and SIGTERM: what is kept, and the command that goes on from there."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from strobe.cli.console import Output
from strobe.core.errors import DataError, Terminated


@contextmanager
def terminates_as_interrupted() -> Iterator[None]:
    """Raise `Terminated` in the body at the first SIGTERM, so that it ends as at Ctrl-C; a second one ends the process."""
    owner = os.getpid()

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != owner:  # a process that was forked from here
            os.kill(os.getpid(), number)
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread: whoever has it decides
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def tells_what_is_kept(output: Output, kept: Callable[[], Iterable[str]]) -> Iterator[None]:
    """Print what is kept if the body is interrupted; nothing if it finished nothing."""
    try:
        yield
    except KeyboardInterrupt:
        for line in kept():
            output.note(line)
        raise


def kept_runs(folders: Iterable[Path]) -> Iterator[str]:
    """Yield a line for each run that has finished clips."""
    from strobe.perf.records.store import read_run

    for folder in folders:
        try:
            run = read_run(folder)
        except DataError:
            continue  # not even begun
        if run.clips:
            yield f"the {len(run.clips)} finished clips are kept: strobe report {folder}"


def kept_cells(folder: Path, show: str) -> Iterator[str]:
    """Yield a line with the number of finished cells in a folder; none if there are none.

    Args:
        show: the command that makes a page of them.
    """
    from strobe.bench.cells import finished

    count = sum(finished(place) for place in folder.glob("cells/*") if place.is_dir())
    if count:
        yield f"the {count} finished cells are kept: the same command goes on from there, {show} makes the page of them"
