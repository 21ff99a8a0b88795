"""Parser of Markdown: headings, tables, lists, paragraphs, code blocks, and comments that switch rules off."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from strobe.lint.document import CodeLine, Document, DocumentSection, Ignored, Row, Sentence, Table, column_units, read_cell
from strobe.lint.lines import VALUE, lines_table
from strobe.lint.quantity import Unit, readable

_INLINE: Final = MarkdownIt("commonmark").enable("strikethrough")
_BLOCKS: Final = MarkdownIt("commonmark", {"maxNesting": 100}).enable("table").disable(["code", "html_block", "inline"])
"""Parser of blocks alone: text stays as written. Indented text and text between HTML tags are paragraphs."""
_IGNORE: Final = re.compile(r"<!--\s*strobe lint: ignore (?P<rules>[\w*, -]+?)\s*(?::.*)?-->")
_UNSEEN: Final = re.compile(r"\A---[ \t]*\n(?:.*\n)*?---[ \t]*$|<!--[\s\S]*?-->", re.MULTILINE)
"""Front matter and comments."""
_OUTPUT: Final = frozenset({"", "text", "txt", "log", "output", "console", "plain", "plaintext"})
_UNREAD: Final = frozenset({"markdown", "md", "diff", "mermaid"})
_SPLIT: Final = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)(?<!cf\.)(?<!ca\.)\s+(?=[A-Z\"'(\d])")
_INDENT: Final = re.compile(r"^(?:(?:&nbsp;|&emsp;|&ensp;| |\u2003|\u2002|[ ]{2}|↳|└─*|├─*|│|[-*•>+](?=\s))\s*)+")
_BREAK: Final = "\v"
"""Stand-in for a line end in text that is parsed as one line, so that markup may span lines; it parses as white space."""


def plain(text: str) -> str:
    """Remove Markdown's markup from a text, leaving what a reader sees; the asterisks of `4*B*H*D` stay."""
    tokens = _INLINE.parseInline(text)[0].children or []
    parts = [_shown(token) for token in tokens]
    opened: list[int] = []
    for at, token in enumerate(tokens):
        if token.type in ("em_open", "strong_open"):
            opened.append(at)
        elif token.type in ("em_close", "strong_close"):
            start = opened.pop()
            if _inside_word(parts, start) and _inside_word(parts, at):
                parts[start] = parts[at] = token.markup
    return "".join(parts).replace("\u00a0", " ").strip(" \t\n")


def _inside_word(parts: Sequence[str], at: int) -> bool:
    before = next((parts[number] for number in range(at - 1, -1, -1) if parts[number]), "")
    after = next((parts[number] for number in range(at + 1, len(parts)) if parts[number]), "")
    return re.search(r"\w\Z", before) is not None and re.match(r"\w", after) is not None


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


@dataclass(frozen=True, slots=True)
class _Text:
    """A paragraph or list item: its source, and its lines with their numbers, without markup."""

    source: str
    lines: tuple[tuple[int, str], ...]
    parent: str = ""

    @property
    def plain(self) -> str:
        return " ".join(part for _, part in self.lines)


def read_markdown(text: str, path: str) -> Document:
    """Read a Markdown document.

    Args:
        path: named in every place.
    """
    text = readable(re.sub(r"\r\n?", "\n", text).replace(_BREAK, " "))
    reader = _Reader(_UNSEEN.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text))
    return Document(
        path=path,
        tables=tuple(sorted(reader.tables, key=lambda table: table.line)),
        sentences=tuple(reader.sentences),
        code=tuple(reader.code),
        ignored=tuple(_ignored(text)),
    )


class _Reader:
    """A single pass over the blocks of a document, in order."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.headings: list[tuple[int, str, int]] = []
        self.num_headings = 0
        self.tables: list[Table] = []
        self.sentences: list[Sentence] = []
        self.code: list[CodeLine] = []
        self.open_items: list[str] = []
        self.items: list[_Text] = []
        self.intro = ""
        self.intro_bold = False
        self._read(SyntaxTreeNode(_BLOCKS.parse(text)))

    @property
    def section(self) -> DocumentSection:
        """Headings above the next block."""
        return DocumentSection(path=tuple(entry[2] for entry in self.headings), titles=tuple(entry[1] for entry in self.headings))

    def _read(self, node: SyntaxTreeNode) -> None:
        match node.type:
            case "heading":
                level, self.num_headings = int(node.tag[1:]), self.num_headings + 1
                above = [entry for entry in self.headings if entry[0] < level]
                self.headings = [*above, (level, plain(node.children[0].content), self.num_headings)]
                self.intro = ""
            case "table":
                self._table(node)
            case "fence":
                self._code(node)
            case "paragraph":
                self._paragraph(node)
            case "list_item":
                self._item(node)
            case "bullet_list" | "ordered_list" if not self.open_items:
                self._list(node)
            case _:
                for child in node.children:
                    self._read(child)

    def _paragraph(self, node: SyntaxTreeNode) -> None:
        text = _text(node)
        self.sentences += _sentences(text, self.section)
        self.intro = text.plain
        self.intro_bold = re.fullmatch(r"(\*\*|__).+\1:?", text.source, re.DOTALL) is not None

    def _item(self, node: SyntaxTreeNode) -> None:
        """Read a list item: its first paragraph is its text, all other blocks in it are its children."""
        first, rest = None, node.children
        if rest and rest[0].type == "paragraph":
            parent = self.open_items[-1] if self.open_items else (self.intro if self.intro.endswith(":") else "")
            first, rest = _text(rest[0], parent), rest[1:]
            self.sentences += _sentences(first, self.section)
            self.items.append(first)
        self.open_items.append(first.plain if first else "")
        for child in rest:
            self._read(child)
        self.open_items.pop()

    def _list(self, node: SyntaxTreeNode) -> None:
        """Read a list; items of the form `label: number` become a table."""
        self.items = []
        for child in node.children:
            self._read(child)
        for parent in dict.fromkeys(item.parent for item in self.items):
            table = _list_table([item for item in self.items if item.parent == parent], self.section, parent)
            if table:
                self.tables.append(table)

    def _code(self, node: SyntaxTreeNode) -> None:
        language = (node.info.split() or [""])[0].lower().strip("{}.")
        body = [(number, line) for number, line in enumerate(node.content.split("\n")[:-1], _line(node) + 1)]
        if language in _OUTPUT:
            table = lines_table(body, self.section, self.intro)
            if table:
                self.tables.append(table)
        if language not in _UNREAD:
            self.code += [CodeLine(text=text, line=number, section=self.section) for number, text in body]

    def _table(self, node: SyntaxTreeNode) -> None:
        head, *rows = [row for part in node.children for row in part.children]
        header = tuple(plain(source) for source in _sources(head))
        caption = self.intro if self.intro_bold or self.intro.endswith(":") or self.intro.lower().startswith("table") else ""
        units = column_units(header, (caption, self.intro))
        self.tables.append(
            Table(
                section=self.section,
                caption=caption.rstrip(":"),
                header=header,
                rows=tuple(_row(_sources(row), _line(row), units) for row in rows),
                line=_line(node),
                notes=tuple(_notes(self.lines[_line(node) - 1 + len(rows) + 2 :])),
            )
        )
        self.intro, self.intro_bold = "", False


def _line(node: SyntaxTreeNode) -> int:
    """Return the first line of a block, counted from 1."""
    return node.map[0] + 1 if node.map else 0


def _sources(row: SyntaxTreeNode) -> list[str]:
    return [cell.children[0].content for cell in row.children]


def _text(paragraph: SyntaxTreeNode, parent: str = "") -> _Text:
    source = paragraph.children[0].content
    shown = plain(re.sub(r"\\?\n", _BREAK, source)).split(_BREAK)
    return _Text(source, tuple((number, line.strip()) for number, line in enumerate(shown, _line(paragraph))), parent)


def _row(sources: Sequence[str], number: int, units: Sequence[Unit | None]) -> Row:
    first, *others = sources
    indent = _INDENT.match(re.sub(r"^(\*\*|__|\*|_)(?=\S)", "", first))
    depth = len(re.findall(r"&\w+;|[ \u2003\u2002↳└├│•>+*-]", indent[0])) if indent else 0
    first = first[indent.end() :] if indent and not re.match(r"[-+]?\d", first) else first
    cells = tuple(read_cell(plain(part), number, unit) for part, unit in zip((first, *others), units, strict=True))
    return Row(cells=cells, line=number, depth=depth)


def _notes(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines right under a table, 12 at most, up to the next heading, table or code."""
    for line in lines[:12]:
        if re.match(r" {0,3}#{1,6}\s|\s*(?:```|~~~)", line) or "|" in line or re.fullmatch(r"\*\*.+\*\*", line.strip()):
            return
        if line.strip() and not re.fullmatch(r" {0,3}(?:=+|-+)\s*", line):
            yield plain(line)


def _sentences(text: _Text, section: DocumentSection) -> Iterator[Sentence]:
    body, starts = "", []
    for number, part in text.lines:
        starts.append((len(body), number))
        body += f"{part} "
    lead = _lead(text)
    offset = 0
    for piece in _SPLIT.split(body.strip()):
        start = body.index(piece, offset)
        offset = start + len(piece)
        yield Sentence(
            text=piece,
            line=max(number for begin, number in starts if begin <= start),
            section=section,
            lead=lead,
            parent=text.parent,
            paragraph=body.strip(),
        )


def _lead(text: _Text) -> str:
    bold = re.match(r"(?:\[.\]\s*)?(\*\*|__)(.+?)\1", text.source)
    if bold:
        return plain(bold[2]).rstrip(":")
    before = re.match(r"((?:[^:.]|\.(?!\s)){1,60}):(?:\s|$)", text.lines[0][1])
    return before[1].strip() if before else ""


def _list_table(items: Sequence[_Text], section: DocumentSection, parent: str) -> Table | None:
    """Turn items `label: number ...` into rows of a table; None if there are none."""
    rows = []
    for item in items:
        label, colon, rest = item.plain.partition(":")
        cell = read_cell(rest.strip(), item.lines[0][0])
        if colon and len(label) <= 80 and cell.quantity is not None:
            rows.append(Row(cells=(read_cell(label, cell.line), cell), line=cell.line))
    if not rows:
        return None
    return Table(
        section=section, caption=parent.rstrip(":"), header=("", VALUE), rows=tuple(rows), line=rows[0].line, origin="list"
    )


def _ignored(text: str) -> Iterator[Ignored]:
    """Yield the comments `<!-- strobe lint: ignore RULE -->`: each covers its own line and the block that follows."""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        for found in _IGNORE.finditer(line):
            last = number
            while last < len(lines) and (last == number or not lines[last - 1].strip()):
                last += 1
            while last < len(lines) and lines[last].strip():
                last += 1
            for rule in re.split(r"[,\s]+", found["rules"].strip()):
                yield Ignored(first=number, last=last, rule=rule)
