"""Input of a report: the variants of one or several runs, in a fixed order, with their traced windows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from strobe.core.errors import ConfigError, DataError, unknown_choice
from strobe.core.files import file_inside
from strobe.perf.analysis.runs.compiled import named
from strobe.perf.analysis.runs.partition import Partition, partition_of
from strobe.perf.analysis.runs.replays import Passes, Replays, read_passes, relabelled
from strobe.perf.analysis.runs.timeline import DeviceTimeline, HostTimeline, timeline_of
from strobe.perf.records.record import LaunchedPasses, Variant
from strobe.perf.records.record import Trace as TraceRecord
from strobe.perf.records.store import RunRecords, read_run
from strobe.perf.trace import Trace, read_trace


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

    record: TraceRecord
    trace: Trace
    timeline: HostTimeline | DeviceTimeline
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
        """Name of the variant in the run's records."""
        return self.settings.name

    @property
    def is_reference(self) -> bool:
        """Whether the other variants of its run are compared with it."""
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
        """Pairs of reference and candidate, one for each comparison."""
        found = ((self.reference_of(subject), subject) for subject in self.subjects if not subject.is_reference)
        return tuple((reference, candidate) for reference, candidate in found if reference is not None)


def only_pair(run: RunRecords, pair: tuple[str, str]) -> RunRecords:
    """Return the run with two of its variants alone, the second measured against the first.

    Raises:
        ConfigError: the run has no such variant, or they are the same.
    """
    names = [variant.name for variant in run.variants]
    for name in pair:
        if name not in names:
            raise unknown_choice(f"variant of {run.folder}", name, names)
    if pair[0] == pair[1]:
        raise ConfigError(f"{pair[0]!r} against itself; name two of {', '.join(names)}")
    header = msgspec.structs.replace(run.header, baseline=pair[0], order=tuple(name for name in run.header.order if name in pair))
    return replace(
        run,
        header=header,
        variants=tuple(variant for variant in run.variants if variant.name in pair),
        quality=tuple(quality for quality in run.quality if quality.variant in pair),
        gates=tuple(gate for gate in run.gates if gate.variant in pair),
        videos=tuple(video for video in run.videos if video.variant in pair),
    )


def load_study(folders: Sequence[Path], into: Path | None = None, pair: tuple[str, str] | None = None) -> RunStudy:
    """Read run folders and their traces.

    Args:
        folders: run folders.
        into: folder the report will lie in, which paths are relative to; the first run folder if not given.
        pair: only these two variants, the second measured against the first.

    Raises:
        DataError: no folder given, or no readable records in one.
        ConfigError: a run does not have both of the pair.
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
        timeline, replays = timeline_of(trace, None), None
        if isinstance(timeline, DeviceTimeline):
            timeline, replays = relabelled(timeline, passes, layers=False)
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
    """Return the kernels of each launched pass of a variant; empty if their file is missing or damaged."""
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


def _damaged(run: RunRecords, record: TraceRecord | LaunchedPasses) -> str | None:
    """Return why a file differs from its record; None if it does not."""
    try:
        with file_inside(run.folder, record.path).open("rb") as file:
            same = hashlib.file_digest(file, "sha256").hexdigest() == record.sha256
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except DataError:
        return "is not opened: it is a link, no plain file, or outside the run folder"
    return None if same else _CHANGED
