"""Terminal output: data on stdout, everything else on stderr. All terminal output goes through here.

Strings are shown literally, without markup: control and direction characters become escapes, square brackets stay. Style is given
separately from the text, as a `rich.text.Text`, see `styled`.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from cyclopts import Parameter
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from strobe.core.printable import clean, clean_lines

if TYPE_CHECKING:
    from strobe.perf.table.model import Banner, Section, Table

_MB: Final = 1_000_000
EVERY_S: Final = 10.0
"""Least time between two lines of progress in a log file."""
OUT: Final = ("-o", "--output")
"""Other spellings of `--out`, in every verb that has it."""


def named(group: str, **flags: str) -> Parameter:
    """Make the fields of what a verb is asked for its flags.

    Args:
        group: heading of the flags in the page of `--help`.
        flags: names of fields whose flag is another word.
    """
    return Parameter(name="*", group=group, name_transform=lambda field: flags.get(field, field.replace("_", "-")))


Advance: TypeAlias = Callable[[int, int, str], None]
"""Callback after each piece of work: pieces done, pieces in all, name of the next."""


@Parameter(name="*", group="Output")
@dataclass(frozen=True, kw_only=True)
class Output:
    """Flags of every verb.

    Args:
        json: print one JSON document on stdout instead of tables.
        quiet: no progress and no notes on stderr; errors still show.
        debug: show the traceback of an error.
        config: file of defaults of flags, in place of the strobe.toml that is found.
        details: print every table and note, not the answer alone.
    """

    json: bool = False
    quiet: Annotated[bool, Parameter(alias="-q")] = False
    debug: bool = False
    config: Path | None = None
    details: bool = False

    def note(self, text: str) -> None:
        """Print a note on stderr, unless quiet."""
        if not self.quiet:
            terminal(stderr=True).print(text)

    def show(self, *renderables: RenderableType) -> None:
        """Print tables or text on stdout, unless stdout carries JSON."""
        if not self.json:
            console = terminal()
            for renderable in renderables:
                console.print(fill(renderable) if isinstance(renderable, str) else renderable)

    def write(self, text: str) -> None:
        """Print a document on stdout, unless stdout carries JSON; a JSON document stays one."""
        if not self.json:
            sys.stdout.write(clean_lines(text))

    def emit(self, document: dict[str, Any]) -> None:
        """Print the JSON document with its version, if it was asked for. Infinite and NaN numbers are an error."""
        if self.json:
            from strobe.perf.report.documents.runs import SCHEMA_VERSION

            versioned = {"v": SCHEMA_VERSION, **document}
            foreign = (sys.stdout.encoding or "utf-8").lower() != "utf-8"
            sys.stdout.write(clean_lines(json.dumps(versioned, indent=2, ensure_ascii=foreign, allow_nan=False)) + "\n")
            sys.stdout.flush()  # a verb that goes on is read through a pipe

    @contextmanager
    def progress(self, title: str) -> Iterator[Advance]:
        """Show the progress of the body on stderr, and the time left at the pace of the pieces that are done.

        The body gets a callback for `(done, total, what)`. A terminal gets a bar that goes away at the end, a log file a line now
        and then.
        """
        console, pace = terminal(stderr=True), _Pace()
        if self.quiet or not console.is_terminal:
            last = time.monotonic()

            def tell(done: int, total: int, what: str) -> None:
                nonlocal last
                left = pace.left(done, total)
                if time.monotonic() - last >= EVERY_S:
                    last = time.monotonic()
                    self.note(f"{title} {done}/{total} {what}".rstrip() + (f", {left}" if left else ""))

            yield tell
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[count]}"))
        with Progress(*columns, TimeElapsedColumn(), TextColumn("{task.fields[left]}"), console=console, transient=True) as bar:
            task = bar.add_task(clean(title), total=None, count="", left="")

            def advance(done: int, total: int, what: str) -> None:
                label, left = f"{title}: {what}" if what else title, pace.left(done, total)
                bar.update(task, completed=done, total=total, description=clean(label), count=f"{done}/{total}", left=left)

            yield advance


def megabytes(advance: Advance) -> Advance:
    """Return the callback for progress in bytes that `advance` shows in MB."""
    return lambda done, total, what: advance(done // _MB, -(-total // _MB), f"MB, {what}")


class _Pace:
    """Time left, from what the pieces done so far took. It begins anew where the number of pieces changes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first, self._total, self._began = 0, 0, clock()

    def left(self, done: int, total: int) -> str:
        """Return it in words; empty as long as nothing tells."""
        if total != self._total or done < self._first:
            self._first, self._total, self._began = done, total, self._clock()
        fresh = done - self._first
        each = (self._clock() - self._began) / fresh if fresh else 0.0
        return f"about {duration(each * (total - done))} left" if fresh and done < total else ""


def duration(seconds: float) -> str:
    """Return a duration in a unit that suits it: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def styled(*parts: str | tuple[str, str]) -> Text:
    """Join texts from anywhere on one line; a pair is text and style."""
    return Text.assemble(*(clean(part) if isinstance(part, str) else (clean(part[0]), part[1]) for part in parts))


def columns() -> int | None:
    """Return the width that lines keep to; None where stdout goes to a file or a pipe and COLUMNS is not set."""
    from strobe.core.settings import read_settings

    console = terminal()
    return console.width if console.is_terminal or read_settings().columns else None


_WITH_UNIT: Final = re.compile(r"(?<=\d) (?=%|ms\b|µs\b|s\b)")


def fill(text: str) -> str:
    """Break lines that are longer than the terminal is wide between words, not between a number and its unit."""
    width = columns()
    if width is None:
        return text
    lines = [
        line
        if len(line) <= width
        else textwrap.fill(
            _WITH_UNIT.sub("\0", line), width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        for line in text.split("\n")
    ]
    return "\n".join(lines).replace("\0", " ")


def joined_lines(lines: Iterable[Text | str]) -> Text:
    """Join lines below each other."""
    return Text("\n").join(line if isinstance(line, Text) else Text(fill(clean(line))) for line in lines)


def terminal(*, stderr: bool = False) -> Console:
    """Open stdout or stderr as a terminal that cleans every text."""
    return _Terminal(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)


class _Terminal(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the segments of a renderable with every text cleaned."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean_lines(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError when the reader of stdout has gone, so that `main` handles it and the library does not exit."""
        raise BrokenPipeError


MAX_ROWS: Final = 30
MAX_NAME: Final = 64
_NARROW: Final = 18
"""Characters of a cell that is not the first of its row, where lines keep to a width."""


def table_text(table: Table, max_rows: int = MAX_ROWS, *, notes: bool = True) -> Text:
    """Return a table as text: caption, head, rows and notes. A narrow terminal shows the columns that fit."""
    from strobe.perf.table.model import cell_text

    heads = [f"{column.title} {column.unit}".strip() for column in table.columns]
    rows = [
        [cell_text(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)] for row in table.rows[:max_rows]
    ]
    most = columns()
    cuts = [
        MAX_NAME if most is None or (at and column.numeric) else 2 * most // 5 if at == 0 else _NARROW  # no number is cut
        for at, column in enumerate(table.columns)
    ]
    lines = [
        [text if len(text) <= cut else f"{text[: cut - 3]}..." for text, cut in zip(map(clean, row), cuts, strict=True)]
        for row in (heads, *rows)
    ]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    order = sorted(range(len(widths)), key=lambda at: (at > 0, at > 0 and not table.columns[at].numeric, at))
    shown = sorted(_fitting(widths, order, most))
    hidden = [head for at, head in enumerate(heads) if head and at not in shown]
    padded = [
        "  ".join(
            line[at].rjust(widths[at]) if table.columns[at].numeric else line[at].ljust(widths[at]) for at in shown
        ).rstrip()
        for line in lines
    ]
    more = [f"{len(table.rows) - max_rows} more rows"] if len(table.rows) > max_rows else []
    narrow = [f"More columns, on the page or in a wider terminal: {', '.join(hidden)}"] if hidden else []
    said = [f"* {note}" for note in table.notes] if notes else []
    return joined_lines((table.caption, styled((padded[0], "bold")), *padded[1:], *more, *narrow, *said, ""))


def section_texts(sections: Iterable[Section], max_rows: int = MAX_ROWS, *, notes: bool = True) -> Iterator[Text]:
    """Yield the tables of sections as text."""
    from strobe.perf.table.model import Table

    tables = (block for section in sections for block in section.blocks if isinstance(block, Table))
    return (table_text(table, max_rows, notes=notes) for table in tables)


def _fitting(widths: Sequence[int], order: Sequence[int], most: int | None) -> Iterator[int]:
    """Yield the first of the columns in an order, and each later one for which there is room beside those before it."""
    used = -2
    for at in order:
        if most is None or used < 0 or used + 2 + widths[at] <= most:
            used += 2 + widths[at]
            yield at


def banner_texts(banners: Iterable[Banner], levels: tuple[str, ...] = ("stop", "caution")) -> Iterator[Text]:
    """Yield the banners of some levels as text."""
    for banner in banners:
        if banner.level in levels:
            title = styled((banner.title, "bold red" if banner.level == "stop" else "bold yellow"))
            yield joined_lines((title, *(f"  {item}" for item in banner.items), ""))
