"""Words of headings, rows and sentences: their stems, the statistic they name, and the kind of figure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from strobe.lint.quantity import Unit

Kind = Literal["time", "memory", "rate", "share", "change", "quality", "count", "compute", "bandwidth", "work", "number", "text"]

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

QUALITY: Final[dict[str, tuple[str, str]]] = {
    "psnr": ("PSNR", "infinite"),
    "ssim": ("SSIM", "1"),
    "ms-ssim": ("MS-SSIM", "1"),
    "lpips": ("LPIPS", "0"),
    "vmaf": ("VMAF", "100"),
    "dists": ("DISTS", "0"),
    "flip": ("FLIP", "0"),
}
"""Metrics that compare with a reference, and their value for the reference itself."""

_QUALITY: Final = re.compile(r"(?i)(?<![A-Za-z])(ms-ssim|psnr|ssim|lpips|vmaf|dists|flip)(?![A-Za-z])")
_DERIVED: Final = re.compile(
    r"(?i)\b(?:vs\.?|versus|change|delta|diff(?:erence)?|improvement|gain|reduction|speed-?ups?|faster|slower|savings?|saved|overhead|"
    r"relative|normali[sz]ed|ratio|increase|decrease|degradation)\b|Δ|^to baseline$"
)
_SHARE: Final = re.compile(r"(?i)(?:%|\bpercent(?:age)?|\bpct|\bshare|\bproportion|\bfraction|\bportion)(?:\s+of\b)?|\btime\s?%")
_NOT_SHARE: Final = re.compile(
    r"(?i)\b(?:peak|roof\w*|limit|max\w*|baseline|target|theoretical|ideal|reference|util\w*|occupancy|accuracy|sparsity|hit|error|"
    r"success|coverage|efficiency|density|loss|mfu|sol|dense|native|kernel / |bound|ceiling|speed of light)\b"
)
_MEMORY: Final = re.compile(r"(?i)\b(?:memory|vram|mem|hbm|ram|footprint)\b")
_TIME: Final = re.compile(r"(?i)\b(?:time|latency|latencies|duration|elapsed|runtime|ttft|tpot|delay)\b")
_RATE: Final = re.compile(r"(?i)\b(?:fps|throughput)\b")
_COUNT: Final = re.compile(
    r"(?i)^#|^n$|\b(?:calls?|counts?|num|samples?|iterations?|iters?|runs?|launches|occurrences?|instances|reps?|repetitions|trials|"
    r"steps?)\b|^#? ?of calls$"
)


def listed(text: str) -> frozenset[str]:
    """Return the words of a text as a set."""
    return frozenset(text.split())


_STOP: Final = listed(
    "the a an of and or in on per for with to from by is are at as it its this that all each only via using ms us µs ns s gb mb "
    "gib mean avg average median p50 p90 p95 p99 max maximum min minimum std total sum time latency preset config configuration "
    "value"
)
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


def stem(word: str) -> str:
    """Return a word without its plural ending, so that `kernels` is `kernel`."""
    if len(word) > 2 and word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


@functools.lru_cache(maxsize=20_000)
def words(label: str) -> tuple[str, ...]:
    """Return the stems of the words that tell labels apart, in order: no articles, units or statistics."""
    split = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", label)
    return tuple(stem(word) for word in re.findall(r"[a-zµ]+\d*[a-z]*|\d+(?:\.\d+)?", split.lower()) if word not in _STOP)


@functools.lru_cache(maxsize=20_000)
def key(label: str) -> str:
    """Return a label as an identity, without case, markup, `preset` and punctuation; text in brackets stays."""
    text = re.sub(r"[*`_★☆✓✔]", " ", label.lower())
    text = re.sub(r"\b(?:preset|config(?:uration)?|variant)\b", " ", text)
    return re.sub(r"[^\w.()+%/<>=-]+", " ", text).strip(" -:")


def same_word(a: str, b: str) -> bool:
    """Return True if the words are equal, or one shortens the other to two letters or more (`op`, `operation`)."""
    return a == b or (min(len(a), len(b)) >= 2 and (a.startswith(b) or b.startswith(a)))


def covers(longer: Iterable[str], shorter: Iterable[str]) -> bool:
    """Return True if every word of `shorter` occurs in `longer`."""
    pool = list(longer)
    return all(any(same_word(word, other) for other in pool) for word in shorter)


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """The metric of a column or row of figures.

    Args:
        title: as printed.
        kind: kind of the measured quantity.
        statistic: the one it names, or empty.
        quality: the metric, if `kind` is quality.
    """

    title: str
    kind: Kind
    statistic: str = ""
    quality: str = ""

    @property
    def subject(self) -> tuple[str, ...]:
        """Words of the title apart from statistic and unit."""
        return words(self.title)


def metric_of(title: str, unit: Unit | None) -> Metric:
    """Parse a column's head or a row's label, together with the unit of its figures, as a metric."""
    quality = _QUALITY.search(title)
    if quality:
        return Metric(title=title, kind="quality", quality=quality[1].lower(), statistic=statistic(title))
    return Metric(title=title, kind=_kind(title, unit), statistic=statistic(title))


def _kind(title: str, unit: Unit | None) -> Kind:
    dimension = unit.dimension if unit else "none"
    if _DERIVED.search(title) and dimension in ("percent", "ratio", "none"):
        return "change"
    match dimension:
        case "time" | "rate" | "compute" | "bandwidth" | "work" | "count":
            return dimension
        case "bytes":
            return "memory"
        case "percent":
            return "share" if _SHARE.search(title) and not _NOT_SHARE.search(title) else "number"
        case "ratio":
            return "change"
    if _RATE.search(title):
        return "rate"
    if _COUNT.search(title) and not re.search(r"(?i)\brun ?time\b", title):
        return "count"
    if _MEMORY.search(title):
        return "memory"
    return "time" if _TIME.search(title) else "number"


def is_metric(title: str) -> bool:
    """Return True if a label names a kind of figure rather than a configuration or a part."""
    bare = title.strip()
    if _QUALITY.search(bare) or _RATE.search(bare) or statistic(bare):
        return True
    return bool(_MEMORY.search(bare) or re.fullmatch(r"(?i)[\w ,/+-]*\b(?:time|latency|duration)\b[\w ,/()+-]*", bare))


def is_total(label: str) -> bool:
    """Return True if a row's label claims the sum of the other rows."""
    return TOTAL.search(label.strip()) is not None
