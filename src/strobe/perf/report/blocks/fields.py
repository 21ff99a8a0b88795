"""Columns and cells of values of the analysis, and the words that every page shares."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from strobe.core import spans
from strobe.core.files import found_inside
from strobe.perf.analysis.device.intervals import Distribution
from strobe.perf.analysis.ledger.account import AROUND, LEVEL_WORDS
from strobe.perf.analysis.runs.compare import Comparison
from strobe.perf.measure.stats import LEVEL, P99_SAMPLES, Verdict, tail
from strobe.perf.records.record import Header
from strobe.perf.records.store import RunRecords
from strobe.perf.report.study import RunStudy
from strobe.perf.table.fields import Field, T, Unit, count, exact_cell, numeric
from strobe.perf.table.model import (
    SCHEMA_VERSION,
    Banner,
    Block,
    Cell,
    Fact,
    Headline,
    LevelName,
    Missing,
    Notes,
    Ratio,
    Report,
    Section,
    Speedup,
    Text,
    Time,
    Tone,
    VideoLink,
    Videos,
)

# Columns of a distribution of times, and the rule for when a p99 is given.

Figure = Literal["min", "p50", "mean", "p99", "max", "sum"]
SPREAD: Final[tuple[Figure, ...]] = ("min", "p50", "mean", "p99", "max")


def spread(
    get: Callable[[T], Distribution | Cell | None],
    unit: Unit,
    figures: Iterable[Figure] = SPREAD,
    *,
    exact: bool = False,
    what: str = "calls",
    quiet: bool = False,
    missing: str = "",
) -> tuple[Field[T], ...]:
    """Return columns for figures of a distribution of times (mean, p50, p99, ...), one each.

    Args:
        get: times of a row, or the cell that says why there are none.
        what: is counted, in the hint of the p99.
        quiet: where there is no p99, leave out of how many calls the maximum is.
    """
    show = exact_cell if exact else Time
    hints = {"p99": f"from {P99_SAMPLES} {what} on; below that the maximum is all that can be said"}
    return tuple(
        Field(name, _figure(get, name, quiet), show, unit, hint=hints.get(name, ""), missing=missing) for name in figures
    )


def slow_end(get: Callable[[T], Sequence[float]], unit: Unit, what: str = "calls") -> Field[T]:
    """Return the column of the p99 if there are enough samples, otherwise of the largest, with the label of the one shown."""
    return Field("slow end", get, tail_cell, unit, hint=f"p99 from {P99_SAMPLES} {what} on, otherwise the largest")


def tail_cell(samples: Sequence[float]) -> Time:
    """Return the cell of the slow end of some samples, with its label and their number."""
    label, value = tail(samples)
    return Time(value, f"{label} of {len(samples)}")


def _figure(get: Callable[[T], Distribution | Cell | None], name: Figure, quiet: bool) -> Callable[[T], Any]:
    def figure(row: T) -> Any:
        times = get(row)
        if not isinstance(times, Distribution):
            return times
        value = getattr(times, f"{name}_ns")
        return Missing("" if quiet else f"max of {times.n}", "-") if value is None else value

    return figure


def page(
    *,
    title: str,
    subtitle: str,
    sections: Iterable[Section | None],
    facts: Iterable[Fact] = (),
    banners: Iterable[Banner] = (),
    speedups: Iterable[Speedup] = (),
) -> Report:
    """Return a page; a section that is None has nothing to say."""
    return Report(
        v=SCHEMA_VERSION,
        speedups=tuple(speedups),
        title=title,
        subtitle=subtitle,
        facts=tuple(facts),
        banners=tuple(banners),
        sections=tuple(section for section in sections if section is not None),
    )


def run_facts(header: Header) -> tuple[Fact, Fact]:
    """Return the facts that name a run: its date, recorded as ISO 8601 in UTC, and its number."""
    return Fact("Date", Text(header.date.replace("T", " ").replace("Z", " UTC"))), Fact("Run", Text(header.run))


_TONES: Final[dict[Verdict, Tone]] = {"faster": "good", "slower": "bad", "no difference": "muted", "inconclusive": "muted"}


def verdict_cell(verdict: Verdict) -> Text:
    """Return the cell of a verdict in its tone."""
    return Text(verdict, _TONES[verdict])


def pair_fields(get: Callable[[T], Comparison | Missing], pairs: str = "median of the pair ratios") -> tuple[Field[T], ...]:
    """Return the columns of a comparison of pairs: speedup, verdict, number of pairs, ratios of sums and of minima."""

    fields: tuple[Field[Comparison], ...] = (
        numeric("speedup", lambda found: found.cell, f"{pairs}, 95 % interval"),
        Field("verdict", lambda found: verdict_cell(found.verdict)),
        count("pairs", lambda found: len(found.ratios)),
        numeric("ratio of sums", lambda found: Ratio(found.ratio_of_sums), "what the ledger adds up to"),
        numeric("ratio of minima", lambda found: Ratio(found.floor), "fastest against fastest"),
    )

    def known(row: T) -> Comparison | Text:
        return Text("") if isinstance(found := get(row), Missing) else found

    return (fields[0].of(get), *(field.of(known) for field in fields[1:]))


def speedup_headline(label: str, series: int, found: Comparison) -> Headline:
    """Return the headline of a candidate: its speedup, the verdict, and the interval over pairs."""
    pairs = f"{len(found.ratios)} pair{'s' if len(found.ratios) != 1 else ''}"
    detail = f"{pairs}, too few for an interval"
    if found.interval is not None:
        detail = f"{found.interval.low:.3f} to {found.interval.high:.3f} at {100 * LEVEL:.0f} %, {pairs}"
    return Headline(label, series, found.cell, verdict_cell(found.verdict), detail)


def section_of(id: str, title: str, lead: str, blocks: Iterable[Block | None], *, folded: bool = False) -> Section | None:
    """Return the section of the blocks that there are; None if there are none."""
    shown = tuple(block for block in blocks if block is not None)
    return Section(id, title, lead, shown, folded) if shown else None


def stretches(numbers: Iterable[int]) -> list[str]:
    """Return ascending numbers in words, neighbours joined: `0-3`, `7`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [f"{first}" if first == last else f"{first}-{last}" for first, last in found]


# Words for samples of calls, which are recorded as clips of one frame block.

DAMAGED: Final = "Damaged records: the figures are those of what is left."
OUTSIDE: Final = "outside the named spans"
_LEVELS: Final = {**LEVEL_WORDS, "block": "call", "e2e": "sample"}
_LINES: Final = {spans.FRAME_BLOCK: OUTSIDE, f"clip: {AROUND}": "before and after the calls"}


def level_word(level: LevelName, calls: bool) -> str:
    """Return the name of a level in an account, of calls or of clips."""
    return _LEVELS[level] if calls else LEVEL_WORDS[level]


def line_word(line: str, calls: bool = True) -> str:
    """Return the name of a line in an account, of calls or of clips; names of the caller's spans stay as they are."""
    if not calls:
        return line
    region, colon, rest = line.partition(": ")
    if colon and region == spans.FRAME_BLOCK:
        return f"{OUTSIDE}: {rest}"
    return _LINES.get(line, line)


def damage_banners(found: Iterable[tuple[str, tuple[str, ...]]]) -> tuple[Banner, ...]:
    """Build the banner of damaged records, given by the name of a run or log; none if all are undamaged."""
    items = tuple(f"{name}: {line}" for name, lines in found for line in lines)
    return (Banner("stop", DAMAGED, items),) if items else ()


def end_banners(run: RunRecords, title: str, counts: str) -> tuple[Banner, ...]:
    """Build the banners of damaged records and of a run that did not come to its end, with what of it counts all the same."""
    damage = damage_banners([(run.header.run, run.damage)])
    if run.end is not None and run.end.status == "complete":
        return damage
    why = "the records are cut short" if run.end is None else f"{run.end.status}: {run.end.message}"
    return (*damage, Banner("caution", title, (f"{why}; {counts}.",)))


def notes_section(study: RunStudy) -> Section:
    """Build the section of notes that apply to every number of the page."""
    items = [
        "Units: records hold integer nanoseconds. Tables show milliseconds (ms) or microseconds (µs) with four significant "
        "digits; times with six decimals are exact.",
        "A speedup is reference time over candidate time: 1.25x means the candidate needs 1 / 1.25 of the time.",
        "Timing and tracing are separate clips: no timed clip ran under the profiler.",
    ]
    for subject in study.subjects:
        counts = None if isinstance(subject.profile, str) else subject.profile.trace.counts
        if counts is None:
            items.append(f"{subject.label} has no trace to show: {subject.profile}.")
        elif not counts.clean:
            cut = ", and the file ends early" if counts.truncated else ""
            items.append(f"Trace of {subject.label}: of {counts.events} events {counts.lost} lost, {counts.mended} mended{cut}.")
    names = {"perf_counter": "the host's monotonic clock", "cuda_event": "CUDA events (resolution about 0.5 µs)"}
    for run in study.runs:
        if clocks := sorted({span.clock for span in run.spans}):
            items.append(f"{run.header.run}: spans were timed by {' and '.join(names[clock] for clock in clocks)}.")
    return Section("notes", "Notes", "", (Notes(tuple(items)),))


def clips_section(study: RunStudy) -> Section | None:
    """Build the section of clips stored beside the report, by relative path; None if there are none."""
    items = []
    for subject in study.subjects:
        for video in subject.run.videos:
            path = found_inside(subject.run.folder, video.path) if video.variant == subject.name else None
            if path is not None:
                items.append(VideoLink(subject.label, Path(os.path.relpath(path, study.folder)).as_posix(), video.caption))
    lead = "The same prompts and the same noise in every variant."
    return section_of("clips", "Clips", lead, [Videos(tuple(items))] if items else [])
