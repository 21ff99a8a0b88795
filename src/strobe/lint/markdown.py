"""Reader of Markdown and of printed output: tables of typed cells, sentences and lines of code."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final, Literal

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from strobe.lint.document import VALUE, DocumentRow, DocumentTable, LintDocument, Sentence, TableCell, Titles
from strobe.lint.quantity import Unit, head_unit, quantities

_AFTER: Final = re.compile(r"\s*(?:$|[(\[±,;/|*†‡→]|\+/-)")


def read_cell(text: str, unit: Unit | None = None) -> TableCell:
    """Parse a cell: it holds a number if it begins with one, followed by nothing but a unit, a note or bounds.

    Args:
        unit: unit of numbers without one.
    """
    found = quantities(text, unit)
    if "=" in text:  # `a / b = c` is about c
        return TableCell(text=text, quantity=next((each for each in found if each.start > text.index("=")), None))
    first = found[0] if found else None
    about = first is not None and not text[: first.start].strip() and _AFTER.match(text, first.stop) is not None
    return TableCell(text=text, quantity=first if about else None)


def column_units(header: Iterable[str], hints: Iterable[str]) -> list[Unit | None]:
    """Return the unit of each column: from its head or, for a column of times, from the caption (`all times in ms`)."""
    hint = next((unit for text in hints if (unit := caption_unit(text))), None)
    units = [head_unit(title) for title in header]
    return [
        unit or (hint if hint and index and not _NOT_TIMED.search(title) else None)
        for index, (unit, title) in enumerate(zip(units, header, strict=True))
    ]


_CAPTION_UNIT: Final = re.compile(
    r"(?i)\b(?:times?|latenc(?:y|ies)|durations?|values?|numbers?|figures|all|measured|everything)\b[^.;|]*?\bin "
    r"(?P<unit>[A-Za-zµμ]+)\b|[(\[](?P<tail>ns|µs|us|ms|s)[)\]]"
)
_NOT_TIMED: Final = re.compile(
    r"(?i)%|\b(?:calls?|count|n|num|samples?|fps|speed-?up|change|ratio|share|memory|note|notes|variant|steps?|shape|batch|size)\b|#"
)


def caption_unit(text: str) -> Unit | None:
    """Return the unit of time that a caption or an introduction declares for the numbers after it."""
    for found in _CAPTION_UNIT.finditer(text):
        unit = head_unit(f"({found['unit'] or found['tail']})")
        if unit and unit.dimension == "time":
            return unit
    return None


_LABELLED: Final = re.compile(
    r"^(?P<indent>\s*)(?P<label>[^\s:=|][^:=|]{0,78}?)\s*[:=]\s*(?P<rest>[~≈<>±+\-−]?\s*[(]?\s*[-+−]?\d.*)$"
)
_GROUP: Final = re.compile(r"^\s*(?P<title>[A-Za-z\[][^:]{0,78}?)\s*:\s*$")
_NAMED: Final = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_.% ]{0,18}?)\s*[:=]\s*$")


def lines_table(
    lines: Iterable[tuple[int, str]], section: Titles, intro: str = "", origin: Literal["list", "lines"] = "lines"
) -> DocumentTable | None:
    """Read numbered lines of output or of a list into one table, or None if fewer than two of them are `label: number ...`.

    Args:
        lines: number and text of each line.
        intro: the text before the block; it may declare the unit.
    """
    rows: list[DocumentRow] = []
    cells: list[dict[str, TableCell]] = []
    caption, group = "", ""
    hint = caption_unit(intro)
    for number, text in lines:
        hint = hint or caption_unit(text)
        labelled, heading = _LABELLED.match(text), _GROUP.match(text)
        if labelled:
            label = TableCell(text=labelled["label"].strip())
            rows.append(DocumentRow(cells=(label,), line=number, depth=len(labelled["indent"].expandtabs(4)), group=group))
            cells.append(_named_cells(labelled["rest"], hint))
        elif heading:
            caption, group = caption or ("" if group or rows else heading["title"]), heading["title"]
        elif not rows and not caption and text.strip(" =-*#"):
            caption = text.strip()
    if len(rows) < 2:
        return None
    blank = dict.fromkeys((title for each in cells for title in each), TableCell(text=""))
    full = (replace(row, cells=(*row.cells, *(blank | found).values())) for row, found in zip(rows, cells, strict=True))
    return DocumentTable(
        section=section, caption=caption, header=("", *blank), rows=tuple(full), line=rows[0].line, origin=origin
    )


def _named_cells(rest: str, hint: Unit | None) -> dict[str, TableCell]:
    """Split the text after a label into cells by name: `7.95 ± 0.84 (total: 23.85)` gives value, ± and total."""
    cells: dict[str, TableCell] = {}
    for each in quantities(rest):
        named = _NAMED.search(rest[: each.start])
        title = {"percent": "%", "count": "count"}.get(each.dimension, VALUE)
        title = "±" if each.mark == "spread" else named["name"].strip() if named else title
        if title not in cells:
            unit = hint if each.unit is None and title != "count" else None
            cells[title] = read_cell(rest[each.start : each.stop].strip(), unit)
    return cells


def read_printed(text: str) -> LintDocument:
    """Read printed output."""
    numbered = list(enumerate(text.splitlines(), 1))
    table = lines_table(numbered, ())
    code = tuple(Sentence(text=line, line=number, section=()) for number, line in numbered)
    return LintDocument(tables=(table,) if table else (), code=code)


_INLINE: Final = MarkdownIt("commonmark").enable("strikethrough")
_BLOCKS: Final = MarkdownIt("commonmark", {"maxNesting": 100}).enable("table").disable(["code", "html_block", "inline"])
"""Parser of blocks alone: text stays as written. Indented text and text between HTML tags are paragraphs."""
_IGNORE: Final = re.compile(
    r"<!--\s*strobe lint: ignore (?P<rules>[\w*, -]+?)\s*(?::.*)?-->(?=(?P<block>.*(?:\n\s*\S.*(?:\n.*\S.*)*)?))"
)
"""A comment that takes its own line and the block that follows out of rules."""
_UNSEEN: Final = re.compile(r"\A---[ \t]*\n(?:.*\n)*?---[ \t]*$|<!--[\s\S]*?-->", re.MULTILINE)
"""Front matter and comments."""
_OUTPUT: Final = frozenset({"", "text", "txt", "log", "output", "console", "plain", "plaintext"})
_UNREAD: Final = frozenset({"markdown", "md", "diff", "mermaid"})
_SPLIT: Final = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)(?<!cf\.)(?<!ca\.)\s+(?=[A-Z\"'(\d])")
_INDENT: Final = re.compile(r"^(?:(?:&nbsp;|&emsp;|&ensp;| |\u2003|\u2002|[ ]{2}|↳|└─*|├─*|│|[-*•>+](?=\s))\s*)+")
_BULLET: Final = re.compile(r"^(?P<indent>[\s>]*)(?:[-*+]|\d+[.)])\s+")
_TIMES: Final = re.compile(r"(`+)[\s\S]+?\1|(?<=\w)\*(?=\w)")
"""A code span, or an asterisk inside a word, which is no markup."""
_BREAK: Final = "\v"
"""Stand-in for a line end in text that is parsed as one line, so that markup may span lines; it parses as white space."""


def plain(text: str) -> str:
    """Remove Markdown's markup from a text, leaving what a reader sees; the asterisks of `4*B*H*D` stay."""
    kept = _TIMES.sub(lambda found: found[0] if found[1] else r"\*", text)
    tokens = _INLINE.parseInline(kept)[0].children or []
    return "".join(map(_shown, tokens)).replace("\u00a0", " ").strip(" \t\n")


def _shown(token: Token) -> str:
    match token.type:
        case "text":
            return re.sub(r"\$?\\pm\$?", "±", re.sub(r"\[\^[^\]]+\]", "", token.content))
        case "code_inline":
            return token.content.strip()
        case "image":
            return plain(token.content)
        case "softbreak" | "hardbreak":
            return " "
        case "html_inline":
            return " " if re.match(r"<br\b", token.content) else ""
    return ""


def read_markdown(text: str) -> LintDocument:
    """Read a Markdown document."""
    text = re.sub(r"\r\n?", "\n", text).replace(_BREAK, " ")
    reader = _MarkdownReader(_UNSEEN.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text))
    ignored = (
        (range(text.count("\n", 0, found.start()) + 1, text.count("\n", 0, found.end("block")) + 2), rule)
        for found in _IGNORE.finditer(text)
        for rule in re.split(r"[,\s]+", found["rules"].strip())
    )
    return LintDocument(
        tables=tuple(sorted(reader.tables, key=lambda table: table.line)),
        sentences=tuple(reader.sentences),
        code=tuple(reader.code),
        ignored=tuple(ignored),
    )


class _MarkdownReader:
    """A single pass over the blocks of a document, in order."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.headings: list[tuple[int, str]] = []
        self.tables: list[DocumentTable] = []
        self.sentences: list[Sentence] = []
        self.code: list[Sentence] = []
        self.intro = ""
        self.intro_bold = False
        self._read(SyntaxTreeNode(_BLOCKS.parse(text)))

    @property
    def section(self) -> Titles:
        """Headings above the next block."""
        return tuple(title for _, title in self.headings)

    def _read(self, node: SyntaxTreeNode) -> None:
        match node.type:
            case "heading":
                level = int(node.tag[1:])
                above = [entry for entry in self.headings if entry[0] < level]
                self.headings = [*above, (level, plain(node.children[0].content))]
                self.intro = ""
            case "table":
                self._table(node)
            case "fence":
                self._code(node)
            case "paragraph":
                self._paragraph(node)
            case "bullet_list" | "ordered_list" if not _in_list(node):
                start, stop = node.map or (0, 0)
                items = enumerate(self.lines[start:stop], start + 1)
                self._lines(((number, plain(_BULLET.sub("", line))) for number, line in items), "list")
                self._each(node)
            case _:
                self._each(node)

    def _each(self, node: SyntaxTreeNode) -> None:
        for child in node.children:
            self._read(child)

    def _paragraph(self, node: SyntaxTreeNode) -> None:
        found = _sentences(node, self.section)
        self.sentences += found
        if not _in_list(node):
            self.intro = found[0].paragraph
            self.intro_bold = re.fullmatch(r"(\*\*|__).+\1:?", node.children[0].content, re.DOTALL) is not None

    def _lines(self, lines: Iterable[tuple[int, str]], origin: Literal["list", "lines"]) -> None:
        table = lines_table(lines, self.section, self.intro, origin)
        if table:
            self.tables.append(table)

    def _code(self, node: SyntaxTreeNode) -> None:
        language = (node.info.split() or [""])[0].lower().strip("{}.")
        body = list(enumerate(node.content.split("\n")[:-1], _line(node) + 1))
        if language in _OUTPUT:
            self._lines(body, "lines")
        if language not in _UNREAD:
            self.code += [Sentence(text=text, line=number, section=self.section) for number, text in body]

    def _table(self, node: SyntaxTreeNode) -> None:
        lines = [row for part in node.children for row in part.children]
        (_, head), *rows = [(_line(row), [cell.children[0].content for cell in row.children]) for row in lines]
        header = tuple(map(plain, head))
        caption = self.intro if self.intro_bold or self.intro.endswith(":") or self.intro.lower().startswith("table") else ""
        units = column_units(header, (caption, self.intro))
        self.tables.append(
            DocumentTable(
                section=self.section,
                caption=caption.rstrip(":"),
                header=header,
                rows=tuple(_row(sources, number, units) for number, sources in rows),
                line=_line(node),
                notes=tuple(_notes(self.lines[_line(node) - 1 + len(rows) + 2 :])),
            )
        )
        self.intro, self.intro_bold = "", False


def _in_list(node: SyntaxTreeNode) -> bool:
    return node.parent is not None and (node.parent.type == "list_item" or _in_list(node.parent))


def _line(node: SyntaxTreeNode) -> int:
    """Return the first line of a block, counted from 1."""
    return node.map[0] + 1 if node.map else 0


def _row(sources: Sequence[str], number: int, units: Sequence[Unit | None]) -> DocumentRow:
    first, *others = sources
    indent = _INDENT.match(re.sub(r"^(\*\*|__|\*|_)(?=\S)", "", first))
    depth = len(re.findall(r"&\w+;|[ \u2003\u2002↳└├│•>+*-]", indent[0])) if indent else 0
    first = first[indent.end() :] if indent and not re.match(r"[-+]?\d", first) else first
    cells = tuple(read_cell(plain(part), unit) for part, unit in zip((first, *others), units, strict=True))
    return DocumentRow(cells=cells, line=number, depth=depth)


def _notes(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines right under a table, 12 at most, up to the next heading, table or code."""
    for line in lines[:12]:
        if re.match(r" {0,3}#{1,6}\s|\s*(?:```|~~~)", line) or "|" in line or re.fullmatch(r"\*\*.+\*\*", line.strip()):
            return
        if line.strip() and not re.fullmatch(r" {0,3}(?:=+|-+)\s*", line):
            yield plain(line)


def _sentences(paragraph: SyntaxTreeNode, section: Titles) -> list[Sentence]:
    """Split a paragraph into its sentences, one at least, each with its line."""
    source = paragraph.children[0].content
    lines = [line.strip() for line in plain(re.sub(r"\\?\n", _BREAK, source)).split(_BREAK)]
    body, begins = " ".join(lines), list(accumulate((len(line) + 1 for line in lines), initial=0))
    bold = re.match(r"(?:\[.\]\s*)?(\*\*|__)(.+?)\1", source)
    before = re.match(r"((?:[^:.]|\.(?!\s)){1,60}):(?:\s|$)", lines[0])
    lead = plain(bold[2]).rstrip(":") if bold else before[1].strip() if before else ""
    gaps = [found.span() for found in _SPLIT.finditer(body)]
    spans = zip((0, *(stop for _, stop in gaps)), (*(start for start, _ in gaps), len(body)), strict=True)
    return [
        Sentence(
            text=body[start:stop],
            line=_line(paragraph) + bisect_right(begins, start) - 1,
            section=section,
            lead=lead,
            paragraph=body,
        )
        for start, stop in spans
    ]
