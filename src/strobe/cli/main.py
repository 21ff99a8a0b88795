"""Entry point of `strobe VERB ...`: the verbs, one-line errors and exit codes."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from types import NoneType
from typing import Final, get_args

from cyclopts import App, ArgumentCollection, CycloptsError, Parameter

import strobe
from strobe.cli.console import styled, terminal
from strobe.cli.defaults import fill_in
from strobe.cli.interrupted import terminates_as_interrupted
from strobe.cli.ranks import says
from strobe.core.errors import ConfigError, DataError, SessionError, ShapeError, StrobeError, Terminated, WeightsError
from strobe.core.printable import clean, clean_lines

OK: Final = 0
USAGE: Final = 2
MISSING: Final = 3
BUG: Final = 70
INTERRUPTED: Final = 130
TERMINATED: Final = 143
BROKEN_PIPE: Final = 141
HELP: Final = ("--help", "-h")


def whole_numbers(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse a fraction where a flag of any verb takes a whole number; the library would round it.

    Raises:
        ConfigError: there is one.
    """
    for argument in arguments:
        for token in argument.tokens if _whole(argument.hint) else ():
            if "." in token.value:
                raise ConfigError(f"{argument.name} {token.value}: give a whole number")


def _whole(hint: object) -> bool:
    """Whether a flag of that type takes whole numbers only."""
    inside = [each for each in get_args(hint) if each not in (None, NoneType, Ellipsis)]
    return hint is int or (bool(inside) and all(map(_whole, inside)))


app = App(
    name="strobe",
    help="Makes video diffusion fast and proves it: prompts in, frames out, and a report that says where every millisecond went.",
    help_epilogue=(
        "Start with `strobe demo`. Exit codes: 0 ok, 1 a gate or check failed, 2 usage, 3 something missing on this machine, "
        "70 a bug (`--debug` shows the traceback), 130 interrupted, 143 terminated."
    ),
    version=lambda: f"strobe {strobe.__version__}",
    version_flags=["--version"],
    help_flags=HELP,
    suppress_keyboard_interrupt=False,
    config=(fill_in, whole_numbers),
    default_parameter=Parameter(negative="", consume_multiple=True, show_default=lambda value: value if value else None),
)
VERBS: Final = (
    *("demo", "generate", "compare", "report", "trace", "speedup", "doctor", "ablate"),
    *("bench", "extract", "lint", "log", "presets", "profile", "quality", "serve", "track", "train-shapes"),
)
for _verb in VERBS:
    _name = _verb.replace("-", "_")
    app.command(f"strobe.cli.{_name}:{_name}", name=_verb)  # imported when it is run or described
app.command("strobe.cli.completion:install_completion", name="--install-completion", help="Let the shell complete words.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Errors are a line on stderr, of weights a table; `--debug` adds the
    traceback."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        if not tokens or (set(tokens) & {*HELP} and tokens[0].startswith("-")):
            for verb in VERBS:
                app[verb]  # whose line the list of verbs has
        with terminates_as_interrupted():
            code = app(tokens, exit_on_error=False, print_error=False, verbose=False, result_action="return_value") or OK
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what reads stdout has gone: say no more
        return BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in tokens:
            sys.stderr.write(clean_lines(traceback.format_exc()))
        code, message = explain(error)
        if says(code, error):
            rows = message.splitlines() if isinstance(error, WeightsError) else [message]  # whose message may be a table
            told = "\n  ".join(clean(" ".join(row.split())) for row in rows)
            terminal(stderr=True).print(styled(("error", "bold red"), ": ").append(told))
        return code


def explain(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the message for whatever ended a command."""
    match error:
        case CycloptsError():
            verb = " ".join(("strobe", *(error.command_chain or ())))
            return USAGE, f"{error} See {verb} --help"
        case ConfigError() | DataError() | SessionError() | ShapeError():
            return USAGE, str(error)
        case StrobeError():
            return MISSING, str(error)
        case Terminated():
            return TERMINATED, "terminated"
        case KeyboardInterrupt():
            return INTERRUPTED, "interrupted"
        case FileExistsError() | NotADirectoryError() | IsADirectoryError():
            there = "a folder" if isinstance(error, IsADirectoryError) else "a file"
            return USAGE, f"{error.filename}: {there} is in the way; name another"
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return MISSING, f"the disk is full{f': {error.filename}' if error.filename else ''}; free some space"
        case OSError():
            return MISSING, f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        case MemoryError():
            return MISSING, "out of memory"
    if type(error).__name__ == "OutOfMemoryError":  # torch's own, which must not be imported for its name
        return MISSING, str(error)
    return BUG, f"bug in strobe: {type(error).__name__}: {error} (--debug shows where)"
