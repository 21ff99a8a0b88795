"""Commands and snippets of the README and docs with their marks, taken from the text itself.

A comment before a code block marks the whole block, `<!-- docs-check: slow -->`, or the commands that begin so,
`<!-- docs-check: slow "strobe demo"; gpu "strobe doctor --gate" -->`. In the examples of `--help` a comment at the end of the
line marks it: `# slow`. `<!-- docs-check: given` (or `slow given`) and lines of Python until `-->` run before a snippet.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "benchmarks").glob("*/README.md")))
MARKS: Final = ("slow", "gpu", "gpus", "network", "needs-files")
SHELLS: Final = ("", "sh", "bash")
_FENCE: Final = re.compile(
    r"(?:^<!-- docs-check: (?P<comment>.*?)-->\n)?^(?P<fence>`{3,})(?P<language>\w*)\n(?P<body>.*?)^(?P=fence)$", re.M | re.S
)
_MARK: Final = re.compile(rf"({'|'.join(MARKS)})\b((?:\s+\"[^\"]+\")*)\s*")
_COMMAND: Final = re.compile(r"(?:\$ )?((?:strobe|torchrun|make|python -m strobe(?:\.\w+)*)\s?.*)")
_REMARK: Final = re.compile(r"\s+#\s(?P<text>[^\"']*)$")
_INLINE: Final = re.compile(r"`(strobe [a-z][^`]*)`")
_OPERATORS: Final = frozenset("|>&;")


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command line of a page.

    Args:
        page: from the root of the repository.
        line: where its block begins.
        text: as it stands, without prompt and remark.
        marks: why it does not run in every test.
    """

    page: str
    line: int
    text: str
    marks: frozenset[str]

    @property
    def words(self) -> list[str]:
        """Words of its first program, up to the first shell operator."""
        lexer = shlex.shlex(self.text, posix=True, punctuation_chars="|>&;")
        lexer.whitespace_split, lexer.commenters = True, ""
        found: list[str] = []
        for word in lexer:
            if set(word) <= _OPERATORS:
                break
            found.append(word)
        return found

    @property
    def needs_shell(self) -> bool:
        """Whether it is more than one program with arguments."""
        return len(self.words) < len(shlex.split(self.text))

    @property
    def arguments(self) -> list[str] | None:
        """Arguments of `strobe`; None for another program."""
        words = self.words
        for start in (["strobe"], ["python", "-m", "strobe"]):
            if words[: len(start)] == start:
                return words[len(start) :]
        if words[:3] == ["python", "-m", "strobe.compat.assert_tree_attn"]:
            ours = {"--use-cuda": "--device=cuda", "--enable-profiling": "--profile", "--profile-iterations": "--iterations"}
            return ["bench", "tree", *(ours.get(word, word) for word in words[3:])]
        if words[0] == "torchrun":
            return words[words.index("strobe") + 1 :] if "strobe" in words else None
        return None


@dataclass(frozen=True, kw_only=True)
class Snippet:
    """A block of Python with the code that runs before it."""

    page: str
    line: int
    given: str
    code: str
    marks: frozenset[str]


def commands(page: Path) -> Iterator[Command]:
    """List every command in the code blocks of a page."""
    for line, comment, language, body in _blocks(page):
        if language not in SHELLS:
            continue
        whole, named = _marks(comment, page)
        unused = set(named)
        for text in body.replace("\\\n", " ").splitlines():
            found = _COMMAND.match(text.strip())
            if found is None:
                continue
            text, marks = _unmarked(" ".join(found[1].split()))
            used = [start for start in named if text.startswith(start)]
            unused -= set(used)
            yield Command(
                page=_name(page), line=line, text=text, marks=frozenset((*whole, *marks, *(named[each] for each in used)))
            )
        assert not unused, f"{_name(page)}:{line}: marks of commands that are not there: {sorted(unused)}"


def inline_commands(page: Path) -> Iterator[str]:
    """List every `strobe ...` within the prose of a page."""
    prose = _FENCE.sub("", page.read_text(encoding="utf-8"))
    yield from dict.fromkeys(" ".join(found.split()) for found in _INLINE.findall(prose))


def snippets(page: Path) -> Iterator[Snippet]:
    """List every block of Python of a page."""
    for line, comment, language, body in _blocks(page):
        if language == "python":
            first, _, given = comment.partition("\n")
            whole, _ = _marks(first.removesuffix("given"), page)
            yield Snippet(page=_name(page), line=line, given=given, code=body, marks=frozenset(whole))


def _blocks(page: Path) -> Iterator[tuple[int, str, str, str]]:
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        yield text.count("\n", 0, found.start("body")) + 1, found["comment"] or "", found["language"], found["body"]


def _marks(comment: str, page: Path) -> tuple[tuple[str, ...], dict[str, str]]:
    """Parse a comment into marks of the whole block, and marks by the beginning of a command."""
    whole, named = [], {}
    for part in filter(None, (part.strip() for part in comment.split(";"))):
        found = _MARK.fullmatch(" ".join(part.split()))
        assert found is not None, f'{_name(page)}: docs-check: {part!r} is not MARK or MARK "START"; marks: {", ".join(MARKS)}'
        starts = re.findall(r'"([^"]+)"', found[2])
        named.update(dict.fromkeys(starts, found[1]))
        whole += [] if starts else [found[1]]
    return tuple(whole), named


def _unmarked(text: str) -> tuple[str, tuple[str, ...]]:
    """Split a command from its remark, and return the marks in the remark."""
    remark = _REMARK.search(text)
    if remark is None:
        return text, ()
    words = tuple(word.strip() for word in remark["text"].split(","))
    return text[: remark.start()], words if all(word in MARKS for word in words) else ()


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))
