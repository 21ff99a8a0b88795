"""Input of a trace report: traces in a fixed order, each with its label and its chosen window."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from strobe.core.errors import DataError, TraceFormatError
from strobe.perf.analysis.structure.window import choose_window
from strobe.perf.analysis.window import Window
from strobe.perf.trace import Trace, find_traces, read_trace

Found = TypeVar("Found")
Progress: TypeAlias = Callable[[int, int, str], None]
"""Callback `(done_bytes, total_bytes, what)` while a file is read."""
DETAILED_BYTES: Final = 16_000_000
"""Files up to this size, as they lie on disk, are read with every operator unless the options say otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceOptions:
    """Options of a trace report.

    Args:
        top: rows of a long table.
        by: what the calls of a kernel table are grouped by: their normalised name, or their name and shape.
        window: the part of each trace that is analysed, such as `ProfilerStep#3` or `100ms..200ms`; the whole trace if not given.
        sections: definitions of sections around a focal event.
        steps: regular expression of the range or kernel that starts a step; found by itself if not given.
        details: read every operator with its inputs, for the tables of operators, the roofline and the critical path; without a
            word of it, those of files up to `DETAILED_BYTES`.
    """

    top: int = 30
    by: Literal["name", "shape"] = "name"
    window: str | None = None
    sections: tuple[str, ...] = ()
    steps: str | None = None
    details: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TraceStudy:
    """Traces of a report with their labels and windows; the tuples have equal length. Studies compare by identity.

    Args:
        traces: one per file, by rank and path; a job of several ranks has several.
        labels: `rank 0`, or the file's name where the ranks are not known or not different; unique.
        windows: the chosen window of each trace; `None` is all of it.
        options: what was asked for.
        skipped: what is in the given folders and is no trace, each with the reason.
        kept: results of the functions that are computed `once`.
    """

    traces: tuple[Trace, ...]
    labels: tuple[str, ...]
    windows: tuple[Window | None, ...]
    options: TraceOptions
    skipped: tuple[str, ...] = ()
    kept: dict[Callable[[TraceStudy], Any], Any] = field(default_factory=dict, init=False, repr=False)


def once(find: Callable[[TraceStudy], Found]) -> Callable[[TraceStudy], Found]:
    """Return a function of a study that is computed once for each study; its result is kept as long as the study."""

    @wraps(find)
    def found(study: TraceStudy) -> Found:
        if find not in study.kept:
            study.kept[find] = find(study)
        result: Found = study.kept[find]
        return result

    return found


class Wanted(NamedTuple):
    """Optional contents to read from one file: the input sizes of operators with kernels, and every operator with its inputs."""

    shapes: bool
    details: bool


def wanted_of(path: Path, options: TraceOptions) -> Wanted:
    """Return the contents to read from a file under these options."""
    small = path.is_file() and path.stat().st_size <= DETAILED_BYTES
    return Wanted(options.by == "shape", small if options.details is None else options.details)


Reading: TypeAlias = Callable[[Sequence[Path], TraceOptions, Progress | None], Iterable[Trace | TraceFormatError]]
"""Function that reads files in order with the contents of `wanted_of`; a file that is no trace gives an error as its item."""


def read_in_turn(files: Sequence[Path], options: TraceOptions, progress: Progress | None) -> Iterator[Trace | TraceFormatError]:
    """Yield the traces of the files, read one after another in this process; an error for a file that is no trace."""
    sizes = [path.stat().st_size if path.exists() else 0 for path in files]
    for number, path in enumerate(files):
        part = None if progress is None else _part_of(progress, sum(sizes[:number]), sum(sizes))
        try:
            yield read_trace(path, ops=False, **wanted_of(path, options)._asdict(), progress=part)
        except TraceFormatError as error:
            yield error


def load_trace_study(
    paths: Sequence[Path],
    options: TraceOptions = TraceOptions(),
    progress: Progress | None = None,
    reading: Reading = read_in_turn,
) -> TraceStudy:
    """Read every trace in files and folders. Other files are skipped in a folder, and an error if they were named.

    Args:
        paths: trace files, or folders that hold some.
        options: what the report is to show.
        progress: told how far the reading is.
        reading: how the files are read.

    Raises:
        DataError: no trace among the paths, one that cannot be read, or one without the window that was asked for.
        ConfigError: the window is not written as one.
    """
    files = find_traces(paths)
    read, skipped = list[Trace](), list[str]()
    for path, found in zip(files, reading(files, options, progress), strict=True):
        if isinstance(found, Trace):
            read.append(found)
        elif path in paths:
            raise found
        else:
            skipped.append(str(found))
    if not read:
        raise DataError(f"{skipped[0]}{f' (and {len(skipped) - 1} more files)' if len(skipped) > 1 else ''}")
    traces = tuple(sorted(read, key=lambda trace: (trace.rank is None, trace.rank or 0, str(trace.path))))
    asked = options.window
    windows = tuple(
        None if asked is None else choose_window(trace, asked, options.steps, zero)
        for trace, zero in zip(traces, _zeros(traces), strict=True)
    )
    return TraceStudy(traces=traces, labels=trace_labels(traces), windows=windows, options=options, skipped=tuple(skipped))


def _zeros(traces: Sequence[Trace]) -> Sequence[int | None]:
    """Return the time zero of windows on each trace's clock: the first device event of all traces that ran together."""
    spans = [
        (trace.base_ns + min(trace.device_events.start_ns), trace.base_ns + max(trace.device_events.end_ns))
        for trace in traces
        if len(trace.device_events)
    ]
    if not spans or max(first for first, _ in spans) >= min(last for _, last in spans):
        return [None] * len(traces)
    return [min(first for first, _ in spans) - trace.base_ns for trace in traces]


def _part_of(progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _, what: progress(before + done, total, what)


def trace_labels(traces: Sequence[Trace]) -> tuple[str, ...]:
    """Name each trace by its rank; if ranks are not distinct, by its file name, else by its path below the common folder."""
    ranks = [trace.rank for trace in traces]
    if len(traces) > 1 and None not in ranks and len(set(ranks)) == len(ranks):
        return tuple(f"rank {rank}" for rank in ranks)
    names = [_stem(trace.path.name) for trace in traces]
    if len(set(names)) == len(names):
        return tuple(names)
    paths = [trace.path.absolute() for trace in traces]
    folder = os.path.commonpath([path.parent for path in paths])
    longer = [_stem(path.relative_to(folder).as_posix()) for path in paths]
    counts, seen = Counter(longer), Counter[str]()
    labels = []
    for name in longer:
        seen[name] += 1
        labels.append(name if counts[name] == 1 else f"{name} ({seen[name]})")
    return tuple(labels)


def _stem(name: str) -> str:
    for suffix in (".gz", ".json"):
        name = name.removesuffix(suffix)
    return name
