"""A document as rules see it, read from Markdown or printed output: tables of figures by metric, and sentences."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Final, Literal

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from strobe.core import costs
from strobe.core.errors import ConfigError, unknown_choice
from strobe.lint.quantity import Metric, Quantity, Unit, head_unit, is_metric, metric_of, quantities

EMPTY: Final = frozenset({"", "-", "--", "---", "–", "—", "n/a", "na", "none", "."})
"""Texts of cells without a figure."""
_REST: Final = ("note", "notes", "comment", "comments", "remark", "remarks", "description")
VALUE: Final = "value"
"""Head of the first number after a label of printed output or of a list."""
Titles = tuple[str, ...]
"""A section: its heading below the headings above it. The part before the first heading has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimPlace:
    """Place of a claim in a document. Lines count from 1."""

    line: int
    table: str = ""
    row: str = ""
    column: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCell:
    """One table cell. `quantity` is its number, if it holds one."""

    text: str
    quantity: Quantity | None = None

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
        return self.cells[0].text


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LintFigure:
    """A cell of a metric's column or row. Figures of two series with the same `position` are of one configuration or part."""

    name: str
    cell: TableCell
    row: int
    column: int
    position: int
    metric: Metric
    table: DocumentTable

    @property
    def quantity(self) -> Quantity:
        """The number in the cell, which holds one."""
        assert self.cell.quantity is not None
        return self.cell.quantity

    @property
    def block(self) -> tuple[DocumentTable, str]:
        """Its table, and the group of rows in it."""
        return self.table, self.table.rows[self.row].group

    @property
    def place(self) -> ClaimPlace:
        row, column = self.table.rows[self.row], self.table.header[self.column]
        return ClaimPlace(line=row.line, table=row.group or self.table.name, row=row.label, column=column)


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricSeries:
    """Cells of one metric."""

    metric: Metric
    entries: tuple[LintFigure, ...]

    @property
    def figures(self) -> tuple[LintFigure, ...]:
        """Entries whose cell holds a number."""
        return tuple(entry for entry in self.entries if entry.cell.quantity is not None)

    def of(self, position: int) -> Quantity | None:
        """Return the number of the configuration or part at a position."""
        return next((entry.cell.quantity for entry in self.entries if entry.position == position), None)


@dataclass(frozen=True, kw_only=True, eq=False)
class DocumentTable:
    """One table with its caption and the notes below it, whatever it was written as."""

    section: Titles
    caption: str
    header: tuple[str, ...]
    rows: tuple[DocumentRow, ...]
    line: int
    origin: Literal["table", "list", "lines"] = "table"
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Heading and caption of the table; the caption alone if that is specific enough."""
        above = () if len(self.caption.split()) > 2 else self.section[-1:]
        return ": ".join(part for part in (*above, self.caption) if part)

    @property
    def context(self) -> str:
        """All text around the table: headings, caption, column heads and notes."""
        return " | ".join((*self.section, self.caption, *self.header, *self.notes))

    @cached_property
    def by_columns(self) -> bool:
        """Whether metrics are the columns, and each row is a configuration or part; else the other way round."""
        rows = _share_of_metrics(row.label for row in self.rows)
        if self.origin != "table":
            return self.origin == "lines" or rows <= 0.5
        columns = list(zip(*(row.cells for row in self.rows), strict=True))[1:]
        mixed = any(len({cell.quantity.dimension for cell in column if cell.quantity}) > 1 for column in columns)
        return not mixed and (rows <= 0.5 or _share_of_metrics(self.header[1:]) >= rows)

    def _series(self, title: str, places: Iterable[tuple[int, int]], across: bool) -> MetricSeries:
        """Make a series of the cells at rows and columns: along a row (`across`), or down a column."""
        cells = [(row, column, self.rows[row].cells[column]) for row, column in places]
        units = Counter(cell.quantity.unit for _, _, cell in cells if cell.quantity and cell.quantity.unit)
        metric = metric_of(title, units.most_common(1)[0][0] if units else None)
        entries = (
            LintFigure(
                name=self.header[column] if across else self.rows[row].label, cell=cell, row=row, column=column,
                position=column if across else row, metric=metric, table=self,
            )
            for row, column, cell in cells
        )  # fmt: skip
        return MetricSeries(metric=metric, entries=tuple(entries))

    @cached_property
    def _columns(self) -> dict[int, MetricSeries]:
        """Every column but the first and the remarks, as a series."""
        titles = {column: title for column, title in enumerate(self.header) if column and title.lower() not in _REST}
        rows = range(len(self.rows))
        return {column: self._series(title, [(row, column) for row in rows], False) for column, title in titles.items()}

    @property
    def computed(self) -> list[MetricSeries]:
        """Columns that are computed from others, such as `Change` and `Speedup`."""
        return [each for each in self._columns.values() if each.metric.kind == "change" and each.figures]

    @cached_property
    def series(self) -> tuple[MetricSeries, ...]:
        """The metrics of the table, those of most whose cells are figures."""
        found = list(self._columns.values())
        if not self.by_columns:
            columns = [column for column, series in self._columns.items() if series.metric.kind != "change"]
            rows = [(number, row.label) for number, row in enumerate(self.rows) if row.label.lower() not in _REST]
            found = [self._series(label, [(number, column) for column in columns], True) for number, label in rows]
        filled = [(each, sum(not entry.cell.empty for entry in each.entries)) for each in found if each.figures]
        return tuple(each for each, cells in filled if 2 * len(each.figures) >= cells - 1)

    @property
    def singles(self) -> list[MetricSeries]:
        """The times of one call or pass each: no sums, no spreads."""
        return [series for series in self.of_kind("time") if series.metric.statistic not in ("spread", "sum")]

    def of_kind(self, *kinds: str) -> list[MetricSeries]:
        return [series for series in self.series if series.metric.kind in kinds]


def _share_of_metrics(labels: Iterable[str]) -> float:
    found = [is_metric(label) for label in labels]
    return sum(found) / max(1, len(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """A sentence of running text; `lead`: beginning of its paragraph or list item, up to the colon."""

    text: str
    line: int
    section: Titles
    lead: str = ""
    paragraph: str = ""

    @property
    def found(self) -> tuple[Quantity, ...]:
        return quantities(self.text)

    def about(self, figures: Iterable[LintFigure]) -> list[LintFigure]:
        """Return the figures whose name the sentence has, else its paragraph or the nearest heading.

        A name inside a longer one does not count; case counts outside of headings.
        """
        texts = ((self.text, 0), (self.paragraph.removeprefix(self.lead), 0))
        for text, flags in (*texts, *((title, re.IGNORECASE) for title in reversed(self.section))):
            named = {
                figure.name for figure in figures
                if figure.name and re.search(rf"(?<![\w-]){re.escape(figure.name)}(?![\w-])", text, flags)
            }  # fmt: skip
            longest = {name for name in named if not any(name != other and name in other for other in named)}
            if longest:
                return [figure for figure in figures if figure.name in longest]
        return []


@dataclass(frozen=True, kw_only=True, slots=True)
class LintOptions:
    """Facts about a measurement that the document itself does not state.

    Args:
        model: the transformer whose time is claimed.
        window: latent frames attended in self-attention, those computed included.
    """

    model: costs.TransformerShape | None = None
    tokens_per_frame: int | None = None
    window: int | None = None
    device: costs.DevicePeaks | None = None

    def parts(self, window: int) -> costs.PassParts:
        """Return the parts of a pass with so many latent frames attended, and their costs; none if its sizes are not known."""
        if self.model is None or self.tokens_per_frame is None:
            return {}
        made, tokens = self.model.frame_block, self.tokens_per_frame
        shape = costs.PassShape(q_tokens=made * tokens, kv_tokens=max(window, made) * tokens)
        return costs.transformer_pass(self.model, shape)


def options_of(*, model: str | None, size: tuple[int, int] | None, window: int | None, device: str | None) -> LintOptions:
    """Validate the user's statements and derive tokens from them.

    Raises:
        ConfigError: an unknown model or device, one of them without the others, or a window that is not positive.
        ShapeError: a size that is not a multiple of the model's stride and patch.
    """
    if window is not None and window <= 0:
        raise ConfigError(f"--window {window}: give a positive number")
    if model is not None and model not in costs.TRANSFORMERS:
        raise unknown_choice("model", model, costs.TRANSFORMERS)
    ran = None
    if device is not None:  # by its name, or the first of its family (`h100`)
        family = (each for each in costs.DEVICES if device and f"{each.name} ".lower().startswith(f"{device} ".lower()))
        ran = costs.device_peaks(device) or next(family, None)
        if ran is None:
            raise unknown_choice("device", device, (each.name for each in costs.DEVICES))
    given = {"--model": model, "--size": size, "--window": window, "--device": device}
    needed = list(given)[: 2 if window is None and device is None else 4]
    if (absent := [flag for flag in needed if given[flag] is None]) and any(given.values()):
        raise ConfigError(f"what was measured bounds nothing without {' and '.join(absent)}: give them too")
    transformer = None if model is None else costs.TRANSFORMERS[model]
    tokens = transformer.tokens_per_frame(*size) if transformer is not None and size is not None else None
    return LintOptions(model=transformer, tokens_per_frame=tokens, window=window, device=ran)


@dataclass(frozen=True, kw_only=True)
class LintDocument:
    """A file as tables and sentences; `ignored`: lines that a comment takes out of one rule (or all, `*`)."""

    tables: tuple[DocumentTable, ...] = ()
    sentences: tuple[Sentence, ...] = ()
    ignored: tuple[tuple[range, str], ...] = ()
    options: LintOptions = LintOptions()

    @cached_property
    def figures(self) -> tuple[LintFigure, ...]:
        return tuple(figure for table in self.tables for series in table.series for figure in series.figures)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One claim that does not hold.

    Args:
        corrected: correct value, or the information that has to be added.
        why: the numbers that show it.
        also: other places with the same claim, or the place that contradicts it.
        severity: `error`: the numbers contradict each other or the hardware; `warning`: what is needed to judge them is missing.
    """

    place: ClaimPlace
    said: str
    corrected: str
    why: str
    also: Sequence[ClaimPlace] = ()
    rule: str = ""
    severity: Literal["error", "warning"] = "error"


_AFTER: Final = re.compile(r"\s*(?:$|[(\[±,;/|*†‡→]|\+/-)")


def read_cell(text: str, unit: Unit | None = None) -> TableCell:
    """Parse a cell: it holds a number if it begins with one, followed by nothing but a unit (else `unit`), a note or bounds."""
    found = quantities(text, unit)
    if "=" in text:  # `a / b = c` is about c
        return TableCell(text=text, quantity=next((each for each in found if each.start > text.index("=")), None))
    first = found[0] if found else None
    about = first is not None and not text[: first.start].strip() and _AFTER.match(text, first.stop) is not None
    return TableCell(text=text, quantity=first if about else None)


_CAPTION_UNIT: Final = re.compile(
    r"(?i)\b(?:times?|latenc(?:y|ies)|durations?|values?|numbers?|figures|all|measured|everything)\b[^.;|]*?\bin "
    r"(?P<unit>[A-Za-zµμ]+)\b|[(\[](?P<tail>ns|µs|us|ms|s)[)\]]"
)
_NOT_TIMED: Final = re.compile(
    r"(?i)%|\b(?:calls?|count|n|num|samples?|fps|speed-?up|change|ratio|share|memory|note|notes|variant|steps?|shape|batch|size)\b|#"
)


def caption_unit(text: str) -> Unit | None:
    """Return the unit of time that a caption or an introduction declares for the numbers after it."""
    units = (head_unit(f"({found['unit'] or found['tail']})") for found in _CAPTION_UNIT.finditer(text))
    return next((unit for unit in units if unit and unit.dimension == "time"), None)


_LABELLED: Final = re.compile(
    r"^(?P<indent>\s*)(?P<label>[^\s:=|][^:=|]{0,78}?)\s*[:=]\s*(?P<rest>[~≈<>±+\-−]?\s*[(]?\s*[-+−]?\d.*)$"
)
_GROUP: Final = re.compile(r"^\s*(?P<title>[A-Za-z\[][^:]{0,78}?)\s*:\s*$")
_NAMED: Final = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_.% ]{0,18}?)\s*[:=]\s*$")


def lines_table(
    lines: Iterable[tuple[int, str]], section: Titles, intro: str = "", origin: Literal["list", "lines"] = "lines"
) -> DocumentTable | None:
    """Read numbered lines of output or of a list into one table, or None if fewer than two of them are `label: number ...`.
    The text before them, `intro`, may declare the unit."""
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
    table = lines_table(enumerate(text.splitlines(), 1), ())
    return LintDocument(tables=(table,) if table else ())


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
        ignored=tuple(ignored),
    )


class _MarkdownReader:
    """A single pass over the blocks of a document, in order."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.headings: list[tuple[int, str]] = []
        self.tables: list[DocumentTable] = []
        self.sentences: list[Sentence] = []
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
                language = (node.info.split() or [""])[0].lower().strip("{}.")
                if language in _OUTPUT:
                    self._lines(enumerate(node.content.split("\n")[:-1], _line(node) + 1), "lines")
            case "paragraph":
                found = _sentences(node, self.section)
                self.sentences += found
                if not _in_list(node):
                    self.intro = found[0].paragraph
                    self.intro_bold = re.fullmatch(r"(\*\*|__).+\1:?", node.children[0].content, re.DOTALL) is not None
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

    def _lines(self, lines: Iterable[tuple[int, str]], origin: Literal["list", "lines"]) -> None:
        table = lines_table(lines, self.section, self.intro, origin)
        if table:
            self.tables.append(table)

    def _table(self, node: SyntaxTreeNode) -> None:
        lines = [row for part in node.children for row in part.children]
        (_, head), *rows = [(_line(row), [cell.children[0].content for cell in row.children]) for row in lines]
        header = tuple(map(plain, head))
        caption = self.intro if self.intro_bold or self.intro.endswith(":") or self.intro.lower().startswith("table") else ""
        hint = caption_unit(caption) or caption_unit(self.intro)  # for columns of times (`all times in ms`)
        units = [
            head_unit(title) or (hint if index and not _NOT_TIMED.search(title) else None) for index, title in enumerate(header)
        ]
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
