"""`strobe compare -- COMMAND -- COMMAND`: whole programs measured against each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from cyclopts import Parameter

from strobe.cli.console import Output
from strobe.cli.interrupted import kept_runs, tells_what_is_kept
from strobe.cli.report import write
from strobe.cli.require import Requirement, check_names
from strobe.core.errors import ConfigError

SEPARATOR: Final = "--"
"""Stands before each command. The command line's own parser takes the first."""


@Parameter(name="*", group="Programs")
@dataclass(frozen=True, kw_only=True)
class ProgramFlags:
    """Flags for running programs.

    Args:
        names: one for each command, for the tables and --require; by default the commands themselves.
        warmup: untimed runs of each program before the first round, 1 by default.
        prepare: a command that runs before every run, not timed, such as one that drops a cache.
        ignore_failure: time a program whatever its exit status.
    """

    names: tuple[str, ...] = ()
    warmup: int | None = None
    prepare: str = ""
    ignore_failure: bool = False


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
    from strobe.bench.own.programs import ProgramsPlan, measure_programs, programs_of
    from strobe.perf.records.store import create_run

    programs = programs_of(commands_of(words), flags.names)
    check_names(requirements, [each.name for each in programs[1:]], ("e2e",))
    warmup = 1 if flags.warmup is None else flags.warmup
    plan = ProgramsPlan(rounds=rounds, warmup=warmup, prepare=flags.prepare, ignore_failure=flags.ignore_failure)
    before = set(out.glob("*"))
    told = tells_what_is_kept(output, lambda: kept_runs(set(out.glob("*")) - before))
    with told, output.progress("compare") as advance:
        folder = measure_programs(programs, plan, lambda: create_run(out, "programs"), advance)
    return write([folder], folder, requirements, output)
