"""Times of two sides, level by level, and the short answer to a comparison."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, Literal, Self

from strobe.perf.analysis.device.kernels import KernelKind
from strobe.perf.analysis.ledger.account import (
    BY_THE_CLOCK,
    NAMELESS,
    AccountLevel,
    BothSides,
    ClipKind,
    Explained,
    Ledger,
    Part,
    UnitName,
    part_of,
    total,
    trace_part,
)
from strobe.perf.analysis.ledger.traces import OTHER_KERNELS, Means, TracedSide, foreign_ledger
from strobe.perf.analysis.runs.compare import SideClocks, clock_effect, differ
from strobe.perf.analysis.runs.log_times import StageRounds, Timings
from strobe.perf.analysis.runs.timeline import Label
from strobe.perf.analysis.structure.sections import skipped_text
from strobe.perf.logs.series import short
from strobe.perf.measure.stats import FLOOR, Interval, Verdict, judge, welch_interval
from strobe.perf.trace.events import Trace

# Times of two sides, level by level: kernel, section, attention call, step, stage, end to end.
#
# Each side consists of its traces and its log. A level that cannot be computed is missing, with the reason. The sides were
# measured at different times: an interval is Welch's, and drift between them is unknown.

LevelName = Literal["kernel", "section", "attention", "step", "stage", "e2e"]
LEVELS: Final[tuple[LevelName, ...]] = ("kernel", "section", "attention", "step", "stage", "e2e")
DRIFT: Final = "unpaired, drift unknown"
NO_FOCAL: Final = {name: f"no focal kernel was named: give --focal-{name}" for name in ("baseline", "candidate")}
HOST_ONLY: Final = "its traces hold no device events, only the host's: capture them with the accelerator's activities"
MAX_REALISED: Final = 10
"""Largest saving of a level / saving of the kernel that the kernel can have caused."""
_STEP: Final = re.compile(r"ProfilerStep\s*#\s*\d+")
_LIKELY_DILATION: Final = (Fraction(2, 3), Fraction(4))
"""Bounds of traced step / timed step; outside of them they are not the same step."""
_CLOCKS: Final = Fraction(3, 2)
"""Factor by which the device work of a traced step may exceed a timed step, which may have run at a higher clock."""
OVERLAP: Final = Fraction(21, 20)
"""Factor by which the focal kernels of a stage may exceed it: trace and log are of different runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelTimes:
    """Measurements of one level of one side.

    Args:
        mean_ns: mean of all measurements.
        groups_ns: means of groups that do not depend on each other: steps, rounds; fewer than two make no interval.
        n: measurements.
        what: the averaged quantity, in words.
    """

    mean_ns: Fraction
    groups_ns: tuple[float, ...]
    n: int
    what: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedSide:
    """Traces and log of one side. A text in place of a result is the reason why there is none.

    Args:
        name: `baseline` or `candidate`.
        traced: one per trace, each its device with the focal kernels.
        timings: times from the log.
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

    def kernel(self) -> LevelTimes | str:
        """Return the time of one focal kernel, or the reason why there is none."""
        own = self.chosen
        if own is None:
            return str(self.traced)
        if not own.counted:
            return f"every focal call of {own.label} lies in a step that is left out" if own.focal_names else NO_FOCAL[self.name]
        return _measured(own.counted, own.focal, _counted(len(own.counted), "call", own))

    def section(self) -> LevelTimes | str:
        """Return the time of one section, or the reason why there is none."""
        own = self.chosen
        if own is None or own.sections is None:
            return str(self.traced) if own is None else "no section was asked for: give --section"
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

    def call(self) -> LevelTimes | str:
        """Return the time of one attention call of the log, or the reason why there is none."""
        own = self.timings.attention
        if isinstance(own, str):
            return own
        values = {index: own.resolved.values_ns[index] for index in own.kept}
        groups = [inside for each in self.timings.rounds if (inside := [values[index] for index in each if index in values])]
        what = f"{own.calls.n} calls of {own.series.title!r}" + (f" in {len(groups)} rounds" if groups else "")
        return _measured(list(values.values()), groups, what)

    def traced_step(self) -> LevelTimes | str:
        """Return the time of one step of the trace, or the reason why there is none."""
        own = self.chosen
        if own is None:
            return str(self.traced)
        if isinstance(own.steps, str):
            return f"{own.label}: {own.steps}"
        lengths = [tile.end_ns - tile.start_ns for tile in own.tiles]
        return _measured(lengths, [[length] for length in lengths], _counted(len(lengths), "traced step", own))

    def timed_stage(self) -> LevelTimes | str:
        """Return the time of one stage of the log without warm-up, or the reason why there is none."""
        return _rounds(self.timings.stage)

    def whole(self) -> LevelTimes | str:
        """Return the time of a whole run of the log, or the reason why there is none."""
        return _rounds(self.timings.e2e)

    def call_times(self, *, with_section: bool, kernel_is_section: bool) -> Means:
        """Return the means for the account of a call; with sections in it, the kernel is what runs inside one section."""
        kernel, inside = self.kernel(), self.focal_in_section() if with_section else None
        found = _means(
            {
                AccountLevel.KERNEL: kernel,
                AccountLevel.SECTION: kernel if kernel_is_section else self.section(),
                AccountLevel.CALL: self.call(),
                AccountLevel.STAGE: self.timed_stage(),
            }
        )
        return found if inside is None else {**found, AccountLevel.KERNEL: inside}

    def with_calls(self, *, given: bool) -> Self:
        """Return the side with the focal calls in a stage as log and trace tell them: steps in a round by calls in a step.

        Steps count only if those of the log can be those of the trace; otherwise `calls_from` says what is missing. A count of
        the log's attention timers must agree.

        Args:
            given: the user says how many there are.
        """
        timings, own = self.timings, self.chosen
        if given or isinstance(timings.stage, str):
            return self
        found = self._calls_in_stage(own)
        if timings.calls is not None:
            if isinstance(found, str) or found == timings.calls:
                return self
            reason = f"{timings.calls_from}, and {self._steps_by_calls(own)} are {found}"
            return replace(self, timings=replace(timings, calls=None, calls_from=reason))
        if isinstance(found, str):
            return replace(self, timings=replace(timings, calls_from=found))
        return replace(self, timings=replace(timings, calls=found, calls_from=self._steps_by_calls(own)))

    def _steps_by_calls(self, own: TracedSide | None) -> str:
        each = "" if own is None else Fraction(own.num_focal, len(own.tiles))
        return f"{self.timings.steps_from} x {each} focal calls in a step of the trace"

    @property
    def other_run(self) -> str:
        """Why the log must be of another run than the trace; empty if nothing says so."""
        own, timed, steps = self.chosen, self.timed_stage(), self.timings.steps
        if own is None or isinstance(timed, str) or isinstance(own.steps, str):
            return ""
        stage = timed.mean_ns
        if _busy(own) > stage * OVERLAP:
            return (
                f"one step of the trace has {short(_busy(own))} of device work, and a whole stage of the log takes {short(stage)}"
            )
        if isinstance(steps, str) or not own.counted:
            return ""
        took = steps[0] * Fraction(own.num_focal, len(own.tiles)) * Fraction(sum(own.counted), len(own.counted))
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
        calls = steps[0] * Fraction(own.num_focal, len(own.tiles))
        return (
            int(calls) if calls.denominator == 1 else f"{many}, and the steps of the trace have different numbers of focal calls"
        )

    def timed(self) -> Means:
        """Return the log's times for the account of the traces; a step only if it can be the traced one."""
        whole = self.whole() if self.stages_per_run == 1 else "several stages are in it"
        found = _means({AccountLevel.STAGE: self.timed_stage(), AccountLevel.E2E: whole})
        logged, own = self.timings.step, self.chosen
        if own is not None and not isinstance(logged, str) and _may_be(own, logged.mean_ns):
            found[AccountLevel.STEP] = logged.mean_ns
        return found


def host_step(traces: Sequence[Trace]) -> LevelTimes | str:
    """Return the time of one `ProfilerStep#N` on the host over all traces of a side, or the reason why there is none."""
    spans = [
        end - start
        for ranges in (trace.ranges for trace in traces)
        for name, start, end in zip(ranges.name, ranges.start_ns, ranges.end_ns, strict=True)
        if _STEP.fullmatch(ranges.names[name])
    ]
    if not spans:
        return "no ProfilerStep#N range in its traces"
    return _measured(spans, [[span] for span in spans], f"{len(spans)} ProfilerStep#N on the host")


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


def _means(measured: Mapping[AccountLevel, LevelTimes | str]) -> dict[AccountLevel, Fraction]:
    """Return the means of the levels that were measured."""
    return {level: times.mean_ns for level, times in measured.items() if not isinstance(times, str)}


def _counted(n: int, what: str, own: TracedSide) -> str:
    return f"{n} {what}{'s' if n != 1 else ''} of {own.label}"


def _rounds(rounds: StageRounds | str) -> LevelTimes | str:
    if isinstance(rounds, str):
        return rounds
    kept = rounds.kept_ns
    if not kept:
        return f"{rounds.name}: no round is left without warm-up"
    return _measured(kept, [[each] for each in kept], f"{len(kept)} of {len(rounds.rounds_ns)} rounds of {rounds.name!r}")


# ---------------------------------------------------------------------------------------------------------------- levels


@dataclass(frozen=True, kw_only=True, slots=True)
class LevelFigure:
    """Times and ratio of one level.

    Args:
        level: its name, as a requirement takes it.
        baseline: mean and groups, or why there are none.
        candidate: likewise.
        ratio: time of the baseline / time of the candidate; `None`: the level is missing.
        interval: Welch's, over groups; drift between the sides is unknown.
        verdict: conclusion that ratio and interval allow.
        realised: saving of this level for one call / saving of the kernel; `None` where that says nothing.
        unlike: empty, or how the two sides differ in what they measure: stands beside every figure of the level.
    """

    level: LevelName
    baseline: LevelTimes | str
    candidate: LevelTimes | str
    ratio: Fraction | None
    interval: Interval | None
    verdict: Verdict | None
    realised: Fraction | None
    unlike: str

    @property
    def saved_ns(self) -> Fraction | None:
        """Baseline minus candidate, ns; None without both."""
        if isinstance(self.baseline, str) or isinstance(self.candidate, str):
            return None
        return self.baseline.mean_ns - self.candidate.mean_ns

    @property
    def missing(self) -> str:
        """Reason why there is no ratio; empty if there is one."""
        sides = (("baseline", self.baseline), ("candidate", self.candidate))
        return "; ".join(f"{name}: {reason}" for name, reason in sides if isinstance(reason, str))


def level_figures(
    baseline: TimedSide, candidate: TimedSide, *, unlike: str = "", alike_steps: bool = True
) -> tuple[LevelFigure, ...]:
    """Compare every level.

    Args:
        unlike: the sections are not cut alike, in words; a side without sections is then represented by its kernel.
        alike_steps: the steps of both traces are the same thing.
    """
    sides = (baseline, candidate)
    sections = [_section(side, unlike) for side in sides]
    steps: list[LevelTimes | str] = [side.traced_step() for side in sides]
    if any(side.traced == HOST_ONLY for side in sides):
        steps = [side.host_step for side in sides]
    if not alike_steps and not any(isinstance(step, str) for step in steps):
        steps = ["the repetitions found on both sides hold different numbers of focal calls: give --steps"] * 2
    measured: dict[LevelName, Sequence[LevelTimes | str]] = {
        "kernel": [side.kernel() for side in sides],
        "section": sections,
        "attention": [side.call() for side in sides],
        "step": steps,
        "stage": [side.timed_stage() for side in sides],
        "e2e": [side.whole() for side in sides],
    }
    kernel = _figure("kernel", measured["kernel"], None, sides, "")
    found = [kernel]
    for level in LEVELS[1:]:
        found.append(_figure(level, measured[level], kernel, sides, unlike if level == "section" else ""))
    return tuple(found)


def _section(side: TimedSide, unlike: str) -> LevelTimes | str:
    """Return the section, or the kernel where an unlike comparison was asked for and the side has no section."""
    found = side.section()
    return side.kernel() if unlike and isinstance(found, str) else found


def _figure(
    level: LevelName,
    measured: Sequence[LevelTimes | str],
    kernel: LevelFigure | None,
    sides: tuple[TimedSide, TimedSide],
    unlike: str,
) -> LevelFigure:
    b, c = measured
    ratio = interval = verdict = realised = None
    if not isinstance(b, str) and not isinstance(c, str) and b.mean_ns > 0 and c.mean_ns > 0:
        ratio = b.mean_ns / c.mean_ns
        usable = all(value > 0 for value in (*b.groups_ns, *c.groups_ns))
        interval = welch_interval(b.groups_ns, c.groups_ns) if usable else None
        saved = b.mean_ns - c.mean_ns
        verdict = "no difference" if saved == 0 else judge(float(ratio), interval, float(saved))
        realised = Fraction(1) if kernel is None else _realised(level, saved, kernel, sides)
    return LevelFigure(
        level=level, baseline=b, candidate=c, ratio=ratio, interval=interval, verdict=verdict, realised=realised, unlike=unlike
    )


def _realised(level: LevelName, saved: Fraction, kernel: LevelFigure, sides: tuple[TimedSide, TimedSide]) -> Fraction | None:
    """Return the saving of a level / that of its kernel calls; `None` if their number is unknown or the kernel did not change."""
    if kernel.ratio is None or isinstance(kernel.baseline, str) or isinstance(kernel.candidate, str):
        return None
    inside = [_focal_inside(level, side, mean) for side, mean in zip(sides, (kernel.baseline, kernel.candidate), strict=True)]
    if inside[0] is None or inside[1] is None:
        return None
    moved = inside[0] - inside[1]
    if moved <= 0 or moved < Fraction(FLOOR) * inside[0] or abs(saved) > MAX_REALISED * moved:
        return None
    return saved / moved


def _focal_inside(level: LevelName, side: TimedSide, kernel: LevelTimes) -> Fraction | None:
    """Return the focal time in one unit of a level; `None` if its number of focal calls is not known."""
    calls: Fraction | int | None = 1
    if level == "section":
        return side.focal_in_section() or kernel.mean_ns  # without sections the kernel stands for one
    if level == "step":
        calls = None if side.chosen is None else Fraction(side.chosen.num_focal, len(side.chosen.tiles))
    elif level == "stage":
        calls = side.timings.calls
    elif level == "e2e":
        known = side.timings.calls, side.stages_per_run
        calls = None if known[0] is None or known[1] is None else known[0] * known[1]
    return None if calls is None else calls * kernel.mean_ns


def rank_ledgers(baseline: TimedSide, candidate: TimedSide) -> tuple[tuple[str, Ledger], ...]:
    """Return the account of the slowest ranks and, with several ranks, of every rank that both sides traced."""
    if isinstance(baseline.traced, str) or isinstance(candidate.traced, str):
        return ()
    slow = baseline.chosen, candidate.chosen
    assert slow[0] is not None and slow[1] is not None
    timed, calls = (baseline.timed(), candidate.timed()), (baseline.timings.calls, candidate.timings.calls)
    several = len(baseline.traced) > 1 or len(candidate.traced) > 1
    first = f"slowest rank ({slow[0].label} against {slow[1].label})" if several else ""
    found = [(first, foreign_ledger(slow[0], slow[1], timed, calls))]
    if several:
        others = {traced.label: traced for traced in candidate.traced}
        pairs = [(traced, others[traced.label]) for traced in baseline.traced if traced.label in others]
        found += [(b.label, foreign_ledger(b, c, timed, calls)) for b, c in pairs]
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
    """Time of one part on both sides, or of all small parts together: mean of a unit, such as a steady frame block.

    Args:
        parts: parts that the time was spent on; several in the line of all parts too small for a line.
        share: share of a unit's saving; None if it saves nothing.
        elsewhere_ns: saving of a clip on this part outside its steady frame blocks; 0 for foreign traces.
        clock_ns: part of the saving in a unit that the SM clock makes; None where the part does not go with it, or the clocks are
            equal or not known.
    """

    parts: tuple[Part, ...]
    share: float | None
    elsewhere_ns: Fraction
    clock_ns: Fraction | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class KindLine(BothSides):
    """Time of a clip's frame blocks of one kind on both sides: `num_blocks` of them."""

    kind: ClipKind
    num_blocks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer(BothSides):
    """Difference between two sides in one unit, by part.

    Args:
        lines: at most `MOST_LINES`, what saved most first; they add up to a unit.
        unit: unit of the lines, in words: `steady frame block`, `frame block`; of foreign traces `stage`, `step`,
            `focal call` or `traced window`, and `whole run` where the account of a stage goes on to it.
        explained_time: share of the time of the side where it is smaller that has a name.
        explained_saving: share of the saving that has a name; None if nothing is saved.
    """

    lines: tuple[PartLine, ...]
    unit: str
    explained_time: float
    explained_saving: float | None

    @property
    def difference(self) -> Literal["saving", "loss"]:
        """Word for the difference of which a line has its share: a loss where the candidate takes longer."""
        return "loss" if self.saved_ns < 0 else "saving"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipAnswer(Answer):
    """Difference between two variants of ours, in a frame block and in a whole clip.

    Args:
        sides: what the clips of the baseline and the candidate were spent on.
        num_steady: steady frame blocks in a clip; 0: there are none, and the lines are of all frame blocks.
        clocks: of the baseline and the candidate; None where they were not sampled.
    """

    sides: tuple[Explained, Explained]
    num_steady: int
    clocks: tuple[SideClocks | None, SideClocks | None]

    @property
    def kinds(self) -> Iterator[KindLine]:
        """Time of each kind of frame block in a clip; they add up to a clip."""
        for kind in ClipKind:
            if any(kind in side.kinds for side in self.sides):
                b, c = (Fraction(sum(side.kinds.get(kind, {}).values()), side.num_clips) for side in self.sides)
                many = self.sides[0].num_blocks.get(kind, 0)
                yield KindLine(kind=kind, num_blocks=many, baseline_ns=b, candidate_ns=c)

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
) -> ClipAnswer:
    """Sum up both sides by part and by kind of frame block.

    Args:
        clocks: of both sides, where they were sampled.
    """
    sides = (baseline, candidate)
    kind = ClipKind.STEADY if all(side.num_blocks.get(ClipKind.STEADY) for side in sides) else None
    chosen = [[each for each in side.kinds if each == kind or (kind is None and each != ClipKind.AROUND)] for side in sides]
    per_block, elsewhere = [], []
    for side, own in zip(sides, chosen, strict=True):
        per_block.append(_mean_parts(side, own, side.num_clips * sum(side.num_blocks[each] for each in own)))
        elsewhere.append(_mean_parts(side, side.kinds.keys() - own, side.num_clips))
    b, c = (total(times.values()) for times in per_block)
    return ClipAnswer(
        lines=_lines(per_block, elsewhere, clocks),
        baseline_ns=b,
        candidate_ns=c,
        unit="steady frame block" if kind else "frame block",
        sides=sides,
        num_steady=baseline.num_blocks.get(ClipKind.STEADY, 0) if kind else 0,
        explained_time=min(
            1 - sum(map(abs, _nameless(side).values())) / whole if (whole := sum(side.labels.values())) else 0.0 for side in sides
        ),
        explained_saving=_explained_saving(baseline, candidate),
        clocks=clocks,
    )


def account_answer(account: Ledger) -> Answer:
    """Sum up the account of two foreign traces by part."""
    both = (dict.fromkeys(Part, Fraction(0)), dict.fromkeys(Part, Fraction(0)))
    for line in account.lines:
        shares = account.kinds if line.label == OTHER_KERNELS else {KernelKind.OTHER: line.both}
        for kind, share in shares.items():
            for found, ns in zip(both, share, strict=True):
                found[trace_part(line.label, kind)] += ns
    assert tuple(total(found.values()) for found in both) == account.both, "the parts do not add up to the account"
    nameless = [line for line in account.lines if trace_part(line.label) in NAMELESS]
    named = [1 - total(abs(line.both[at]) for line in nameless) / took for at, took in enumerate(account.both) if took]
    saved, moved = account.saved_ns, total(abs(line.saved_ns) for line in nameless)
    return Answer(
        lines=_lines(both, (dict.fromkeys(Part, Fraction(0)),) * 2),
        baseline_ns=account.baseline_ns,
        candidate_ns=account.candidate_ns,
        unit=_WHOLE_RUN if account.levels[-1].level == AccountLevel.E2E else UNIT_NAMES[account.unit],
        explained_time=max(0.0, float(min(named, default=0))),
        explained_saving=max(0.0, float(1 - moved / abs(saved))) if saved else None,
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


def _nameless(side: Explained) -> Counter[Label]:
    return Counter({label: ns for label, ns in side.labels.items() if part_of(label) in NAMELESS})


def _explained_saving(baseline: Explained, candidate: Explained) -> float | None:
    saved = sum(baseline.labels.values()) - sum(candidate.labels.values())
    b, c = _nameless(baseline), _nameless(candidate)
    moved = sum(abs(b.get(label, 0) - c.get(label, 0)) for label in b.keys() | c.keys())
    return max(0.0, 1 - moved / abs(saved)) if saved else None
