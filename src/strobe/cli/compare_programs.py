"""`strobe compare -- COMMAND -- COMMAND`: whole programs measured against each other, or one at several commits."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cyclopts import Parameter

from strobe.cli.console import Output
from strobe.cli.interrupted import kept_runs, tells_what_is_kept
from strobe.cli.report import write
from strobe.cli.require import Requirement, check_names
from strobe.core.errors import ConfigError

if TYPE_CHECKING:
    from strobe.bench.own.programs import Program

SEPARATOR: Final = "--"
"""Stands before each command. The command line's own parser takes the first."""


@Parameter(name="*", group="Programs")
@dataclass(frozen=True, kw_only=True)
class ProgramFlags:
    """Flags for running programs.

    Args:
        names: one for each command or commit, for the tables and --require; by default the commands or commits themselves.
        warmup: untimed runs of each program before the first round, 1 by default.
        prepare: a command that runs before every run, not timed, such as one that drops a cache.
        commits: measure one command at these commits of the repository here, the first being the baseline.
        install: a command that runs once at each commit before, in a virtual environment of its own that sees the packages
            beside strobe too.
    """

    names: tuple[str, ...] = ()
    warmup: int | None = None
    prepare: str = ""
    commits: tuple[str, ...] = ()
    install: str = ""


def given(flags: object) -> tuple[str, ...]:
    """The flags of a group that are not as they are by default."""
    stock = type(flags)()
    changed = (each.name for each in fields(flags) if getattr(flags, each.name) != getattr(stock, each.name))  # type: ignore[arg-type]
    return tuple(f"--{name.replace('_', '-')}" for name in changed)


def refuse(flags: Sequence[str], form: str) -> None:
    """Refuse flags that say nothing to one form of the command.

    Raises:
        ConfigError: there are some.
    """
    if flags:
        raise ConfigError(f"{', '.join(flags)}: {form}; leave {'it' if len(flags) == 1 else 'them'} out")


def commands_of(words: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Cut what follows the first `--` at the others: the words of each command; an empty one where nothing stands between two."""
    return tuple(_commands(words))


def _commands(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    held: list[str] = []
    for word in words:
        if word == SEPARATOR:
            yield tuple(held) or ("",)
            held = []
        else:
            held.append(word)
    yield tuple(held) or ("",)


def compare_programs(
    words: Sequence[str], flags: ProgramFlags, rounds: int, out: Path, requirements: Sequence[Requirement], output: Output
) -> tuple[int, dict[str, Any]]:
    """Run programs with a progress bar and write their report; return exit code and what was found."""
    from strobe.bench.own.programs import checked_out, measure_programs, programs_of, told_apart, traces_of
    from strobe.perf.records.store import create_run

    if flags.install and not flags.commits:
        refuse(["--install"], "for commits, and there are none")
    warmup = 1 if flags.warmup is None else flags.warmup
    before = set(out.glob("*"))
    told = tells_what_is_kept(output, lambda: kept_runs(set(out.glob("*")) - before))
    if flags.commits:
        command = words[0] if len(words) == 1 else shlex.join(words)
        names = flags.names or told_apart(flags.commits)
        made: AbstractContextManager[tuple[Program, ...]] = checked_out(flags.commits, names, command, flags.install)
    else:
        programs = programs_of(commands_of(words), flags.names)
        names, made = tuple(each.name for each in programs), nullcontext(programs)
    check_names(requirements, names[1:], ("e2e",))
    with told, output.progress("compare") as advance, made as ready:
        folder = measure_programs(
            ready, lambda: create_run(out, "programs"), advance, rounds=rounds, warmup=warmup, prepare=flags.prepare
        )
    code, document = write([folder], folder, requirements, output)
    baseline, *others = (traces_of(folder, number) for number in range(len(names)))
    for number, traces in enumerate(others, start=1):
        if baseline.is_dir() and traces.is_dir():
            sides = f"--baseline-trace {baseline} --candidate-trace {traces}"
            output.note(f"where the time of {names[number]} went: strobe speedup {sides} -o {folder / f'account-{number}'}")
    return code, document
