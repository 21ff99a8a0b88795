"""Entry point of `strobe VERB ...`: the verbs, one-line errors and exit codes."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import Final, get_args

from cyclopts import App, ArgumentCollection, CycloptsError, ValidationError

from strobe.cli.app import HELP, app, command_line
from strobe.cli.console import styled, terminal
from strobe.cli.defaults import fill_in
from strobe.cli.ranks import says
from strobe.core.errors import NO_PLACE, ConfigError, DataError, SessionError, ShapeError, StrobeError, Terminated
from strobe.core.printable import clean, clean_lines
from strobe.core.settings import heed_columns

OK: Final = 0
USAGE: Final = 2
MISSING: Final = 3
BUG: Final = 70
INTERRUPTED: Final = 130
TERMINATED: Final = 143
BROKEN_PIPE: Final = 141


def whole_numbers(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse a fraction where a flag of any verb takes a whole number; the library would round it."""
    for argument in arguments:
        for token in argument.tokens if _whole(argument.hint) else ():
            if "." in token.value:
                place = "" if token.source == "cli" else f" from {token.source}"
                raise ConfigError(f"{argument.name} {token.value}{place}: give a whole number")


def _whole(hint: object) -> bool:
    """Return whether a flag of that type takes whole numbers only."""
    inside = [each for each in get_args(hint) if each not in (None, NoneType, Ellipsis)]
    return hint is int or (bool(inside) and all(map(_whole, inside)))


app.config = (fill_in, whole_numbers)


def find_verb(line: App, words: Sequence[str]) -> bool:
    """Return whether the words are a verb, or a verb and a verb of it, and import the verbs that its page lists."""
    for word in words:
        if word not in line:
            return False
        line = line[word]
    for name in line if words else ():
        _ = line[name]  # imported as it is looked up
    return True


@contextmanager
def terminates_as_interrupted() -> Iterator[None]:
    """Raise `Terminated` in the body at the first SIGTERM, so that it ends as at Ctrl-C; a second one ends the process."""
    owner = os.getpid()

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != owner:  # a process that was forked from here
            os.kill(os.getpid(), number)
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread: whoever has it decides
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Errors are a line on stderr, of weights a table; `--debug` adds the
    traceback."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    heed_columns()
    sys.stdout = sys.stdout or io.StringIO()  # the process was started with it closed
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where the locale lacks a character
    try:
        listing = not tokens or (set(tokens) & {*HELP} and tokens[0].startswith("-"))
        line = command_line(lists=True) if listing else app
        helps = bool(tokens) and tokens[-1] in HELP
        words = tokens[:-1] if helps else tokens
        if find_verb(line, words) and helps:
            line.help_print(words)  # as parsing would end, which reads the flags once more
            return OK
        with terminates_as_interrupted():
            code = line(tokens, exit_on_error=False, print_error=False, verbose=False, result_action="return_value") or OK
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
            told = clean(" ".join(message.split()))
            terminal(stderr=True).print(styled(("error", "bold red"), ": ").append(told))
        return code


def explain(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the message for whatever ended a command."""
    match error:
        case CycloptsError():
            verb = " ".join(("strobe", *(error.command_chain or ())))
            if isinstance(error, ValidationError) and error.argument is None:  # of a group, whose name says nothing
                return USAGE, f"{error.exception_message} See {verb} --help"
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
        case OSError() if error.filename and error.errno in NO_PLACE:
            return USAGE, f"cannot use {error.filename}: {error.strerror}; name another place"
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return MISSING, f"the disk is full{f': {error.filename}' if error.filename else ''}; free some space"
        case OSError():
            return MISSING, f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        case MemoryError():
            return MISSING, "out of memory"
    if type(error).__name__ == "OutOfMemoryError":  # torch's own, which must not be imported for its name
        return MISSING, str(error)
    return BUG, f"bug in strobe: {type(error).__name__}: {error} (--debug shows where)"
