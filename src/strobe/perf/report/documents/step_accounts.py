"""The account of both sides of a step, where the case leaves profiler traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from strobe.core.errors import DataError, StrobeError
from strobe.core.files import found_inside
from strobe.perf.analysis.history.found import Found
from strobe.perf.analysis.history.steps import Step
from strobe.perf.records.history import SessionRecords
from strobe.perf.records.packed import FILES
from strobe.perf.records.store import read_run
from strobe.perf.report.model import Paragraph, Report, Section
from strobe.perf.report.speedup_page.build import build_speedup_report
from strobe.perf.report.speedup_page.study import SideRequest, SpeedupRequest, load_speedup
from strobe.perf.report.track_page.cells import SHORT
from strobe.perf.trace import find_traces


@dataclass(frozen=True, kw_only=True, slots=True)
class StepAccount:
    """Account of a step.

    Args:
        name: of the step: figure and commit.
        section: for the page of the history.
        report: the whole comparison; None: there is none, and the section says why.
    """

    name: str
    section: Section
    report: Report | None


def step_accounts(sessions: Sequence[SessionRecords], found: Sequence[Found]) -> Iterator[StepAccount]:
    """Compare the traces that the last commit before each step and the first after it left; of steps without traces, nothing."""
    for each in found:
        for step in each.steps if each.current else ():
            sides = [_traces(sessions, each, at) for at in (step.before, step.after)]
            if all(sides):
                yield _account(each, step, sides)


def _account(found: Found, step: Step, sides: Sequence[tuple[Path, ...]]) -> StepAccount:
    after = found.series.points[step.after].revision.commit[:SHORT]
    name = f"{found.series.figure.name}-{after}"
    title = f"Where the change of {found.series.figure.name} by {after} comes from"
    try:
        request = SpeedupRequest(
            baseline=SideRequest(name="baseline", traces=sides[0]), candidate=SideRequest(name="candidate", traces=sides[1])
        )
        report = build_speedup_report(load_speedup(request))
    except StrobeError as error:
        return StepAccount(
            name=name, section=Section(f"account-{name}", title, "", (Paragraph(f"No account: {error}."),)), report=None
        )
    told = msgspec.structs.replace(report.sections[0], id=f"account-{name}", title=title, folded=False)
    return StepAccount(name=name, section=told, report=report)


def _traces(sessions: Sequence[SessionRecords], found: Found, at: int) -> tuple[Path, ...]:
    """Traces of a commit: those of the figure's variant where the case wrote a run folder, else all that it left."""
    point = found.series.points[at]
    for session in reversed(sessions):
        for sample in session.samples:
            kept = session.folder / sample.kept if sample.kept else None
            if sample.commit != point.revision.commit or kept is None or kept.is_symlink() or not kept.is_dir():
                continue
            folders = sorted({path.parent for name in FILES for path in kept.rglob(name)})
            if folders:
                return tuple(path for folder in folders for path in _of_variant(folder, found.series.figure.name))
            return _all(kept)
    return ()


def _of_variant(folder: Path, figure: str) -> Iterator[Path]:
    for trace in read_run(folder).traces:
        named = any(figure == f"{trace.variant}.{level}" for level in ("e2e", "block", "step"))
        path = found_inside(folder, trace.path) if named and not trace.options else None
        if path is not None:
            yield path


def _all(kept: Path) -> tuple[Path, ...]:
    try:
        return find_traces([kept])
    except DataError:
        return ()
