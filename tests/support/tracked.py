"""`strobe track` from Python over small repositories, and whether it left one as it was."""

from __future__ import annotations

import sys
from pathlib import Path

from histories import git
from strobe.bench.track.builds import Case
from strobe.bench.track.figures import followed
from strobe.bench.track.git import revisions, thinned
from strobe.bench.track.session import Tracking, measure_commits
from strobe.perf.records.history import Revision

CASE = Case(command=f"{sys.executable} bench.py", install=f"{sys.executable} install.py", timeout_s=60, install_timeout_s=60)


def nothing(done: int, total: int, what: str) -> None:
    assert 0 <= done < total, what


def tracking(repo: Path, history: Path, **changes: object) -> Tracking:
    given: dict[str, object] = {"repo": repo, "history": history, "case": CASE, "figures": followed(["ms"], []), "rounds": 2}
    return Tracking(**(given | changes))  # type: ignore[arg-type]


def measure(job: Tracking, asked: str, most: int | None = None) -> tuple[int | None, tuple[Revision, ...]]:
    told = revisions(job.repo, asked)
    return measure_commits(job, asked, thinned(told, most), told, nothing), told


def untouched(repo: Path) -> bool:
    """One worktree, nothing changed in it, no branch made, nothing left in git's own folder."""
    assert len(git(repo, "worktree", "list").splitlines()) == 1
    assert git(repo, "branch", "--list").split() == ["*", "main"]
    return git(repo, "status", "--porcelain") == "" and not list((repo / ".git").glob("worktrees/*"))
