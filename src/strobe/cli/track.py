"""`strobe track`: the same case over commits of a git repository, and the commits that changed its figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import App, Parameter

from strobe.cli.console import OUT, Output
from strobe.cli.interrupted import tells_what_is_kept
from strobe.cli.model import at_least
from strobe.cli.report import GATE_FAILED
from strobe.cli.require import Figure, Requirement, check_names, failures, parse_requirement
from strobe.cli.tables import banner_texts, table_text
from strobe.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from strobe.bench.track.builds import Case
    from strobe.perf.analysis.history.found import Found
    from strobe.perf.analysis.history.series import Series
    from strobe.perf.records.history import SessionRecords

track = App(name="track", help="Measure one case over commits of a git repository and find the commits that changed its figures.")
FIGURES: Final = ("last/first", "last/previous", "steps", "worse_steps", "failed")
"""What --require can name of each figure."""


@Parameter(name="*", group="Case")
@dataclass(frozen=True, kw_only=True)
class CaseFlags:
    """Commits to measure, and commands for each.

    Args:
        commits: A..B, both ends with it, along first parents, or one commit.
        repo: a clone of the repository.
        steps: at most so many of the commits, evenly spread.
        case: command line that is measured, run in a worktree of the commit. It may print a JSON object with figures as its
            last line, and leave run folders and traces in the folder that the variable STROBE_TRACK_OUT names.
        install: command line that is run once for each commit before; it counts as failed unless it ends with 0.
        environment: what both run in: none, as they are; venv, a virtual environment of each commit; shared, one that
            also sees the packages beside strobe. By default venv with --install, else none.
        figure: what is followed: wall, cpu, peak_memory, a number of the JSON object (results.fps), or VARIANT.e2e,
            VARIANT.block, VARIANT.step of a run folder; one or several, by default wall.
        higher: those of them of which more is better.
    """

    case: str
    commits: str = "HEAD~10..HEAD"
    repo: Path = Path()
    steps: int | None = None
    install: str = ""
    environment: Literal["none", "venv", "shared"] | None = None
    figure: tuple[str, ...] = ()
    higher: tuple[str, ...] = ()


@Parameter(name="*", group="Time")
@dataclass(frozen=True, kw_only=True)
class TimeFlags:
    """Limits of time.

    Args:
        timeout: seconds of one run of the command.
        install_timeout: seconds of one installation.
    """

    timeout: float = 600.0
    install_timeout: float = 3600.0

    def case(self, command: str, install: str, environment: Literal["none", "venv", "shared"]) -> Case:
        """The case with these limits."""
        from strobe.bench.track.builds import Case

        if self.timeout <= 0 or self.install_timeout <= 0:
            raise ConfigError("--timeout and --install-timeout: give seconds above 0")
        return Case(
            command=command,
            install=install,
            environment=environment,
            timeout_s=self.timeout,
            install_timeout_s=self.install_timeout,
        )


@Parameter(name="*", group="Report")
@dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """Flags of the history's report.

    Args:
        least: a change of a figure by less than this share is no step.
        require: a condition that must hold, such as last/first<=1.05, or wall:worse_steps<=0 for one figure, one or several. It
            names last/first or last/previous, ratios of values that hold only if their whole 95 % interval does
            (last/first~<=1.05 asks for the point estimate alone), or a number of steps, worse_steps or failed commits. Exit
            code 1 if it does not hold.
    """

    least: float = 0.01
    require: tuple[str, ...] = ()

    def requirements(self) -> list[Requirement]:
        """The conditions, read."""
        if not 0 < self.least < 1:
            raise ConfigError(f"--least {self.least:g}: give a share between 0 and 1, such as 0.02")
        return [parse_requirement(text) for text in self.require]


@track.command
def run(
    *,
    case: CaseFlags,
    rounds: int = 6,
    retry_failed: bool = False,
    limits: TimeFlags = TimeFlags(),
    told: ReportFlags = ReportFlags(),
    out: Annotated[Path, Parameter(alias=OUT)] = Path("history"),
    output: Output = Output(),
) -> int:
    """Measure what a history lacks of some commits: all in rounds, drift seen by a commit measured again, nothing twice.

    ```
    strobe track run --commits v1.0..main --steps 10 --install "pip install -e ." --case "python bench.py"  # needs-files
    strobe track run --case "python bench.py" --figure fps --higher fps --require "last/first>=0.95"  # needs-files
    ```

    Each commit gets a git worktree of its own, which goes away at the end; the repository's own files are not touched. After
    Ctrl-C the same command goes on. Exit code 1 if no commit could be measured.

    Args:
        rounds: measurements of each commit; an interval of a commit needs 6.
        retry_failed: try commits again that failed in an earlier session.
        out: folder of the history; a history has one case.
    """
    requirements = told.requirements()
    if not case.case.strip():
        raise ConfigError("--case is empty: give the command that is measured, such as 'python bench.py'")
    at_least(1, rounds=rounds, **({} if case.steps is None else {"steps": case.steps}))
    with output.progress("track") as progress:
        from strobe.bench.own.programs import argv_of
        from strobe.bench.track.figures import followed
        from strobe.bench.track.git import revisions, root_of, thinned
        from strobe.bench.track.session import Tracking, measure_commits

        figures = followed(case.figure, case.higher)
        check_names(requirements, [each.name for each in figures], FIGURES)
        environment = case.environment or ("venv" if case.install else "none")
        tracking = Tracking(
            repo=case.repo,
            history=out.absolute(),
            case=limits.case(case.case, case.install, environment),
            figures=figures,
            rounds=rounds,
            retry_failed=retry_failed,
        )
        for text in (case.case, case.install):
            argv_of(text or "true")  # what cannot be read is told before anything is made
        root_of(case.repo)
        told_of = revisions(case.repo, case.commits)
        with tells_what_is_kept(output, lambda: _kept(out)):
            taken = measure_commits(tracking, case.commits, thinned(told_of, case.steps), told_of, progress)
    nothing = "nothing was missing: every commit has its measurements, or failed before"
    output.note(nothing if taken is None else f"{taken} measurements taken")
    return _tell(out, out, told.least, requirements, output)


@track.command
def report(
    history: Annotated[Path, Parameter(name="HISTORY")],
    /,
    *,
    told: ReportFlags = ReportFlags(),
    out: Annotated[Path | None, Parameter(alias=OUT)] = None,
    output: Output = Output(),
) -> int:
    """Write report.html, report.md and report.json of a history again, and hold it to requirements.

    ```
    strobe track report history --require "last/first<=1.05"  # needs-files
    ```

    Args:
        history: folder that `strobe track run` wrote.
        out: the folder to write to; by default the history's own.
    """
    return _tell(history, out or history, told.least, told.requirements(), output)


@track.command
def find(
    history: Annotated[Path, Parameter(name="HISTORY")],
    /,
    *,
    commit: str | None = None,
    repo: Path | None = None,
    limits: TimeFlags = TimeFlags(),
    told: ReportFlags = ReportFlags(),
    output: Output = Output(),
) -> int:
    """Measure commits between the two sides of each step, halving them, until the commit that made it is left.

    ```
    strobe track find history  # needs-files
    ```

    Each session measures the middle commit and both sides of its step in the same rounds.

    Args:
        history: folder that `strobe track run` wrote; its case and figures are used again.
        commit: only steps that this commit may have made.
        repo: a clone of the repository; by default the one that was measured last.
    """
    requirements = told.requirements()
    with output.progress("find") as progress:
        from strobe.bench.track.bisect import narrow
        from strobe.bench.track.git import commit_of
        from strobe.bench.track.session import Tracking

        head = _read(history)[-1].session
        place = Path(head.repository) if repo is None else repo
        tracking = Tracking(
            repo=place,
            history=history.absolute(),
            case=limits.case(head.case, head.install, head.environment),
            figures=head.figures,
            rounds=head.rounds,
        )
        with tells_what_is_kept(output, lambda: _kept(history)):
            narrow(tracking, told.least, progress, None if commit is None else commit_of(place, commit))
    return _tell(history, history, told.least, requirements, output)


def _read(history: Path) -> tuple[SessionRecords, ...]:
    """The sessions of a history that has some."""
    from strobe.perf.records.history import read_history

    sessions = read_history(history)
    if not sessions:
        raise DataError(f"no history at {history}: `strobe track run` makes one")
    return sessions


def _kept(history: Path) -> Iterator[str]:
    from strobe.perf.records.history import read_history

    count = sum(len(each.samples) for each in read_history(history))
    if count:
        show = f"strobe track report {history}"
        yield f"the {count} measurements are kept: the same command goes on from there, {show} makes the page"


def _tell(history: Path, into: Path, least: float, requirements: Sequence[Requirement], output: Output) -> int:
    """Write the page, say what the history shows, hold it to the requirements."""
    from strobe.perf.analysis.history.found import find as find_all
    from strobe.perf.report.documents.history import history_document
    from strobe.perf.report.documents.step_accounts import step_accounts
    from strobe.perf.report.documents.value import to_json
    from strobe.perf.report.track_page.build import steps_table, track_report
    from strobe.perf.report.track_page.series import series_table
    from strobe.perf.report.write import write_report

    sessions = _read(history)
    found = find_all(sessions, least)
    accounts = list(step_accounts(sessions, found))
    page = track_report(sessions, found, least, [each.section for each in accounts])
    into.mkdir(parents=True, exist_ok=True)
    paths = write_report(page, into)
    for each in accounts:
        if each.report is not None:
            place = into / "steps" / each.name
            place.mkdir(parents=True, exist_ok=True)
            write_report(each.report, place)
    current = [each for each in found if each.current]
    figures = {each.series.figure.name: _figures(each) for each in current}
    failed = [line for each in requirements for line in failures(each, figures)]
    output.show(*banner_texts(page.banners))
    output.show(*(table_text(series_table(each), notes=False) for each in current))
    output.show(table_text(steps_table(current)) if any(each.steps for each in current) else "no steps")
    output.show(*(f"not met: {line}" for line in failed), " ".join(map(str, paths)))
    output.emit(
        {
            **to_json(history_document(sessions, found)),
            "report": {path.suffix[1:]: str(path) for path in paths},
            "figures": {name: _values(own.items()) for name, own in figures.items()},
            "not_met": failed,
        }
    )
    return GATE_FAILED if failed or not any(each.series.points for each in current) else 0


def _values(own: Iterable[tuple[str, Figure | None]]) -> dict[str, Any]:
    return {name: None if figure is None else figure.value for name, figure in own}


def _figures(found: Found) -> dict[str, Figure | None]:
    """Everything a requirement may name of one figure; ratios are of values, later / earlier."""
    series, steps = found.series, found.steps
    worse = sum((each.ratio < 1) if series.figure.higher else (each.ratio > 1) for each in steps)
    return {
        "last/first": _ratio(series, 0),
        "last/previous": _ratio(series, len(series.points) - 2),
        "steps": Figure(value=len(steps)),
        "worse_steps": Figure(value=worse),
        "failed": Figure(value=len(series.failed)),
    }


def _ratio(series: Series, against: int) -> Figure | None:
    """Value of the last commit over that of another; None if there are not two, or a later one failed."""
    from strobe.perf.analysis.history.steps import ratio_between

    last = len(series.points) - 1
    newer = [each for each in series.revisions if each.commit in series.failed and last >= 0]
    if not 0 <= against < last or any(each.position > series.points[last].revision.position for each in newer):
        return None
    ratio, interval, _ = ratio_between(series, (against,), (last,))
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return Figure(value=ratio, low=low, high=high, is_ratio=True)
