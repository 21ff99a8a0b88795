"""The report as one HTML file that needs nothing else: inline style, script and SVG, no address outside the folder."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from itertools import count
from typing import Final, assert_never
from urllib.parse import quote

from strobe.perf.report.model import (
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
    Paragraph,
    Plane,
    Ratio,
    Report,
    Row,
    Section,
    Strip,
    Table,
    Text,
    Timeline,
    Videos,
    Waterfall,
    Whiskers,
)
from strobe.perf.report.svg import esc
from strobe.perf.report.svg.bars import RatioScale, draw_waterfall, draw_whiskers, ratio_axis, whisker_svg
from strobe.perf.report.svg.flame import MAX_FRAMES, draw_flame
from strobe.perf.report.svg.plane import draw_plane
from strobe.perf.report.svg.strip import draw_strip
from strobe.perf.report.svg.timeline import draw_timeline, hatch_patterns
from strobe.perf.report.text import cell_note, cell_sort_key, cell_text, ratio_text

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
            case Paragraph(text=text):
                return f"<p>{esc(text)}</p>"
            case Notes(items=items):
                return "<ul>" + "".join(f"<li>{esc(item)}</li>" for item in items) + "</ul>"
            case Table(collapsed=True):
                return f"<details><summary>{esc(block.caption)}</summary>{self.table(block)}</details>"
            case Table():
                return self.table(block)
            case Figure():
                return self.figure(block)
            case Headlines():
                return self.headlines(block)
            case Videos():
                return _videos(block)
            case _:
                assert_never(block)

    def section(self, number: int, section: Section) -> str:
        lead = f'<p class="lead">{esc(section.lead)}</p>' if section.lead else ""
        body = lead + "".join(self.block(block) for block in section.blocks)
        head = f'<h2 id="h-{esc(section.id)}"><span class="num">{number}</span>{esc(section.title)}</h2>'
        if section.folded:
            body, head = f'<details class="fold"><summary>{head}</summary>{body}</details>', ""
        return f'<section id="{esc(section.id)}" aria-labelledby="h-{esc(section.id)}">{head}{body}</section>'

    def figure(self, figure: Figure) -> str:
        number = next(self.figures)
        caption = f"<figcaption><b>Figure {number}.</b> {esc(figure.title)}</figcaption>"
        is_open = " open" if figure.table_open else ""
        return (
            f"<figure>{caption}{self.picture(figure, number)}</figure>"
            f"<details{is_open}><summary>{_TWIN}</summary>{self.table(figure.table)}</details>"
        )

    def picture(self, figure: Figure, number: int) -> str:
        match figure.picture:
            case Whiskers() as picture:
                return draw_whiskers(picture)
            case Waterfall() as picture:
                return draw_waterfall(picture)
            case Plane() as picture:
                return draw_plane(picture, figure.alt)
            case Timeline() as picture:
                return draw_timeline(picture, figure.alt)
            case Strip() as picture:
                return draw_strip(picture, figure.alt, f"strip{number}")
            case Flame() as picture:
                return draw_flame(picture, figure.alt, self.max_frames)
            case _:
                assert_never(figure.picture)

    def table(self, table: Table) -> str:
        head = "".join(_head(column, table.sortable) for column in table.columns)
        rows = "".join(_row(row, table) for row in table.rows)
        notes = "".join(f"<li>{esc(note)}</li>" for note in table.notes)
        below = f'<ul class="notes">{notes}</ul>' if notes else ""
        caption = f"<caption><span><b>Table {next(self.tables)}.</b> {esc(table.caption)}</span></caption>"
        return (
            f'<div class="table"><div class="scroll" tabindex="0" role="region" aria-label="{esc(table.caption)}">'
            f"<table{' class=sortable' if table.sortable else ''}>{caption}"
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{below}</div>"
        )

    def headlines(self, block: Headlines) -> str:
        scale = RatioScale(row.ratio for row in block.rows if isinstance(row.ratio, Ratio))
        rows = "".join(_headline(row, scale) for row in block.rows)
        foot = (
            f'<div class="headline foot"><div class="who">{esc(block.reference)} = 1x, logarithmic</div><div class="big"></div>'
            f'<div class="how">{ratio_axis(scale)}</div><div class="verdict"></div></div>'
        )
        twin = f"<details><summary>{_TWIN}</summary>{self.table(block.table)}</details>"
        return f'<div class="headlines">{rows}{foot}</div>{twin}'


def _headline(row: Headline, scale: RatioScale) -> str:
    big, how = '<div class="big"></div>', '<div class="how"></div>'
    if isinstance(row.ratio, Ratio):
        picture = whisker_svg(row.ratio, row.series, scale, f"{row.candidate}: {ratio_text(row.ratio)}")
        big = f'<div class="big">{row.ratio.value:.2f}<span>x</span></div>'
        how = f'<div class="how">{picture}</div>'
    return (
        f'<div class="headline"><div class="who"><b>{esc(row.candidate)}</b><span>{esc(row.detail)}</span></div>{big}{how}'
        f'<div class="verdict {row.verdict.tone}">{esc(row.verdict.text)}</div></div>'
    )


def render_html(report: Report, *, alone: bool = False) -> str:
    """Return the whole page; the same report gives the same text.

    Args:
        alone: the page stands by itself, without the other formats beside it.
    """
    page, own = _Page(report), files("strobe.perf.report")
    style, script = (own.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    facts = "".join(f"<div><dt>{esc(fact.name)}</dt><dd>{_cell_body(fact.value, Column(''))}</dd></div>" for fact in report.facts)
    contents = "".join(f'<li><a href="#{esc(section.id)}">{esc(section.title)}</a></li>' for section in report.sections)
    sections = "".join(page.section(number, section) for number, section in enumerate(report.sections, start=1))
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<title>{esc(report.title)}</title><link rel="icon" href="data:,"><style>\n{style}</style>'
    )
    nav = f'<nav aria-label="Contents"><details open><summary>Contents</summary><ol>{contents}</ol></details></nav>'
    header = (
        f'<header><button type="button" id="theme" hidden>Dark</button><h1>{esc(report.title)}</h1>'
        f'<p class="subtitle">{esc(report.subtitle)}</p>'
        f'<details class="run"><summary>Run, machine and versions</summary><dl class="facts">{facts}</dl></details></header>'
    )
    twins = ' The same content stands in <a href="report.md">report.md</a> and <a href="report.json">report.json</a>.'
    footer = f"<footer>Report schema {report.v}.{'' if alone else twins}</footer>"
    banners = "".join(_banner(banner) for banner in report.banners)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{hatch_patterns()}{nav}'
        f"<main>{header}{banners}\n{sections}\n{footer}</main><script>\n{script}</script></body></html>\n"
    )


def _banner(banner: Banner) -> str:
    items = "".join(f"<li>{esc(item)}</li>" for item in banner.items)
    title = f"<p><b>{esc(banner.title)}</b></p>"
    return f'<aside class="banner {banner.level}" role="note">{title}<ul>{items}</ul></aside>'


def _head(column: Column, sortable: bool) -> str:
    unit = f' <span class="unit">{column.unit}</span>' if column.unit else ""
    hint = f' title="{esc(column.hint)}"' if column.hint else ""
    title = f'<button type="button">{esc(column.title)}{unit}</button>' if sortable else f"{esc(column.title)}{unit}"
    return f'<th scope="col"{" class=n" if column.numeric else ""}{hint}>{title}</th>'


def _row(row: Row, table: Table) -> str:
    cells = "".join(_cell(cell, column, table.sortable) for cell, column in zip(row.cells, table.columns, strict=True))
    return f"<tr{' class=strong' if row.strong else ''}>{cells}</tr>"


def _cell(cell: Cell, column: Column, sortable: bool) -> str:
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


def _videos(block: Videos) -> str:
    items = "".join(
        '<figure><video controls loop muted playsinline preload="metadata"'
        f' src="{quote(video.path)}" aria-label="{esc(video.label)}"></video>'
        f"<figcaption><b>{esc(video.label)}</b> {esc(video.caption)}</figcaption></figure>"
        for video in block.items
    )
    return f'<div class="videos"><button type="button" class="play" hidden>Play all together</button><div>{items}</div></div>'
