"""Notes on the numbers (units, effect of observing, machine, files), and the clips to look at."""

from __future__ import annotations

import os
from pathlib import Path

from strobe.core.files import found_inside
from strobe.perf.report.model import Notes, Section, Video, Videos
from strobe.perf.report.study import Profile, RunStudy, Subject


def notes_section(study: RunStudy) -> Section:
    """Build the section of notes that apply to every number of the page."""
    items = [
        "Units: records hold integer nanoseconds. Tables show milliseconds (ms) or microseconds (µs) with four significant "
        "digits; times with six decimals are exact.",
        "A speedup is reference time over candidate time: 1.25x means the candidate needs 1 / 1.25 of the time.",
        "Timing and tracing are separate clips: no timed clip ran under the profiler.",
    ]
    for subject in study.subjects:
        items += _trace_notes(subject)
    for run in study.runs:
        items += _machine_notes(run.header.run, {span.clock for span in run.spans})
    return Section("notes", "Notes", "", (Notes(tuple(items)),))


def _trace_notes(subject: Subject) -> list[str]:
    if not isinstance(subject.profile, Profile):
        return [f"{subject.label} has no trace to show: {subject.profile}."]
    counts, found = subject.profile.trace.counts, []
    if not counts.clean:
        cut = ", and the file ends early" if counts.truncated else ""
        found.append(f"Trace of {subject.label}: {counts.lost} events lost, {counts.mended} mended of {counts.events}{cut}.")
    return found


def _machine_notes(run: str, clocks: set[str]) -> list[str]:
    names = {"perf_counter": "the host's monotonic clock", "cuda_event": "CUDA events (resolution about 0.5 µs)"}
    return [f"{run}: spans were timed by {' and '.join(names[clock] for clock in sorted(clocks))}."] if clocks else []


def clips_section(study: RunStudy) -> Section | None:
    """Build the section of clips stored beside the report, by relative path; None if there are none."""
    items = []
    for subject in study.subjects:
        for video in subject.run.videos:
            path = found_inside(subject.run.folder, video.path) if video.variant == subject.name else None
            if path is not None:
                items.append(Video(subject.label, _relative(path, study.folder), video.caption))
    if not items:
        return None
    return Section("clips", "Clips", "The same prompts and the same noise in every variant.", (Videos(tuple(items)),))


def _relative(path: Path, folder: Path) -> str:
    """Return the path of a file relative to the report's folder."""
    return Path(os.path.relpath(path, folder)).as_posix()
