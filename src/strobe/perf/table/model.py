"""The report as one frozen value: sections of typed cells and of pictures as data; and cells as plain text."""

from __future__ import annotations

import math
import re
from typing import Final, Literal

import msgspec

from strobe.core.printable import ByteUnit, bytes_in, clean

SCHEMA_VERSION: Final = 1

Tone = Literal["plain", "good", "bad", "muted"]
"""Meaning of a cell or bar: neutral, a gain, a cost, or of little interest."""

KindStyle = Literal["focal", "work1", "work2", "work3", "work4", "gap1", "gap2", "gap3", "gap4", "gap5"]
"""Style of a slice in a timeline: the focal kernel, other work (solid) or a gap (hatched)."""
GAPS: Final[frozenset[KindStyle]] = frozenset(("gap1", "gap2", "gap3", "gap4", "gap5"))


class _Node(msgspec.Struct, frozen=True, tag=str.lower, omit_defaults=True, forbid_unknown_fields=True):
    pass


class Text(_Node, frozen=True):
    """A short text with a tone; the note gives the reason."""

    text: str
    tone: Tone = "plain"
    note: str = ""


class Code(_Node, frozen=True):
    """A name or text that came from a trace, a prompt, a file or the command line."""

    text: str


class Count(_Node, frozen=True):
    """A plain integer."""

    value: int


class Time(_Node, frozen=True):
    """A duration in nanoseconds, printed in the column's unit with four significant digits."""

    ns: float
    note: str = ""


class ExactTime(_Node, frozen=True):
    """An integer duration in nanoseconds, printed to the last nanosecond (milliseconds with six decimals)."""

    ns: int


class Ratio(_Node, frozen=True):
    """Reference time / candidate time, above 1 = the candidate is faster, with the bounds of its interval if there is one."""

    value: float
    low: float | None = None
    high: float | None = None


class Share(_Node, frozen=True):
    """A part of a whole; 0.25 prints as 25.0 %."""

    value: float


class Number(_Node, frozen=True):
    """A value with a fixed count of decimals and its own unit; the note names the reference it was measured against."""

    value: float
    digits: int
    unit: str = ""
    note: str = ""


class Missing(_Node, frozen=True):
    """A value that was not measured, and the reason."""

    reason: str
    label: str = "not measured"


Cell = Text | Code | Count | Time | ExactTime | Ratio | Share | Number | Missing


class Column(_Node, frozen=True):
    """A column. `unit` is printed in the head and left out of the cells; `hint` explains the head."""

    title: str
    unit: Literal["", "ns", "µs", "ms", "s"] = ""
    numeric: bool = False
    hint: str = ""


class Row(_Node, frozen=True):
    """A row: as many cells as the table has columns. A `strong` row is a total or an average."""

    cells: tuple[Cell, ...]
    strong: bool = False


class Table(_Node, frozen=True):
    """A table with its caption and notes. A `collapsed` one opens on a click where the format allows it."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    sortable: bool = False
    collapsed: bool = False


class Whisker(_Node, frozen=True):
    """One ratio with its interval: a dot and a line on a logarithmic axis."""

    label: str
    ratio: Ratio
    group: str = ""
    detail: str = ""
    series: int = 0


class Whiskers(_Node, frozen=True):
    """Ratios beside each other; 1.0 is the named reference."""

    reference: str
    rows: tuple[Whisker, ...]


class Bar(_Node, frozen=True):
    """One bar of a waterfall from `start_ns` to `stop_ns`, with the interval of its stop; a total stands on zero."""

    label: str
    start_ns: int
    stop_ns: int
    tone: Tone
    total: bool = False
    low_ns: int | None = None
    high_ns: int | None = None


class Waterfall(_Node, frozen=True):
    """Bars from the reference's total down to the candidate's."""

    bars: tuple[Bar, ...]


class Axis(_Node, frozen=True):
    """An axis of a plane; values are nanoseconds if `unit` is a unit of time, counts with whole ticks if it is `whole`."""

    title: str
    unit: Literal["", "ms", "dB"] = ""
    from_zero: bool = False
    whole: bool = False


class PlotPoint(_Node, frozen=True, tag="mark"):
    """A point; `hollow`: not proven, or without a value; `low`, `high`: interval of `xy`; `above`: its
    `y` is infinite (equal pictures)."""

    x: float
    y: float
    series: int
    label: str = ""
    hollow: bool = False
    low: float | None = None
    high: float | None = None
    above: bool = False


class Plane(_Node, frozen=True):
    """Points on two axes; a line joins those of the `marks` that `joined` numbers, in its order."""

    x: Axis
    y: Axis
    marks: tuple[PlotPoint, ...]
    series: tuple[str, ...] = ()
    joined: tuple[int, ...] = ()


class Kind(_Node, frozen=True):
    """A class of slices in a timeline."""

    label: str
    style: KindStyle


class Lane(_Node, frozen=True):
    """One variant's step. Columns of equal length, sorted by start: start, duration, index of name, index of kind.

    `num_total` slices were seen; `num_joined` of them are too short to be drawn alone and are drawn with their neighbours, one
    kind after the other.
    """

    label: str
    series: int
    length_ns: int
    start_ns: tuple[int, ...]
    duration_ns: tuple[int, ...]
    name: tuple[int, ...]
    kind: tuple[int, ...]
    num_total: int
    num_joined: int


class Timeline(_Node, frozen=True):
    """Lanes on one axis in ns from each step's own start."""

    length_ns: int
    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    lanes: tuple[Lane, ...]


class Frame(_Node, frozen=True):
    """A node of a flame graph: time of the node with everything below it, in the baseline and the candidate."""

    label: str
    baseline_ns: int
    candidate_ns: int
    children: tuple[Frame, ...] = ()


class Flame(_Node, frozen=True):
    """Times by path of modules and regions: widths are the larger of both sides, colours the difference; plain for one run."""

    root: Frame
    differential: bool


Picture = Whiskers | Waterfall | Plane | Timeline | Flame


class Notes(_Node, frozen=True):
    """A list of remarks."""

    items: tuple[str, ...]


class Figure(_Node, frozen=True):
    """A picture and a table of the same values."""

    title: str
    alt: str
    picture: Picture
    table: Table
    table_open: bool = False


class Headline(_Node, frozen=True):
    """The one-line result of a candidate."""

    candidate: str
    series: int
    ratio: Ratio | Missing
    verdict: Text
    detail: str


class Headlines(_Node, frozen=True):
    """Results of all candidates against one named reference, on one axis."""

    reference: str
    rows: tuple[Headline, ...]
    table: Table


class VideoLink(_Node, frozen=True, tag="video"):
    """A clip beside the report, by relative path."""

    label: str
    path: str
    caption: str = ""


class Videos(_Node, frozen=True):
    """Clips shown side by side."""

    items: tuple[VideoLink, ...]


Block = Notes | Table | Figure | Headlines | Videos


class Section(_Node, frozen=True):
    """A numbered section; `id` is the anchor. A `folded` one opens on a click where the format allows it."""

    id: str
    title: str
    lead: str
    blocks: tuple[Block, ...]
    folded: bool = False


class Fact(_Node, frozen=True):
    """One item of the line below the title."""

    name: str
    value: Cell


class Banner(_Node, frozen=True):
    """A warning: `stop` voids some numbers and stands above them, `caution` weakens them and stands below the answer."""

    level: Literal["stop", "caution"]
    title: str
    items: tuple[str, ...]


LevelName = Literal["kernel", "section", "attention", "step", "stage", "block", "e2e"]


class Speedup(_Node, frozen=True):
    """One speedup that a gate can refer to, e.g. `e2e>=1.5`; `saved_ns` is the saving per clip or per traced frame block."""

    candidate: str
    reference: str
    level: LevelName
    ratio: Ratio
    saved_ns: float | None = None


class Report(_Node, frozen=True):
    """A whole report in reading order, and the speedups for scripts and gates."""

    v: int
    speedups: tuple[Speedup, ...]
    title: str
    subtitle: str
    facts: tuple[Fact, ...]
    banners: tuple[Banner, ...]
    sections: tuple[Section, ...]


def encode_report(report: Report) -> bytes:
    """Return the JSON twin: UTF-8 on one line, equal bytes for equal reports."""
    return msgspec.json.encode(report) + b"\n"


# Conversion of cells and foreign strings to plain text. The one place where nanoseconds become milliseconds.

MAX_NAME: Final = 120
_NOISE: Final = re.compile(r"^void |\b(?:at::native|at|c10|std)::|\(anonymous namespace\)::")
_NS: Final = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9}


def shorten(name: str) -> str:
    """Clean a name; if it is long, remove PyTorch's namespaces and cut its middle, since kernel names differ at their ends."""
    text = clean(name)
    if len(text) <= MAX_NAME:
        return text
    text = _NOISE.sub("", text)
    if len(text) <= MAX_NAME:
        return text
    keep = (MAX_NAME - 3) // 2
    return f"{text[:keep]}...{text[-keep:]}"


def significant(value: float, digits: int = 4) -> str:
    """Format a number with a fixed count of significant digits, without exponent and with all digits before the point."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value: 999.96 is 1000
    return f"{value:.{max(0, digits - 1 - exponent)}f}"


def time_text(ns: float, unit: str = "ms") -> str:
    """Format nanoseconds in `unit` with four significant digits, without the unit's name."""
    return significant(ns / _NS[unit])


def bytes_cell(num_bytes: float, unit: ByteUnit, digits: int) -> Number:
    """Return the cell of a number of bytes in `unit`."""
    return Number(bytes_in(num_bytes, unit), digits, unit)


def exact_ms(ns: int) -> str:
    """Format integer nanoseconds as milliseconds with six decimals, so that printed lines add up to their printed sum."""
    sign, ns = ("-" if ns < 0 else ""), abs(ns)
    return f"{sign}{ns // 1_000_000}.{ns % 1_000_000:06d}"


def times_text(ratio: float, digits: int = 2) -> str:
    """Format a ratio with so many decimals, below 0.1 with so many significant digits."""
    return f"{ratio:.{digits}f}" if ratio >= 0.1 else significant(ratio, digits)


def ratio_text(ratio: Ratio, digits: int = 3, between: str = " ") -> str:
    """Format a ratio as `1.25x`, or `1.253x [1.247, 1.259]` with its interval, which may have other `digits`."""
    if ratio.low is None or ratio.high is None:
        return f"{times_text(ratio.value)}x"
    return f"{times_text(ratio.value, digits)}x{between}[{times_text(ratio.low, digits)}, {times_text(ratio.high, digits)}]"


def doubt_words(ratio: Ratio, verdict: str) -> str:
    """Return why a speedup with its verdict is neither faster nor slower; empty where it is one of them."""
    if verdict != "inconclusive":
        return "no difference" if verdict == "no difference" else ""
    if ratio.low is None or ratio.high is None:
        return "not proven, there is no interval"
    if ratio.low <= 1 <= ratio.high:
        return "not proven, the interval holds 1"
    return "not proven, the difference is too small to count"


def speedup_words(ratio: Ratio, verdict: str, reference: str = "") -> str:
    """Return a measured speedup as one says it, faster or slower only where that is proven.

    `1.27x [1.25, 1.29] faster than plain`, `15 % [13, 17] slower than plain`, or `1.53x [0.13, 7.39] of plain's speed: not
    proven, the interval holds 1; measure more rounds`.

    Args:
        ratio: of the times, with its interval.
        verdict: what ratio and interval allow.
        reference: name of what it is measured against; empty: the sentence around it says so.
    """
    low, high = ratio.low, ratio.high
    than = f" than {reference}" if reference else ""
    if verdict != "slower":
        times = ratio_text(ratio, 2)
        if verdict == "faster":
            return f"{times} faster{than}"
        of = f" of {reference}'s speed" if reference else ""
        doubt = doubt_words(ratio, verdict)
        return f"{times}{of}: {doubt}{'; measure more rounds' if 'interval' in doubt else ''}"
    if ratio.value <= 0.5:
        interval = "" if low is None or high is None else f" [{1 / high:.2f}, {1 / low:.2f}]"
        return f"{1 / ratio.value:.2f}x{interval} slower{than}"
    interval = "" if low is None or high is None else f" [{100 / high - 100:.0f}, {100 / low - 100:.0f}]"
    return f"{100 / ratio.value - 100:.0f} %{interval} slower{than}"


def cell_text(cell: Cell, column: Column) -> str:
    """Return the cell's main text; `cell_note` returns its note or reason."""
    match cell:
        case Text(text=text):
            return clean(text)
        case Code(text=text):
            return shorten(text)
        case Count(value=value):
            return str(value)
        case Time(ns=ns):
            return time_text(ns, column.unit or "ms") + ("" if column.unit else " ms")
        case ExactTime(ns=ns):
            return exact_ms(ns) + ("" if column.unit else " ms")
        case Ratio():
            return ratio_text(cell)
        case Share(value=value):
            return f"{round(100 * value, 1) + 0.0:.1f} %"  # no minus sign on zero
        case Number():
            return f"{cell.value:.{cell.digits}f} {cell.unit}".rstrip()
        case Missing(label=label):
            return clean(label)


def cell_note(cell: Cell) -> str:
    """Return the small print of a cell: the reference of a number, or the reason why it is missing."""
    match cell:
        case Text(note=note) | Time(note=note) | Number(note=note) | Missing(reason=note):
            return clean(note)
        case _:
            return ""


def cell_sort_key(cell: Cell) -> float | None:
    """Return the number by which a column sorts the cell; None if the cell is none."""
    match cell:
        case Count(value=value) | Share(value=value) | Number(value=value) | Ratio(value=value):
            return float(value)
        case Time(ns=ns) | ExactTime(ns=ns):
            return float(ns)
        case _:
            return None
