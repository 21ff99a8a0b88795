"""Records of `strobe track`: figures of one case over commits of a repository, line by line.

A history is a folder; every session that measured something has a folder of its own in `sessions`, with `measurements.jsonl`,
whose lines are the structs below, sealed like those of a run. Nothing is rewritten: histories of two machines are merged by
copying sessions side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from strobe.core.errors import DataError
from strobe.core.files import file_inside
from strobe.perf.records.base import Line, Prose, RecordPart
from strobe.perf.records.lines import read_lines

MEASUREMENTS: Final = "measurements.jsonl"
SESSIONS: Final = "sessions"
"""Folder of the sessions in that of a history."""
KEPT: Final = "kept"
"""Folder of a session for what commands left."""

EnvironmentKind = Literal["none", "venv", "shared"]
"""Commands run as they are; in a virtual environment per commit; in one that also sees the packages beside strobe."""
FailedAt = Literal["checkout", "install", "run", "figure"]


class Host(RecordPart, frozen=True, kw_only=True):
    """The machine of a session. A series is interrupted where any of these but the last two changes."""

    cpu_name: Annotated[str, Meta(description="model name of the CPU")]
    cores: Annotated[int, Meta(description="number of CPU cores that the commands may use")]
    memory_gib: Annotated[int | None, Meta(description="main memory, rounded, GiB; null: not known")]
    gpus: Annotated[tuple[str, ...], Meta(description="model names of the GPUs, from `nvidia-smi`")]
    driver: Annotated[str | None, Meta(description="GPU driver version; null: not known")]
    python: Annotated[str, Meta(description="Python version, also of the virtual environments")]
    node: Annotated[str, Meta(description="host name; a container gets a new one at every start")]
    os: Annotated[str, Meta(description="operating system and kernel")]

    @property
    def identity(self) -> tuple[object, ...]:
        """Return the facts that must be equal for two measurements to be compared."""
        return (self.cpu_name, self.cores, self.memory_gib, self.gpus, self.driver, self.python)


class Followed(RecordPart, frozen=True, kw_only=True):
    """One figure of the case."""

    name: Annotated[
        str,
        Meta(description="`wall`, `cpu`, `peak_memory`, a key that the command prints, or VARIANT.LEVEL of a run folder"),
    ]
    unit: Annotated[Literal["", "ns", "bytes"], Meta(description="unit of the figure; empty: not known")] = ""
    higher: Annotated[bool, Meta(description="true: higher values are better")] = False


class Session(Line, frozen=True, kw_only=True):
    """First line of a session: the case, the repository and the machine."""

    session: Annotated[str, Meta(description="name of the session's folder")]
    date: Annotated[str, Meta(description="start of the session, UTC, ISO 8601")]
    strobe: Annotated[str, Meta(description="version of strobe")]
    repository: Annotated[str, Meta(description="path of the repository on that machine")]
    root: Annotated[
        str, Meta(description="hash of the first commit of the repository; identifies the repository whatever its path")
    ]
    commits: Annotated[str, Meta(description="requested commits, as git names them")]
    case: Annotated[str, Meta(description="command line that is measured")]
    install: Annotated[str, Meta(description="command line that installs a commit; empty: none")]
    environment: Annotated[EnvironmentKind, Meta(description="environment of the commands")]
    figures: Annotated[tuple[Followed, ...], Meta(description="figures that are read from a run")]
    rounds: Annotated[int, Meta(description="requested number of measurements of each commit")]
    anchor: Annotated[
        str | None, Meta(description="commit that is measured again to tie this session to earlier ones; null: first session")
    ]
    host: Annotated[Host, Meta(description="machine of the session")]


class Revision(Line, frozen=True, kw_only=True):
    """A commit of the range, measured or not."""

    commit: Annotated[str, Meta(description="full commit hash")]
    position: Annotated[
        int, Meta(description="number of commits from the first of the repository to this one, along first parents")
    ]
    parents: Annotated[tuple[str, ...], Meta(description="full hashes of the parents")]
    date: Annotated[str, Meta(description="date of the commit (committer), UTC, ISO 8601")]
    subject: Annotated[Prose, Meta(description="first line of the commit message")]


class Sample(Line, frozen=True, kw_only=True):
    """One measurement of one commit."""

    commit: Annotated[str, Meta(description="full commit hash")]
    round: Annotated[
        int, Meta(description="number of the round in the session, from 0; a round measures every commit once, in random order")
    ]
    order: Annotated[int, Meta(description="position in the session, from 0")]
    date: Annotated[str, Meta(description="start of the measurement, UTC, ISO 8601")]
    figures: Annotated[dict[str, float], Meta(description="by figure: its value")]
    wall_ns: Annotated[int, Meta(description="time from the start of the command's process to its end, ns")]
    cpu_ns: Annotated[int, Meta(description="CPU time of the process and of the processes it waited for, user and system, ns")]
    peak_bytes: Annotated[
        int | None, Meta(description="largest resident set of one of its processes; null: no more than starting it takes")
    ]
    load: Annotated[float | None, Meta(description="1-minute load average before the measurement")]
    mhz: Annotated[int | None, Meta(description="mean clock of the CPU cores before the measurement, MHz; null: not known")]
    kept: Annotated[
        str | None, Meta(description="folder of the files that the command left, relative to the session's; null: none")
    ] = None


class Failure(Line, frozen=True, kw_only=True):
    """A commit that could not be measured."""

    commit: Annotated[str, Meta(description="full commit hash")]
    at: Annotated[FailedAt, Meta(description="step that failed")]
    round: Annotated[int | None, Meta(description="number of the round; null: before the first round")] = None
    code: Annotated[
        int | None, Meta(description="exit code of the command; negative: the signal; null: timed out, or never began")
    ]
    reason: Annotated[Prose, Meta(description="last output of the step that failed")]


HistoryLine = Session | Revision | Sample | Failure
HISTORY_LINES: Final = (Session, Revision, Sample, Failure)
_decoder: Final[msgspec.json.Decoder[HistoryLine]] = msgspec.json.Decoder(HistoryLine)


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionRecords:
    """Every line of one session that is as it was written.

    Args:
        folder: of the session.
        damage: what is damaged and left out, one sentence each.
    """

    folder: Path
    session: Session
    revisions: tuple[Revision, ...]
    samples: tuple[Sample, ...]
    failures: tuple[Failure, ...]
    damage: tuple[str, ...]


def read_history(folder: Path) -> tuple[SessionRecords, ...]:
    """Read all sessions of a history, oldest first; none if there is no such folder.

    Raises:
        DataError: a session without a first line, or the folder is not one.
        RecordVersionError: a line was written with a schema this reader does not know.
    """
    try:
        places = [place for place in (folder / SESSIONS).iterdir() if place.is_dir()]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise DataError(f"no history at {folder}: {error.strerror}; `strobe track run` makes one") from error
    found = [session for place in places if (session := _read_session(place)) is not None]
    return tuple(sorted(found, key=lambda each: (each.session.date, each.session.session)))


def _read_session(folder: Path) -> SessionRecords | None:
    """One session; None if it was ended before its first line."""
    try:
        file = file_inside(folder, MEASUREMENTS)
        data = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"no measurements at {folder}: {error.strerror}; remove the folder") from error
    lines = read_lines(file, data, _decoder)
    records = list(lines.found.values())
    heads = [record for record in records if isinstance(record, Session)]
    if not heads:
        if not lines.bad and not records:
            return None
        raise DataError(f"{file} has no first line: it is damaged, or no file of measurements; remove {folder}")
    damage = []
    if lines.bad:
        damage.append(f"{folder.name}: lines {', '.join(map(str, lines.bad[:8]))} of {MEASUREMENTS} are damaged and not read")
    if lines.missing:
        damage.append(f"{folder.name}: {MEASUREMENTS} lacks {lines.missing} of its lines")
    return SessionRecords(
        folder=folder,
        session=heads[0],
        revisions=tuple(record for record in records if isinstance(record, Revision)),
        samples=tuple(record for record in records if isinstance(record, Sample)),
        failures=tuple(record for record in records if isinstance(record, Failure)),
        damage=tuple(damage),
    )
