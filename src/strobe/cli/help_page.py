"""Layout of `--help`: the docstrings' paragraphs, commands and code on a terminal.

The command line reads its docstrings as plain text and this draws them: the library's own reader of Markdown takes as long to
import as all the rest of a page.
"""

from __future__ import annotations

import re
from typing import Any, Final

from cyclopts.help import DefaultFormatter, HelpPanel, InlineText
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

_FENCE: Final = re.compile(r"^```\w*\n(.*?)^```$", re.M | re.S)
_CODE: Final = re.compile(r"(`+)(.+?)\1")
_MARKS: Final = re.compile(r"  #( (slow|gpus?|network|needs-files))+$", re.M)
"""What the project's tests need to know of an example."""
_LIST: Final = re.compile(r"\n(?=[*-] )")


def prose(text: str) -> Text:
    """Paragraphs whose lines the terminal breaks anew, with code in a style of its own instead of backticks."""
    shown = Text()
    paragraphs = [_LIST.split(each.strip()) for each in re.split(r"\n\s*\n", text.strip())]
    joined = "\n\n".join("\n".join(" ".join(line.split()) for line in lines) for lines in paragraphs)
    for index, part in enumerate(_CODE.split(joined)):
        if index % 3 != 1:  # the backticks themselves
            shown.append(part, "bold cyan" if index % 3 == 2 else "")
    return shown


def document(text: str) -> RenderableType:
    """A docstring: paragraphs, and blocks of code between fences, which keep their lines."""
    parts: list[RenderableType] = []
    for index, part in enumerate(_FENCE.split(text)):
        if index % 2:
            parts += [Padding(Text(_MARKS.sub("", part.rstrip()), style="cyan"), (0, 0, 0, 1), expand=False), Text()]
        elif part.strip():
            parts += [prose(part), Text()]
    return Group(*parts)


def _plain(read: InlineText) -> str:
    """Return what the command line read as plain text."""
    return read.primary_renderable.plain if isinstance(read.primary_renderable, Text) else ""


class HelpPage(DefaultFormatter):
    """Pages of `--help` from docstrings that were read as plain text."""

    def render_description(self, console: Console, options: ConsoleOptions, description: Any) -> None:
        """Print what a verb does, and its examples."""
        if isinstance(description, InlineText):
            console.print(document(_plain(description)), soft_wrap=False)

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print a box of flags or verbs."""
        for entry in panel.entries:
            if isinstance(entry.description, InlineText):
                entry.description.primary_renderable = prose(_plain(entry.description))
        super().__call__(console, options, panel)
