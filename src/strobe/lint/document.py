"""A document as tables of typed cells, sentences and lines of code: Markdown, or printed output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from strobe.lint.quantity import Quantity, Unit, head_unit, quantities, readable

Origin = Literal["table", "list", "lines"]

EMPTY: Final = frozenset({"", "-", "--", "---", "–", "—", "n/a", "na", "none", "."})
"""Texts of cells without a figure."""

_AFTER: Final = re.compile(r"\s*(?:$|[(\[±,;/|*†‡→]|\+/-)")
_INTERVAL: Final = re.compile(r"\[\s*[-+−]?\d[^\[\]]*[,;–-]\s*[-+−]?\d[^\[\]]*\]")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimPlace:
    """Place of a claim in a file. Lines count from 1."""

    path: str
    line: int
    table: str = ""
    row: str = ""
    column: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentSection:
    """A heading with the headings above it; the part before the first heading has none."""

    path: tuple[int, ...] = ()
    titles: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Title of the innermost heading."""
        return self.titles[-1] if self.titles else ""

    def within(self, other: DocumentSection) -> bool:
        """Return True if this section is `other` or lies below it."""
        return self.path[: len(other.path)] == other.path


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCell:
    """One table cell. `quantity` is its number, if it holds one; `interval`: it is printed with its own bounds."""

    text: str
    line: int
    quantity: Quantity | None = None
    interval: bool = False

    @property
    def empty(self) -> bool:
        """Whether the cell is blank or holds a dash: no figure here."""
        return re.sub(r"\s*\(.*\)$", "", self.text.strip()).lower() in EMPTY


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentRow:
    """One table row; `depth` is the indentation of its label, `group` the heading line above it."""

    cells: tuple[TableCell, ...]
    line: int
    depth: int = 0
    group: str = ""

    @property
    def label(self) -> str:
        """Text of the first cell."""
        return self.cells[0].text if self.cells else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentTable:
    """One table with its caption and the notes below it, whatever it was written as."""

    section: DocumentSection
    caption: str
    header: tuple[str, ...]
    rows: tuple[DocumentRow, ...]
    line: int
    origin: Origin = "table"
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Heading and caption of the table; the caption alone if that is specific enough."""
        if len(self.caption.split()) > 2 or not self.section.title:
            return self.caption
        return f"{self.section.title}: {self.caption}" if self.caption else self.section.title

    @property
    def context(self) -> str:
        """All text around the table: headings, caption, column heads and notes."""
        return " | ".join((*self.section.titles, self.caption, *self.header, *self.notes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """A sentence of running text.

    Args:
        lead: beginning of its paragraph or list item, up to the colon.
        paragraph: the whole paragraph or list item.
    """

    text: str
    line: int
    section: DocumentSection
    lead: str = ""
    paragraph: str = ""

    @property
    def found(self) -> tuple[Quantity, ...]:
        """Numbers in the sentence."""
        return quantities(self.text)


@dataclass(frozen=True, kw_only=True, slots=True)
class LintDocument:
    """A file as tables, sentences and lines of code; `ignored`: lines that a comment takes out of one rule (or all, `*`)."""

    path: str
    tables: tuple[DocumentTable, ...] = ()
    sentences: tuple[Sentence, ...] = ()
    code: tuple[Sentence, ...] = ()
    ignored: tuple[tuple[range, str], ...] = ()

    def place(self, line: int, table: DocumentTable | None = None, row: str = "", column: str = "") -> ClaimPlace:
        """Return a place in this document."""
        return ClaimPlace(path=self.path, line=line, table=table.name if table else "", row=row, column=column)

    def text_of(self, section: DocumentSection) -> str:
        """Return all sentences of a section and of the sections below it as one text."""
        return "\n".join(sentence.text for sentence in self.sentences if sentence.section.within(section))


def read_cell(text: str, line: int, unit: Unit | None = None) -> TableCell:
    """Parse a cell: it holds a number if it begins with one, followed by nothing but a unit, a note or bounds.

    Args:
        unit: unit of numbers without one.
    """
    found = quantities(text, unit)
    body = text.partition("=")[2] if "=" in text else text
    if body is not text:  # `a / b = c` is about c
        result = next((each for each in found if each.start >= len(text) - len(body)), None)
        return TableCell(text=text, line=line, quantity=result)
    first = found[0] if found else None
    about = first is not None and not text[: first.start].strip() and _AFTER.match(text, first.stop) is not None
    return TableCell(text=text, line=line, quantity=first if about else None, interval=_INTERVAL.search(text) is not None)


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
VALUE: Final = "value"


def lines_table(lines: Sequence[tuple[int, str]], section: DocumentSection, intro: str = "") -> DocumentTable | None:
    """Read numbered lines of output into one table, or None if fewer than two of them are `label: number ...`.

    Args:
        lines: number and text of each line.
        intro: the text before the block; it may declare the unit.
    """
    rows: list[tuple[DocumentRow, dict[str, TableCell]]] = []
    caption, group = "", ""
    hint = caption_unit(intro)
    for number, text in lines:
        hint = hint or caption_unit(text)
        labelled, heading = _LABELLED.match(text), _GROUP.match(text)
        if labelled:
            depth = len(labelled["indent"].expandtabs(4))
            label = TableCell(text=labelled["label"].strip(), line=number)
            rows.append(
                (DocumentRow(cells=(label,), line=number, depth=depth, group=group), _named_cells(labelled["rest"], number, hint))
            )
        elif heading:
            caption, group = caption or ("" if group or rows else heading["title"]), heading["title"]
        elif not rows and not caption and text.strip(" =-*#"):
            caption = text.strip()
    if len(rows) < 2:
        return None
    titles = list(dict.fromkeys(title for _, cells in rows for title in cells))
    blank = {title: TableCell(text="", line=0) for title in titles}
    full = tuple(
        DocumentRow(cells=(*row.cells, *(blank | cells).values()), line=row.line, depth=row.depth, group=row.group)
        for row, cells in rows
    )
    return DocumentTable(section=section, caption=caption, header=("", *titles), rows=full, line=full[0].line, origin="lines")


def _named_cells(rest: str, line: int, hint: Unit | None) -> dict[str, TableCell]:
    """Split the text after a label into cells by name: `7.95 ± 0.84 (total: 23.85)` gives value, ± and total."""
    cells: dict[str, TableCell] = {}
    for each in quantities(rest):
        title = _title(each, rest)
        if title not in cells:
            unit = hint if each.unit is None and title != "count" else None
            cells[title] = read_cell(rest[each.start : each.stop].strip(), line, unit)
    return cells


def _title(each: Quantity, rest: str) -> str:
    if each.mark == "spread":
        return "±"
    named = _NAMED.search(rest[: each.start])
    if named:
        return named["name"].strip()
    if each.dimension == "percent":
        return "%"
    return "count" if each.dimension == "count" else VALUE


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


def read_markdown(text: str, path: str) -> LintDocument:
    """Read a Markdown document.

    Args:
        path: named in every place.
    """
    text = readable(re.sub(r"\r\n?", "\n", text).replace(_BREAK, " "))
    reader = _MarkdownReader(_UNSEEN.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text))
    return LintDocument(
        path=path,
        tables=tuple(sorted(reader.tables, key=lambda table: table.line)),
        sentences=tuple(reader.sentences),
        code=tuple(reader.code),
        ignored=tuple(_ignored(text)),
    )


class _MarkdownReader:
    """A single pass over the blocks of a document, in order."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.headings: list[tuple[int, str, int]] = []
        self.num_headings = 0
        self.tables: list[DocumentTable] = []
        self.sentences: list[Sentence] = []
        self.code: list[Sentence] = []
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
            self.code += [Sentence(text=text, line=number, section=self.section) for number, text in body]

    def _table(self, node: SyntaxTreeNode) -> None:
        head, *rows = [row for part in node.children for row in part.children]
        header = tuple(plain(source) for source in _sources(head))
        caption = self.intro if self.intro_bold or self.intro.endswith(":") or self.intro.lower().startswith("table") else ""
        units = column_units(header, (caption, self.intro))
        self.tables.append(
            DocumentTable(
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


def _row(sources: Sequence[str], number: int, units: Sequence[Unit | None]) -> DocumentRow:
    first, *others = sources
    indent = _INDENT.match(re.sub(r"^(\*\*|__|\*|_)(?=\S)", "", first))
    depth = len(re.findall(r"&\w+;|[ \u2003\u2002↳└├│•>+*-]", indent[0])) if indent else 0
    first = first[indent.end() :] if indent and not re.match(r"[-+]?\d", first) else first
    cells = tuple(read_cell(plain(part), number, unit) for part, unit in zip((first, *others), units, strict=True))
    return DocumentRow(cells=cells, line=number, depth=depth)


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
            paragraph=body.strip(),
        )


def _lead(text: _Text) -> str:
    bold = re.match(r"(?:\[.\]\s*)?(\*\*|__)(.+?)\1", text.source)
    if bold:
        return plain(bold[2]).rstrip(":")
    before = re.match(r"((?:[^:.]|\.(?!\s)){1,60}):(?:\s|$)", text.lines[0][1])
    return before[1].strip() if before else ""


def _list_table(items: Sequence[_Text], section: DocumentSection, parent: str) -> DocumentTable | None:
    """Turn items `label: number ...` into rows of a table; None if there are none."""
    rows = []
    for item in items:
        label, colon, rest = item.plain.partition(":")
        cell = read_cell(rest.strip(), item.lines[0][0])
        if colon and len(label) <= 80 and cell.quantity is not None:
            rows.append(DocumentRow(cells=(read_cell(label, cell.line), cell), line=cell.line))
    if not rows:
        return None
    return DocumentTable(
        section=section, caption=parent.rstrip(":"), header=("", VALUE), rows=tuple(rows), line=rows[0].line, origin="list"
    )


def _ignored(text: str) -> Iterator[tuple[range, str]]:
    """Yield lines and rules of `<!-- strobe lint: ignore RULE -->`: each covers its own line and the block that follows."""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        for found in _IGNORE.finditer(line):
            last = number
            while last < len(lines) and (last == number or not lines[last - 1].strip()):
                last += 1
            while last < len(lines) and lines[last].strip():
                last += 1
            for rule in re.split(r"[,\s]+", found["rules"].strip()):
                yield range(number, last + 1), rule
