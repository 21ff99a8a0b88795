"""What Ctrl-C leaves, and which command goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from strobe.cli.console import Output


@contextmanager
def tells_what_is_kept(output: Output, kept: Callable[[], Iterable[str]]) -> Iterator[None]:
    """If the body is interrupted, say what it finished; nothing if it finished nothing."""
    try:
        yield
    except KeyboardInterrupt:
        for line in kept():
            output.note(line)
        raise


def kept_runs(folders: Iterable[Path]) -> Iterator[str]:
    """What can be reported of runs: clips, or the frame blocks of a soak."""
    from strobe.core.errors import DataError
    from strobe.perf.records.store import read_run

    for folder in folders:
        try:
            run = read_run(folder)
        except DataError:
            continue  # not even begun
        if run.clips:
            yield f"the {len(run.clips)} finished clips are kept: strobe report {folder}"
        elif run.memory:
            yield f"the {len(run.memory)} finished frame blocks are kept: strobe report {folder}"


def kept_cells(folder: Path, show: str) -> Iterator[str]:
    """What is there of a folder of cells.

    Args:
        show: the command that makes a page of them.
    """
    from strobe.bench.attention.run import finished

    count = sum(finished(place) for place in folder.glob("cells/*") if place.is_dir())
    if count:
        yield f"the {count} finished cells are kept: the same command goes on from there, {show} makes the page of them"
