"""Defaults of flags: a file `strobe.toml`, and environment variables `STROBE_VERB_FLAG`.

A flag has the value of the command line; else of the environment; else of the verb's table in the file; else of the table
`[default]`. The table of `strobe bench attention` is `[bench.attention]`, its variables begin with `STROBE_BENCH_ATTENTION_`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from cyclopts import App, Argument, ArgumentCollection, Token

from strobe.cli.console import Output
from strobe.core.errors import ConfigError, nearest
from strobe.core.settings import config_folder, environment, read_settings, silence_downloads

FILE: Final = "strobe.toml"
ANY: Final = "default"
"""The table of every verb."""
ONLY_TYPED: Final = ("--config", "--debug")
"""What is looked at before there are defaults."""
_ENVIRONMENT: Final = "the environment"

Flags = Mapping[str, Argument]
"""Flags of a verb by name, such as `--rounds`."""
Words = tuple[str, ...]
"""The value of a flag as a command line has it."""


def fill_in(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Give the flags that are not on the command line their defaults. Which flags is said on stderr; with their values they join
    `sys.argv`, which records keep.

    Raises:
        ConfigError: a file that cannot be read, or a table, key, type or variable that is wrong.
    """
    if not commands or commands[0].startswith("-"):
        return
    flags = flags_of(arguments)
    typed = [token.value for argument in arguments if argument.name == "--config" for token in argument.tokens]
    path = find_file(Path(typed[-1]) if typed else None)
    sources = {_ENVIRONMENT: _from_environment(commands, flags)}
    if path is not None:
        sources[str(path)] = from_file(path, commands, flags)
    used: dict[str, dict[str, Words]] = {}
    for source, values in sources.items():
        for name, words in values.items():
            if not flags[name].tokens:
                used.setdefault(source, {})[name] = words
                for index, word in enumerate(words):
                    flags[name].append(Token(keyword=name, value=word, source=source, index=index))
                if not words:
                    flags[name].append(Token(keyword=name, implicit_value=(), source=source))
    quiet = bool(flags["--quiet"].tokens)
    if quiet:
        silence_downloads()
    _tell(used, () if typed else _of_others(), quiet=quiet)
    sys.argv = [*sys.argv, *(word for values in used.values() for name, words in values.items() for word in _said(name, words))]


def flags_of(arguments: Iterable[Argument]) -> dict[str, Argument]:
    """The flags that may have a default."""
    named = {each.name: each for each in arguments}
    return {flag: each for flag, each in named.items() if flag.startswith("--") and flag not in ONLY_TYPED}


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


def from_file(path: Path, commands: tuple[str, ...], flags: Flags) -> dict[str, Words]:
    """Return the defaults that a file sets for the flags of a verb.

    Args:
        commands: the verb, such as `("bench", "attention")`.

    Raises:
        ConfigError: the file cannot be read, or what it says about this verb is wrong; one line with the place.
    """
    file = _File(path)
    file.check_tables((), verbs())
    for depth in range(1, len(commands)):
        file.check_tables(commands[:depth], verbs(commands[:depth]))
    general, own = file.table((ANY,)), file.table(commands)
    known = flags.keys() if all(_flag(key) in flags for key in general) else every_flag()
    found = {}
    for where, table, names in (((ANY,), general, known), (commands, own, flags.keys())):
        for key, value in table.items():
            if _flag(key) not in names:
                words = nearest(key, (name.removeprefix("--") for name in names))
                who = f"strobe {' '.join(commands)} has no such flag" if where == commands else "no verb has such a flag"
                raise file.error(where, key, f"{who}{words}")
            if _flag(key) in flags:
                found[_flag(key)] = file.words(where, key, value, flags[_flag(key)])
    return found


def check_file(path: Path) -> dict[str, list[str]]:
    """Check what a file says about every verb.

    Returns:
        The flags that it sets, by table.

    Raises:
        ConfigError: something in it is wrong; one line with the place.
    """
    file, leaves = _File(path), dict(every_verb())
    for commands, verb in leaves.items():
        from_file(path, commands, flags_of(verb.assemble_argument_collection()))
    tables = {".".join(where): file.table(where) for where in ((ANY,), *leaves)}
    return {name: [_flag(key) for key in table] for name, table in tables.items() if table}


class _File:
    """A file that was read; its errors name the place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._text = path.read_text(encoding="utf-8")
            self._tables = tomllib.loads(self._text)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"{path} is not TOML: {error}") from error
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error

    def table(self, where: tuple[str, ...]) -> dict[str, Any]:
        """A table; empty if it is not there."""
        found: Any = self._tables
        for depth, name in enumerate(where):
            found = found.get(name, {})
            if not isinstance(found, dict):
                raise self.error(where[:depth], name, f"write a table [{'.'.join(where)}] with the flags below it")
        return dict(found)

    def check_tables(self, where: tuple[str, ...], names: Iterable[str]) -> None:
        """Refuse a table that is no verb's."""
        allowed = [*names, *([] if where else [ANY])]
        for name, value in self.table(where).items():
            if name not in allowed:
                why = "no such table" if isinstance(value, dict) else f"a flag stands below a table such as [{ANY}]"
                raise self.error(where, name, f"{why}{nearest(name, allowed)}; tables: {', '.join(allowed)}")

    def words(self, where: tuple[str, ...], key: str, value: object, flag: Argument) -> Words:
        """A value as words, if its type is the flag's."""
        import msgspec

        try:
            msgspec.convert(value, flag.hint, dec_hook=_path)
        except msgspec.ValidationError as error:
            choices = [str(each) for each in get_args(flag.hint)] if get_origin(flag.hint) is Literal else []
            why = f"{value!r}{nearest(str(value), choices)}; allowed: {', '.join(choices)}" if choices else str(error)
            raise self.error(where, key, why.replace("`array`", "a list").replace("`", "")) from error
        if isinstance(value, list):
            return tuple(map(str, value))
        return (str(value).lower() if isinstance(value, bool) else str(value),)

    def error(self, where: tuple[str, ...], key: str, why: str) -> ConfigError:
        """The error for a key, with its line where the file has it as `key = value` below `[table]`."""
        table, lines = "", []
        for number, line in enumerate(self._text.splitlines(), start=1):
            if head := re.match(r"\s*\[\s*([\w.\s-]+?)\s*\]", line):
                table = re.sub(r"\s", "", head[1])
                lines += [number] if table == ".".join((*where, key)) else []
            elif table == ".".join(where) and re.match(rf"\s*{re.escape(key)}\s*=", line):
                lines.append(number)
        place = f"{self.path}:{lines[0]}" if lines else str(self.path)
        below = f"[{'.'.join(where)}] " if where else ""
        return ConfigError(f"{place}: {below}{key}: {why}")


def _path(kind: type, value: object) -> object:
    if not isinstance(value, str):
        raise TypeError(f"Expected a path, got {type(value).__name__}")
    return kind(value)


def _flag(key: str) -> str:
    return f"--{key}"


# --------------------------------------------------------------------------------------------------------------- the environment


def _from_environment(commands: tuple[str, ...], flags: Flags) -> dict[str, Words]:
    """Return the defaults that environment variables set for the flags of a verb; a list is split as a shell splits words."""
    found = {}
    for where in ((ANY,), commands):
        start = "_".join(("strobe", *where, "")).replace("-", "_").upper()
        for name, value in environment(start).items():
            flag = _flag(name.removeprefix(start).lower().replace("_", "-"))
            known = flags.keys() if where == commands or flag in flags else every_flag()
            if flag not in known:
                variables = (start + each.removeprefix("--").replace("-", "_").upper() for each in known)
                raise ConfigError(f"{name}: there is no flag {flag} for it{nearest(name, variables)}; unset it")
            if flag in flags:
                found[flag] = tuple(shlex.split(value)) if _is_list(flags[flag].hint) else (value,)
    return found


def _is_list(hint: object) -> bool:
    return get_origin(hint) is tuple or any(map(_is_list, get_args(hint)))


# ---------------------------------------------------------------------------------------------------------------------- the verbs


def verbs(commands: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Names of all verbs, or of those of a verb that has its own."""
    return tuple(name for name in _app(commands) if not name.startswith("-"))


def every_verb() -> Iterator[tuple[tuple[str, ...], App]]:
    """Every verb that runs, such as `("bench", "attention")`; loads them all."""
    for name in verbs():
        inner = verbs((name,))
        yield from (((name, each), _app((name, each))) for each in inner) if inner else (((name,), _app((name,))),)


@cache
def every_flag() -> frozenset[str]:
    """Names of the flags of all verbs; loads them all, once in a process."""
    return frozenset(name for _, verb in every_verb() for name in flags_of(verb.assemble_argument_collection()))


def _app(commands: tuple[str, ...]) -> App:
    from strobe.cli.main import app

    found = app
    for name in commands:
        found = found[name]
    return found


# ------------------------------------------------------------------------------------------------------------------ what is said


def _tell(used: Mapping[str, Mapping[str, Words]], others: Iterable[Path], *, quiet: bool) -> None:
    """Say which flags have their value from where, without the values: one may be a secret."""
    output = Output(quiet=quiet or bool(read_settings().rank))
    for source, values in used.items():
        output.note(f"defaults of {source}: {', '.join(values)}")
    for path in others:
        output.note(f"{path} is passed over: it belongs to another user; --config {path} takes it")


def _said(name: str, words: Words) -> tuple[str, ...]:
    return (f"{name}={words[0]}",) if len(words) == 1 else (name, *words)
