"""Commits checked out and installed, each in a folder of its own that goes away at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from strobe.bench.executor import LocalExecutor
from strobe.bench.own.programs import argv_of
from strobe.bench.track.commands import Ran, make_environment, run_command
from strobe.bench.track.git import add_worktree, remove_worktrees
from strobe.core.errors import StrobeError
from strobe.core.settings import inherited_environment
from strobe.perf.records.history import EnvironmentKind, FailedAt


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Commands for every commit.

    Args:
        command: command line that is measured, in the commit's worktree.
        install: command line before, once; empty: none.
        environment: what both run in.
        timeout_s: of the command.
        install_timeout_s: of the installation.
    """

    command: str
    install: str = ""
    environment: EnvironmentKind = "none"
    timeout_s: float = 600.0
    install_timeout_s: float = 3600.0


class Builds:
    """Commits that are ready to be measured.

    Args:
        repo: the repository.
        case: what is done with each.
        folder: where they are made; `building` makes and removes it.
    """

    def __init__(self, repo: Path, case: Case, folder: Path) -> None:
        self._repo, self._case, self._folder = repo, case, folder
        self._executor = LocalExecutor()
        self._ready: dict[str, dict[str, str]] = {}

    def make(self, commit: str) -> tuple[FailedAt, Ran] | None:
        """Check a commit out and install it.

        Returns:
            what failed, and how; None if nothing did.
        """
        place = self._folder / commit
        place.mkdir()
        try:
            add_worktree(self._repo, commit, place / "tree")
        except StrobeError as error:
            return "checkout", Ran(code=None, why=str(error), stdout="")
        path = inherited_environment().get("PATH", "")
        env, why = make_environment(self._executor, self._case.environment, place / "venv", path)
        if why:
            return "install", Ran(code=None, why=why, stdout="")
        self._ready[commit] = env
        if self._case.install:
            ran = run_command(self._executor, argv_of(self._case.install), place / "tree", env, self._case.install_timeout_s)
            if ran.why:
                return "install", ran
        return None

    def run(self, commit: str, variables: dict[str, str]) -> Ran:
        """Run the command on a commit that was made.

        Args:
            variables: set for this run.
        """
        env = self._ready[commit] | variables
        return run_command(self._executor, argv_of(self._case.command), self._folder / commit / "tree", env, self._case.timeout_s)


@contextmanager
def building(repo: Path, case: Case, folder: Path) -> Iterator[Builds]:
    """Make builds in a folder, and remove it at the end, however that comes; also what an earlier one left there."""
    remove_worktrees(repo, folder)
    try:
        folder.mkdir(parents=True)
        yield Builds(repo, case, folder)
    finally:
        remove_worktrees(repo, folder)
