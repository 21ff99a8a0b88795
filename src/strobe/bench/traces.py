"""Reader of the profiler traces of many ranks, each in its own process, on this machine or spread over several.

That process is `python -m strobe.bench.traces FILE SHAPES DETAILS`; it writes the trace into its folder.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from strobe.bench.executor import Cell, Executor, LocalExecutor, Resources
from strobe.bench.executor.local import Job, spread
from strobe.core.errors import StrobeError, TraceFormatError
from strobe.perf.report.study import Progress, Reading, TraceOptions, wanted_of
from strobe.perf.trace import Trace, read_trace

READ: Final = "trace.pickle"
REFUSED: Final = "refused.txt"
START_S: Final = 120.0
SLOWEST_BYTES_PER_S: Final = 1e6


def spread_reading(executor: Executor) -> Reading:
    """Return a function that reads traces: one cell per file, as many at once as the executor takes.

    A machine that is not this one is sent the file. What comes back is what `read_trace` gives here.

    Raises:
        StrobeError: when it reads: a process ended without having read its file, or took too long.
    """
    sends = not isinstance(executor, LocalExecutor)

    def read(files: Sequence[Path], options: TraceOptions, progress: Progress | None) -> Iterator[Trace | TraceFormatError]:
        done, total = 0, sum(_size(path) for path in files)
        found = spread((_job(path, wanted_of(path, options), sends) for path in files), executor)
        for path, one in zip(files, found, strict=True):
            done += _size(path)
            if progress is not None:
                progress(done, total, path.name)
            if isinstance(one, StrobeError) and not isinstance(one, TraceFormatError):
                raise one
            yield one

    return read


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _job(path: Path, wanted: tuple[bool, bool], sends: bool) -> Job[Trace | StrobeError]:
    """Build the job that reads one file; errors and files that are no traces come back as values."""
    given = path.name if sends else str(path.absolute())
    files = {given: path.read_bytes()} if sends and path.is_file() else {}
    cell = Cell(
        argv=(sys.executable, "-m", "strobe.bench.traces", given, *map(str, map(int, wanted))),
        files=files,
        resources=Resources(cpus=1, exclusive=False),
        timeout_s=START_S + _size(path) / SLOWEST_BYTES_PER_S,
    )
    try:
        done = yield cell
    except StrobeError as error:
        return error
    if REFUSED in done.files:
        return TraceFormatError(done.files[REFUSED].decode().replace(given, str(path), 1))
    if READ not in done.files:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no word on stderr"]
        why = f"took longer than {cell.timeout_s:.0f} s" if done.status == "timeout" else lines[-1]
        return StrobeError(f"{path}: the process that was to read it {done.status}: {why}; read it without --executor")
    trace: Trace = pickle.loads(done.files[READ])
    return replace(trace, path=path)


def main() -> None:
    """Read one file and write the trace, or the reason why it is none."""
    path, shapes, details = Path(sys.argv[1]), *(flag == "1" for flag in sys.argv[2:4])
    try:
        trace = read_trace(path, ops=False, shapes=shapes, details=details)
    except TraceFormatError as error:
        Path(REFUSED).write_text(str(error), encoding="utf-8")
        return
    Path(READ).write_bytes(pickle.dumps(trace))


if __name__ == "__main__":
    main()
