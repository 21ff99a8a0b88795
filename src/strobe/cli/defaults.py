"""Defaults of flags: a file `strobe.toml`, and environment variables `STROBE_VERB_FLAG`.

A flag has the value of the command line; else of the environment; else of the verb's table in the file; else of the table
`[default]`. The table of `strobe bench attention` is `[bench.attention]`, its variables begin with `STROBE_BENCH_ATTENTION_`.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from cyclopts import App, Argument, ArgumentCollection, CycloptsError
from cyclopts.argument import update_argument_collection
from cyclopts.config import Env

from strobe.cli.app import app
from strobe.cli.console import Output
from strobe.core.errors import ConfigError, nearest
from strobe.core.settings import config_folder, environment, read_settings, silence_downloads

FILE: Final = "strobe.toml"
ANY: Final = "default"
"""The table of every verb."""
ONLY_TYPED: Final = ("--config", "--debug")
"""What is looked at before there are defaults."""
_ENVIRONMENT: Final = "the environment"

Words = tuple[str, ...]


def fill_in(verb: App, commands: Words, arguments: ArgumentCollection) -> None:
    """Give the flags that are not on the command line their defaults. Which flags is said on stderr; with their values they join
    `sys.argv`, which records keep.

    Raises:
        ConfigError: a file that cannot be read, or a table, key or variable that is wrong.
    """
    if not commands or commands[0].startswith("-"):
        return
    typed = [token.value for argument in arguments if argument.name == "--config" for token in argument.tokens]
    path, flags = find_file(Path(typed[-1]) if typed else None), flags_of(arguments)
    for where in (commands, (ANY,)):
        start = "_".join(("strobe", *where, "")).upper()
        for name in environment(start):
            _check(name, f"--{name.removeprefix(start).lower().replace('_', '-')}", flags, where)
        Env(start, source=_ENVIRONMENT, command=False)(verb, commands, arguments)
    if path is not None:
        _from_file(path, read_file(path, commands), commands, arguments)
    used: dict[str, dict[str, Words]] = {_ENVIRONMENT: {}, str(path): {}}
    for name, argument in flags.items():
        for token in argument.tokens:
            if token.source in used:
                found = used[token.source]
                found[name] = (*found.get(name, ()), *([token.value] if token.value else []))
    quiet = bool(flags["--quiet"].tokens)
    if quiet:
        silence_downloads()
    _tell(used, () if typed else _of_others(), quiet=quiet)
    sys.argv = [*sys.argv, *(word for values in used.values() for name, words in values.items() for word in _said(name, words))]


def flags_of(arguments: Iterable[Argument]) -> dict[str, Argument]:
    """The flags that may have a default."""
    named = {each.name: each for each in arguments}
    return {flag: each for flag, each in named.items() if flag.startswith("--") and flag not in ONLY_TYPED}


def _check(place: str, flag: str, flags: Mapping[str, Argument], where: Words) -> None:
    """Refuse a default of a flag that a verb lacks; in the table of all, one that every verb lacks.

    Raises:
        ConfigError: it is so; names the nearest.
    """
    known = flags.keys() if where != (ANY,) or flag in flags else every_flag()
    if flag not in known:
        who = "no verb has" if where == (ANY,) else f"strobe {' '.join(where)} does not have"
        raise ConfigError(f"{place}: {who} a flag {flag}{nearest(flag, known)}")


# ---------------------------------------------------------------------------------------------------------------------- the file


def find_file(given: Path | None = None) -> Path | None:
    """The file of defaults: the given one, else `STROBE_CONFIG`, else the nearest `strobe.toml` from the working directory
    upwards, else the one in the user's folder of configurations; None if there is none. A file of another user is passed over
    unless it is named.

    Raises:
        ConfigError: the one that was named is not there.
    """
    named = given or (Path(told) if (told := read_settings().config) else None)
    if named is None:
        return next((path for path in _candidates() if _ours(path)), None)
    if named.is_dir() or not named.exists():
        which = "--config" if given else "STROBE_CONFIG"
        raise ConfigError(f"{which} {named}: no such file; give a file such as {FILE}, or {os.devnull} for none")
    return named


def _candidates() -> Iterator[Path]:
    """Files that are found without being named, the first to be taken first."""
    here, user = Path.cwd(), config_folder()
    folders = [here, *here.parents, *([] if user is None else [user / "strobe"])]
    yield from (folder / FILE for folder in folders if (folder / FILE).is_file())


def _ours(path: Path) -> bool:
    return path.stat().st_uid in (0, os.geteuid())


def _of_others() -> tuple[Path, ...]:
    return tuple(path for path in _candidates() if not _ours(path))


def read_file(path: Path, commands: Words = ()) -> dict[str, Any]:
    """Read a file of defaults, and check its tables as far as a verb lies in them.

    Raises:
        ConfigError: it cannot be read, or has a table that is no verb's.
    """
    try:
        tables: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    for depth in range(max(1, len(commands))):
        where = commands[:depth]
        allowed = [*verbs(where), *([] if where else [ANY])]
        for name, value in _table(tables, where).items():
            if name not in allowed:
                why = "no such table" if isinstance(value, dict) else f"a flag stands below a table such as [{ANY}]"
                raise ConfigError(
                    f"{path}: {'.'.join((*where, name))}: {why}{nearest(name, allowed)}; tables: {', '.join(allowed)}"
                )
            if not isinstance(value, dict):
                raise ConfigError(f"{path}: {name}: write a table [{'.'.join((*where, name))}] with the flags below it")
    return tables


def check_file(path: Path) -> dict[str, list[str]]:
    """Check what a file says about every verb.

    Returns:
        The flags that it sets, by table.

    Raises:
        ConfigError: a table or a key is wrong.
        CycloptsError: a value is.
    """
    tables, leaves = read_file(path), dict(every_verb())
    for commands, verb in leaves.items():
        read_file(path, commands)
        arguments = verb.assemble_argument_collection()
        _from_file(path, tables, commands, arguments)
        for argument in arguments:
            try:
                if argument.tokens:
                    argument.convert_and_validate()
            except CycloptsError as error:
                error.verbose = False
                raise
    found = {".".join(where): _table(tables, where) for where in ((ANY,), *leaves)}
    return {name: [f"--{key}" for key in table] for name, table in found.items() if table}


def _from_file(path: Path, tables: Mapping[str, Any], commands: Words, arguments: ArgumentCollection) -> None:
    """Give the flags of a verb that have no value yet those of its table, then those of the table of all."""
    flags = flags_of(arguments)
    for where in (commands, (ANY,)):
        table = _table(tables, where)
        for key in table:
            _check(f"{path}: [{'.'.join(where)}] {key}", f"--{key}", flags, where)
        told = {key: str(value).lower() if isinstance(value, bool) else value for key, value in table.items()}
        update_argument_collection(told, str(path), arguments, root_keys=where, allow_unknown=where == (ANY,))


def _table(tables: Mapping[str, Any], where: Words) -> dict[str, Any]:
    """A table; empty if it is not there."""
    found: Any = tables
    for name in where:
        found = found.get(name, {})
    return dict(found)


# ---------------------------------------------------------------------------------------------------------------------- the verbs


def verbs(commands: Words = ()) -> Words:
    """Names of all verbs, or of those of a verb that has its own."""
    return tuple(name for name in _app(commands) if not name.startswith("-"))


def every_verb() -> Iterator[tuple[Words, App]]:
    """Every verb that runs, such as `("bench", "attention")`; loads them all."""
    for name in verbs():
        inner = verbs((name,))
        yield from (((name, each), _app((name, each))) for each in inner) if inner else (((name,), _app((name,))),)


@cache
def every_flag() -> frozenset[str]:
    """Names of the flags of all verbs; loads them all, once in a process."""
    return frozenset(name for _, verb in every_verb() for name in flags_of(verb.assemble_argument_collection()))


def _app(commands: Words) -> App:
    found = app
    for name in commands:
        found = found[name]
    return found


# ------------------------------------------------------------------------------------------------------------------ what is said


def _tell(used: Mapping[str, Mapping[str, Words]], others: Iterable[Path], *, quiet: bool) -> None:
    """Say which flags have their value from where, without the values: one may be a secret."""
    output = Output(quiet=quiet or bool(read_settings().rank))
    for source, values in ((source, values) for source, values in used.items() if values):
        output.note(f"defaults of {source}: {', '.join(values)}")
    for path in others:
        output.note(f"{path} is passed over: it belongs to another user; --config {path} takes it")


def _said(name: str, words: Words) -> Words:
    return (f"{name}={words[0]}",) if len(words) == 1 else (name, *words)
