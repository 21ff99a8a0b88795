"""One session of a history: what is missing is installed and measured, in rounds, and every measurement is kept at once."""

from __future__ import annotations

import fcntl
import os
import platform
import random
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import strobe
from strobe.bench.case import Progress
from strobe.bench.track.builds import Builds, Case, building
from strobe.bench.track.commands import OUT, Ran
from strobe.bench.track.figures import figures_of
from strobe.bench.track.git import root_of
from strobe.core.errors import ConfigError, DataError
from strobe.core.main_memory import GIB, total_bytes
from strobe.perf.analysis.history.series import anchor_of
from strobe.perf.measure.machine import utc_now
from strobe.perf.records import environment
from strobe.perf.records.history import (
    KEPT,
    MEASUREMENTS,
    SESSIONS,
    FailedAt,
    Failure,
    Followed,
    Host,
    Revision,
    Sample,
    Session,
    SessionRecords,
    read_history,
)
from strobe.perf.records.store import RunWriter

_WORK: Final = ".work"
_LOCK: Final = ".lock"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tracking:
    """The case to follow, and the folder that keeps it.

    Args:
        repo: a clone of the repository.
        history: folder of the records.
        case: what is done with every commit.
        figures: what is read of a run.
        rounds: measurements of a commit.
        retry_failed: commits that failed in an earlier session are tried again.
    """

    repo: Path
    history: Path
    case: Case
    figures: tuple[Followed, ...]
    rounds: int = 6
    retry_failed: bool = False


def this_host() -> Host:
    """Say what machine this is."""
    total = total_bytes()
    gpus = environment.nvidia_gpus()
    return Host(
        cpu_name=environment.cpu_name(),
        cores=environment.cpu_cores(),
        memory_gib=None if total is None else round(total / GIB),
        gpus=tuple(name for name, _ in gpus),
        driver=gpus[0][1] if gpus else None,
        python=platform.python_version(),
        node=platform.node(),
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


@contextmanager
def held(history: Path) -> Iterator[None]:
    """Keep other sessions out of a history.

    Raises:
        ConfigError: another one is under way.
    """
    history.mkdir(parents=True, exist_ok=True)
    lock = os.open(history / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise ConfigError(
            f"{history}: another `strobe track` measures into it; wait for its end, or name another folder"
        ) from error
    finally:
        os.close(lock)


def check_same(tracking: Tracking, sessions: Sequence[SessionRecords], root: str) -> None:
    """Refuse to put another case or repository into a history.

    Raises:
        ConfigError: it has another one.
    """
    for each in sessions[-1:]:
        head, case = each.session, tracking.case
        pairs = (
            ("repository", head.root, root),
            ("--case", head.case, case.command),
            ("--install", head.install, case.install),
            ("--environment", head.environment, case.environment),
            ("--figure", [one.name for one in head.figures], [one.name for one in tracking.figures]),
        )
        for what, kept, asked in pairs:
            if kept != asked:
                raise ConfigError(
                    f"{tracking.history} is a history of {what} {kept!r}, got {asked!r}; name another folder with -o"
                )


def missing(tracking: Tracking, commits: Sequence[Revision], sessions: Sequence[SessionRecords], host: Host) -> dict[str, int]:
    """Return how many measurements each commit lacks on this machine; commits that failed in all they tried lack none."""
    own = [each for each in sessions if each.session.host.identity == host.identity]
    has = Counter(sample.commit for each in own for sample in each.samples)
    failed = set() if tracking.retry_failed else {one.commit for each in own for one in each.failures}
    return {
        each.commit: tracking.rounds - has[each.commit]
        for each in commits
        if has[each.commit] < tracking.rounds and (has[each.commit] or each.commit not in failed)
    }


def measure_commits(
    tracking: Tracking,
    asked: str,
    commits: Sequence[Revision],
    told: Sequence[Revision],
    progress: Progress,
    again: Sequence[str] = (),
) -> int | None:
    """Measure what a history lacks of some commits, in one session; nothing if it lacks nothing.

    Args:
        tracking: what is followed.
        asked: the commits as they were asked for.
        commits: those to measure.
        told: those to write down: the whole range, measured or not.
        again: measured in every round whatever there is of them: what a session holds others against.

    Returns:
        measurements taken; None: nothing was missing.

    Raises:
        ConfigError: the history is of another case, or another session is under way.
        StrobeError: records cannot be written.
    """
    with held(tracking.history):
        sessions, host, root = read_history(tracking.history), this_host(), root_of(tracking.repo)
        check_same(tracking, sessions, root)
        lacking = missing(tracking, commits, sessions, host)
        if not lacking:
            return None
        anchor = anchor_of([each for each in sessions if each.session.host.identity == host.identity])
        most = max(lacking.values())
        lacking |= dict.fromkeys((*again, *([anchor] if anchor else [])), most)
        now = datetime.now(UTC)
        head = Session(
            session=f"{now:%Y%m%dT%H%M%S.%fZ}-{secrets.token_hex(3)}",
            date=utc_now(),
            strobe=strobe.__version__,
            repository=str(tracking.repo.resolve()),
            root=root,
            commits=asked,
            case=tracking.case.command,
            install=tracking.case.install,
            environment=tracking.case.environment,
            figures=tracking.figures,
            rounds=tracking.rounds,
            anchor=anchor,
            host=host,
        )
        with (
            building(tracking.repo, tracking.case, tracking.history / _WORK) as builds,
            RunWriter(tracking.history / SESSIONS / head.session, MEASUREMENTS) as writer,
        ):
            writer.append(head, *told)
            writer.sync()
            return _Running(tracking, builds, writer, progress, lacking).measure()


class _Running:
    """A session under way."""

    def __init__(
        self, tracking: Tracking, builds: Builds, writer: RunWriter, progress: Progress, lacking: dict[str, int]
    ) -> None:
        self._tracking, self._builds, self._writer, self._progress = tracking, builds, writer, progress
        self._lacking = lacking
        self._out = tracking.history / _WORK / "out"
        self._done, self._order = 0, 0
        self._kept: set[str] = set()

    def measure(self) -> int:
        """Install all, try each once, then measure in rounds; a commit that fails is left out of later rounds."""
        ready = [commit for commit in self._lacking if self._prepared(commit)]
        for number in range(max((self._lacking[commit] for commit in ready), default=0)):
            taking = sorted(commit for commit in ready if self._lacking[commit] > number)
            random.Random(f"{self._writer.folder.name} {number}").shuffle(taking)
            for commit in taking:
                self._say(f"round {number + 1}: {commit[:10]}")
                if not self._measured(commit, number):
                    ready.remove(commit)
        return self._order

    def _say(self, what: str) -> None:
        self._progress(self._done, 2 * len(self._lacking) + sum(self._lacking.values()), what)
        self._done += 1

    def _prepared(self, commit: str) -> bool:
        """Install a commit, and run its command once to see that it does and to warm up what it keeps."""
        self._say(f"installing {commit[:10]}")
        failed = self._builds.make(commit)
        if failed is None:
            self._say(f"trying {commit[:10]}")
            failed = self._run(commit)[1]
        if failed is not None:
            self._failed(commit, None, *failed)
        return failed is None

    def _measured(self, commit: str, number: int) -> bool:
        """Take one measurement and keep it."""
        date, load, mhz = utc_now(), environment.load_average(), environment.cpu_mhz()
        ran, failed, figures = self._run(commit)
        if failed is not None:
            self._failed(commit, number, *failed)
            return False
        self._writer.append(
            Sample(
                commit=commit,
                round=number,
                order=self._order,
                date=date,
                figures=figures,
                wall_ns=ran.wall_ns,
                cpu_ns=ran.cpu_ns,
                peak_bytes=ran.peak_bytes,
                load=load,
                mhz=mhz,
                kept=self._keep(commit),
            )
        )
        self._writer.sync()
        self._order += 1
        return True

    def _run(self, commit: str) -> tuple[Ran, tuple[FailedAt, Ran] | None, dict[str, float]]:
        """Run the command and read its figures."""
        _empty(self._out)
        ran = self._builds.run(commit, {OUT: str(self._out.resolve())})
        if ran.why:
            return ran, ("run", ran), {}
        try:
            return ran, None, figures_of(ran, self._out, self._tracking.figures)
        except DataError as error:
            return ran, ("figure", Ran(code=ran.code, why=str(error), stdout="")), {}

    def _failed(self, commit: str, number: int | None, at: FailedAt, ran: Ran) -> None:
        self._writer.append(Failure(commit=commit, at=at, round=number, code=ran.code, reason=ran.why))
        self._writer.sync()

    def _keep(self, commit: str) -> str | None:
        """Keep what the first measurement of a commit left in the folder it was given."""
        if commit in self._kept or not any(self._out.iterdir()):
            return None
        self._kept.add(commit)
        place = self._writer.folder / KEPT / commit
        place.parent.mkdir(exist_ok=True)
        self._out.rename(place)
        return f"{KEPT}/{commit}"


def _empty(folder: Path) -> None:
    """Make a folder that holds nothing."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
