"""One command at several commits of a git repository, as programs to compare, each in a worktree that goes away."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from strobe.bench.own.programs import Program, argv_of
from strobe.core.errors import ConfigError, StrobeError
from strobe.core.printable import clean
from strobe.core.settings import inherited_environment

_GIT_TIMEOUT_S: Final = 600.0
_INSTALL_TIMEOUT_S: Final = 3600.0
_TOLD_LINES: Final = 3
_QUIET: Final = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "advice.detachedHead=false")
_NOT_PASSED: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "GIT_DIR", "GIT_WORK_TREE")
"""What would show a command the code of another checkout than its own."""


def commit_of(name: str) -> str:
    """Return the hash of a commit of the repository here.

    Raises:
        ConfigError: there is no repository, or no such commit.
    """
    try:
        _git("rev-parse", "--git-dir")
    except StrobeError as error:
        raise ConfigError(f"--commits: run this inside a clone of the repository; {error}") from error
    try:
        return _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()
    except StrobeError as error:
        said = f"--commits: the repository here has no commit {name!r}; give names such as v1.0 main, not a range"
        raise ConfigError(f"{said}. A shallow clone has few: git fetch --unshallow brings the others") from error


@contextmanager
def checked_out(commits: Sequence[str], names: Sequence[str], command: str, install: str) -> Iterator[tuple[Program, ...]]:
    """Check each commit out into a folder of its own and install it there; all of them go away at the end.

    The working tree, the branches and the stash of the repository stay as they are, and its hooks do not run.

    Args:
        commits: names that git knows.
        names: one for each, in the records.
        command: command line that is measured, in the folder of each.
        install: command line before, once for each, in a virtual environment of its own that sees the packages beside strobe
            too; empty: none, and no environment.

    Yields:
        the command at each commit.

    Raises:
        ConfigError: there are fewer than two commits, one that is not there, or a command that cannot be read.
        StrobeError: a commit cannot be checked out or installed.
    """
    if len(commits) < 2:
        raise ConfigError(f"--commits: a comparison needs two or more, got {' '.join(commits)}; such as --commits main HEAD")
    if not command.strip():
        raise ConfigError("give the command that is measured: strobe compare --commits main HEAD -- 'python bench.py'")
    for text in (command, install or "true"):
        argv_of(text)  # what cannot be read is told before anything is made
    if len(names) != len(commits) or len(set(names)) < len(names) or not all(name.strip() for name in names):
        raise ConfigError(f"--names: give {len(commits)} different names, one for each commit, got: {', '.join(names)}")
    hashes = [commit_of(name) for name in commits]
    with tempfile.TemporaryDirectory(prefix="strobe-commits-", ignore_cleanup_errors=True) as text:
        folder = Path(text)
        try:
            yield tuple(
                _made(folder / str(number), name, commit, command, install)
                for number, (name, commit) in enumerate(zip(names, hashes, strict=True))
            )
        finally:
            for place in folder.iterdir():
                with suppress(StrobeError):
                    _git("worktree", "remove", "--force", "--force", str(place / "tree"))
            shutil.rmtree(folder, ignore_errors=True)
            _git("worktree", "prune")


def _made(place: Path, name: str, commit: str, command: str, install: str) -> Program:
    tree = place / "tree"
    _git("worktree", "add", "--quiet", "--force", "--detach", str(tree), commit)
    environment = {key: value for key, value in inherited_environment().items() if key not in _NOT_PASSED}
    if install:
        has_pip = importlib.util.find_spec("pip") is not None  # beside strobe: a copy would take most of the time
        options = ["--without-pip"] if has_pip else []
        _run((sys.executable, "-m", "venv", *options, str(place / "venv")), place, environment, f"{name}: no virtual environment")
        if has_pip:
            script = place / "venv" / "bin" / "pip"
            script.write_text('#!/bin/sh\nexec "$(dirname "$0")/python" -m pip "$@"\n', encoding="utf-8")
            script.chmod(0o755)
        (site,) = (place / "venv").glob("lib/python*/site-packages")
        beside = [each for each in sys.path if Path(each).name in ("site-packages", "dist-packages")]
        (site / "zz_beside_strobe.pth").write_text("".join(f"{each}\n" for each in beside), encoding="utf-8")
        path = f"{place / 'venv' / 'bin'}:{environment.get('PATH', '')}"
        environment |= {"PATH": path, "VIRTUAL_ENV": str(place / "venv")}
        _run(argv_of(install), tree, environment, f"{name}: --install {install!r} failed")
    return Program(
        name=name,
        command=f"{command}  # at {commit[:12]}",
        argv=argv_of(command),
        folder=str(tree),
        environment=environment,
    )


def _git(*arguments: str) -> str:
    """Return what git prints; hooks of the repository do not run.

    Raises:
        StrobeError: there is no git, or it failed; with what it said.
    """
    options = [word for option in _QUIET for word in ("-c", option)]
    environment = {key: value for key, value in inherited_environment().items() if not key.startswith("GIT_")}
    return _run(("git", *options, *arguments), Path(), environment, f"git {arguments[0]}", _GIT_TIMEOUT_S)


def _run(argv: Sequence[str], folder: Path, env: dict[str, str], what: str, timeout_s: float = _INSTALL_TIMEOUT_S) -> str:
    try:
        done = subprocess.run(
            argv, cwd=folder, env=env, capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout_s, check=False
        )
    except FileNotFoundError as error:
        raise StrobeError(f"{what}: no program {argv[0]!r} on this machine; install it, or check its path") from error
    except subprocess.TimeoutExpired as error:
        raise StrobeError(f"{what}: it took more than {timeout_s:g} s") from error
    if done.returncode:
        said = [line.strip() for line in (done.stderr or done.stdout).decode(errors="replace").splitlines() if line.strip()]
        told = clean(" / ".join(said[-_TOLD_LINES:])) or "it said nothing"
        raise StrobeError(f"{what}: exit code {done.returncode}: {told}")
    return done.stdout.decode(errors="replace")
