"""Commits between the two sides of a step, measured one after the other until one commit is left that made it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strobe.bench.case import Progress
from strobe.bench.track.git import revisions
from strobe.bench.track.session import Tracking, measure_commits
from strobe.perf.analysis.history.found import Found, find
from strobe.perf.analysis.history.steps import Step
from strobe.perf.records.history import Revision, read_history


def narrow(tracking: Tracking, least: float, progress: Progress, wanted: str | None = None) -> tuple[Found, ...]:
    """Measure commits inside the steps of a history until no step has a commit left that could be measured.

    Each session measures the middle one together with both sides of its step, in the same rounds.

    Args:
        least: a change by less, as a share, is no step.
        wanted: only steps that this commit is one of the suspects of; None: all of the machine that measured last.

    Returns:
        what the history says then.

    Raises:
        ConfigError: the history is of another case.
        StrobeError: records cannot be written.
    """
    while True:
        found = find(read_history(tracking.history), least)
        job = next(_jobs(tracking, found, wanted), None)
        if job is None:
            return found
        before, middle, after = job
        span = f"{before.commit}..{after.commit}"
        told = revisions(tracking.repo, span)
        if measure_commits(tracking, span, (middle,), told, progress, again=(before.commit, after.commit)) is None:
            return found


def _jobs(tracking: Tracking, found: Sequence[Found], wanted: str | None) -> Iterator[tuple[Revision, Revision, Revision]]:
    """Both sides of each step that has commits between, and the middle one of those that can be measured."""
    for each in found:
        for step in each.steps if each.current else ():
            before, after = sides(each, step)
            inside = revisions(tracking.repo, f"{before.commit}..{after.commit}")[1:-1] if step.between else ()
            suspects = {one.commit for one in (*inside, after)}
            left = [one for one in inside if one.commit not in each.series.failed]
            if left and (wanted is None or wanted in suspects):
                yield before, left[len(left) // 2], after


def sides(found: Found, step: Step) -> tuple[Revision, Revision]:
    """The last commit before a step and the first after it."""
    return found.series.points[step.before].revision, found.series.points[step.after].revision
