"""What a verb says and where: data on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from cyclopts import Parameter
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Advance(Protocol):
    """Told after each piece of work: pieces done, pieces in all, what comes next."""

    def __call__(self, done: int, total: int, what: str = "") -> None: ...


@Parameter(name="*", group="Output")
@dataclass(frozen=True, kw_only=True)
class Output:
    """Flags every verb has.

    Args:
        json: print one JSON document on stdout instead of tables.
        quiet: no progress and no notes on stderr; errors still show.
        debug: show the traceback of an error.
    """

    json: bool = False
    quiet: Annotated[bool, Parameter(alias="-q")] = False
    debug: bool = False

    def note(self, text: str) -> None:
        """Say something on stderr."""
        if not self.quiet:
            Console(stderr=True, highlight=False, emoji=False, soft_wrap=True).print(escape(text))

    def show(self, *renderables: RenderableType) -> None:
        """Print tables or text on stdout, unless stdout carries JSON."""
        if not self.json:
            console = _Stdout(highlight=False, emoji=False, soft_wrap=True)
            for renderable in renderables:
                console.print(renderable)

    def write(self, text: str) -> None:
        """Print a document on stdout as it is, unless stdout carries JSON."""
        if not self.json:
            sys.stdout.write(text)

    def emit(self, document: dict[str, Any]) -> None:
        """Print the JSON document with its version, if it was asked for. Numbers that JSON has no word for are an error."""
        if self.json:
            from strobe.perf.report.documents.value import SCHEMA_VERSION

            versioned = {"v": SCHEMA_VERSION, **document}
            sys.stdout.write(json.dumps(versioned, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    @contextmanager
    def progress(self, title: str) -> Iterator[Advance]:
        """Show on stderr how far the body is; the body calls what it gets with `(done, total, what)`.

        A terminal gets a bar that goes away at the end, a log file a line now and then.
        """
        console = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)
        if self.quiet or not console.is_terminal:
            yield _Log(title, self)
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"), TimeElapsedColumn())
        with Progress(*columns, TimeRemainingColumn(elapsed_when_finished=False), console=console, transient=True) as bar:
            task = bar.add_task(escape(title), total=None, count="")

            def advance(done: int, total: int, what: str = "") -> None:
                label = f"{title}: {what}" if what else title
                bar.update(task, completed=done, total=total, description=escape(label), count=f"{done}/{total}")

            yield advance


class _Stdout(Console):
    def on_broken_pipe(self) -> None:
        """What reads stdout has gone: for `main` to say, not for a library to exit on."""
        raise BrokenPipeError


class _Log:
    """Progress as lines, at most one in `EVERY_S` seconds."""

    EVERY_S = 10.0

    def __init__(self, title: str, output: Output) -> None:
        self._title, self._output, self._last = title, output, time.monotonic()

    def __call__(self, done: int, total: int, what: str = "") -> None:
        if time.monotonic() - self._last >= self.EVERY_S:
            self._last = time.monotonic()
            self._output.note(f"{self._title} {done}/{total} {what}".rstrip())
