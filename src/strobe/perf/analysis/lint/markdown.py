"""Reading Markdown: headings, tables, lists, paragraphs, code blocks, and the comments that switch rules off."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from strobe.perf.analysis.lint.document import CodeLine, Document, Ignored, Row, Section, Sentence, Table, column_units, read_cell
from strobe.perf.analysis.lint.lines import VALUE, lines_table
from strobe.perf.analysis.lint.quantity import readable

_FENCE: Final = re.compile(r"^\s*(?P<mark>`{3,}|~{3,})\s*(?P<language>[^\s`]*)")
_HEADING: Final = re.compile(r"^ {0,3}(?P<level>#{1,6})\s+(?P<title>.*?)\s*#*\s*$")
_UNDERLINE: Final = re.compile(r"^ {0,3}(=+|-+)\s*$")
_ITEM: Final = re.compile(r"^(?P<indent>\s*)(?:[-*+]|\d+[.)])\s+(?P<text>.*)$")
_DELIMITER: Final = re.compile(r"^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$")
_IGNORE: Final = re.compile(r"<!--\s*strobe lint: ignore (?P<rules>[\w*, -]+?)\s*(?::.*)?-->")
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)
_OUTPUT: Final = frozenset({"", "text", "txt", "log", "output", "console", "plain", "plaintext"})
_UNREAD: Final = frozenset({"markdown", "md", "diff", "mermaid"})
_SPLIT: Final = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)(?<!cf\.)(?<!ca\.)\s+(?=[A-Z\"'(\d])")
_INDENT: Final = re.compile(r"^(?:(?:&nbsp;|&emsp;|&ensp;| |\u2003|\u2002|[ ]{2}|↳|└─*|├─*|│|[-*•>+](?=\s))\s*)+")


def plain(text: str) -> str:
    """Take Markdown's markup out of a line, leaving what a reader sees."""
    text = re.sub(r"(?<!\\)(`+)(.+?)\1", lambda found: _hide(found[2].strip()), text)
    text = re.sub(r"!?\[([^\]]*)\]\((?:<[^>]*>|[^)\s]*)(?:\s+\"[^\"]*\")?\)", r"\1", text)
    text = re.sub(r"\[\^[^\]]+\]", "", text)
    text = re.sub(r"\$?\\pm\$?", "±", text)
    text = re.sub(r"<br\s*/?>", " ", text)
    text = re.sub(r"</?(?:b|i|em|strong|sub|sup|code|u|span|kbd|small|center|p|div|a|img)\b[^>]*>", "", text)
    text = re.sub(r"(?<!\\)(\*\*|__)(?=\S)(.+?)(?<=\S)(?<!\\)\1", r"\2", text)
    text = re.sub(r"(?<![\\\w*])([*_])(?=[^\s*_])(.+?)(?<=[^\s*\\])\1(?![\w*])", r"\2", text)
    text = re.sub(r"~~(.+?)~~", r"\1", text)
    text = re.sub(r"\\([\\`*_{}\[\]()#+\-.!|~$<>&])", r"\1", text)
    return html.unescape("".join(_SHOWN.get(letter, letter) for letter in text)).replace("\u00a0", " ").strip()


_HIDDEN: Final = {letter: chr(0xE000 + number) for number, letter in enumerate("*_~\\[]<>&`|")}
_SHOWN: Final = {hidden: letter for letter, hidden in _HIDDEN.items()}


def _hide(code: str) -> str:
    """Letters of inline code are not markup."""
    return "".join(_HIDDEN.get(letter, letter) for letter in code)


def split_row(line: str) -> list[str]:
    """Cut a table row at its pipes; `\\|` is a letter."""
    body = line.strip()
    body = body[1:] if body.startswith("|") else body
    parts = re.split(r"(?<!\\)\|", body)
    if parts and not parts[-1].strip():
        parts.pop()
    return [part.strip() for part in parts]


@dataclass(slots=True)
class _Text:
    """A paragraph or list item being collected."""

    lines: list[tuple[int, str]] = field(default_factory=list)
    indent: int = -1
    parent: str = ""

    @property
    def item(self) -> bool:
        return self.indent >= 0


def read_markdown(text: str, path: str) -> Document:
    """Read a Markdown document.

    Args:
        path: named in every place.
    """
    reader = _Reader(readable(text), path)
    reader.read()
    return reader.document()


class _Reader:
    """One pass over the lines; a block ends where the next one begins."""

    def __init__(self, text: str, path: str) -> None:
        self.path = path
        self.ignored = list(_ignored(text))
        self.lines = _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text).splitlines()
        self.section = Section()
        self.count = 0
        self.stack: list[tuple[int, str, int]] = []
        self.tables: list[Table] = []
        self.sentences: list[Sentence] = []
        self.code: list[CodeLine] = []
        self.current = _Text()
        self.items: list[_Text] = []
        self.intro = ""
        self.intro_bold = False

    def document(self) -> Document:
        return Document(
            path=self.path,
            tables=tuple(self.tables),
            sentences=tuple(self.sentences),
            code=tuple(self.code),
            ignored=tuple(self.ignored),
        )

    def read(self) -> None:
        position = self._front_matter()
        while position < len(self.lines):
            position = self._block(position)
        self._end_list()

    def _front_matter(self) -> int:
        if self.lines and self.lines[0].strip() == "---":
            end = next((number for number, line in enumerate(self.lines[1:], 1) if line.strip() == "---"), 0)
            return end + 1 if end else 0
        return 0

    def _block(self, position: int) -> int:
        line = self._line(position)
        fence, heading, item = _FENCE.match(line), _HEADING.match(line), _ITEM.match(line)
        if fence:
            return self._code(position, fence["mark"], fence["language"].lower().strip("{}."))
        if heading:
            self._head(len(heading["level"]), plain(heading["title"]))
        elif self._table_at(position):
            return self._table(position)
        elif not line.strip():
            self._end_text()
        elif _UNDERLINE.match(line) and len(self.current.lines) == 1 and not self.current.item:
            title = plain(self.current.lines[0][1])
            self.current = _Text()
            self._head(1 if "=" in line else 2, title)
        elif item:
            self._item(position, len(item["indent"].expandtabs(4)), item["text"])
        elif not _UNDERLINE.match(line):
            if not self.current.lines and not line.startswith(" "):
                self._end_list()
            self.current.lines.append((position + 1, line.strip()))
        return position + 1

    def _head(self, level: int, title: str) -> None:
        self._end_list()
        self.count += 1
        self.stack = [*(entry for entry in self.stack if entry[0] < level), (level, title, self.count)]
        self.section = Section(path=tuple(entry[2] for entry in self.stack), titles=tuple(entry[1] for entry in self.stack))
        self.intro = ""

    def _item(self, position: int, indent: int, text: str) -> None:
        self._end_text()
        above = next((item for item in reversed(self.items) if item.indent < indent), None)
        parent = plain(" ".join(part for _, part in above.lines)) if above else (self.intro if self.intro.endswith(":") else "")
        self.current = _Text(lines=[(position + 1, text)], indent=indent, parent=parent)

    def _end_text(self) -> None:
        """The paragraph or item is complete: make sentences of it."""
        done, self.current = self.current, _Text()
        if not done.lines:
            return
        text = " ".join(part for _, part in done.lines)
        self.sentences += _sentences(done, self.section)
        if done.item:
            self.items.append(done)
        else:
            self.intro = plain(text)
            self.intro_bold = re.fullmatch(r"(\*\*|__).+\1:?", text.strip()) is not None

    def _end_list(self) -> None:
        """The list is complete: items that are `label: number` are a table."""
        self._end_text()
        items, self.items = self.items, []
        for parent in dict.fromkeys(item.parent for item in items):
            table = _list_table([item for item in items if item.parent == parent], self.section, parent)
            if table:
                self.tables.append(table)

    def _code(self, position: int, mark: str, language: str) -> int:
        self._end_text()
        end = position + 1
        while end < len(self.lines) and not self.lines[end].strip().startswith(mark):
            end += 1
        body = [(number + 1, self.lines[number]) for number in range(position + 1, min(end, len(self.lines)))]
        if language in _OUTPUT:
            table = lines_table(body, self.section, self.intro)
            if table:
                self.tables.append(table)
        if language not in _UNREAD:
            self.code += [CodeLine(text=text, line=number, section=self.section) for number, text in body]
        return end + 1

    def _line(self, position: int) -> str:
        """A line without the mark of a quotation."""
        return re.sub(r"^ {0,3}>\s?", "", self.lines[position])

    def _table_at(self, position: int) -> bool:
        if position + 1 >= len(self.lines) or "|" not in self.lines[position]:
            return False
        line, below = self._line(position), self._line(position + 1)
        return _DELIMITER.match(below) is not None and len(split_row(below)) == len(split_row(line))

    def _table(self, position: int) -> int:
        self._end_list()
        header = tuple(plain(part) for part in split_row(self._line(position)))
        end = position + 2
        while end < len(self.lines) and "|" in self._line(end):
            end += 1
        caption = self.intro if self.intro_bold or self.intro.endswith(":") or self.intro.lower().startswith("table") else ""
        units = column_units(header, (caption, self.intro))
        rows = tuple(_row(self._line(number), number + 1, units) for number in range(position + 2, end))
        notes = tuple(_notes(self.lines, end))
        self.tables.append(
            Table(section=self.section, caption=caption.rstrip(":"), header=header, rows=rows, line=position + 1, notes=notes)
        )
        self.intro, self.intro_bold = "", False
        return end


def _row(line: str, number: int, units: Sequence[object]) -> Row:
    parts = split_row(line)
    first = parts[0] if parts else ""
    indent = _INDENT.match(re.sub(r"^(\*\*|__|\*|_)(?=\S)", "", first))
    depth = len(re.findall(r"&\w+;|[ \u2003\u2002↳└├│•>+*-]", indent[0])) if indent else 0
    parts[:1] = [first[indent.end() :] if indent and not re.match(r"[-+]?\d", first) else first]
    parts += [""] * (len(units) - len(parts))
    cells = tuple(read_cell(plain(part), number, unit) for part, unit in zip(parts, units, strict=False))  # type: ignore[arg-type]
    return Row(cells=cells, line=number, depth=depth)


def _notes(lines: Sequence[str], position: int) -> Iterator[str]:
    """Paragraphs and items right under a table, up to the next heading, table or rule."""
    for line in lines[position : position + 12]:
        if _HEADING.match(line) or "|" in line or _FENCE.match(line) or re.fullmatch(r"\*\*.+\*\*", line.strip()):
            return
        if line.strip() and not _UNDERLINE.match(line):
            yield plain(line)


def _sentences(text: _Text, section: Section) -> Iterator[Sentence]:
    body, starts = "", []
    for number, part in text.lines:
        starts.append((len(body), number))
        body += f"{plain(part)} "
    lead = _lead(text.lines[0][1]) if text.lines else ""
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


def _lead(line: str) -> str:
    bold = re.match(r"(?:\[.\]\s*)?(\*\*|__)(.+?)\1", line)
    if bold:
        return plain(bold[2]).rstrip(":")
    before = re.match(r"((?:[^:.]|\.(?!\s)){1,60}):(?:\s|$)", plain(line))
    return before[1].strip() if before else ""


def _list_table(items: Sequence[_Text], section: Section, parent: str) -> Table | None:
    """Items `label: number ...` as rows; None if there is none."""
    rows = []
    for item in items:
        text = plain(" ".join(part for _, part in item.lines))
        label, colon, rest = text.partition(":")
        cell = read_cell(rest.strip(), item.lines[0][0])
        if colon and len(label) <= 80 and cell.quantity is not None:
            rows.append(Row(cells=(read_cell(label, cell.line), cell), line=cell.line))
    if not rows:
        return None
    return Table(
        section=section, caption=parent.rstrip(":"), header=("", VALUE), rows=tuple(rows), line=rows[0].line, origin="list"
    )


def _ignored(text: str) -> Iterator[Ignored]:
    """Comments `<!-- strobe lint: ignore RULE -->`: they cover their own line and the block that follows."""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        for found in _IGNORE.finditer(line):
            last = number
            while last < len(lines) and (last == number or not lines[last - 1].strip()):
                last += 1
            while last < len(lines) and lines[last].strip():
                last += 1
            for rule in re.split(r"[,\s]+", found["rules"].strip()):
                yield Ignored(first=number, last=last, rule=rule)
