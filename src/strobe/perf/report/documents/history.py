"""What `strobe track ... --json` prints of a history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from strobe.perf.analysis.history.found import Found
from strobe.perf.records.history import SessionRecords
from strobe.perf.report.documents.value import Document, Part

FigureName = Annotated[str, Meta(description="figure, as --figure names it")]
Low = Annotated[float | None, Meta(description="low end of its 95 % interval; null without one")]
High = Annotated[float | None, Meta(description="high end")]


class PointRow(Part, frozen=True, kw_only=True):
    """One figure of one commit on one machine."""

    figure: FigureName
    machine: Annotated[int, Meta(description="which machine: its place in `machines`")]
    commit: Annotated[str, Meta(description="full hash")]
    position: Annotated[int, Meta(description="number of the commit along first parents")]
    date: Annotated[str, Meta(description="committer's date, UTC")]
    subject: Annotated[str, Meta(description="first line of its message")]
    value: Annotated[
        float | None, Meta(description="median, drift taken out: ns, bytes, or as the command prints it; null: failed")
    ]
    low: Low
    high: High
    samples: Annotated[int, Meta(description="measurements")]
    failed_at: Annotated[str, Meta(description="checkout, install, run or figure; empty: it did not fail")]
    reason: Annotated[str, Meta(description="what it said last")]


class StepRow(Part, frozen=True, kw_only=True):
    """One change of a figure's level."""

    figure: FigureName
    machine: Annotated[int, Meta(description="which machine: its place in `machines`")]
    before: Annotated[str, Meta(description="last measured commit before it")]
    commit: Annotated[str, Meta(description="first measured commit after it")]
    suspects: Annotated[int, Meta(description="commits that may have made it: 1 when it is found")]
    ratio: Annotated[float, Meta(description="value after / value before")]
    low: Low
    high: High
    paired: Annotated[bool, Meta(description="the interval is of rounds that measured both sides")]
    worse: Annotated[bool, Meta(description="a change to the worse")]
    p: Annotated[float, Meta(description="how often chance makes such a change between its neighbours; 0: the figure is exact")]


class DriftRow(Part, frozen=True, kw_only=True):
    """What a machine did while the code stood still."""

    figure: FigureName
    machine: Annotated[int, Meta(description="which machine: its place in `machines`")]
    session: Annotated[str, Meta(description="session where it was seen")]
    within: Annotated[bool, Meta(description="from its first rounds to its last; false: since the first session")]
    ratio: Annotated[float, Meta(description="value later / value earlier, of the same commits")]
    low: Low
    high: High
    seen: Annotated[bool, Meta(description="beyond doubt, and above 1 %")]


class HistoryDocument(Document, frozen=True, kw_only=True):
    """Figures over commits, and the commits that changed them.

    `rows()` are the steps, `rows("points")` the values, `rows("drifts")` what the machine did.
    """

    MAIN: ClassVar[str] = "steps"
    SHOWN: ClassVar[tuple[str, ...]] = ("steps", "points")

    case: Annotated[str, Meta(description="command line that is measured")]
    machines: Annotated[
        tuple[str, ...], Meta(description="machines by CPU, cores and GPUs; the one that measured last comes first")
    ]
    steps: Annotated[tuple[StepRow, ...], Meta(description="changes, oldest first")]
    points: Annotated[tuple[PointRow, ...], Meta(description="every commit that was measured or failed, oldest first")]
    drifts: Annotated[tuple[DriftRow, ...], Meta(description="by session")]
    damaged: Annotated[tuple[str, ...], Meta(description="what is damaged in the records and left out")]

    def title(self) -> str:
        """The case and how many steps it has."""
        return f"{self.case}: {len(self.steps)} steps"


def history_document(sessions: Sequence[SessionRecords], found: Sequence[Found]) -> HistoryDocument:
    """Return what a history says.

    Args:
        sessions: of the history.
        found: their analysis.
    """
    hosts = list(dict.fromkeys(each.series.host.identity for each in found))
    machines = []
    for identity in hosts:
        host = next(each.series.host for each in found if each.series.host.identity == identity)
        machines.append(", ".join((host.cpu_name, f"{host.cores} cores", *host.gpus)))
    return HistoryDocument(
        case=sessions[-1].session.case,
        machines=tuple(machines),
        steps=tuple(row for each in found for row in _steps(each, hosts.index(each.series.host.identity))),
        points=tuple(row for each in found for row in _points(each, hosts.index(each.series.host.identity))),
        drifts=tuple(row for each in found for row in _drifts(each, hosts.index(each.series.host.identity))),
        damaged=tuple(line for each in sessions for line in each.damage),
    )


def _steps(found: Found, machine: int) -> Iterator[StepRow]:
    points, figure = found.series.points, found.series.figure
    for each in found.steps:
        yield StepRow(
            figure=figure.name,
            machine=machine,
            before=points[each.before].revision.commit,
            commit=points[each.after].revision.commit,
            suspects=each.between + 1,
            ratio=each.ratio,
            low=None if each.interval is None else each.interval.low,
            high=None if each.interval is None else each.interval.high,
            paired=each.paired,
            worse=(each.ratio < 1) if figure.higher else (each.ratio > 1),
            p=each.p,
        )


def _points(found: Found, machine: int) -> Iterator[PointRow]:
    points = {each.revision.commit: each for each in found.series.points}
    for each in found.series.revisions:
        point, failure = points.get(each.commit), found.series.failed.get(each.commit)
        if point is None and failure is None:
            continue
        interval = None if point is None else point.interval
        yield PointRow(
            figure=found.series.figure.name,
            machine=machine,
            commit=each.commit,
            position=each.position,
            date=each.date,
            subject=each.subject,
            value=None if point is None else point.value,
            low=None if interval is None else interval.low,
            high=None if interval is None else interval.high,
            samples=0 if point is None else point.samples,
            failed_at="" if failure is None else failure.at,
            reason="" if failure is None else failure.reason,
        )


def _drifts(found: Found, machine: int) -> Iterator[DriftRow]:
    for each in found.drifts:
        yield DriftRow(
            figure=found.series.figure.name,
            machine=machine,
            session=each.session,
            within=each.within,
            ratio=each.ratio,
            low=None if each.interval is None else each.interval.low,
            high=None if each.interval is None else each.interval.high,
            seen=each.seen,
        )
