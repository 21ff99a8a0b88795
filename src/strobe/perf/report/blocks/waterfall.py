"""Waterfall from the time before to the time after, with one bar for each line of a ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final, NamedTuple, TypeVar

from strobe.perf.measure.stats import Interval
from strobe.perf.report.blocks.fields import Field
from strobe.perf.report.model import Bar, Cell, Text, Tone, Waterfall
from strobe.perf.report.text import exact_ms

T = TypeVar("T")
MAX_BARS: Final = 14


MIN_SHARE: Final = 0.003
"""Share of all movement below which, at both ends of their intervals, lines share one bar."""


class Drop(NamedTuple):
    """Saving of one line of a waterfall, with its interval if there is one."""

    name: str
    saved_ns: Fraction
    interval: Interval | None = None


def whisker_words(picture: Waterfall) -> str:
    """Return the sentence that explains a waterfall's whiskers; empty if it has none."""
    if all(bar.low_ns is None for bar in picture.bars):
        return ""
    total = "; the last: of all that is saved" if picture.bars[-1].low_ns is not None else ""
    return f" Whiskers: where a bar would end at either end of its 95 % interval{total}."


def waterfall(
    baseline: tuple[str, Fraction], candidate: tuple[str, Fraction], lines: Sequence[Drop], total: Interval | None = None
) -> Waterfall:
    """Build the waterfall between both sides; small lines share one bar without an interval, so that the bars add up.

    Args:
        baseline: name and time.
        candidate: likewise.
        lines: what each line between them saves.
        total: the interval of what they save together.
    """
    moved = sum(abs(line.saved_ns) for line in lines)
    largest = sorted(lines, key=lambda line: (-abs(line.saved_ns), line.name))[:MAX_BARS]
    shown = [line for line in lines if line in largest and _may_save(line) > MIN_SHARE * moved]
    small = [line for line in lines if line not in shown]
    if len(small) == 1:
        shown, small = list(lines), []
    if any(line.saved_ns for line in small):
        shown.append(Drop(f"{len(small)} smaller lines", sum((line.saved_ns for line in small), Fraction(0))))
    at = baseline[1]
    bars = [Bar(baseline[0], 0, round(at), "plain", True)]
    for name, saved, interval in shown:
        tone: Tone = "good" if saved > 0 else "bad" if saved < 0 else "muted"
        bars.append(Bar(name, round(at), round(at - saved), tone, False, *_ends(at, interval)))
        at -= saved
    assert at == candidate[1], "the bars do not add up"
    return Waterfall((*bars, Bar(candidate[0], 0, round(at), "plain", True, *_ends(baseline[1], total))))


def _may_save(line: Drop) -> float:
    """Return the largest absolute saving that the interval allows."""
    saved = abs(float(line.saved_ns))
    return saved if line.interval is None else max(saved, abs(line.interval.low), abs(line.interval.high))


def _ends(start: Fraction, saved: Interval | None) -> tuple[int | None, int | None]:
    """Return the ends of a bar from `start` at the high and the low end of its saving's interval."""
    return (None, None) if saved is None else (round(float(start) - saved.high), round(float(start) - saved.low))


def interval_field(get: Callable[[T], Interval | None]) -> Field[T]:
    """Return the column of the interval of what a row saves."""
    return Field("95 % interval", get, _interval, "ms", hint="of what is saved")


def _interval(saved: Interval) -> Cell:
    return Text(f"{exact_ms(round(saved.low))} to {exact_ms(round(saved.high))}")
