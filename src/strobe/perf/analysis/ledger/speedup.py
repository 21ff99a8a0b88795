"""Times of two sides, level by level, and the short answer to a comparison."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated as A
from typing import Final, Literal, Self

from strobe.perf.analysis.ledger.account import (
    CLIP_KINDS,
    MAX_REALISED,
    BothSides,
    ClipKind,
    Explained,
    Ledger,
    UnitName,
    part_of,
    total,
    trace_part,
)
from strobe.perf.analysis.ledger.traces import OTHER_KERNELS, Means, TracedSide, foreign_ledger
from strobe.perf.analysis.parts import BY_THE_CLOCK, NAMELESS, Part
from strobe.perf.analysis.runs.compare import SideClocks, clock_effect, differ
from strobe.perf.analysis.runs.log_times import StageRounds, Timings
from strobe.perf.analysis.runs.timeline import Label
from strobe.perf.analysis.structure.sections import pattern, skipped_text
from strobe.perf.logs.series import short
from strobe.perf.measure.stats import FLOOR, Verdict, judge, welch_interval
from strobe.perf.table.fields import exact_cell
from strobe.perf.table.model import Cell, LevelName, Missing, Number, Share, Text
from strobe.perf.table.rows import col
from strobe.perf.trace.events import Trace

# Times of two sides, level by level: kernel, section, attention call, step, stage, end to end.
#
# Each side consists of its traces and its log. A level that cannot be computed is missing, with the reason. The sides were
# measured at different times: an interval is Welch's, and drift between them is unknown.

LEVELS: Final[tuple[LevelName, ...]] = ("kernel", "section", "attention", "step", "stage", "e2e")
DRIFT: Final = "unpaired, drift unknown"
NO_FOCAL: Final = {name: f"no focal kernel was named: give --focal-{name}" for name in ("baseline", "candidate")}
HOST_ONLY: Final = "its traces hold no device events, only the host's: capture them with the accelerator's activities"
_STEP: Final = re.compile(r"^ProfilerStep\s*#\s*\d+$")
_LIKELY_DILATION: Final = (Fraction(2, 3), Fraction(4))
"""Bounds of traced step / timed step; outside of them they are not the same step."""
_CLOCKS: Final = Fraction(3, 2)
"""Factor by which the device work of a traced step may exceed a timed step, which may have run at a higher clock."""
OVERLAP: Final = Fraction(21, 20)
"""Factor by which the focal kernels of a stage may exceed it: trace and log are of different runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelTimes:
    """Time of one side at one level.

    Args:
        groups_ns: means of the groups; fewer than two make no interval.
    """

    mean_ns: A[Fraction, col("time in ns as exact text: an integer, or a fraction such as `12345/7`")]
    n: A[int, col("number of measurements")]
    groups_ns: tuple[float, ...]
    what: A[str, col("description of the measurements")]

    @property
    def groups(self) -> A[int, col("number of independent groups of measurements: steps or rounds")]:
        return len(self.groups_ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedSide:
    """Traces and log of one side. A text in place of a result is the reason why there is none.

    Args:
        traced: one per trace, each its device with the focal kernels.
        host_step: one `ProfilerStep#N` on the host; what steps are compared by if one of the sides was traced on the host alone.
    """

    name: Literal["baseline", "candidate"]
    traced: tuple[TracedSide, ...] | str
    timings: Timings
    host_step: LevelTimes | str = "no ProfilerStep#N range in its traces"

    @property
    def chosen(self) -> TracedSide | None:
        """The rank that the others wait for: the longest mean step without communication; ranks with steps come first.

        Ranks that meet in every step have steps of one length; the one that is late has the least communication in it.
        """
        if isinstance(self.traced, str):
            return None
        return max(self.traced, key=lambda traced: (not isinstance(traced.steps, str), traced.own_ns, traced.mean_ns))

    def times(self, level: LevelName) -> LevelTimes | str:
        """Return the time at one level, or the reason why there is none: of traces up to a step, else of the log."""
        own, log = self.chosen, self.timings
        if level in ("stage", "e2e"):
            return _rounds(log.stage if level == "stage" else log.e2e)
        if level == "attention":
            return _calls(log)
        if own is None:
            return str(self.traced)
        if level == "kernel":
            if not own.counted:
                left_out = f"every focal call of {own.label} lies in a step that is left out"
                return left_out if own.focal_names else NO_FOCAL[self.name]
            return _measured(own.counted, own.focal, _counted(len(own.counted), "call", own))
        if level == "step":
            lengths = [tile.end_ns - tile.start_ns for tile in own.tiles]
            what = _counted(len(lengths), "traced step", own)
            return (
                f"{own.label}: {own.steps}" if isinstance(own.steps, str) else _measured(lengths, [[ns] for ns in lengths], what)
            )
        if own.sections is None:
            return "no section was asked for: give --section"
        found = own.sections.found
        if not found:
            return f"{own.sections.num_focal} focal calls, none with a section: {skipped_text(own.sections)}"
        groups = [[s.length_ns for s in found if t.start_ns <= s.start_ns < t.end_ns] for t in own.tiles]
        return _measured([section.length_ns for section in found], groups, _counted(len(found), "section", own))

    def focal_in_section(self) -> Fraction | None:
        """Return the focal time in one section; `None` without sections. It differs from the kernel's mean if focal calls lie in
        no section, or several in one."""
        found = () if self.chosen is None or self.chosen.sections is None else self.chosen.sections.found
        return Fraction(sum(section.focal_ns for section in found), len(found)) if found else None

    @property
    def stages_per_run(self) -> Fraction | None:
        """Rounds of the stage per whole run, if the log times both."""
        stage, whole = self.timings.stage, self.timings.e2e
        return None if isinstance(stage, str) or isinstance(whole, str) else Fraction(len(stage.rounds_ns), len(whole.rounds_ns))

    def _means(self, *levels: LevelName) -> dict[LevelName, Fraction]:
        measured = ((level, self.times(level)) for level in levels)
        return {level: times.mean_ns for level, times in measured if not isinstance(times, str)}

    def call_times(self, *, with_section: bool, kernel_is_section: bool) -> Means:
        """Return the means for the account of a call; with sections in it, the kernel is what runs inside one section."""
        inside, found = self.focal_in_section() if with_section else None, self._means("kernel", "section", "attention", "stage")
        if kernel_is_section and "kernel" in found:
            found["section"] = found["kernel"]
        return found if inside is None else {**found, "kernel": inside}

    def with_calls(self, *, given: bool) -> Self:
        """Return the side with the focal calls in a stage as log and trace tell them: steps in a round by calls in a step.

        Steps count only if those of the log can be those of the trace; otherwise `calls_from` says what is missing. A count of
        the log's attention timers must agree.
        """
        timings, own = self.timings, self.chosen
        if given or isinstance(timings.stage, str):
            return self
        found, calls = self._calls_in_stage(own), timings.calls
        if calls is not None and (isinstance(found, str) or found == calls):
            return self
        if isinstance(found, str):
            return replace(self, timings=replace(timings, calls_from=found))
        why = f"{timings.steps_from} x {'' if own is None else own.calls_per_step} focal calls in a step of the trace"
        if calls is not None:
            return replace(self, timings=replace(timings, calls=None, calls_from=f"{timings.calls_from}, and {why} are {found}"))
        return replace(self, timings=replace(timings, calls=found, calls_from=why))

    @property
    def other_run(self) -> str:
        """Why the log must be of another run than the trace; empty if nothing says so."""
        own, timed, steps = self.chosen, self.times("stage"), self.timings.steps
        if own is None or isinstance(timed, str) or isinstance(own.steps, str):
            return ""
        stage = timed.mean_ns
        if _busy(own) > stage * OVERLAP:
            return (
                f"one step of the trace has {short(_busy(own))} of device work, and a whole stage of the log takes {short(stage)}"
            )
        if isinstance(steps, str) or not own.counted:
            return ""
        took = steps[0] * own.calls_per_step * Fraction(sum(own.counted), len(own.counted))
        if took <= stage * OVERLAP:
            return ""
        return f"the focal kernels of {steps[0]} steps take {short(took)}, and a whole stage of the log takes {short(stage)}"

    def _calls_in_stage(self, own: TracedSide | None) -> int | str:
        """Return the focal calls in a stage, or what is missing or contradicts them."""
        if self.other_run:
            return f"log and trace are of different runs: {self.other_run}"
        steps, many = self.timings.steps, self.timings.steps_from
        if isinstance(steps, str):
            return steps
        if own is None:
            return f"{many}, and no trace says how many focal calls a step has"
        if not own.num_focal:
            return f"{many}, and no focal kernel is known in its trace"
        if isinstance(own.steps, str):
            return f"{many}, and the trace has no steps: {own.steps}"
        if not _may_be(own, steps[1]):
            return f"a step of {short(steps[1])} in the log cannot be the trace's, which takes {short(own.mean_ns)} (--steps)"
        if own.steps.source == "period" and _busy(own) * _CLOCKS < steps[1]:
            work = f"{short(_busy(own))} of device work"
            return f"a step of {short(steps[1])} in the log may be several of the trace's, which has {work} (--steps)"
        calls = steps[0] * own.calls_per_step
        return (
            int(calls) if calls.denominator == 1 else f"{many}, and the steps of the trace have different numbers of focal calls"
        )

    def timed(self) -> Means:
        """Return the log's times for the account of the traces; a step only if it can be the traced one."""
        found = self._means("stage", "e2e") if self.stages_per_run == 1 else self._means("stage")
        logged, own = self.timings.step, self.chosen
        if own is not None and not isinstance(logged, str) and _may_be(own, logged.mean_ns):
            found["step"] = logged.mean_ns
        return found


def host_step(traces: Sequence[Trace], starts: str | None = None) -> LevelTimes | str:
    """Return the time of one `ProfilerStep#N`, or range matching `starts`, on the host of a side, or why there is none."""
    chosen, what = (_STEP, "ProfilerStep#N") if starts is None else (pattern(starts), f"{starts!r}")
    spans = [
        end - start
        for ranges in (trace.ranges for trace in traces)
        for name, start, end in zip(ranges.name, ranges.start_ns, ranges.end_ns, strict=True)
        if chosen.search(ranges.names[name])
    ]
    if not spans:
        return f"no {what} range in its traces"
    return _measured(spans, [[span] for span in spans], f"{len(spans)} {what} on the host")


def _measured(values: Sequence[int], groups: Sequence[Sequence[int]], what: str) -> LevelTimes:
    """Return the mean of some measurements, and of each group that has any."""
    means = tuple(sum(each) / len(each) for each in groups if each)
    return LevelTimes(mean_ns=Fraction(sum(values), len(values)), groups_ns=means, n=len(values), what=what)


def _may_be(own: TracedSide, step_ns: Fraction) -> bool:
    """Return whether a timed step can be the traced one: the trace has steps about as long, and their work fits into it."""
    low, high = _LIKELY_DILATION
    return not isinstance(own.steps, str) and low <= own.mean_ns / step_ns <= high and _busy(own) <= _CLOCKS * step_ns


def _busy(own: TracedSide) -> Fraction:
    return Fraction(sum(ns for label, ns in own.owned.items() if label.busy), len(own.tiles))


def _counted(n: int, what: str, own: TracedSide) -> str:
    return f"{n} {what}{'s' if n != 1 else ''} of {own.label}"


def _calls(log: Timings) -> LevelTimes | str:
    own = log.attention
    if isinstance(own, str):
        return own
    values = {index: own.resolved.values_ns[index] for index in own.kept}
    groups = [inside for each in log.rounds if (inside := [values[index] for index in each if index in values])]
    what = f"{own.calls.n} calls of {own.series.title!r}" + (f" in {len(groups)} rounds" if groups else "")
    return _measured(list(values.values()), groups, what)


def _rounds(rounds: StageRounds | str) -> LevelTimes | str:
    if isinstance(rounds, str):
        return rounds
    kept = rounds.kept_ns
    if not kept:
        return f"{rounds.name}: no round is left without warm-up"
    return _measured(kept, [[each] for each in kept], f"{len(kept)} of {len(rounds.rounds_ns)} rounds of {rounds.name!r}")


LEVEL_TITLES: Final[dict[LevelName, str]] = {
    "kernel": "focal kernel, one call", "section": "section around it", "attention": "attention call, end to end",
    "step": "traced step", "stage": "stage", "e2e": "end to end",
}  # fmt: skip


def _level(row: LevelFigure) -> Text:
    return Text(LEVEL_TITLES[row.level], note="unlike" if row.unlike else "")


def _ratio(row: LevelFigure) -> Cell:
    why = "no time on one side" if 0 in (row.baseline_ns, row.candidate_ns) else "not comparable"
    return Missing(why, why) if row.ratio is None else Number(row.ratio, max(4, 3 - math.floor(math.log10(row.ratio))))


def _realised_of(row: LevelFigure) -> float | None:
    return None if row.level == "kernel" else row.realised


def _no_cost(row: LevelFigure) -> str:
    return "" if row.level == "kernel" else "number of focal calls in it, or their saving, not known"


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelFigure:
    """Times of both sides and speedup at one level.

    Args:
        reason: `missing`, said once where it holds for both sides.
    """

    level: A[LevelName, col("name of the level", "level", get=_level)]
    ratio: A[float | None, col("time of the baseline / time of the candidate; null: none", "speedup, x", get=_ratio)]
    low: A[float | None, col("lower end of the 95 % interval of the ratio; null: no interval")]
    high: A[float | None, col("upper end of the interval; null: no interval")]
    verdict: A[Verdict | None, col("conclusion from ratio and interval; null without a ratio")]
    baseline: A[LevelTimes | None, col("measurements of the baseline; null: not measured")]
    candidate: A[LevelTimes | None, col("measurements of the candidate; null: not measured")]
    baseline_ns: A[Fraction | None, col("mean time of the baseline; null: not measured", "baseline", exact_cell)]
    candidate_ns: A[Fraction | None, col("mean time of the candidate; null: not measured", "candidate", exact_cell)]
    saved_ns: A[Fraction | None, col("time of the baseline - time of the candidate; null: not known", "saved", exact_cell)]
    costs_ns: A[
        Fraction | None, col("saving of its focal calls - its own saving; null: unknown", "costs", exact_cell, missing=_no_cost)
    ]
    realised: A[float | None, col("saving / saving of the focal calls in it; null: unknown", "realised", Share, get=_realised_of)]
    unlike: A[str, col("difference between the quantities that the two sides measure; empty: none")]
    missing: A[str, col("reason why a side was not measured; empty if both were", "why")]
    reason: str


def level_figures(
    baseline: TimedSide, candidate: TimedSide, *, unlike: str = "", alike_steps: bool = True
) -> tuple[LevelFigure, ...]:
    """Compare every level.

    Args:
        unlike: the sections are not cut alike, in words; a side without sections is then represented by its kernel.
        alike_steps: the steps of both traces are the same thing.
    """
    sides = (baseline, candidate)
    measured = {level: [side.times(level) for side in sides] for level in LEVELS}
    if unlike:
        measured["section"] = [
            kernel if isinstance(own, str) else own for own, kernel in zip(measured["section"], measured["kernel"], strict=True)
        ]
    if any(side.traced == HOST_ONLY for side in sides):
        measured["step"] = [side.host_step for side in sides]
    if not alike_steps and not any(isinstance(step, str) for step in measured["step"]):
        measured["step"] = ["the repetitions found on both sides hold different numbers of focal calls: give --steps"] * 2
    kernel = _figure("kernel", measured["kernel"], None, sides, "")
    rest = (_figure(level, measured[level], kernel, sides, unlike if level == "section" else "") for level in LEVELS[1:])
    return (kernel, *rest)


def _figure(
    level: LevelName,
    measured: Sequence[LevelTimes | str],
    kernel: LevelFigure | None,
    sides: tuple[TimedSide, TimedSide],
    unlike: str,
) -> LevelFigure:
    b, c = (None if isinstance(side, str) else side for side in measured)
    reasons = [f"{side.name}: {why}" for side, why in zip(sides, measured, strict=True) if isinstance(why, str)]
    times = None if b is None else b.mean_ns, None if c is None else c.mean_ns
    ratio = interval = verdict = moved = None
    saved = None if times[0] is None or times[1] is None else times[0] - times[1]
    if b and c and saved is not None and b.mean_ns > 0 and c.mean_ns > 0:
        ratio = float(b.mean_ns / c.mean_ns)
        usable = all(value > 0 for value in (*b.groups_ns, *c.groups_ns))
        interval = welch_interval(b.groups_ns, c.groups_ns) if usable else None
        verdict = "no difference" if saved == 0 else judge(ratio, interval, float(saved))
        moved = None if kernel is None else _moved(level, saved, kernel, sides)
    realised, (low, high) = float(saved / moved) if saved is not None and moved else None, interval or (None, None)
    return LevelFigure(
        level=level,
        ratio=ratio,
        low=low,
        high=high,
        verdict=verdict,
        baseline=b,
        candidate=c,
        baseline_ns=times[0],
        candidate_ns=times[1],
        saved_ns=saved,
        costs_ns=moved - saved if moved and saved else None,
        realised=1.0 if kernel is None and ratio else realised,
        unlike=unlike,
        missing="; ".join(reasons),
        reason=str(measured[0]) if b is None and measured[0] == measured[1] else "; ".join(reasons),
    )


def _moved(level: LevelName, saved: Fraction, kernel: LevelFigure, sides: tuple[TimedSide, TimedSide]) -> Fraction | None:
    """Return the saving of the kernel calls in a level; `None` if their number is unknown or the kernel did not change."""
    if kernel.ratio is None or kernel.baseline is None or kernel.candidate is None:
        return None
    inside = [_focal_inside(level, side, mean) for side, mean in zip(sides, (kernel.baseline, kernel.candidate), strict=True)]
    if inside[0] is None or inside[1] is None:
        return None
    moved = inside[0] - inside[1]
    if moved <= 0 or moved < Fraction(FLOOR) * inside[0] or abs(saved) > MAX_REALISED * moved:
        return None
    return moved


def _focal_inside(level: LevelName, side: TimedSide, kernel: LevelTimes) -> Fraction | None:
    """Return the focal time in one unit of a level; `None` if its number of focal calls is not known."""
    calls: Fraction | int | None = 1
    if level == "section":
        return side.focal_in_section() or kernel.mean_ns  # without sections the kernel stands for one
    if level == "step":
        calls = None if side.chosen is None else side.chosen.calls_per_step
    elif level == "stage":
        calls = side.timings.calls
    elif level == "e2e":
        known = side.timings.calls, side.stages_per_run
        calls = None if known[0] is None or known[1] is None else known[0] * known[1]
    return None if calls is None else calls * kernel.mean_ns


def rank_ledgers(baseline: TimedSide, candidate: TimedSide) -> tuple[Ledger, ...]:
    """Return the account of the slowest ranks and, with several ranks, of every rank that both sides traced."""
    if isinstance(baseline.traced, str) or isinstance(candidate.traced, str):
        return ()
    slow = baseline.chosen, candidate.chosen
    assert slow[0] is not None and slow[1] is not None
    timed, calls = (baseline.timed(), candidate.timed()), (baseline.timings.calls, candidate.timings.calls)
    several = len(baseline.traced) > 1 or len(candidate.traced) > 1
    first = f"slowest rank ({slow[0].label} against {slow[1].label})" if several else ""
    found = [replace(foreign_ledger(slow[0], slow[1], timed, calls), ranks=first)]
    if several:
        others = {traced.label: traced for traced in candidate.traced}
        pairs = [(traced, others[traced.label]) for traced in baseline.traced if traced.label in others]
        found += [replace(foreign_ledger(b, c, timed, calls), ranks=b.label) for b, c in pairs]
    return tuple(found)


# Short answer to a comparison: the time of a unit by part, before and after, and the share that is explained.
#
# The unit is a steady frame block of our own runs, or what the account of two foreign traces is for.

MOST_LINES: Final = 8
UNIT_NAMES: Final[dict[UnitName, str]] = {
    "clip": "clip",
    "stage": "stage",
    "step": "step",
    "call": "focal call",
    "window": "traced window",
}
_WHOLE_RUN: Final = "whole run"


@dataclass(frozen=True, kw_only=True, slots=True)
class PartLine(BothSides):
    """One part of a unit, such as a steady frame block, or all small parts together; the parts add up exactly to the account.

    Args:
        parts: parts that the time was spent on; several in the line of all parts too small for a line.
        elsewhere_ns: saving of a clip on this part outside its steady frame blocks; 0 for foreign traces.
        clock_ns: part of the saving in a unit that the SM clock makes; None where the part does not go with it, or the clocks are
            equal or not known.
    """

    parts: tuple[Part, ...]
    share: A[float | None, col("`saved_ns` / saving of one unit; null: nothing saved, or not comparable")]
    elsewhere_ns: Fraction
    clock_ns: Fraction | None = None

    @property
    def part(self) -> A[str, col("part, e.g. `attention kernel`; several small parts share a row, joined by commas")]:
        return ", ".join(self.parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer(BothSides):
    """Difference between two sides in one unit, by part; of two variants of ours in a whole clip too.

    Args:
        lines: at most `MOST_LINES`, what saved most first; they add up to a unit.
        unit: unit of the lines, in words: `steady frame block`, `frame block`; of foreign traces `stage`, `step`,
            `focal call` or `traced window`, and `whole run` where the account of a stage goes on to it.
        explained_time_share: share of the time of the side where it is smaller that has a name.
        explained_saving_share: share of the saving that has a name; None if nothing is saved.
        sides: what the clips of the baseline and the candidate were spent on; empty for foreign traces.
        num_steady: steady frame blocks in a clip; 0: there are none, and the lines are of all frame blocks.
        clocks: of the baseline and the candidate; None where they were not sampled.
    """

    lines: tuple[PartLine, ...]
    unit: str
    explained_time_share: float
    explained_saving_share: float | None
    sides: tuple[Explained, ...] = ()
    num_steady: int = 0
    clocks: tuple[SideClocks | None, SideClocks | None] = (None, None)

    @property
    def difference(self) -> Literal["saving", "loss"]:
        """Word for the difference of which a line has its share: a loss where the candidate takes longer."""
        return "loss" if self.saved_ns < 0 else "saving"

    @property
    def kinds(self) -> Iterator[tuple[ClipKind, int, tuple[Fraction, Fraction]]]:
        """Each kind of frame block in a clip, how many there are, and their time on both sides; the times add up to a clip."""
        for kind in CLIP_KINDS:
            if any(kind in side.kinds for side in self.sides):
                b, c = (Fraction(sum(side.kinds.get(kind, {}).values()), side.num_clips) for side in self.sides)
                yield kind, self.sides[0].num_blocks.get(kind, 0), (b, c)

    @property
    def at_baseline_clock_ns(self) -> Fraction | None:
        """Time of the candidate's unit if what goes with the clock ran at the baseline's, ns; None if they do not differ."""
        before, after = self.clocks
        if before is None or after is None or not differ(before, after):
            return None
        scaled = total(line.candidate_ns for line in self.lines if line.clock_ns is not None)
        return self.candidate_ns + scaled * (after.sm_mhz - before.sm_mhz) / before.sm_mhz


def answer(
    baseline: Explained, candidate: Explained, clocks: tuple[SideClocks | None, SideClocks | None] = (None, None)
) -> Answer:
    """Sum up both sides by part and by kind of frame block."""
    sides = (baseline, candidate)
    kind = "steady" if all(side.num_blocks.get("steady") for side in sides) else None
    chosen = [[each for each in side.kinds if each == kind or (kind is None and each != "start and end")] for side in sides]
    per_block, elsewhere = [], []
    for side, own in zip(sides, chosen, strict=True):
        per_block.append(_mean_parts(side, own, side.num_clips * sum(side.num_blocks[each] for each in own)))
        elsewhere.append(_mean_parts(side, side.kinds.keys() - own, side.num_clips))
    b, c = (total(times.values()) for times in per_block)
    whole, nameless = [side.labels.total() for side in sides], list[Counter[Label]]()
    for side in sides:
        nameless.append(Counter({label: ns for label, ns in side.labels.items() if part_of(label) in NAMELESS}))
    moved = sum(abs(nameless[0][label] - nameless[1][label]) for label in nameless[0].keys() | nameless[1].keys())
    saved = whole[0] - whole[1]
    return Answer(
        lines=_lines(per_block, elsewhere, clocks),
        baseline_ns=b,
        candidate_ns=c,
        unit="steady frame block" if kind else "frame block",
        sides=sides,
        num_steady=baseline.num_blocks.get("steady", 0) if kind else 0,
        explained_time_share=min(
            1 - sum(map(abs, own.values())) / took if took else 0.0 for own, took in zip(nameless, whole, strict=True)
        ),
        explained_saving_share=max(0.0, 1 - moved / abs(saved)) if saved else None,
        clocks=clocks,
    )


def account_answer(account: Ledger) -> Answer:
    """Sum up the account of two foreign traces by part."""
    both = (dict.fromkeys(Part, Fraction(0)), dict.fromkeys(Part, Fraction(0)))
    for line in account.lines:
        shares = account.kinds if line.label == OTHER_KERNELS else {trace_part(line.label): line.both}
        for part, share in shares.items():
            for found, ns in zip(both, share, strict=True):
                found[part] += ns
    assert tuple(total(found.values()) for found in both) == account.both, "the parts do not add up to the account"
    nameless = [line for line in account.lines if trace_part(line.label) in NAMELESS]
    named = [1 - total(abs(line.both[at]) for line in nameless) / took for at, took in enumerate(account.both) if took]
    saved, moved = account.saved_ns, total(abs(line.saved_ns) for line in nameless)
    return Answer(
        lines=_lines(both, (dict.fromkeys(Part, Fraction(0)),) * 2),
        baseline_ns=account.baseline_ns,
        candidate_ns=account.candidate_ns,
        unit=_WHOLE_RUN if account.levels[-1].level == "e2e" else UNIT_NAMES[account.unit],
        explained_time_share=max(0.0, float(min(named, default=0))),
        explained_saving_share=max(0.0, float(1 - moved / abs(saved))) if saved else None,
    )


def _lines(
    per_unit: Sequence[Mapping[Part, Fraction]],
    elsewhere: Sequence[Mapping[Part, Fraction]],
    clocks: tuple[SideClocks | None, SideClocks | None] = (None, None),
) -> tuple[PartLine, ...]:
    """Return one line for each group of parts, with its share of a unit's saving."""
    saved = total(per_unit[0].values()) - total(per_unit[1].values())
    (before, after), lines = clocks, []
    for inside in _grouped(per_unit, elsewhere):
        b, c = (total(times[each] for each in inside) for times in per_unit)
        beyond = total(elsewhere[0][each] - elsewhere[1][each] for each in inside)
        share = float((b - c) / saved) if saved else None
        clock_ns = None
        if BY_THE_CLOCK.issuperset(inside) and before is not None and after is not None and differ(before, after):
            clock_ns = clock_effect(b, c, before.sm_mhz, after.sm_mhz)
        lines.append(PartLine(parts=inside, baseline_ns=b, candidate_ns=c, share=share, elsewhere_ns=beyond, clock_ns=clock_ns))
    return tuple(lines)


def _grouped(per_block: Sequence[Mapping[Part, Fraction]], outside: Sequence[Mapping[Part, Fraction]]) -> list[tuple[Part, ...]]:
    """Group the parts that took time: the largest by themselves, largest saving first, then all others together."""
    parts = [part for part in Part if any(times[part] for times in (*per_block, *outside))]
    large = sorted(parts, key=lambda part: (-max(abs(times[part]) for times in per_block), part))
    alone = large if len(large) <= MOST_LINES else large[: MOST_LINES - 1]
    alone = sorted(alone, key=lambda part: (-abs(per_block[0][part] - per_block[1][part]), part))
    rest = tuple(part for part in parts if part not in alone)
    return [*((part,) for part in alone), *([rest] if rest else [])]


def _mean_parts(side: Explained, kinds: Iterable[ClipKind], units: int) -> dict[Part, Fraction]:
    """Return the time by part of the frame blocks of some kinds, as a mean over so many units."""
    found: Counter[Part] = Counter()
    for label, ns in ((label, ns) for kind in kinds for label, ns in side.kinds[kind].items()):
        found[part_of(label)] += ns
    return {part: Fraction(found[part], units or 1) for part in Part}
