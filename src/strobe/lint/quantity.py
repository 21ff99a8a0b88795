"""Numbers and words as they are printed: a value, its unit, the interval of its digits, and what a label names."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

Dimension = Literal["time", "bytes", "rate", "work", "compute", "bandwidth", "percent", "ratio", "decibel", "count", "none"]
Mark = Literal["", "about", "below", "above", "spread"]

ABOUT: Final = Fraction(1, 20)
"""Relative tolerance of a value printed with `~` or `about`; at least half a unit of its last digit that is not 0."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A closed interval of values."""

    low: Fraction
    high: Fraction

    def __add__(self, other: Bounds) -> Bounds:
        return Bounds(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Bounds) -> Bounds:
        return Bounds(self.low - other.high, self.high - other.low)

    def __mul__(self, other: Bounds) -> Bounds:
        corners = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Bounds(min(corners), max(corners))

    def __truediv__(self, other: Bounds) -> Bounds:
        """Divide by an interval that does not hold zero."""
        return self * Bounds(1 / other.high, 1 / other.low)

    @property
    def middle(self) -> Fraction:
        return (self.low + self.high) / 2

    @property
    def width(self) -> Fraction:
        return self.high - self.low

    def overlaps(self, other: Bounds) -> bool:
        return self.low <= other.high and other.low <= self.high

    def wider(self, by: Fraction) -> Bounds:
        """Return the interval with each bound moved outward by `by`."""
        return Bounds(self.low - by, self.high + by)


def exactly(value: Fraction | int) -> Bounds:
    """Return the interval that holds one value only."""
    return Bounds(Fraction(value), Fraction(value))


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit: printed name, dimension, and size in seconds, bytes, 1/s, operations, percent or one."""

    name: str
    dimension: Dimension
    scale: Fraction = Fraction(1)


_NOUNS: Final = (
    "iteration iter sample run repetition repeat rep trial block frame switch request step pass round measurement call kernel "
    "launch clip prompt layer token pair"
)
_SPELLED: Final[tuple[tuple[Dimension, Fraction | int, str], ...]] = (
    ("time", Fraction(1, 10**9), "ns nsec nanosecond nanoseconds"),
    ("time", Fraction(1, 10**6), "µs us μs usec microsecond microseconds"),
    ("time", Fraction(1, 10**3), "ms msec millisecond milliseconds"),
    ("time", 1, "s sec secs second seconds"),
    ("time", 60, "min mins minute minutes"),
    ("time", 3600, "h hr hrs hour hours"),
    *(("bytes", 1000**n, f"{p}B") for n, p in enumerate("KMGT", 1)),
    *(("bytes", 1024**n, f"{p}iB") for n, p in enumerate("KMGT", 1)),
    *(("bandwidth", 1000**n, f"{p}B/s {p}B/sec {p}Bps") for n, p in enumerate("KMGT", 1)),
    *(("bandwidth", 1024**n, f"{p}iB/s") for n, p in enumerate("KMGT", 1)),
    *(("work", 1000**n, f"{p}FLOP {p}FLOPs {p}F") for n, p in enumerate("MGTP", 2)),
    *(("compute", 1000**n, f"{p}FLOP/s {p}FLOPS {p}FLOPs/s {p}F/s {p}flop/s") for n, p in enumerate("MGTP", 2)),
    ("bytes", 1, "bytes byte"),
    ("rate", 1, "FPS fps Fps frames/s frames/sec frames_per_second it/s img/s images/s blocks/s"),
    ("percent", 1, "% percent pp"),
    ("ratio", 1, "x × times"),
    ("decibel", 1, "dB db"),
    *(("count", 1, f"{noun} {noun}{'es' if noun.endswith(('s', 'ch')) else 's'}") for noun in _NOUNS.split()),
    ("count", 1, "frame_block frame_blocks"),
)
UNITS: Final = {
    spelling.replace("_", " "): Unit(spelled.split()[0].replace("_", " "), dimension, Fraction(scale))
    for dimension, scale, spelled in _SPELLED
    for spelling in spelled.split()
}
"""Every spelling of a unit that is read. `B` is not bytes: it is as often a count of parameters."""


def spelled(*dimensions: Dimension) -> str:
    """Return a pattern of every spelling of the units of these dimensions."""
    names = [re.escape(name) for name, unit in UNITS.items() if unit.dimension in dimensions]
    return "|".join(sorted(names, key=len, reverse=True))


_PLAIN: Final = spelled("time", "bytes", "rate", "work", "compute", "bandwidth", "percent", "decibel")
_DIGITS: Final = r"(?:\d{1,3}(?:,\d{3}){1,9}(?!\d)|\d{1,30})(?:\.\d{1,30})?(?:[eE][-+]?\d\d?)?"
"""A number; nothing that was measured has more digits or a larger power of ten."""
_QUANTITY: Final = re.compile(
    rf"(?<![\w.])(?<![A-Za-z_]-)(?<!\d[eE]\+)(?P<mark>(?:[~≈∼±≤≥]|\+/-|(?<![-=])[<>]=?)\s*)?"
    rf"(?P<number>[-+−]?{_DIGITS})"
    rf"(?:[-–](?P<upper>{_DIGITS})(?!\.?\d))?"
    rf"(?:\s?(?P<unit>{_PLAIN})(?!\w)|(?P<ratio>x|×)(?!\w|\s*\d)|\s(?P<times>times)\b|[\s-](?P<noun>{spelled('count')})\b|(?!\w|\.\d))"
)
_MASKED: Final = re.compile(
    r"https?://\S+|\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d\S*)?|\b\d\d?:\d\d(?::\d\d)?\b|\b[vV]?\d+\.\d+\.\d+\S*"
    r"|\b[A-Za-z]\w*_\w*(?:[-./]\w+)*|\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,}\b|\b\d+(?:\s?[x×]\s?\d+)+(?!\.)\b"
    r"|\b(?!\d{1,3}(?:,\d{3})+(?!,?\d))[\d.]{0,40}\d(?:,\d+)+"
)
"""Addresses, dates, times of day, versions, names, hashes, sizes such as `480x832` and lists or decimals such as `9,53`, whose
digits are no quantities."""
_MARKS: Final[tuple[tuple[Mark, str], ...]] = (
    ("spread", r"±|\+/-"),
    ("below", r"[<≤]=?|\b(?:under|below|less than|up to|at most|no more than|fewer than|within)"),
    ("above", r"[>≥]=?|\b(?:over|above|more than|at least|exceeds)"),
    ("about", r"[~≈∼]|\b(?:about|around|approximately|approx\.?|roughly|nearly|almost|ca\.?|circa|order of)"),
)
"""Signs and words in front of a number that say how it is meant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """A printed number.

    Args:
        value: in the base of its unit (seconds, bytes, 1/s, operations, percent, one).
        bounds: the values whose printing gives this text; of a range, from its lower to its upper end.
        unit: as printed beside the number or, failing that, in the head of its column; None: not said.
        digits: significant digits, without zeros at the end.
        mark: `~`, `<`, `>` or `±` in front of it, or a word that means the same.
    """

    value: Fraction
    bounds: Bounds
    unit: Unit | None
    text: str
    start: int
    stop: int
    decimals: int
    digits: int
    mark: Mark
    signed: bool
    ranged: bool

    @property
    def dimension(self) -> Dimension:
        """Dimension of the unit, such as time or memory; `none` without a unit."""
        return self.unit.dimension if self.unit else "none"

    @property
    def plain(self) -> bool:
        """Whether it is one value: no bound, range or spread."""
        return self.mark in ("", "about") and not self.ranged

    @property
    def rounding(self) -> Fraction:
        """Half a unit of the last printed digit, in the base unit."""
        return (self.unit.scale if self.unit else 1) / (2 * Fraction(10) ** self.decimals)


def _bounds(value: Fraction, half: Fraction, mark: Mark, unit: Unit | None) -> Bounds:
    if mark == "about":
        while half and value % (20 * half) == 0 and value:
            half *= 10
        return exactly(value).wider(max(half, abs(value) * ABOUT))
    if mark == "below":
        return Bounds(min(value, Fraction(0)), value)
    if mark == "above":
        return Bounds(value, max(value, Fraction(1)) * 10**9)
    exact = half == Fraction(1, 2) and (unit is None or unit.dimension == "count")
    return exactly(value) if exact else exactly(value).wider(half)


@functools.lru_cache(maxsize=20_000)
def quantities(text: str, unit: Unit | None = None) -> tuple[Quantity, ...]:
    """Find every number with its unit in plain text."""
    masked = _MASKED.sub(lambda found: " " * len(found[0]), text)
    return tuple(_quantity(found, masked, unit) for found in _QUANTITY.finditer(masked))


def _quantity(found: re.Match[str], text: str, default: Unit | None) -> Quantity:
    spelling = found["unit"] or found["ratio"] or found["times"] or found["noun"]
    unit = UNITS[spelling] if spelling else default
    number = found["number"].replace(",", "").replace("−", "-")
    scale = unit.scale if unit else Fraction(1)
    mantissa, _, exponent = number.lower().partition("e")
    decimals = len(mantissa.partition(".")[2]) - int(exponent or 0)
    value = Fraction(number) * scale
    half = scale * (Fraction(1, 2) / Fraction(10) ** decimals)
    before = text[max(0, found.start("number") - 24) : found.start("number")]
    mark: Mark = next((mark for mark, words in _MARKS if re.search(rf"(?i)(?:{words})\s*$", before)), "")
    bounds = _bounds(value, half, mark, unit)
    upper = found["upper"]
    if upper:
        top = Fraction(upper.replace(",", "")) * scale
        upper = upper if top > value else ""
        bounds = Bounds(bounds.low, top + half) if upper else bounds
    start = found.start("mark") if found["mark"] else found.start("number")
    return Quantity(
        value=value,
        bounds=bounds,
        unit=unit,
        text=text[start : found.end()].strip(),
        start=start,
        stop=found.end(),
        decimals=decimals,
        digits=len(re.sub(r"[^\d]", "", mantissa).strip("0")),
        mark=mark,
        signed=number[0] in "+-",
        ranged=bool(upper),
    )


def printed(value: Fraction, like: Quantity, *, more: int = 1) -> str:
    """Print a value as `like` is printed, with `more` digits after the point, to tell a corrected figure from a rounded one."""
    scale = like.unit.scale if like.unit else Fraction(1)
    decimals = max(0, like.decimals + more)
    sign = "+" if like.signed and value > 0 else ""
    number = f"{sign}{float(value / scale):.{decimals}f}"
    if like.unit is None:
        return number
    if like.unit.dimension == "count":
        return f"{number} {like.unit.name}{'s' if float(number) != 1 else ''}"
    return f"{number}{like.unit.name}" if like.unit.dimension in ("percent", "ratio") else f"{number} {like.unit.name}"


_HEAD_UNIT: Final = re.compile(
    rf"^(?P<whole>{_PLAIN})$|[(\[,]\s*(?:all |in )?(?P<unit>{_PLAIN})\s*[)\]]?\s*$|\bin (?P<words>{_PLAIN})\b"
    r"|[_ ](?P<tail>ns|us|µs|ms|%)$|(?<![\w/])(?P<rate>FPS|fps|frames/s)(?!\w)|^(?P<share>%)"
)


def head_unit(title: str) -> Unit | None:
    """Return the unit that a head or caption names: `Mean (ms)`, `latency_ms`, `time [s]`, `times in ms`, `FPS`."""
    found = _HEAD_UNIT.search(title.strip())
    return UNITS[found[found.lastgroup]] if found and found.lastgroup else None


_STATISTICS: Final = (
    ("mean", r"mean|avg\w*|average\w*"),
    ("p50", r"p50|median"),
    ("max", r"max|maximum|worst|slowest|peak"),
    ("min", r"min|minimum|best|fastest"),
    ("spread", r"std|stdev|stddev|sd|variance|var|iqr|±"),
    ("sum", r"sum|total|cumulative"),
)
_PERCENTILE: Final = re.compile(
    r"(?i)(?<![A-Za-z0-9])p[-_ ]?(\d{2}(?:\.\d+)?|999)(?![A-Za-z0-9%])|(?<!\d)(\d{2}(?:\.\d+)?)(?:th|st|nd|rd)?[ -]percentile"
)

QUALITY: Final = {
    "psnr": "infinite", "ms-ssim": "1", "ssim": "1", "lpips": "0", "vmaf": "100", "dists": "0", "flip": "0"
}  # fmt: skip
"""Metrics that compare with a reference, and their value for the reference itself."""
NAMED_QUALITY: Final = rf"(?<![A-Za-z])(?P<quality>{'|'.join(QUALITY)})(?![A-Za-z])"
_QUALITY: Final = re.compile(NAMED_QUALITY, re.IGNORECASE)
_DERIVED: Final = re.compile(
    r"(?i)\b(?:vs\.?|versus|change|delta|diff(?:erence)?|improvement|gain|reduction|speed-?ups?|faster|slower|savings?|saved|overhead|"
    r"relative|normali[sz]ed|ratio|increase|decrease|degradation)\b|Δ|^to baseline$"
)
_MEMORY: Final = re.compile(r"(?i)\b(?:memory|vram|mem|hbm|ram|footprint)\b")
_TIME: Final = re.compile(
    r"(?i)^(?!(?:no|without|num|number of)\b|#)(?!.*(?:\b(?:complexity|date|stamp|zone|per|of day)\b|[/%])).*"
    r"\b(?:time|latency|latencies|duration|elapsed|runtime|ttft|tpot|delay)\b"
)
_RATE: Final = re.compile(r"(?i)\b(?:fps|throughput)\b")
_COUNT: Final = re.compile(
    r"(?i)^#|^n$|\b(?:calls?|counts?|num|samples?|iterations?|iters?|runs?(?! ?time)|launches|occurrences?|"
    r"instances|reps?|repetitions|trials|steps?)\b|^#? ?of calls$"
)


_STOP: Final = re.compile(
    "the|an?|of|and|or|in|on|per|for|with|to|from|by|is|are|at|as|its?|this|that|all|each|only|via|using|[mµu]?s|ns|[gm]b|gib|"
    r"mean|avg|average|median|p\d\d|max|maximum|min|minimum|std|total|sum|time|latency|preset|config|configuration|value"
)
"""Words that do not tell labels apart: articles, units, statistics."""
BASE: Final = re.compile(r"baseline|reference|ref\.?|base|original|dense|full")
"""Names, as keys, of what others are compared with."""
TOTAL: Final = re.compile(
    r"(?i)^(?:grand\s+|sub-?)?totals?\b(?!\s*(?:variation|order))|\s(?:total|(?-i:Sum))$|^sum of\b|^(?-i:Sum|SUM)$|^overall$|"
    r"^all together$|^all (?:rows|lines|components|ops|parts)\b"
)


@functools.lru_cache(maxsize=20_000)
def statistic(label: str) -> str:
    """Return the statistic that a label names: `mean`, `p50`, `p99`, `max`, `min`, `spread`, `sum`; empty if none."""
    found = _PERCENTILE.search(label)
    if found:
        digits = found[1] or found[2]
        return "p50" if digits == "50" else f"p{digits}"
    words = re.sub(r"[_/]", " ", label)
    return next((name for name, pattern in _STATISTICS if re.search(rf"(?i)(?<![A-Za-z])(?:{pattern})(?![A-Za-z])", words)), "")


@functools.lru_cache(maxsize=20_000)
def words(label: str) -> tuple[str, ...]:
    """Return the stems of the words that tell labels apart, in order: no articles, units or statistics."""
    split = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", label).lower()
    found = (word for word in re.findall(r"[a-zµ]+\d*[a-z]*|\d+(?:\.\d+)?", split) if not _STOP.fullmatch(word))
    return tuple(re.sub(r"(?<=\w[^s])s$", "", word) for word in found)


@functools.lru_cache(maxsize=20_000)
def key(label: str) -> str:
    """Return a label as an identity, without case, markup, `preset` and punctuation; text in brackets stays."""
    text = re.sub(r"[*`_★☆✓✔]", " ", label.lower())
    text = re.sub(r"\b(?:preset|config(?:uration)?|variant)\b", " ", text)
    return re.sub(r"[^\w.()+%/<>=-]+", " ", text).strip(" -:")


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A metric of a column or row. `kind`: `quality`, `change` of another figure, `memory`, `share`, a dimension, `number`."""

    title: str
    kind: str
    statistic: str = ""
    quality: str = ""


def metric_of(title: str, unit: Unit | None) -> Metric:
    """Parse a column's head or a row's label, together with the unit of its figures, as a metric."""
    quality, dimension = _QUALITY.search(title), unit.dimension if unit else "none"
    if quality:
        kind = "quality"
    elif _DERIVED.search(title) and dimension in ("percent", "ratio", "none"):
        kind = "change"
    elif dimension not in ("none", "decibel"):
        kind = {"bytes": "memory", "percent": "share", "ratio": "change"}.get(dimension, dimension)
    else:
        words = (("rate", _RATE), ("count", _COUNT), ("memory", _MEMORY), ("time", _TIME))
        kind = next((kind for kind, pattern in words if pattern.search(title)), "number")
    return Metric(title=title, kind=kind, quality=quality[1].lower() if quality else "", statistic=statistic(title))


def is_metric(title: str) -> bool:
    """Return True if a label names a kind of figure rather than a configuration or a part."""
    bare = title.strip()
    if _QUALITY.search(bare) or _RATE.search(bare) or statistic(bare):
        return True
    return bool(_MEMORY.search(bare) or re.fullmatch(r"(?i)[\w ,/+-]*\b(?:time|latency|duration)\b[\w ,/()+-]*", bare))


def is_total(label: str) -> bool:
    """Return True if a row's label claims the sum of the other rows."""
    return TOTAL.search(label.strip()) is not None
