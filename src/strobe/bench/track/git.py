"""Reading of a git repository, and worktrees made of it. Names go to git as arguments, after the last option.

Hooks of the repository are not run, and its own working tree is neither read nor written.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from strobe.core.errors import ConfigError, StrobeError
from strobe.core.printable import clean
from strobe.perf.records.history import Revision

TIMEOUT_S: Final = 600.0
_QUIET: Final = (
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "log.showSignature=false",
    "-c",
    "advice.detachedHead=false",
)
_FIELDS: Final = "%x1f".join(("%H", "%P", "%ct", "%s"))


def git(repo: Path, *arguments: str) -> str:
    """Return what git prints.

    Raises:
        StrobeError: there is no git, or it failed; with what it said.
    """
    try:
        done = subprocess.run(
            ("git", "-C", str(repo), *_QUIET, *arguments),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise StrobeError("git is not on this machine; install it") from error
    except subprocess.TimeoutExpired as error:
        raise StrobeError(f"git {arguments[0]} took more than {TIMEOUT_S:g} s in {repo}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise StrobeError(f"git {arguments[0]} failed in {repo}: {clean(said[-1]) if said else f'exit code {done.returncode}'}")
    return done.stdout.decode(errors="replace")


def root_of(repo: Path) -> str:
    """Return the first commit of the repository along first parents: which repository it is.

    Raises:
        ConfigError: there is no repository, or its history is cut off.
    """
    if not repo.is_dir():
        raise ConfigError(f"--repo {repo}: no such folder; name a clone of the repository")
    try:
        shallow = git(repo, "rev-parse", "--is-shallow-repository").strip()
    except StrobeError as error:
        raise ConfigError(f"--repo {repo}: {error}") from error
    if shallow == "true":
        raise ConfigError(f"--repo {repo}: the clone is shallow; `git fetch --unshallow` brings the other commits")
    try:
        return git(repo, "rev-list", "--first-parent", "--max-parents=0", "HEAD").split()[-1]
    except (StrobeError, IndexError) as error:
        raise ConfigError(f"--repo {repo}: HEAD has no commit yet") from error


def commit_of(repo: Path, name: str) -> str:
    """Return the hash of a commit.

    Raises:
        ConfigError: the repository has no such commit.
    """
    try:
        return git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()
    except StrobeError as error:
        raise ConfigError(f"--commits: {repo} has no commit {name!r}; give A..B, or one commit") from error


def revisions(repo: Path, asked: str) -> tuple[Revision, ...]:
    """Return the commits of `A..B`, both ends with it, or of one name, oldest first, along first parents.

    What a merge brought in counts as the merge. If A is not among the first parents of B, the range begins where they
    leave what A has.

    Raises:
        ConfigError: a name that is no commit, or nothing between the two.
    """
    first, dots, last = asked.partition("..")
    if last.startswith("."):
        raise ConfigError(f"--commits {asked}: three dots are no range here; write A..B")
    end = commit_of(repo, (last or "HEAD") if dots else asked)
    if not dots:
        return _described(repo, "-1", end)
    start = commit_of(repo, first or "HEAD")
    inside = git(repo, "rev-list", "--first-parent", "--reverse", end, f"^{start}").split()
    if not inside:
        if start == end:
            return _described(repo, "-1", end)
        raise ConfigError(f"--commits {asked}: {last or 'HEAD'} has no commit that {first} has not; turn them round")
    before = git(repo, "rev-list", "-1", "--parents", inside[0]).split()[1:2]
    return _described(repo, f"--max-count={len(inside) + len(before)}", end)


def _described(repo: Path, count: str, end: str) -> tuple[Revision, ...]:
    """Commits up to one, with their numbers along first parents."""
    text = git(repo, "log", "-z", "--first-parent", "--no-patch", "--no-color", f"--format={_FIELDS}", count, end)
    lines = [line for line in text.split("\0") if line]
    last = int(git(repo, "rev-list", "--first-parent", "--count", end))
    found = []
    for place, line in enumerate(lines):
        commit, parents, seconds, subject = line.strip("\n").split("\x1f", 3)
        date = datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found.append(
            Revision(commit=commit, position=last - place, parents=tuple(parents.split()), date=date, subject=subject[:500])
        )
    return tuple(reversed(found))


def thinned(found: tuple[Revision, ...], most: int | None) -> tuple[Revision, ...]:
    """Return at most so many commits, evenly spread, with both ends."""
    if most is None or most >= len(found):
        return found
    if most == 1:
        return found[-1:]
    return tuple(found[round(at * (len(found) - 1) / (most - 1))] for at in range(most))


def add_worktree(repo: Path, commit: str, place: Path) -> None:
    """Check a commit out into a folder of its own.

    Raises:
        StrobeError: it cannot be checked out.
    """
    git(repo, "worktree", "add", "--quiet", "--force", "--detach", str(place), commit)


def remove_worktrees(repo: Path, folder: Path) -> None:
    """Remove a folder with worktrees, and what the repository keeps of them."""
    for place in folder.iterdir() if folder.is_dir() else ():
        with suppress(StrobeError):
            git(repo, "worktree", "remove", "--force", "--force", str(place / "tree"))
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(StrobeError):
        git(repo, "worktree", "prune")
