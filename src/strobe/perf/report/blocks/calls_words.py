"""Words for functions and programs in place of those for clips: a sample is recorded as a clip of one frame block."""

from __future__ import annotations

import re
from typing import Final

from strobe.core import spans
from strobe.perf.analysis.ledger.account import Level
from strobe.perf.analysis.ledger.parts import AROUND
from strobe.perf.report.model import Block, Cell, Code, Notes, Row, Section, Table, Text

OUTSIDE: Final = "outside the named spans"
_LEVELS: Final = {Level.BLOCK.value: "call", Level.E2E.value: "sample"}
_LINES: Final = {
    f"clip: {AROUND}": "before and after the calls",
    "sum of all lines = timed clips": "sum of all lines = timed samples",
}
_WORDS: Final = (
    (re.compile(r"\b(?:traced|timed) frame blocks\b"), "samples"),
    (re.compile(r"\bpalindromes of clips\b"), "rounds of samples"),
    (re.compile(r"\bclip(s?)\b"), r"sample\1"),
)
_RANGE: Final = re.compile(r",? (?:over )?frame blocks \d+ to \d+")


def level_word(level: str) -> str:
    """Return the name of a level in the account of calls."""
    return _LEVELS.get(level, level)


def line_word(line: str) -> str:
    """Return the name of a line in the account of calls; names of the caller's spans stay as they are."""
    return _LINES.get(line) or re.sub(rf"^{spans.FRAME_BLOCK}(?=: |$)", OUTSIDE, line)


def in_words_of_calls(section: Section) -> Section:
    """Return a section that pages of clips have too, in the words of calls."""
    return Section(section.id, section.title, _words(section.lead), tuple(map(_block, section.blocks)), folded=section.folded)


def _block(block: Block) -> Block:
    if isinstance(block, Notes):
        return Notes(tuple(map(_words, block.items)))
    if not isinstance(block, Table):
        return block
    rows = tuple(Row(tuple(map(_cell, row.cells)), strong=row.strong) for row in block.rows)
    caption, notes = _RANGE.sub("", block.caption), tuple(map(_words, block.notes))
    return Table(caption, block.columns, rows, notes, sortable=block.sortable, collapsed=block.collapsed)


def _cell(cell: Cell) -> Cell:
    """Return a cell in the words of calls, if it is a level or a line."""
    if isinstance(cell, Code):
        return Code(line_word(cell.text))
    if isinstance(cell, Text):
        return Text(_RANGE.sub("", level_word(line_word(cell.text))), cell.tone, cell.note)
    return cell


def _words(text: str) -> str:
    for pattern, word in _WORDS:
        text = pattern.sub(word, text)
    return text
