"""The document that `strobe speedup --json` prints and `strobe.compare_traces` returns."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from strobe.core.errors import unknown_choice
from strobe.perf.report.documents.value import Document, Part

Exact = Annotated[str, Meta(description="time, exact: whole nanoseconds or a fraction of them, such as `12345/7`")]
OrExact = Annotated[str | None, Meta(description="time, exact as above; null where it is not known")]


class FactPart(Part, frozen=True, kw_only=True):
    """One fact that a comparison depends on."""

    name: Annotated[str, Meta(description="the word that --fact and --allow-different take")]
    title: Annotated[str, Meta(description="the same in words")]
    baseline: Annotated[str | tuple[str, ...] | None, Meta(description="value, or several; null where it is not known")]
    candidate: Annotated[str | tuple[str, ...] | None, Meta(description="likewise")]
    verdict: Annotated[Literal["same", "differs", "allowed", "unknown"], Meta(description="what that means")]
    weight: Annotated[
        Literal["must", "should", "told"],
        Meta(description="a difference is an obstacle, weakens the comparison, or is only shown"),
    ]


class CommonPart(Part, frozen=True, kw_only=True):
    """Kernels that both sides ran, without copies and memsets."""

    baseline_share: Annotated[float, Meta(description="part of the baseline's kernel time in them")]
    candidate_share: Annotated[float, Meta(description="part of the candidate's")]
    names: Annotated[tuple[str, ...], Meta(description="their normalised names")]


class MeasuredPart(Part, frozen=True, kw_only=True):
    """Time of one side at one level."""

    mean_ns: Exact
    n: Annotated[int, Meta(description="measurements")]
    groups: Annotated[int, Meta(description="groups of them that do not depend on each other: steps, rounds")]
    what: Annotated[str, Meta(description="what was averaged")]


class LevelPart(Part, frozen=True, kw_only=True):
    """Times of both sides and speedup at one level."""

    ratio: Annotated[float | None, Meta(description="time of the baseline / time of the candidate; null if not comparable")]
    low: Annotated[float | None, Meta(description="low end of its 95 % interval; null without one")]
    high: Annotated[float | None, Meta(description="high end")]
    verdict: Annotated[str | None, Meta(description="faster, slower, no difference, inconclusive; null without a ratio")]
    baseline: Annotated[MeasuredPart | None, Meta(description="null where it was not measured")]
    candidate: Annotated[MeasuredPart | None, Meta(description="likewise")]
    saved_ns: OrExact
    realised: Annotated[float | None, Meta(description="saved / what the focal calls in it saved; null where that says nothing")]
    unlike: Annotated[str, Meta(description="how the sides differ in what they measure; empty if they do not")]
    missing: Annotated[str, Meta(description="why a side was not measured; empty if both were")]


class IntervalsPart(Part, frozen=True, kw_only=True):
    """Samples behind the intervals of a ledger, or the reason why it has none."""

    steps: Annotated[tuple[int, ...], Meta(description="compared steps of the baseline and of the candidate")]
    none_because: Annotated[str, Meta(description="why there are none; empty if there are")]


class LinePart(Part, frozen=True, kw_only=True):
    """One line of a ledger; the lines add up exactly."""

    level: Annotated[str, Meta(description="the first level that contains it")]
    line: Annotated[str, Meta(description="what the time was spent on")]
    baseline_ns: Exact
    candidate_ns: Exact
    saved_ns: Exact
    saved_low_ns: Annotated[float | None, Meta(description="low end of the saving's 95 % interval; null without one")]
    saved_high_ns: Annotated[float | None, Meta(description="high end")]
    share: Annotated[float | None, Meta(description="saved / saved by all lines; null if that is 0")]


class EffectPart(Part, frozen=True, kw_only=True):
    """Saving of one kernel: by fewer calls and by faster calls, which add up."""

    kernel: Annotated[str, Meta(description="normalised name")]
    calls: Annotated[tuple[str, str], Meta(description="in one unit of the baseline and of the candidate, exact")]
    saved_ns: Exact
    by_calls_ns: Exact
    by_speed_ns: Exact


class LedgerPart(Part, frozen=True, kw_only=True):
    """Ledger of one unit: its lines, levels and effects, which add up exactly."""

    ranks: Annotated[str, Meta(description="whose ledger it is; empty if each side is one trace")] = ""
    unit: Annotated[str, Meta(description="stage, step, call or window")]
    why: Annotated[str, Meta(description="why this unit")]
    missing: Annotated[dict[str, str], Meta(description="levels that could not be reached, with the reason")]
    baseline_ns: Exact
    candidate_ns: Exact
    saved_ns: Exact
    saved_low_ns: Annotated[float | None, Meta(description="low end of the saving's 95 % interval; null without one")]
    saved_high_ns: Annotated[float | None, Meta(description="high end")]
    intervals: Annotated[IntervalsPart, Meta(description="what the intervals rest on")]
    kernel_saved_ns: Exact
    ideal_ns: Exact
    realised_share: Annotated[float | None, Meta(description="saved / saved by the focal kernel; null where that says nothing")]
    lost_ns: Exact
    lines: Annotated[tuple[LinePart, ...], Meta(description="every line")]
    kernels: Annotated[tuple[EffectPart, ...], Meta(description="every kernel")]


class AnswerLine(Part, frozen=True, kw_only=True):
    """One part of a unit; the parts add up to the account of the slowest ranks exactly."""

    part: Annotated[str, Meta(description="what the time was spent on; several, with commas, that are too small for a row each")]
    baseline_ns: Exact
    candidate_ns: Exact
    saved_ns: Exact
    share: Annotated[float | None, Meta(description="of what a unit saves; null if it saves nothing or is not comparable")]


class AnswerPart(Part, frozen=True, kw_only=True):
    """The answer in a few lines: headline, largest parts, and the explained shares."""

    headline: Annotated[str, Meta(description="the speedups that count, or why there are none")]
    levels: Annotated[tuple[str, ...], Meta(description="the levels that the headline is of; empty if there is no speedup")]
    missing: Annotated[str, Meta(description="why there is no account of the time; empty if there is one")]
    unit: Annotated[str, Meta(description="what the parts are of: stage, step, focal call or traced window; else empty")]
    baseline_ns: OrExact
    candidate_ns: OrExact
    explained_time_share: Annotated[
        float | None, Meta(description="share of the time that has a name, of the side where it is less")
    ]
    explained_saving_share: Annotated[
        float | None, Meta(description="share of the saving that has a name; null if nothing is saved or it is not comparable")
    ]
    limit: Annotated[str, Meta(description="what limits the candidate now, with the figure")]
    parts: Annotated[tuple[AnswerLine, ...], Meta(description="at most eight, what saved most first")]


class SectionsPart(Part, frozen=True, kw_only=True):
    """The sections of one trace."""

    definition: Annotated[str, Meta(description="boundaries")]
    found: Annotated[int, Meta(description="how many")]
    length_ns: Annotated[tuple[int, ...], Meta(description="of each")]
    busy_ns: Annotated[tuple[int, ...], Meta(description="at least one event of it ran")]
    focal_inside_ns: Annotated[tuple[int, ...], Meta(description="a focal event ran")]
    skipped: Annotated[dict[str, int], Meta(description="focal calls without a section, by reason")]
    merged: Annotated[int, Meta(description="focal calls whose section is that of an earlier one")]
    overlapping: Annotated[int, Meta(description="sections that start before an earlier one ends")]


class TracePart(Part, frozen=True, kw_only=True):
    """One trace of a side."""

    trace: Annotated[str, Meta(description="rank, or name of the file")]
    device: Annotated[int, Meta(description="the device that was compared")]
    compared_ns: Annotated[int, Meta(description="length of all compared steps")]
    steps: Annotated[int, Meta(description="compared steps")]
    focal_ns: Annotated[tuple[tuple[int, ...], ...], Meta(description="durations of the focal calls, step by step")]
    sections: Annotated[SectionsPart | None, Meta(description="null if none were asked for")]


class SidePart(Part, frozen=True, kw_only=True):
    """Findings on one side: focal kernel, section, log, timers, stage, traces."""

    focal: Annotated[str | None, Meta(description="regular expression of the focal kernel")]
    section: Annotated[str | None, Meta(description="definition of the section")]
    calls_per_stage: Annotated[int | None, Meta(description="focal calls in a stage; null where not known")]
    calls_from: Annotated[str, Meta(description="how that is known, or why not")]
    log: Annotated[dict[str, Any] | None, Meta(description="path, counts of its lines, lines like timings, rejected values")]
    attention: Annotated[tuple[dict[str, Any], ...], Meta(description="attention timers: as `strobe extract attention` has them")]
    stage: Annotated[dict[str, Any] | None, Meta(description="rounds of the stage: as `strobe extract stages` has them")]
    traces: Annotated[tuple[TracePart, ...], Meta(description="traces with device events")]


class SidesPart(Part, frozen=True, kw_only=True):
    """Findings on both sides."""

    baseline: Annotated[SidePart, Meta(description="what the other is measured against")]
    candidate: Annotated[SidePart, Meta(description="what is measured")]


class NodePart(Part, frozen=True, kw_only=True):
    """One node of the tree of modules, operators and kernels: time of one unit in it and below it."""

    path: Annotated[tuple[str, ...], Meta(description="names from the outermost on; `idle` stands above the causes of idle time")]
    baseline_ns: Exact
    candidate_ns: Exact
    saved_ns: Exact
    leaf: Annotated[bool, Meta(description="nothing lies below it: a kernel or a cause; the leaves add up to the unit")]


class TreePart(Part, frozen=True, kw_only=True):
    """Tree of both sides by path of modules, operators and kernels."""

    unit: Annotated[str, Meta(description="what the times are of: step, call or window")]
    operators: Annotated[bool, Meta(description="operators are part of the paths; false if a file was too large to read them")]
    baseline_ns: Exact
    candidate_ns: Exact
    nodes: Annotated[tuple[NodePart, ...], Meta(description="every node below the root, each before those below it")]


class SpeedupDocument(Document, frozen=True, kw_only=True):
    """Speedup of the candidate at each level, and the ledger of the difference.

    `rows()` returns the lines of the ledgers as numbers, `rows("parts")` the answer, `rows("tree")` the time by module, operator
    and kernel; `rows("levels")`, `rows("kernels")` and `rows("facts")` return the other tables.
    """

    MAIN: ClassVar[str] = "lines"
    SHOWN: ClassVar[tuple[str, ...]] = ("parts", "levels", "lines")

    comparable: Annotated[bool, Meta(description="nothing differs that must not; without it there is no ratio")]
    obstacles: Annotated[tuple[str, ...], Meta(description="names of the facts that make the sides not comparable")]
    not_comparable_because: Annotated[tuple[str, ...], Meta(description="the same in words")]
    allowed_different: Annotated[tuple[str, ...], Meta(description="facts that differ and are meant to")]
    unlike: Annotated[str, Meta(description="how the sections differ in what they are; empty if they do not")]
    facts: Annotated[tuple[FactPart, ...], Meta(description="every fact a comparison depends on")]
    common_kernels: Annotated[CommonPart | None, Meta(description="null if a side ran no kernel")]
    levels: Annotated[dict[str, LevelPart], Meta(description="by level: kernel, section, attention, step, stage, e2e")]
    call_ledger: Annotated[LedgerPart | None, Meta(description="from one kernel to the stage; null without a level of both")]
    ledgers: Annotated[tuple[LedgerPart, ...], Meta(description="of the traces: of the slowest ranks, then of every rank")]
    answer: Annotated[AnswerPart, Meta(description="where the saving comes from, in a few lines")]
    tree: Annotated[TreePart | None, Meta(description="by module, operator and kernel; null unless both sides were traced")]
    contradictions: Annotated[tuple[str, ...], Meta(description="figures that cannot all be right; they are among the anomalies")]
    anomalies: Annotated[tuple[str, ...], Meta(description="what cannot be right, or should not be believed without a look")]
    sides: Annotated[SidesPart, Meta(description="what was read and found of each")]

    def rows(self, table: str = "") -> list[dict[str, Any]]:
        """Return a table as one dictionary per row, times as numbers: `pandas.DataFrame(found.rows())`.

        Args:
            table: lines, parts, levels, kernels, facts or tree; by default the lines of the ledgers.

        Raises:
            ConfigError: there is no such table.
        """
        tables = {
            "lines": self._lines,
            "parts": self._parts,
            "levels": self._levels,
            "kernels": self._kernels,
            "facts": self._facts,
            "tree": self._tree,
        }
        chosen = table or self.MAIN
        if chosen not in tables:
            raise unknown_choice("table", chosen, tables)
        return tables[chosen]()

    def _lines(self) -> list[dict[str, Any]]:
        return [
            {
                "ranks": ledger.ranks,
                "unit": ledger.unit,
                "level": line.level,
                "line": line.line,
                "baseline_ns": _number(line.baseline_ns),
                "candidate_ns": _number(line.candidate_ns),
                "saved_ns": _number(line.saved_ns),
                "saved_low_ns": line.saved_low_ns,
                "saved_high_ns": line.saved_high_ns,
                "share": line.share,
            }
            for ledger in self.ledgers
            for line in ledger.lines
        ]

    def _parts(self) -> list[dict[str, Any]]:
        return [
            {
                "unit": self.answer.unit,
                "part": line.part,
                "baseline_ns": _number(line.baseline_ns),
                "candidate_ns": _number(line.candidate_ns),
                "saved_ns": _number(line.saved_ns),
                "share": line.share,
            }
            for line in self.answer.parts
        ]

    def _levels(self) -> list[dict[str, Any]]:
        return [
            {
                "level": name,
                "ratio": level.ratio,
                "low": level.low,
                "high": level.high,
                "verdict": level.verdict,
                "baseline_ns": None if level.baseline is None else _number(level.baseline.mean_ns),
                "candidate_ns": None if level.candidate is None else _number(level.candidate.mean_ns),
                "saved_ns": None if level.saved_ns is None else _number(level.saved_ns),
                "missing": level.missing,
            }
            for name, level in self.levels.items()
        ]

    def _kernels(self) -> list[dict[str, Any]]:
        return [
            {
                "ranks": ledger.ranks,
                "unit": ledger.unit,
                "kernel": kernel.kernel,
                "baseline_calls": _number(kernel.calls[0]),
                "candidate_calls": _number(kernel.calls[1]),
                "saved_ns": _number(kernel.saved_ns),
                "by_calls_ns": _number(kernel.by_calls_ns),
                "by_speed_ns": _number(kernel.by_speed_ns),
            }
            for ledger in self.ledgers
            for kernel in ledger.kernels
        ]

    def _tree(self) -> list[dict[str, Any]]:
        tree = self.tree
        return [
            {
                "unit": tree.unit,
                "path": " / ".join(node.path),
                "depth": len(node.path),
                "leaf": node.leaf,
                "baseline_ns": _number(node.baseline_ns),
                "candidate_ns": _number(node.candidate_ns),
                "saved_ns": _number(node.saved_ns),
            }
            for node in (() if tree is None else tree.nodes)
            if tree is not None
        ]

    def _facts(self) -> list[dict[str, Any]]:
        return [{key: getattr(fact, key) for key in fact.__struct_fields__} for fact in self.facts]

    def title(self) -> str:
        """Return one line with the speedups, or the reasons why there are none."""
        if not self.comparable:
            return f"not comparable: {'; '.join(self.not_comparable_because)}"
        found = (f"{name} {level.ratio:.4g}x" for name, level in self.levels.items() if level.ratio is not None)
        return f"candidate against baseline: {', '.join(found) or 'no level was measured on both sides'}"


def _number(exact: str) -> float:
    return float(Fraction(exact))
