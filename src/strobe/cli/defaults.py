"""Defaults of flags: a file `strobe.toml`, and environment variables `STROBE_VERB_FLAG`.

A flag has the value of the command line; else of the environment; else of the verb's table in the file; else of the table
`[default]`. The table of `strobe bench attention` is `[bench.attention]`, its variables begin with `STROBE_BENCH_ATTENTION_`.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from cyclopts import App, ArgumentCollection
from cyclopts.config import Dict, Env

from strobe.cli.app import app
from strobe.cli.console import Output
from strobe.core.errors import ConfigError, nearest
from strobe.core.settings import config_folder, environment, read_settings, silence_downloads

FILE: Final = "strobe.toml"
ANY: Final = "default"
"""The table of every verb."""
ONLY_TYPED: Final = ("--config", "--debug")
"""What is looked at before there are defaults."""
FACTS: Final = ("--model", "--size", "--window", "--device")
"""Flags of `strobe lint` that say what a document is about, not how a verb runs: the table of every verb does not give them."""
_ENVIRONMENT: Final = "the environment"
_BOOLS: Final = {"True": "true", "False": "false"}
"""How a flag says what a file says."""

Words = tuple[str, ...]


def fill_in(verb: App, commands: Words, arguments: ArgumentCollection) -> None:
    """Give the flags that are not on the command line their defaults. Which flags is said on stderr; with their values they join
    `sys.argv`, which records keep.
    """
    if not commands or commands[0].startswith("-"):
        return
    typed = [token.value for argument in arguments if argument.name == "--config" for token in argument.tokens]
    path, flags = find_file(Path(typed[-1]) if typed else None), flags_of(arguments)
    shared = flags_of(arguments, FACTS if commands == ("lint",) else ())
    for where, taken in ((commands, flags), ((ANY,), shared)):
        start = "_".join(("strobe", *where, "")).upper()
        _check({name: f"--{name.removeprefix(start).lower().replace('_', '-')}" for name in environment(start)}, flags, where)
        Env(start, source=_ENVIRONMENT, command=False)(verb, commands, taken)
    if path is not None:
        _from_file(path, read_file(path), verb, commands, flags, shared)
    quiet = any(each.name == "--quiet" and each.tokens for each in flags)
    if quiet:
        silence_downloads()
    output = Output(quiet=quiet or bool(read_settings().rank))
    for source in (_ENVIRONMENT, str(path)):
        tokens = {each.name: [token.value for token in each.tokens if token.source == source] for each in flags}
        used = {name: [_BOOLS.get(value, value) for value in values] for name, values in tokens.items() if values}
        if used:  # without the values: one may be a secret
            output.note(f"defaults of {source}: {', '.join(used)}")
        for name, values in used.items():
            sys.argv = [*sys.argv, *((f"{name}={values[0]}",) if len(values) == 1 else (name, *values))]
    for other in () if typed else (each for each in _candidates() if not _ours(each)):
        output.note(f"{other} is passed over: it belongs to another user; --config {other} takes it")


def flags_of(arguments: ArgumentCollection, left_out: Words = ()) -> ArgumentCollection:
    """The flags that may have a default."""
    chosen = ArgumentCollection()  # type: ignore[no-untyped-call]
    named = {each.name: each for each in arguments}
    chosen.extend(each for flag, each in named.items() if flag.startswith("--") and flag not in (*ONLY_TYPED, *left_out))
    return chosen


def _check(places: Mapping[str, str], flags: ArgumentCollection, where: Words) -> None:
    """Refuse a default of a flag that a verb lacks; in the table of all, one that every verb lacks."""
    known = frozenset(each.name for each in flags)
    if where == (ANY,) and not known.issuperset(places.values()):
        known = every_flag()
    for place, flag in places.items():
        if flag not in known:
            who = "no verb has" if where == (ANY,) else f"strobe {' '.join(where)} does not have"
            raise ConfigError(f"{place}: {who} a flag {flag}{nearest(flag, known)}")


def find_file(given: Path | None = None) -> Path | None:
    """The file of defaults: the given one, else `STROBE_CONFIG`, else the nearest `strobe.toml` from the working directory
    upwards, else the one in the user's folder of configurations; None if there is none. A file of another user is passed over
    unless it is named.
    """
    named = given or (Path(told) if (told := read_settings().config) else None)
    if named is None:
        return next(filter(_ours, _candidates()), None)
    if named.is_dir() or not named.exists():
        which = "--config" if given else "STROBE_CONFIG"
        raise ConfigError(f"{which} {named}: not a file; give a file such as {FILE}, or {os.devnull} for none")
    return named


def _candidates() -> Iterator[Path]:
    """Files that are found without being named, the first to be taken first."""
    here, user = Path.cwd(), config_folder()
    folders = [here, *here.parents, *([] if user is None else [user / "strobe"])]
    yield from (folder / FILE for folder in folders if (folder / FILE).is_file())


def _ours(path: Path) -> bool:
    return path.stat().st_uid in (0, os.geteuid())


def read_file(path: Path) -> dict[str, Any]:
    """Read the tables of a file of defaults."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _from_file(
    path: Path, tables: dict[str, Any], verb: App, commands: Words, flags: ArgumentCollection, shared: ArgumentCollection
) -> None:
    """Give the flags of a verb that have no value yet those of its table, then those of the table of all. All tables on the way
    to that of the verb are checked.
    """
    found, within = tables, app
    for depth, command in enumerate(commands):
        allowed = [*(name for name in within if not name.startswith("-")), *([] if depth else [ANY])]
        for name, table in found.items():
            if name not in allowed or not isinstance(table, dict):
                near = "" if name in allowed else nearest(name, allowed)
                told = f"no such table{near}; a flag stands below one of {', '.join(allowed)}"
                raise ConfigError(f"{path}: {'.'.join((*commands[:depth], name))}: {told}")
        found, within = found.get(command, {}), within[command]
    for where, table, taken in ((commands, found, flags), ((ANY,), tables.get(ANY, {}), shared)):
        name = ".".join(where)
        _check({f"{path}: [{name}] {key}": f"--{key}" for key in table}, taken, where)
        Dict(tables, source=str(path), root_keys=where, allow_unknown=where == (ANY,))(verb, (), taken)


def every_verb(words: Words = (), within: App = app) -> Iterator[tuple[Words, App]]:
    """Every verb that runs, such as `("bench", "attention")`; loads them all."""
    inner = [name for name in within if not name.startswith("-")]
    if not inner:
        yield words, within
    for name in inner:
        yield from every_verb((*words, name), within[name])


@cache
def every_flag() -> frozenset[str]:
    """Names of the flags of all verbs; loads them all, once in a process."""
    return frozenset(each.name for _, verb in every_verb() for each in flags_of(verb.assemble_argument_collection()))
