"""Renderers of a report as one HTML file and as Markdown, and the writer of its files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Final, Literal, assert_never
from urllib.parse import quote

import msgspec

from strobe.core.files import write_together
from strobe.core.printable import clean
from strobe.perf.report.svg import (
    MAX_FRAMES,
    Bounds,
    draw_flame,
    draw_plane,
    draw_timeline,
    draw_waterfall,
    draw_whiskers,
    esc,
    hatch_patterns,
    ratio_axis,
    ratio_bounds,
    whisker_svg,
)
from strobe.perf.table.model import (
    Banner,
    Block,
    Cell,
    Code,
    Column,
    Figure,
    Flame,
    Headline,
    Headlines,
    Missing,
    Notes,
    Plane,
    Ratio,
    Report,
    Section,
    Table,
    Text,
    Timeline,
    Videos,
    Waterfall,
    Whiskers,
    cell_note,
    cell_sort_key,
    cell_text,
    encode_report,
    ratio_text,
    times_text,
)

# The report as one HTML file that needs nothing else: inline style, script and SVG, no address outside the folder.

_SHORT_NAME: Final = 28  # a name or a text up to these lengths is not broken over lines
_SHORT_TEXT: Final = 40
_SHORT_NOTE: Final = 14
_TWIN: Final = "The same as a table"


class _Page:
    """Counters of one page's tables and figures, in reading order."""

    def __init__(self, report: Report) -> None:
        self.tables: Iterator[int] = count(1)
        self.figures: Iterator[int] = count(1)
        blocks = [block for section in report.sections for block in section.blocks]
        flames = sum(isinstance(block, Figure) and isinstance(block.picture, Flame) for block in blocks)
        self.max_frames = MAX_FRAMES // max(1, flames)

    def block(self, block: Block) -> str:
        match block:
            case Notes(items=items):
                return _list(items)
            case Table(collapsed=True):
                return f"<details><summary>{esc(block.caption)}</summary>{self.table(block)}</details>"
            case Table():
                return self.table(block)
            case Figure():
                return self.figure(block)
            case Headlines():
                return self.headlines(block)
            case Videos(items=videos):
                shown = "".join(
                    '<figure><video controls loop muted playsinline preload="metadata"'
                    f' src="{quote(video.path)}" aria-label="{esc(video.label)}"></video>'
                    f"<figcaption><b>{esc(video.label)}</b> {esc(video.caption)}</figcaption></figure>"
                    for video in videos
                )
                button = '<button type="button" class="play" hidden>Play all together</button>'
                return f'<div class="videos">{button}<div>{shown}</div></div>'
            case _:
                assert_never(block)

    def section(self, number: int, section: Section, cautions: str) -> str:
        lead = f'<p class="lead">{esc(section.lead)}</p>' if section.lead else ""
        blocks = [self.block(block) for block in section.blocks]
        body = "".join((lead, *blocks[:1], cautions, *blocks[1:]))
        head = f'<h2 id="h-{esc(section.id)}"><span class="num">{number}</span>{esc(section.title)}</h2>'
        if section.folded:
            body, head = f'<details class="fold"><summary>{head}</summary>{body}</details>', ""
        return f'<section id="{esc(section.id)}" aria-labelledby="h-{esc(section.id)}">{head}{body}</section>'

    def figure(self, figure: Figure) -> str:
        caption = f"<figcaption><b>Figure {next(self.figures)}.</b> {esc(figure.title)}</figcaption>"
        is_open = " open" if figure.table_open else ""
        return (
            f"<figure>{caption}{self.picture(figure)}</figure>"
            f"<details{is_open}><summary>{_TWIN}</summary>{self.table(figure.table)}</details>"
        )

    def picture(self, figure: Figure) -> str:
        match figure.picture:
            case Whiskers() as picture:
                return draw_whiskers(picture)
            case Waterfall() as picture:
                return draw_waterfall(picture)
            case Plane() as picture:
                return draw_plane(picture, figure.alt)
            case Timeline() as picture:
                return draw_timeline(picture, figure.alt)
            case Flame() as picture:
                return draw_flame(picture, figure.alt, self.max_frames)
            case _:
                assert_never(figure.picture)

    def table(self, table: Table) -> str:
        table = reasons_below(table)
        head = "".join(_head(column, table.sortable) for column in table.columns)
        rows = "".join(
            f"<tr{' class=strong' if row.strong else ''}>"
            + "".join(_html_cell(cell, column, table.sortable) for cell, column in zip(row.cells, table.columns, strict=True))
            + "</tr>"
            for row in table.rows
        )
        below = _list(table.notes, ' class="notes"') if table.notes else ""
        caption = f"<caption><span><b>Table {next(self.tables)}.</b> {esc(table.caption)}</span></caption>"
        return (
            f'<div class="table"><div class="scroll" tabindex="0" role="region" aria-label="{esc(table.caption)}">'
            f"<table{' class=sortable' if table.sortable else ''}>{caption}"
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{below}</div>"
        )

    def headlines(self, block: Headlines) -> str:
        bounds = ratio_bounds(row.ratio for row in block.rows if isinstance(row.ratio, Ratio))
        rows = "".join(_headline(row, bounds) for row in block.rows)
        foot = (
            f'<div class="headline foot"><div class="who">{esc(block.reference)} = 1x, logarithmic</div><div class="big"></div>'
            f'<div class="how">{ratio_axis(bounds)}</div><div class="verdict"></div></div>'
        )
        twin = f"<details><summary>{_TWIN}</summary>{self.table(block.table)}</details>"
        return f'<div class="headlines">{rows}{foot}</div>{twin}'


def _headline(row: Headline, bounds: Bounds) -> str:
    big, how = '<div class="big"></div>', '<div class="how"></div>'
    if isinstance(row.ratio, Ratio):
        picture = whisker_svg(row.ratio, row.series, bounds, f"{row.candidate}: {ratio_text(row.ratio)}")
        big = f'<div class="big">{times_text(row.ratio.value)}<span>x</span></div>'
        how = f'<div class="how">{picture}</div>'
    return (
        f'<div class="headline"><div class="who"><b>{esc(row.candidate)}</b><span>{esc(row.detail)}</span></div>{big}{how}'
        f'<div class="verdict {row.verdict.tone}">{esc(row.verdict.text)}</div></div>'
    )


def render_html(report: Report, *, alone: bool = False) -> str:
    """Return the whole page; `alone`: without the other formats beside it. The same report gives the same text."""
    page, own = _Page(report), files("strobe.perf.report")
    style, script = (own.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    facts = "".join(f"<div><dt>{esc(fact.name)}</dt><dd>{_cell_body(fact.value, Column(''))}</dd></div>" for fact in report.facts)
    contents = "".join(f'<li><a href="#{esc(section.id)}">{esc(section.title)}</a></li>' for section in report.sections)
    stops, cautions, more = ("".join(map(_html_banner, banners)) for banners in _banners(report))
    if more:
        cautions += f'<details class="fold"><summary>More to keep in mind</summary><div>{more}</div></details>'
    numbered = list(enumerate(report.sections, start=1))
    sections = "".join(page.section(number, section, cautions if number == 1 else "") for number, section in numbered)
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<title>{esc(report.title)}</title><link rel="icon" href="data:,"><style>\n{style}</style>'
    )
    nav = f'<nav aria-label="Contents"><details open><summary>Contents</summary><ol>{contents}</ol></details></nav>'
    run = f'<details class="run"><summary>Run, machine and versions</summary><dl class="facts">{facts}</dl></details>'
    header = (
        f'<header><button type="button" id="theme" hidden>Dark</button><h1>{esc(report.title)}</h1>'
        f'<p class="subtitle">{esc(report.subtitle)}</p>{run if facts else ""}</header>'
    )
    twins = ' The same content stands in <a href="report.md">report.md</a> and <a href="report.json">report.json</a>.'
    footer = f"<footer>Report schema {report.v}.{'' if alone else twins}</footer>"
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{hatch_patterns()}{nav}'
        f"<main>{header}{stops}\n{sections or cautions}\n{footer}</main><script>\n{script}</script></body></html>\n"
    )


MAX_CAUTIONS: Final = 3
"""Lines of caution that stand below the answer of a page, the first block of its first section; more are folded."""


def _banners(report: Report) -> tuple[list[Banner], list[Banner], list[Banner]]:
    """Return the banners that void figures, which stand above all sections, and the others: those below the answer, and more."""
    stops, below, more = [], [], []
    left = MAX_CAUTIONS
    for banner in report.banners:
        if banner.level == "stop":
            stops.append(banner)
            continue
        below += [msgspec.structs.replace(banner, items=banner.items[:left])] if left else []
        more += [msgspec.structs.replace(banner, items=banner.items[left:])] if banner.items[left:] else []
        left = max(0, left - len(banner.items))
    return stops, below, more


def _html_banner(banner: Banner) -> str:
    title = f"<p><b>{esc(banner.title)}</b></p>"
    return f'<aside class="banner {banner.level}" role="note">{title}{_list(banner.items)}</aside>'


def _list(items: Iterable[str], style: str = "") -> str:
    return f"<ul{style}>{''.join(f'<li>{esc(item)}</li>' for item in items)}</ul>"


def _head(column: Column, sortable: bool) -> str:
    unit = f' <span class="unit">{column.unit}</span>' if column.unit else ""
    hint = f' title="{esc(column.hint)}"' if column.hint else ""
    title = f'<button type="button">{esc(column.title)}{unit}</button>' if sortable else f"{esc(column.title)}{unit}"
    return f'<th scope="col"{" class=n" if column.numeric else ""}{hint}>{title}</th>'


def _html_cell(cell: Cell, column: Column, sortable: bool) -> str:
    names = ["n"] if column.numeric else []
    if isinstance(cell, Text) and cell.tone != "plain":
        names.append(cell.tone)
    if isinstance(cell, Missing):
        names.append("missing")
    if (isinstance(cell, Text) and len(cell.text) > _SHORT_TEXT) or (isinstance(cell, Code) and len(cell.text) > _SHORT_NAME):
        names.append("wide")
    key = cell_sort_key(cell) if sortable else None
    value = f' data-v="{key!r}"' if key is not None else ""
    style = f' class="{" ".join(names)}"' if len(names) > 1 else f" class={names[0]}" if names else ""
    return f"<td{style}{value}>{_cell_body(cell, column)}</td>"


def _cell_body(cell: Cell, column: Column) -> str:
    text, note = esc(cell_text(cell, column)), esc(cell_note(cell))
    if isinstance(cell, Code):
        text = f'<code class="long">{text}</code>' if len(cell.text) > _SHORT_NAME else f"<code>{text}</code>"
    style = " class=s" if len(note) <= _SHORT_NOTE else ""
    return f"{text}<small{style}>{note}</small>" if note else text


# Renderer of a report as GitHub-flavoured Markdown: pictures become their tables, text from outside is escaped.

_SPECIAL: Final = re.compile(r"([\\`*_\[\]|~$#])")


@lru_cache(maxsize=8192)  # most cells of a long table are like another one
def escape(text: str) -> str:
    """Escape text so that Markdown shows it literally on one line, also inside a table cell."""
    text = clean(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", text).replace("://", ":&#47;&#47;").replace("www.", "www&#46;")


def render_markdown(report: Report) -> str:
    """Return the whole report; the same report gives the same text."""
    lines = [f"# {escape(report.title)}", "", escape(report.subtitle), ""]
    lines += [f"* {escape(fact.name)}: {_markdown_cell(fact.value, Column(''))}" for fact in report.facts]
    lines.append("")
    stops, cautions, more = (
        [
            line
            for banner in banners
            for line in (f"> **{escape(banner.title)}**", ">", *(f"> * {escape(item)}" for item in banner.items), "")
        ]
        for banners in _banners(report)
    )
    if more:
        cautions += ["<details><summary>More to keep in mind</summary>", "", *more, "</details>", ""]
    lines += stops if report.sections else stops + cautions
    for number, section in enumerate(report.sections, start=1):
        lines += [f"## {number}. {escape(section.title)}", ""]
        lines += [escape(section.lead), ""] if section.lead else []
        blocks = [_block(block) for block in section.blocks]
        below = cautions if number == 1 else []
        lines += [line for part in (*blocks[:1], below, *blocks[1:]) for line in part]
    return "\n".join(lines).rstrip("\n") + "\n"


def _block(block: Block) -> list[str]:
    match block:
        case Notes(items=items):
            return [*(f"* {escape(item)}" for item in items), ""]
        case Table():
            return _table(block)
        case Figure(table=table) | Headlines(table=table):
            return _table(table)
        case Videos(items=items):
            links = ((escape(video.label), quote(video.path, errors="replace"), escape(video.caption)) for video in items)
            return [*(f"* [{label}](<{target}>) {caption}".rstrip() for label, target, caption in links), ""]
        case _:
            assert_never(block)


def reasons_below(table: Table) -> Table:
    """Say a reason for which several cells have no value once, in a note below the table."""
    lacking = [(cell, column.title) for row in table.rows for cell, column in zip(row.cells, table.columns, strict=True)]
    often = Counter(cell for cell, _ in lacking if isinstance(cell, Missing) and cell.reason)
    notes: dict[Missing, str] = {}
    for cell, times in often.most_common():
        if times > 1 and all(other.label != cell.label for other in notes):
            where = ", ".join(dict.fromkeys(f'"{title}"' for each, title in lacking if each == cell))
            notes[cell] = f'"{cell.label}" under {where}: {cell.reason}'
    short = {cell: msgspec.structs.replace(cell, reason="") for cell in notes}
    rows = tuple(
        msgspec.structs.replace(
            row, cells=tuple(short.get(cell, cell) if isinstance(cell, Missing) else cell for cell in row.cells)
        )
        for row in table.rows
    )
    return msgspec.structs.replace(table, rows=rows, notes=(*notes.values(), *table.notes)) if notes else table


def _table(table: Table) -> list[str]:
    table = reasons_below(table)
    heads = [f"{escape(column.title)} ({column.unit})" if column.unit else escape(column.title) for column in table.columns]
    lines = [f"**{escape(table.caption)}**", "", "| " + " | ".join(heads) + " |"]
    lines.append("|" + "|".join(" ---: " if column.numeric else " --- " for column in table.columns) + "|")
    for row in table.rows:
        cells = [_markdown_cell(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)]
        lines.append("| " + " | ".join(f"**{cell}**" if row.strong and cell else cell for cell in cells) + " |")
    lines += ["", *(f"* {escape(note)}" for note in table.notes)]
    return [*lines, ""] if table.notes else lines


def _markdown_cell(cell: Cell, column: Column) -> str:
    text, note = escape(cell_text(cell, column)), escape(cell_note(cell))
    if isinstance(cell, Text) and cell.tone == "muted":
        return f"*{text}*" if text else ""
    return f"{text} ({note})" if note else text


Format = Literal["html", "md", "json"]
FORMATS: Final[tuple[Format, ...]] = ("html", "md", "json")
MAX_PAGE_BYTES: Final = 300_000


_ROOMS: Final = (
    (200, 50, 99), (100, 30, 99), (50, 20, 50), (40, 12, 40), (30, 8, 30), (30, 8, 24), (30, 5, 16), (20, 5, 12),
    (20, 3, 8), (12, 3, 6), (8, 3, 4), (5, 2, 3), (2, 1, 2),
)  # fmt: skip
"""Limits of a page: rows shown at once, rows of a table opened by a click, and tables of a section."""


def render(report: Report, format: Format, *, alone: bool = False) -> str:
    """Return the report in one format; the same report gives the same text.

    An HTML page above `MAX_PAGE_BYTES` keeps only the first rows of its tables, then only the first tables of its sections, and
    says so; the other formats are always complete.

    Args:
        alone: a page stands by itself, without the other formats beside it.
    """
    match format:
        case "md":
            return render_markdown(report)
        case "json":
            return encode_report(report).decode()
        case "html":
            shown = report
            for limits in _ROOMS:
                if least_bytes(shown) <= MAX_PAGE_BYTES:
                    page = render_html(shown, alone=alone)
                    if len(page.encode()) <= MAX_PAGE_BYTES:
                        return page
                shown = _shortened(report, *limits)
            return render_html(shown, alone=alone)


def write_report(report: Report, folder: Path, formats: Iterable[Format] = FORMATS) -> tuple[Path, ...]:
    """Write `report.html`, `report.md` and `report.json`, or the named ones of them, all or none; return their paths."""
    return write_together({folder / f"report.{each}": render(report, each) for each in FORMATS if each in set(formats)})


def least_bytes(report: Report) -> int:
    """Return a lower bound of the bytes of a page's tables, to find pages that are far too large without rendering them."""
    tables = [table for section in report.sections for block in section.blocks if (table := _table_of(block)) is not None]
    cells = ((table, "".join("<td class=n></td>" if one.numeric else "<td></td>" for one in table.columns)) for table in tables)
    return sum(len(table.rows) * len(f"<tr>{row}</tr>") for table, row in cells)


def _table_of(block: Block) -> Table | None:
    return block if isinstance(block, Table) else block.table if isinstance(block, Figure | Headlines) else None


def _shortened(report: Report, seen: int, folded: int, tables: int) -> Report:
    sections = []
    for section in report.sections:
        blocks, num_tables = list[Block](), 0
        for block in section.blocks:
            table = _table_of(block)
            num_tables += table is not None
            if table is None:
                blocks.append(block)
            elif num_tables <= tables:
                is_open = not block.collapsed if isinstance(block, Table) else isinstance(block, Figure) and block.table_open
                short = _short_table(table, seen if is_open else folded)
                blocks.append(short if block is table else msgspec.structs.replace(block, table=short))
        if num_tables > tables:
            blocks.append(Notes((f"{num_tables - tables} more tables of this section stand in report.md and report.json.",)))
        sections.append(msgspec.structs.replace(section, blocks=tuple(blocks)))
    return msgspec.structs.replace(report, sections=tuple(sections))


def _short_table(table: Table, rows: int) -> Table:
    plain = [row for row in table.rows if not row.strong]
    if len(plain) <= rows:
        return table
    kept = set(map(id, plain[:rows]))
    note = f"The first {rows} of {len(plain)} rows, so that the page stays small; report.json has all of them."
    shown = tuple(row for row in table.rows if row.strong or id(row) in kept)
    return msgspec.structs.replace(table, rows=shown, notes=(*table.notes, note))
