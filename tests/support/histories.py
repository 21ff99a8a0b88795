"""Histories drawn from numbers: sessions as `strobe track` keeps them, and git repositories whose programs print their speed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from strobe.perf.records.history import Failure, Followed, Host, Revision, Sample, Session, SessionRecords

HOST = Host(cpu_name="a CPU", cores=2, memory_gib=8, gpus=(), driver=None, python="3.12.1", node="here", os="Linux")
WALL = Followed(name="wall", unit="ns")


def revision(number: int, parents: tuple[str, ...] = ()) -> Revision:
    """Commit `cN`, the N-th of its branch."""
    return Revision(
        commit=f"c{number}", position=number, parents=parents, date="2026-01-01T00:00:00Z", subject=f"change {number}"
    )


def session(
    values: Mapping[int, Sequence[float]],
    *,
    name: str = "20260101T000000Z-aaaaaa",
    host: Host = HOST,
    failed: Sequence[int] = (),
    told: Sequence[int] = (),
    figure: Followed = WALL,
) -> SessionRecords:
    """A session that measured some commits: values by commit, one per round; `told` are commits of the range beside them."""
    numbers = sorted({*values, *failed, *told})
    head = Session(
        session=name,
        date=name,
        strobe="0",
        repository="here",
        root="c1",
        commits="a..b",
        case="python bench.py",
        install="",
        environment="none",
        figures=(figure,),
        rounds=len(next(iter(values.values()), ())),
        anchor=None,
        host=host,
    )
    samples = [
        Sample(
            commit=f"c{number}",
            round=at,
            order=at,
            date="",
            figures={figure.name: float(value)},
            wall_ns=1,
            cpu_ns=1,
            peak_bytes=None,
            load=None,
            mhz=None,
        )
        for number, own in values.items()
        for at, value in enumerate(own)
    ]
    return SessionRecords(
        folder=Path(),
        session=head,
        revisions=tuple(map(revision, numbers)),
        samples=tuple(samples),
        failures=tuple(Failure(commit=f"c{number}", at="run", code=1, reason="broke") for number in failed),
        damage=(),
    )


def noisy(levels: Sequence[float], rounds: int, noise: float, seed: int, builds: float = 0.0) -> dict[int, list[float]]:
    """Values around some levels: noise of each measurement, of each round and of each build, as shares."""
    draw = np.random.default_rng(seed)
    logs = np.log(levels) + noise * draw.standard_normal((rounds, len(levels)))
    logs += builds * draw.standard_normal(len(levels)) + 0.1 * draw.standard_normal((rounds, 1))
    return {at + 1: np.exp(logs[:, at]).tolist() for at in range(len(levels))}


def git(repo: Path, *arguments: str) -> str:
    """What git prints."""
    quiet = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(repo), *quiet, *arguments], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


PRINTS = "import json, sys\nprint(json.dumps({figures}))\n"


def commit(repo: Path, message: str, figures: dict[str, Any], **files: str) -> str:
    """Commit a program that prints some figures, and other files by stem; return the hash."""
    written = {"bench": PRINTS.format(figures=json.dumps(figures)), "install": "", **files}
    for stem, text in written.items():
        (repo / f"{stem}.py").write_text(text)
    (repo / "note").write_text(message)
    git(repo, "add", "--all")
    git(repo, "commit", "--quiet", "--message", message)
    return git(repo, "rev-parse", "HEAD")


def twelve_commits(repo: Path) -> list[str]:
    """A repository: 100 ms, from the 5th commit 150, from the 9th 120; the 3rd does not install, the 7th crashes."""
    repo.mkdir()
    git(repo, "init", "--quiet", "--initial-branch", "main")
    made = []
    for number in range(1, 13):
        ms = 100 if number < 5 else 150 if number < 9 else 120
        files = {"install": "raise SystemExit('no install here')"} if number == 3 else {}
        files |= {"bench": "raise ValueError('it is broken')"} if number == 7 else {}
        made.append(commit(repo, f"commit {number}", {"ms": ms, "nested": {"fps": 1000 / ms}}, **files))
    return made
