"""Documents built from true values, so that nothing in them contradicts anything else, and changed in one place."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from strobe.lint.document import Claim, LintOptions, read_markdown
from strobe.lint.rules import findings


@dataclass
class Page:
    """A Markdown document under construction. What it holds is drawn from `rng`; `form` turns between ways to write the same."""

    seed: int
    lines: list[str] = field(default_factory=list)
    truth: dict[str, float] = field(default_factory=dict)
    options: LintOptions = field(default_factory=LintOptions)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    @property
    def form(self) -> int:
        """0, 1 or 2."""
        return self.seed % 3

    def say(self, *lines: str) -> Page:
        """Paragraphs or list items, then an empty line."""
        self.lines += [*lines, ""]
        return self

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> Page:
        """A table; with a caption it is bold above it."""
        if caption:
            self.lines += [f"**{caption}**", ""]
        ruler = [("---", "---:", ":---:")[self.form] for _ in header]
        self.lines += ["| " + " | ".join(cells) + " |" for cells in (header, ruler, *rows)]
        self.lines.append("")
        return self

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def line_of(self, snippet: str) -> int:
        """The one line that holds a text, counted from 1."""
        found = [number for number, line in enumerate(self.lines, 1) if snippet in line]
        assert len(found) == 1, (snippet, found, self.text)
        return found[0]

    def replace(self, old: str, new: str, *, on: str = "") -> int:
        """Change a text in the one line that holds it (and `on`); return the line."""
        found = [number for number, line in enumerate(self.lines) if old in line and on in line]
        assert len(found) == 1, (old, on, found, self.text)
        self.lines[found[0]] = self.lines[found[0]].replace(old, new, 1)
        return found[0] + 1

    def put(self, row: str, column: str, new: str, *, table: int = 0) -> int:
        """Change a cell of the table-th table by row label and column head; return the line."""
        rulers = [at for at, line in enumerate(self.lines) if line.startswith("|") and set(line) <= set("| :-")]
        columns = [part.strip() for part in self.lines[rulers[table] - 1].strip("|").split("|")]
        for number in range(rulers[table] + 1, len(self.lines)):
            cells = [part.strip() for part in self.lines[number].strip("|").split("|")]
            if cells[0] == row:
                cells[columns.index(column)] = new
                self.lines[number] = "| " + " | ".join(cells) + " |"
                return number + 1
        raise AssertionError((row, column, self.text))

    @staticmethod
    def number(text: str) -> float:
        """The number a correction begins with."""
        return float(re.match(r"[-+]?[\d.]+", text)[0])

    def lint(self) -> tuple[Claim, ...]:
        """What the linter says of it."""
        return findings(read_markdown(self.text), self.options)

    def only(self) -> Claim:
        """The one finding."""
        found = self.lint()
        assert len(found) == 1, "\n".join(map(str, found)) + "\n" + self.text
        return found[0]

    def clean(self) -> None:
        """It has no finding."""
        found = self.lint()
        assert not found, "\n".join(map(str, found)) + "\n" + self.text


@pytest.fixture
def page() -> Callable[..., Page]:
    """A new page by seed, with what some functions put on it."""

    def new(seed: int, *builds: Callable[[Page], None]) -> Page:
        made = Page(seed=seed)
        for build in builds:
            build(made)
        return made

    return new
