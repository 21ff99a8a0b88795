"""Whole programs, also one at several commits, timed in palindromes: wall time, CPU time and peak memory of each run."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from strobe.bench.case import Progress
from strobe.bench.runner import Rounds, VariantError, end_line, timed_span
from strobe.core.errors import ConfigError, StrobeError
from strobe.core.printable import clean
from strobe.core.settings import inherited_environment
from strobe.core.spans import E2E
from strobe.perf.measure.machine import describe_run, read_clocks
from strobe.perf.measure.timing import palindrome
from strobe.perf.records import record
from strobe.perf.records.store import RunWriter

_LAUNCHER: Final = Path(__file__).with_name("launcher.py")
_QUOTED: Final = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"")
_FOR_A_SHELL: Final = re.compile(r"[|&;<>()$`*?\[\]#~{}!\n]|^\s*\w+=")
_BUILT_IN: Final = frozenset((".", ":", "cd", "eval", "exec", "exit", "export", "for", "if", "ulimit", "umask", "until", "while"))
_TOLD_LINES: Final = 3
_TOLD_BYTES: Final = 4096
_LONGEST_NAME: Final = 60
_GRACE_S: Final = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A command line.

    Args:
        argv: what is run: its words, or a shell that reads it.
        environment: its variables; None: those of this process.
    """

    name: str
    command: str
    argv: tuple[str, ...]
    folder: str = "."
    environment: Mapping[str, str] | None = None


def programs_of(commands: Sequence[Sequence[str]], names: Sequence[str] = ()) -> tuple[Program, ...]:
    """Return the programs of some command lines, each a list of words or one text that holds all of them.

    A text goes to a shell only where it needs one: a pipe, a variable, a pattern or the like outside of quotes.

    Args:
        names: one for each; by default the command itself, with a number where it is there twice.

    Raises:
        ConfigError: fewer than two commands, an empty one, a quote without its end, or names that do not fit.
        StrobeError: there is no such program on this machine.
    """
    texts = [words[0] if len(words) == 1 else shlex.join(words) for words in commands]
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise ConfigError(f"command {number} is empty; write each behind a -- of its own: -- 'python a.py' -- 'python b.py'")
    if len(texts) < 2:
        raise ConfigError("a comparison needs two commands or more: strobe compare -- 'python a.py' -- 'python b.py'")
    names = names or told_apart(texts)
    _check_names(names, len(texts), "command")
    argvs = [argv_of(text) if len(words) == 1 else tuple(words) for text, words in zip(texts, commands, strict=True)]
    for argv, text in zip(argvs, texts, strict=True):
        if shutil.which(argv[0]) is None:
            raise StrobeError(f"no program {argv[0]!r} on this machine, which the command {text!r} begins with; check its path")
    return tuple(Program(name=name, command=text, argv=argv) for name, text, argv in zip(names, texts, argvs, strict=True))


def _check_names(names: Sequence[str], count: int, what: str) -> None:
    if len(names) != count or len(set(names)) < count or not all(name.strip() for name in names):
        raise ConfigError(f"--names: give {count} different names, one for each {what}, got: {', '.join(names)}")


def argv_of(text: str) -> tuple[str, ...]:
    """Return the words of a command, or a shell that reads it, where it needs one."""
    if text.split()[0] in _BUILT_IN:
        return ("sh", "-c", text)
    unquoted = _QUOTED.sub(lambda found: "$" if found[0][0] == '"' and re.search(r"[$`]", found[0]) else "", text)
    if _FOR_A_SHELL.search(unquoted):
        return ("sh", "-c", text)
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"the command {text!r} cannot be read: {str(error).lower()}") from error


def told_apart(texts: Sequence[str]) -> tuple[str, ...]:
    """Return names that differ, from commands or commits that may not."""
    found: list[str] = []
    for text in texts:
        line = " ".join(text.split())
        name = short = line if len(line) <= _LONGEST_NAME else f"{line[: _LONGEST_NAME - 3]}..."
        number = 2
        while name in found:
            name, number = f"{short} ({number})", number + 1
        found.append(name)
    return tuple(found)


def measure_programs(
    programs: Sequence[Program],
    open_run: Callable[[], RunWriter],
    progress: Progress,
    *,
    rounds: int = 4,
    warmup: int = 1,
    prepare: str = "",
) -> Path:
    """Run programs in palindromes, the first being the baseline; return the run folder.

    Their output is thrown away, and stdin is empty. In its untimed runs a program may leave profiler traces in the folder that
    the variable STROBE_PROFILE_DIR names (`traces_of`).

    Args:
        rounds: palindromes `B C1 C2 C2 C1 B` of runs; an interval needs 2.
        prepare: a command before every run, not timed; empty for none.

    Raises:
        VariantError: a program failed, with its exit status and the last lines of its stderr.
        StrobeError: the command that prepares failed, or the records cannot be written.
    """
    if rounds < 1 or warmup < 0:
        raise ConfigError(f"give 1 round or more and 0 runs of warm-up or more, got {rounds} and {warmup}")
    names, cpu = [each.name for each in programs], torch.device("cpu")
    with open_run() as writer, end_line(writer):
        run = Rounds(writer, cpu, progress, len(programs) * (warmup + 2 * rounds))
        writer.append(describe_run(writer.folder, cpu, palindrome(names[0], names[1:]), rounds, "programs"))
        for number, program in enumerate(programs):
            writer.append(record.Variant(name=program.name, preset=record.CUSTOM, command=program.command))
            traces = {"STROBE_PROFILE_DIR": str(traces_of(writer.folder.absolute(), number))}
            for index in range(warmup):
                run.say(f"warming up {program.name}, run {index + 1} of {warmup}")
                _time(run, program, "warmup", None, prepare, traces)
            if warmup:
                run.exclude(program.name, range(warmup), "warm-up", "warm-up")
        for name, lap in run.laps(names, rounds):
            _time(run, programs[names.index(name)], "timed", lap, prepare, {})
        return writer.folder


def _time(run: Rounds, program: Program, phase: record.Phase, lap: int | None, prepare: str, more: Mapping[str, str]) -> None:
    """Run a program once, after the command that prepares, and record it; `more`: variables of its environment."""
    if prepare:
        prepared, said = _launch(program, argv_of(prepare), {})
        if why := _failed(prepared, said):
            raise StrobeError(f"--prepare {prepare!r}: {why}")
    took, said = _launch(program, program.argv, more)
    if "not_started" in took:
        raise VariantError(program.name, f"{program.command!r} could not be started: {took['not_started']}")
    if why := _failed(took, said):
        raise VariantError(program.name, f"{program.command!r} {why}; end the command with || true to time it all the same")
    wall_ns = took.pop("wall_ns")
    clip = run.clips.finish(program.name, phase, lap, 1, read_clocks(run.device), **took)
    run.write(timed_span(clip, E2E, None, wall_ns), clip)


def _launch(program: Program, argv: Sequence[str], more: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Have the launcher run something where a program runs, and return what it took and the end of its stderr; whatever ends
    the wait ends both."""
    environment = {**(inherited_environment() if program.environment is None else program.environment), **more}
    asked = json.dumps({"argv": list(argv), "folder": program.folder, "environment": environment})
    with tempfile.TemporaryFile() as stderr:
        launcher = subprocess.Popen(
            (sys.executable, "-I", "-S", str(_LAUNCHER)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            env=environment,  # in whose PATH the program is looked for
        )
        try:
            told, _ = launcher.communicate(asked.encode())
        finally:
            if launcher.returncode is None:
                _end(launcher)
        found: dict[str, Any] = json.loads(told)
        stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _TOLD_BYTES))
        return found, stderr.read().decode(errors="replace")


def _failed(took: Mapping[str, Any], said: str) -> str:
    """Return why a run has failed, with the last that it wrote to stderr; empty if it has not."""
    if "not_started" in took:
        return f"it could not be started: {took['not_started']}"
    status: int = took["exit_status"]
    if status == 0:
        return ""
    how = f"ended with exit status {status}" if status > 0 else f"was killed by {signal_name(-status)}"
    lines = [line.strip() for line in said.splitlines() if line.strip()][-_TOLD_LINES:]
    return f"{how}; the last it wrote to stderr: {' / '.join(lines)}" if lines else f"{how}, and wrote nothing to stderr"


def traces_of(folder: Path, number: int) -> Path:
    """Return the folder within a run's that a program may leave profiler traces in while it warms up."""
    return folder / "traces" / str(number)


def signal_name(number: int) -> str:
    """Return the name of a signal, such as `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """End the launcher and all that runs in its session: first politely, then whatever is left of it."""
    with suppress(ProcessLookupError):
        os.killpg(launcher.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        launcher.wait(_GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(launcher.pid, signal.SIGKILL)
    launcher.wait()


_GIT_TIMEOUT_S: Final = 600.0
_INSTALL_TIMEOUT_S: Final = 3600.0
_QUIET: Final = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "advice.detachedHead=false")
_NOT_PASSED: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "GIT_DIR", "GIT_WORK_TREE")
"""What would show a command the code of another checkout than its own."""


def commit_of(name: str) -> str:
    """Return the hash of a commit of the repository here."""
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
    _check_names(names, len(commits), "commit")
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
        name=name, command=f"{command}  # at {commit[:12]}", argv=argv_of(command), folder=str(tree), environment=environment
    )


def _git(*arguments: str) -> str:
    """Return what git prints, without hooks of the repository; raises StrobeError, with what it said, if it failed or is not
    there."""
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
