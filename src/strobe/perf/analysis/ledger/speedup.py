"""Times of two sides, level by level: kernel, section, attention call, step, stage, end to end.

Each side consists of its traces and its log. A level that cannot be computed is missing, with the reason. The sides were measured
at different times: an interval is Welch's, and drift between them is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from strobe.perf.analysis.ledger.calls import CallTimes
from strobe.perf.analysis.ledger.label_trace import TracedSide
from strobe.perf.analysis.ledger.traces import Account, Timed, foreign_ledger
from strobe.perf.analysis.runs.log_rounds import StageRounds
from strobe.perf.analysis.runs.timings import Timings
from strobe.perf.analysis.structure.sections import skipped_text
from strobe.perf.analysis.structure.steps import NoSteps
from strobe.perf.measure.stats import FLOOR, Interval, Verdict, judge, welch_interval
from strobe.perf.trace.events import Trace

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
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
class Side:
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
    host_step: Measured | str = "no ProfilerStep#N range in its traces"

    @property
    def chosen(self) -> TracedSide | None:
        """The rank that the others wait for: the longest mean step without communication; ranks with steps come first.

        Ranks that meet in every step have steps of one length; the one that is late has the least communication in it.
        """
        if isinstance(self.traced, str):
            return None
        return max(self.traced, key=lambda traced: (not isinstance(traced.steps, NoSteps), traced.own_ns, traced.mean_ns))

    def kernel(self) -> Measured | str:
        """Return the time of one focal kernel, or the reason why there is none."""
        own = self.chosen
        if own is None:
            return str(self.traced)
        n = len(own.counted)
        if not n:
            return f"every focal call of {own.label} lies in a step that is left out" if own.focal_names else NO_FOCAL[self.name]
        groups = tuple(sum(calls) / len(calls) for calls in own.focal if calls)
        return Measured(mean_ns=Fraction(sum(own.counted), n), groups_ns=groups, n=n, what=_counted(n, "call", own))

    def section(self) -> Measured | str:
        """Return the time of one section, or the reason why there is none."""
        own = self.chosen
        if own is None or own.sections is None:
            return str(self.traced) if own is None else "no section was asked for: give --section"
        found = own.sections.found
        if not found:
            return f"{own.sections.num_focal} focal calls, none with a section: {skipped_text(own.sections)}"
        groups = [[s.length_ns for s in found if t.start_ns <= s.start_ns < t.end_ns] for t in own.tiles]
        means = tuple(sum(lengths) / len(lengths) for lengths in groups if lengths)
        mean = Fraction(sum(section.length_ns for section in found), len(found))
        return Measured(mean_ns=mean, groups_ns=means, n=len(found), what=_counted(len(found), "section", own))

    def focal_in_section(self) -> Fraction | None:
        """Return the focal time in one section; `None` without sections. It differs from the kernel's mean if focal calls lie in
        no section, or several in one."""
        found = () if self.chosen is None or self.chosen.sections is None else self.chosen.sections.found
        return Fraction(sum(section.focal_ns for section in found), len(found)) if found else None

    @property
    def stages_per_run(self) -> Fraction | None:
        """Rounds of the stage per whole run, if the log times both."""
        stage, whole = self.timings.stage, self.timings.e2e
        return None if isinstance(stage, str) or isinstance(whole, str) else Fraction(len(stage.rounds), len(whole.rounds))

    def call(self) -> Measured | str:
        """Return the time of one attention call of the log, or the reason why there is none."""
        own = self.timings.attention
        if isinstance(own, str):
            return own
        values = own.resolved.values_ns
        kept = set(own.kept)
        rounds = [[values[index] for index in each if index in kept] for each in self.timings.rounds]
        groups = tuple(sum(each) / len(each) for each in rounds if each)
        what = f"{own.calls.n} calls of {own.series.title!r}" + (f" in {len(groups)} rounds" if groups else "")
        return Measured(mean_ns=Fraction(own.calls.sum_ns, own.calls.n), groups_ns=groups, n=own.calls.n, what=what)

    def traced_step(self) -> Measured | str:
        """Return the time of one step of the trace, or the reason why there is none."""
        own = self.chosen
        if own is None:
            return str(self.traced)
        if isinstance(own.steps, NoSteps):
            return f"{own.label}: {own.steps.reason}"
        groups = tuple(float(tile.end_ns - tile.start_ns) for tile in own.tiles)
        return Measured(mean_ns=own.mean_ns, groups_ns=groups, n=len(groups), what=_counted(len(groups), "traced step", own))

    def timed_stage(self) -> Measured | str:
        """Return the time of one stage of the log without warm-up, or the reason why there is none."""
        return _rounds(self.timings.stage)

    def whole(self) -> Measured | str:
        """Return the time of a whole run of the log, or the reason why there is none."""
        return _rounds(self.timings.e2e)

    def call_times(self, *, with_section: bool, kernel_is_section: bool) -> CallTimes:
        """Return the means for the account of a call; with sections in it, the kernel is what runs inside one section."""
        kernel = _mean(self.kernel())
        inside = self.focal_in_section() if with_section else None
        return CallTimes(
            kernel_ns=kernel if inside is None else inside,
            section_ns=kernel if kernel_is_section else _mean(self.section()),
            call_ns=_mean(self.call()),
            stage_ns=_mean(self.timed_stage()),
            calls_per_stage=self.timings.calls,
            kernel_is_section=kernel_is_section,
        )

    def timed(self) -> Timed:
        """Return the log's times for the account of the traces; a step only if it can be the traced one."""
        logged = self.timings.step
        step = None if isinstance(logged, str) else Fraction(logged.calls.sum_ns, logged.calls.n)
        own = self.chosen
        if step is not None and (own is None or not _may_be(own, step)):
            step = None
        return Timed(
            step_ns=step,
            stage_ns=_mean(self.timed_stage()),
            e2e_ns=_mean(self.whole()) if self.stages_per_run == 1 else None,
            calls_per_stage=self.timings.calls,
        )


def host_step(traces: Sequence[Trace]) -> Measured | str:
    """Return the time of one `ProfilerStep#N` on the host over all traces of a side, or the reason why there is none."""
    spans = [
        float(end - start)
        for ranges in (trace.ranges for trace in traces)
        for name, start, end in zip(ranges.name, ranges.start_ns, ranges.end_ns, strict=True)
        if _STEP.fullmatch(ranges.names[name])
    ]
    if not spans:
        return "no ProfilerStep#N range in its traces"
    mean = sum(map(Fraction, spans)) / len(spans)
    return Measured(mean_ns=Fraction(mean), groups_ns=tuple(spans), n=len(spans), what=f"{len(spans)} ProfilerStep#N on the host")


def _may_be(own: TracedSide, step_ns: Fraction) -> bool:
    """Return whether a timed step can be the traced one: the trace has steps, and both are about as long."""
    low, high = _LIKELY_DILATION
    return not isinstance(own.steps, NoSteps) and low <= own.mean_ns / step_ns <= high


def _mean(measured: Measured | str) -> Fraction | None:
    return None if isinstance(measured, str) else measured.mean_ns


def _counted(n: int, what: str, own: TracedSide) -> str:
    return f"{n} {what}{'s' if n != 1 else ''} of {own.label}"


def _rounds(rounds: StageRounds | str) -> Measured | str:
    if isinstance(rounds, str):
        return rounds
    mean = rounds.avg_excl_warmup_ns
    if mean is None:
        return f"{rounds.name}: no round is left without warm-up"
    kept = rounds.kept_ns
    what = f"{len(kept)} of {len(rounds.rounds)} rounds of {rounds.name!r}"
    return Measured(mean_ns=mean, groups_ns=tuple(map(float, kept)), n=len(kept), what=what)


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
    baseline: Measured | str
    candidate: Measured | str
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


def level_figures(baseline: Side, candidate: Side, *, unlike: str = "", alike_steps: bool = True) -> tuple[LevelFigure, ...]:
    """Compare every level.

    Args:
        unlike: the sections are not cut alike, in words; a side without sections is then represented by its kernel.
        alike_steps: the steps of both traces are the same thing.
    """
    sides = (baseline, candidate)
    sections = [_section(side, unlike) for side in sides]
    steps: list[Measured | str] = [side.traced_step() for side in sides]
    if any(side.traced == HOST_ONLY for side in sides):
        steps = [side.host_step for side in sides]
    if not alike_steps and not any(isinstance(step, str) for step in steps):
        steps = ["the repetitions found on both sides hold different numbers of focal calls: give --steps"] * 2
    measured: dict[LevelName, Sequence[Measured | str]] = {
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


def _section(side: Side, unlike: str) -> Measured | str:
    """Return the section, or the kernel where an unlike comparison was asked for and the side has no section."""
    found = side.section()
    return side.kernel() if unlike and isinstance(found, str) else found


def _figure(
    level: LevelName, measured: Sequence[Measured | str], kernel: LevelFigure | None, sides: tuple[Side, Side], unlike: str
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


def _realised(level: LevelName, saved: Fraction, kernel: LevelFigure, sides: tuple[Side, Side]) -> Fraction | None:
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


def _focal_inside(level: LevelName, side: Side, kernel: Measured) -> Fraction | None:
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


def rank_ledgers(baseline: Side, candidate: Side) -> tuple[tuple[str, Account], ...]:
    """Return the account of the slowest ranks and, with several ranks, of every rank that both sides traced."""
    if isinstance(baseline.traced, str) or isinstance(candidate.traced, str):
        return ()
    slow = baseline.chosen, candidate.chosen
    assert slow[0] is not None and slow[1] is not None
    timed = baseline.timed(), candidate.timed()
    several = len(baseline.traced) > 1 or len(candidate.traced) > 1
    first = f"slowest rank ({slow[0].label} against {slow[1].label})" if several else ""
    found = [(first, foreign_ledger(slow[0], slow[1], timed))]
    if several:
        others = {traced.label: traced for traced in candidate.traced}
        pairs = [(traced, others[traced.label]) for traced in baseline.traced if traced.label in others]
        found += [(b.label, foreign_ledger(b, c, timed)) for b, c in pairs]
    return tuple(found)
