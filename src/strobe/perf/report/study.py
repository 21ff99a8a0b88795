"""Inputs of reports: variants of runs, and traces in a fixed order."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, ParamSpec, TypeAlias, TypeVar

import msgspec

from strobe.core.errors import ConfigError, DataError, StrobeError, TraceFormatError, unknown_choice
from strobe.core.files import file_inside
from strobe.perf.analysis.device.intervals import Window
from strobe.perf.analysis.runs.timeline import (
    Partition,
    Passes,
    Replays,
    RunTimeline,
    named,
    partition_of,
    read_passes,
    relabelled,
    timeline_of,
)
from strobe.perf.analysis.structure.captures import holds_captures, name_replays
from strobe.perf.analysis.structure.window import choose_window
from strobe.perf.records.record import ClipTrace, LaunchedPasses, Variant, cpu_cores
from strobe.perf.records.store import RunRecords, read_run
from strobe.perf.trace import Trace, captures_of, find_traces, read_trace

T = TypeVar("T")
P = ParamSpec("P")


def or_reason(find: Callable[P, T], *args: P.args, **named: P.kwargs) -> T | str:
    """Return what a function finds, or the text of its `DataError`, which says why there is nothing."""
    try:
        return find(*args, **named)
    except DataError as error:
        return str(error)


# Input of a report: the variants of one or several runs, in a fixed order, with their traced windows.


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Traced window of one variant: its trace, timeline, and the owners of its time.

    Args:
        record: what the run says about the file.
        timeline: of its frame blocks; kernels of graphs have the labels that their passes give them.
        partition: what owns the time of the frame blocks.
        passes: its passes launched kernel by kernel, the key to the kernels of its graphs; empty: there are none.
        replays: how the kernels of its graphs were labelled; None: it ran no graphs.
    """

    record: ClipTrace
    trace: Trace
    timeline: RunTimeline
    partition: Partition
    passes: Passes
    replays: Replays | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One variant of one run, with its traced window.

    Args:
        label: name in the report; the run is part of it only where the name alone is not unique.
        series: number among the subjects, for colours.
        profile: the traced window, or why there is none.
    """

    label: str
    series: int
    run: RunRecords
    settings: Variant
    profile: Profile | str

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def is_reference(self) -> bool:
        return self.name == self.run.header.baseline


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStudy:
    """Runs and variants of a report. In each run the reference comes first, then the candidates in their recorded order."""

    runs: tuple[RunRecords, ...]
    subjects: tuple[Subject, ...]
    folder: Path

    def reference_of(self, subject: Subject) -> Subject | None:
        """Return the subject that a subject's ratios are measured against; None if its settings were never written."""
        return next((other for other in self.subjects if other.run is subject.run and other.is_reference), None)

    @property
    def pairs(self) -> tuple[tuple[Subject, Subject], ...]:
        found = ((self.reference_of(subject), subject) for subject in self.subjects if not subject.is_reference)
        return tuple((reference, candidate) for reference, candidate in found if reference is not None)


def only_pair(run: RunRecords, pair: tuple[str, str]) -> RunRecords:
    """Return the run with two of its variants alone, the second measured against the first."""
    names = [variant.name for variant in run.variants]
    for name in pair:
        if name not in names:
            raise unknown_choice(f"variant of {run.folder}", name, names)
    if pair[0] == pair[1]:
        raise ConfigError(f"{pair[0]!r} against itself; name two of {', '.join(names)}")
    header = msgspec.structs.replace(run.header, baseline=pair[0], order=tuple(name for name in run.header.order if name in pair))
    of_pair: dict[str, Any] = {
        table: tuple(each for each in getattr(run, table) if each.variant in pair) for table in ("quality", "gates", "videos")
    }
    return replace(run, header=header, variants=tuple(each for each in run.variants if each.name in pair), **of_pair)


def load_study(folders: Sequence[Path], into: Path | None = None, pair: tuple[str, str] | None = None) -> RunStudy:
    """Read run folders and their traces.

    Args:
        into: folder the report will lie in, which paths are relative to; the first run folder if not given.
        pair: only these two variants, the second measured against the first.
    """
    if not folders:
        raise DataError("a report needs at least one run folder")
    runs = tuple(read_run(Path(folder)) for folder in folders)
    if pair is not None:
        runs = tuple(only_pair(run, pair) for run in runs)
    names = [variant.name for run in runs for variant in run.variants]
    subjects: list[Subject] = []
    for run in runs:
        ranked = sorted(run.variants, key=lambda variant: variant.name != run.header.baseline)
        for variant in ranked:
            label = variant.name if names.count(variant.name) == 1 else f"{variant.name} ({run.header.run})"
            profile = _profile(run, variant.name)
            subjects.append(Subject(label=label, series=len(subjects), run=run, settings=variant, profile=profile))
    return RunStudy(runs=runs, subjects=tuple(subjects), folder=into or runs[0].folder)


def _profile(run: RunRecords, name: str) -> Profile | str:
    """Read the variant's last trace that times can be read from; a text says why it cannot be used."""
    records = [record for record in run.traces if record.variant == name and not record.options]
    if not records:
        return f"no traced {'sample' if run.header.kind == 'calls' else 'clip'} in this run"
    record = records[-1]
    path = run.folder / record.path
    try:
        path = file_inside(run.folder, record.path)
        trace, passes = read_trace(path), _passes(run, name)
        timeline, replays = relabelled(timeline_of(trace), passes, layers=False)
        if replays is None and run.variant(name).compile_mode is not None:
            timeline = named(timeline, passes)
        return Profile(
            record=record, trace=trace, timeline=timeline, partition=partition_of(timeline), passes=passes, replays=replays
        )
    except OSError as error:
        return f"trace {record.path} cannot be read: {error.strerror}"
    except DataError as error:
        return f"trace {record.path} cannot be used: {str(error).replace(str(path), record.path)}"


def _passes(run: RunRecords, name: str) -> Passes:
    record = _passes_record(run, name)
    return read_passes(run.folder / record.path) if record is not None and _damaged(run, record) is None else ()


def _passes_record(run: RunRecords, name: str) -> LaunchedPasses | None:
    return next((record for record in reversed(run.passes) if record.variant == name), None)


def damage_of(run: RunRecords) -> tuple[str, ...]:
    """Return one sentence for each damage of a run's records and of the files that the report reads times from."""
    found = list(run.damage)
    for variant in run.variants:
        traces = [record for record in run.traces if record.variant == variant.name and not record.options]
        if traces and (why := _damaged(run, traces[-1])) == _CHANGED:
            found.append(f"{traces[-1].path} {why}; the times of {variant.name} are those of the file that is there")
        passes = _passes_record(run, variant.name)
        if passes is not None and (why := _damaged(run, passes)) is not None:
            found.append(f"{passes.path} {why}; the kernels in the graphs of {variant.name} are not told apart")
    return tuple(found)


_CHANGED: Final = "is not the file that was recorded (its SHA-256 differs)"


def _damaged(run: RunRecords, record: ClipTrace | LaunchedPasses) -> str | None:
    try:
        with file_inside(run.folder, record.path).open("rb") as file:
            same = hashlib.file_digest(file, "sha256").hexdigest() == record.sha256
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except DataError:
        return "is not opened: it is a link, no plain file, or outside the run folder"
    return None if same else _CHANGED


# Input of a trace report: traces in a fixed order, each with its label and its chosen window.

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
        skipped: what is in the given folders and is no trace, each with the reason.
        replays: what names the kernels of each trace's graph replays, a sentence; empty without replays.
        kept: what the page finds in each trace, once it was asked for.
    """

    traces: tuple[Trace, ...]
    labels: tuple[str, ...]
    windows: tuple[Window | None, ...]
    options: TraceOptions
    skipped: tuple[str, ...] = ()
    replays: tuple[str, ...] = ()
    kept: list[Any] = field(default_factory=list, init=False, repr=False)


def is_small(path: Path) -> bool:
    """Return whether a trace is so small that its operators are read unless it was said otherwise."""
    return path.is_file() and path.stat().st_size <= DETAILED_BYTES


def read_file(path: Path, options: TraceOptions, progress: Progress | None = None) -> Trace | TraceFormatError:
    """Return the trace of a file with what the report needs of it, or why it is none."""
    details = is_small(path) if options.details is None else options.details
    try:
        return read_trace(path, ops=False, shapes=options.by == "shape", details=details, progress=progress)
    except TraceFormatError as error:
        return error


def _read_files(files: Sequence[Path], options: TraceOptions, progress: Progress | None) -> Iterator[Trace | TraceFormatError]:
    """Yield what the files hold: one after the other, or many by processes of their own; a `StrobeError` if one ended before."""
    sizes = [path.stat().st_size if path.is_file() else 0 for path in files]
    done, total = 0, sum(sizes)
    if len(files) < APART or cpu_cores() == 1:
        for path, size in zip(files, sizes, strict=True):
            yield read_file(path, options, None if progress is None else _part_of(progress, done, total))
            done += size
        return
    with ThreadPoolExecutor(cpu_cores()) as pool:
        read = pool.map(partial(_read_apart, options=options), files)
        for path, size, found in zip(files, sizes, read, strict=True):
            done += size
            if progress is not None:
                progress(done, total, path.name)
            yield found


APART: Final = 8
"""Files from which on each is read in a process of its own."""
_READ: Final = """
import pickle, sys
from strobe.perf.report.study import read_file
pickle.dump(read_file(*pickle.load(sys.stdin.buffer)), sys.stdout.buffer)
"""


def _read_apart(path: Path, options: TraceOptions) -> Trace | TraceFormatError:
    asked = pickle.dumps((path, options))
    done = subprocess.run([sys.executable, "-c", _READ], input=asked, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").split("\n")
        why = next((line.strip() for line in reversed(said) if line.strip()), f"code {done.returncode}")
        raise StrobeError(f"{path}: the process that was to read it ended: {why}; read it alone")
    found: Trace | TraceFormatError = pickle.loads(done.stdout)
    return found


def load_trace_study(
    paths: Sequence[Path], options: TraceOptions = TraceOptions(), progress: Progress | None = None
) -> TraceStudy:
    """Read every trace in files and folders. Other files are skipped in a folder, and an error if they were named.

    From `APART` files on, each is read in a process of its own, as many at once as there are cores.

    Raises:
        DataError: no trace among the paths, one that cannot be read, or one without the window that was asked for.
        ConfigError: the window is not written as one.
        StrobeError: a process ended before it had read its file.
    """
    files = find_traces(paths)
    read, skipped = list[Trace](), list[str]()
    for path, found in zip(files, _read_files(files, options, progress), strict=True):
        if isinstance(found, Trace):
            read.append(found)
        elif path in paths:
            raise found
        else:
            skipped.append(str(found))
    if not read:
        raise DataError(f"{skipped[0]}{f' (and {len(skipped) - 1} more files)' if len(skipped) > 1 else ''}")
    given = [trace for trace in read if holds_captures(trace)]
    ran = [trace for trace in read if not holds_captures(trace)] or read
    ran.sort(key=lambda trace: (trace.rank is None, trace.rank or 0, str(trace.path)))
    named = [name_replays(trace, _captures(trace, given, paths, skipped)) for trace in ran]
    traces, replays = tuple(trace for trace, _ in named), tuple(said for _, said in named)
    asked = options.window
    windows = tuple(
        None if asked is None else choose_window(trace, asked, options.steps, zero)
        for trace, zero in zip(traces, _zeros(traces), strict=True)
    )
    return TraceStudy(
        traces=traces, labels=trace_labels(traces), windows=windows, options=options, skipped=tuple(skipped), replays=replays
    )


def _captures(trace: Trace, given: Iterable[Trace], paths: Sequence[Path], skipped: list[str]) -> Iterator[Trace]:
    """Yield the captures that were given for a trace, then read those that lie in folders of captures; add what is none."""
    yield from (one for one in given if one is not trace)
    for path in captures_of(trace, paths):
        try:
            yield read_trace(path, details=True)
        except TraceFormatError as error:
            skipped.append(str(error))


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
    return tuple(
        name if longer.count(name) == 1 else f"{name} ({longer[: at + 1].count(name)})" for at, name in enumerate(longer)
    )


def _stem(name: str) -> str:
    return name.removesuffix(".gz").removesuffix(".json")
