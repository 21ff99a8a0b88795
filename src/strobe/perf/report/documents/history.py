"""The JSON of `strobe track`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from strobe.perf.analysis.history.found import Found
from strobe.perf.records.history import SessionRecords
from strobe.perf.report.documents.value import Document, DocumentPart, ends, part_of

FigureName = Annotated[str, Meta(description="name of the figure, as --figure takes it")]
Low = Annotated[float | None, Meta(description="lower end of the 95 % interval; null: no interval")]
High = Annotated[float | None, Meta(description="upper end of the 95 % interval; null: no interval")]


class PointRow(DocumentPart, frozen=True, kw_only=True):
    """One figure of one commit on one machine."""

    figure: FigureName
    machine: Annotated[int, Meta(description="position of the machine in `machines`, from 0")]
    commit: Annotated[str, Meta(description="full commit hash")]
    position: Annotated[int, Meta(description="number of the commit along first parents")]
    date: Annotated[str, Meta(description="date of the commit (committer), UTC")]
    subject: Annotated[str, Meta(description="first line of the commit message")]
    value: Annotated[
        float | None, Meta(description="median, corrected for drift, in ns, bytes, or the unit of the command; null: failed")
    ]
    low: Low
    high: High
    samples: Annotated[int, Meta(description="number of measurements")]
    failed_at: Annotated[str, Meta(description="step that failed: `checkout`, `install`, `run` or `figure`; empty: none")]
    reason: Annotated[str, Meta(description="last output of the failed step; empty: nothing failed")]


class StepRow(DocumentPart, frozen=True, kw_only=True):
    """One change of a figure's level between two measured commits."""

    figure: FigureName
    machine: Annotated[int, Meta(description="position of the machine in `machines`, from 0")]
    before: Annotated[str, Meta(description="last measured commit before the change")]
    commit: Annotated[str, Meta(description="first measured commit after the change")]
    suspects: Annotated[int, Meta(description="number of commits that can have caused the change; 1: the commit is found")]
    ratio: Annotated[float, Meta(description="value after / value before")]
    low: Low
    high: High
    paired: Annotated[bool, Meta(description="true: the interval is from rounds that measured both sides")]
    worse: Annotated[bool, Meta(description="true: the figure became worse")]
    p: Annotated[float, Meta(description="p-value: probability of such a change by chance; 0: the figure is exact")]


class DriftRow(DocumentPart, frozen=True, kw_only=True):
    """Drift of a machine: change of a figure while the code stayed the same."""

    figure: FigureName
    machine: Annotated[int, Meta(description="position of the machine in `machines`, from 0")]
    session: Annotated[str, Meta(description="session in which the drift was measured")]
    within: Annotated[
        bool,
        Meta(description="true: drift from the first rounds of the session to its last; false: drift since the first session"),
    ]
    ratio: Annotated[float, Meta(description="later value / earlier value of the same commits")]
    low: Low
    high: High
    seen: Annotated[bool, Meta(description="true: the drift is significant and exceeds 1 %")]


class HistoryDocument(Document, frozen=True, kw_only=True):
    """Figures over commits, and the commits that changed them.

    `rows()` are the steps, `rows("points")` the values, `rows("drifts")` what the machine did.
    """

    MAIN: ClassVar[str] = "steps"
    SHOWN: ClassVar[tuple[str, ...]] = ("steps", "points")

    case: Annotated[str, Meta(description="command line that is measured")]
    machines: Annotated[tuple[str, ...], Meta(description="machines by CPU, cores and GPUs; the last one to measure comes first")]
    steps: Annotated[tuple[StepRow, ...], Meta(description="changes of figures, oldest first")]
    points: Annotated[
        tuple[PointRow, ...], Meta(description="values of figures, one row per commit that was measured or failed, oldest first")
    ]
    drifts: Annotated[tuple[DriftRow, ...], Meta(description="drift of the machines, by session")]
    damaged: Annotated[tuple[str, ...], Meta(description="damage in the records; damaged records are left out")]

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
        drifts=tuple(
            part_of(
                DriftRow,
                drift,
                figure=each.series.figure.name,
                machine=hosts.index(each.series.host.identity),
                **ends(drift.interval),
            )
            for each in found
            for drift in each.drifts
        ),
        damaged=tuple(line for each in sessions for line in each.damage),
    )


def _steps(found: Found, machine: int) -> Iterator[StepRow]:
    points, figure = found.series.points, found.series.figure
    for each in found.steps:
        yield part_of(
            StepRow,
            each,
            figure=figure.name,
            machine=machine,
            before=points[each.before].revision.commit,
            commit=points[each.after].revision.commit,
            suspects=each.between + 1,
            **ends(each.interval),
            worse=(each.ratio < 1) if figure.higher else (each.ratio > 1),
        )


def _points(found: Found, machine: int) -> Iterator[PointRow]:
    points = {each.revision.commit: each for each in found.series.points}
    for each in found.series.revisions:
        point, failure = points.get(each.commit), found.series.failed.get(each.commit)
        if point is None and failure is None:
            continue
        yield part_of(
            PointRow,
            each,
            figure=found.series.figure.name,
            machine=machine,
            value=None if point is None else point.value,
            **ends(None if point is None else point.interval),
            samples=0 if point is None else point.samples,
            failed_at="" if failure is None else failure.at,
            reason="" if failure is None else failure.reason,
        )
