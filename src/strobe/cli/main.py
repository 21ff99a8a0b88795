"""Entry point of `strobe VERB ...`: the verbs, one-line errors and exit codes."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from types import NoneType
from typing import Any, Final, get_args

from cyclopts import App, ArgumentCollection, CycloptsError, Group, Parameter, UnknownOptionError

import strobe
from strobe.cli.console import OUT, styled, terminal
from strobe.cli.defaults import fill_in
from strobe.cli.help_page import HelpPage
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
NO_PLACE: Final = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG)
"""Why a folder cannot be made, or a file in it, whatever else the machine has."""
GUIDANCE: Final = ("--negative", "--guidance", "--cfg")
"""Beginnings of flags that other programs have."""
UNGUIDED: Final = "The models here are distilled without guidance, so none takes a negative prompt: say what to show."


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
    """Return whether a flag of that type takes whole numbers only."""
    inside = [each for each in get_args(hint) if each not in (None, NoneType, Ellipsis)]
    return hint is int or (bool(inside) and all(map(_whole, inside)))


VERBS: Final = {
    "speedup": "Show how much faster a candidate is at every level, and where the rest of the kernel's speedup is lost.",
    "trace": "Analyse profiler traces: kernels, busy and idle time, launches, gaps, steps, regions, communication.",
    "compare": "Measure presets, programs or commits against each other: interleaved, every sample kept, then the report.",
    "report": "Write report.html, report.md and report.json of one or several runs.",
    "profile": "Measure and trace one run or one operator: times, trace, roofline, what calls what.",
    "lint": "Find claims that cannot be true: in a README, a benchmark table, a report or printed output.",
    "quality": "Compare clips with a reference: PSNR, SSIM, MS-SSIM, FLIP, flicker, drift, jumps between frame blocks, and more.",
    "extract": "Take figures out of text logs and traces: rounds of a stage, attention timers, focal kernels.",
    "demo": "Make a clip with two prompt switches, compare four presets on it and write the report. A few minutes on two cores.",
    "generate": "Make a clip from a prompt, steered by prompt switches.",
    "presets": "Show every setting of the presets side by side, and what is off on this machine.",
    "serve": "Show streams in a browser, and steer them there: prompts, presets, branches, recordings.",
    "doctor": "Show what this machine has, which attention implementation would run, and why the others would not.",
    "accept": "Check a model with its weights against facts that need no official code, and compare a preset of it with "
    "`quality`.",
    "bench": "Measure what the package ships.",
}
"""The verbs and their first sentences, which `strobe --help` lists without importing a verb; a test compares them."""
GROUPS: Final = {
    "Explain": ("speedup", "trace", "compare", "report", "profile", "lint", "quality", "extract"),
    "Make": ("demo", "generate", "presets"),
    "Serve": ("serve",),
    "Maintain": ("doctor", "accept", "bench"),
}
"""The boxes of `strobe --help`, in order, and the verbs in each."""
NEXT: Final = {
    "speedup": "-o page writes the page; strobe trace looks into one side.",
    "trace": "strobe speedup compares two traces.",
    "compare": "strobe report RUN_DIR makes the page again, and --require makes it a gate.",
    "report": "Open report.html; --require makes it a gate.",
    "lint": "docs/lint.md says what each rule looks for.",
    "quality": "strobe compare measures speed and quality together.",
    "demo": "Open runs/*/report.html, then steer the model yourself: strobe serve.",
    "generate": "strobe compare baseline turbo shows what a preset gains, strobe serve steers a stream while it plays.",
    "presets": "strobe compare PRESET PRESET measures two of them.",
    "serve": "strobe bench serve loads the server with viewers.",
    "doctor": "strobe doctor --gate records on a GPU which implementations are right there.",
    "accept": "strobe report DIR makes the page again.",
}
"""What a user does after a verb: the last line of its page. A verb that has verbs says it itself."""


def command_line(*, lists: bool = False) -> App:
    """The command line, whose verbs are imported when they are run or described.

    Args:
        lists: the one that only lists the verbs.
    """
    app = App(
        name="strobe",
        help="Makes video diffusion fast and proves it: prompts in, frames out, and a report that says where every millisecond "
        "went.",
        help_epilogue=(
            "Start with 'strobe demo'. Exit codes: 0 ok, 1 a gate or check failed, 2 usage, 3 something missing on this machine, "
            "70 a bug (--debug shows the traceback), 130 interrupted, 143 terminated."
        ),
        help_format="plaintext",
        help_formatter=HelpPage(),
        version=lambda: f"strobe {strobe.__version__}",
        version_flags=["--version"],
        help_flags=HELP,
        group_commands=Group("Flags", sort_key=9) if lists else None,
        suppress_keyboard_interrupt=False,
        config=(fill_in, whole_numbers),
        default_parameter=Parameter(negative="", consume_multiple=True, show_default=lambda value: value if value else None),
    )
    for place, (title, verbs) in enumerate(GROUPS.items()):
        group = Group(title, sort_key=place)
        for at, verb in enumerate(verbs):
            options: dict[str, Any] = {"help_epilogue": f"Next: {NEXT[verb]}\n"} if verb in NEXT else {}
            if lists:
                options |= {"help": VERBS[verb], "group": group, "sort_key": at}
            app.command(f"strobe.cli.{verb}:{verb}", name=verb, **options)
    line = "Let the shell complete words."
    app.command("strobe.cli.completion:install_completion", name="--install-completion", help=line)
    return app


app = command_line()


def is_verb(line: App, words: Sequence[str]) -> bool:
    """Return whether the words are a verb, or a verb and a verb of it, and nothing else."""
    for word in words:
        if word not in line:
            return False
        line = line[word]
    return True


def load_group(line: App, words: Sequence[str]) -> None:
    """Import the verbs of a verb such as `bench`, whose page lists them with their first sentences; nothing without words."""
    for word in words:
        line = line[word]
    for name in line if words else ():
        _ = line[name]  # imported as it is looked up


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Errors are a line on stderr, of weights a table; `--debug` adds the
    traceback."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        listing = not tokens or (set(tokens) & {*HELP} and tokens[0].startswith("-"))
        line = command_line(lists=True) if listing else app
        helps = bool(tokens) and tokens[-1] in HELP
        words = tokens[:-1] if helps else tokens
        if is_verb(line, words):
            load_group(line, words)
            if helps:
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
        code, message = explain(error, named_place(tokens))
        if says(code, error):
            rows = message.splitlines() if isinstance(error, WeightsError) else [message]  # whose message may be a table
            told = "\n  ".join(clean(" ".join(row.split())) for row in rows)
            terminal(stderr=True).print(styled(("error", "bold red"), ": ").append(told))
        return code


def named_place(tokens: Sequence[str]) -> str:
    """Return what a command line gives to `--out`; empty if nothing."""
    flags = ("--out", *OUT)
    for token, after in zip(tokens, [*tokens[1:], ""], strict=True):
        flag, _, value = token.partition("=")
        if flag in flags:
            return value or after
    return ""


def explain(error: BaseException, place: str = "") -> tuple[int, str]:
    """Return the exit code and the message for whatever ended a command.

    Args:
        place: where the command was told to write; that this cannot be is a wrong argument.
    """
    failed = error.__cause__ if isinstance(error, StrobeError) else error
    if place and isinstance(failed, OSError) and failed.errno in NO_PLACE and f"{failed.filename}".startswith(place):
        said = f"cannot write {failed.filename}: {failed.strerror}; name another place"
        return USAGE, str(error) if isinstance(error, StrobeError) else said
    match error:
        case CycloptsError():
            verb = " ".join(("strobe", *(error.command_chain or ())))
            if isinstance(error, UnknownOptionError) and (error.token.keyword or "").startswith(GUIDANCE):
                return USAGE, f"Unknown option: {error.token.keyword}. {UNGUIDED} See {verb} --help"
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
