"""The headline, and the chain of speedups from the attention kernel to end to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from strobe.core.errors import DataError
from strobe.core.spans import E2E
from strobe.perf.analysis.ledger.account import Ledger, Level, LevelSum
from strobe.perf.analysis.runs.compare import Comparison, compare_unpaired
from strobe.perf.measure.stats import FLOOR
from strobe.perf.report.blocks.fields import Field, numeric, table_of
from strobe.perf.report.blocks.levels import LevelRow, level_ratio, level_times, levels_figure
from strobe.perf.report.blocks.ratios import ratio_cell, speedup_headline, verdict_cell
from strobe.perf.report.blocks.settings import differences
from strobe.perf.report.findings import Finding
from strobe.perf.report.model import (
    Block,
    Cell,
    Count,
    ExactTime,
    Headline,
    Headlines,
    Missing,
    Notes,
    Paragraph,
    Ratio,
    Section,
    Share,
    Table,
    Text,
)
from strobe.perf.report.study import RunStudy

_UNITS: Final = {True: "pairs of clips", False: "traced frame blocks"}
_UNJUDGED: Final = "a level inside a pass; its interval says how sure it is"
HEADLINE: Final = "headline"
"""Id of the section."""
MAX_REALISED: Final = 10
"""Largest saving of a level, in multiples of the kernel's, that is still attributed to the kernel."""


# ------------------------------------------------------------------------------------------------------------- headline


def headline_section(study: RunStudy, findings: Sequence[Finding]) -> Section:
    """Build the section with the end-to-end speedup of every candidate."""
    if not findings:
        return Section(
            HEADLINE, "Headline", "", (Paragraph("These records hold no candidate beside the reference: nothing is compared."),)
        )
    references = list(dict.fromkeys(finding.reference.label for finding in findings))
    lead = (
        "End to end is one clip: from the call to the last pixel frame handed over. The speedup is reference time over candidate "
        "time, the median over mirrored pairs; above 1 the candidate is faster."
    )
    headlines = Headlines(" or ".join(references), tuple(_headline(finding) for finding in findings), _headline_table(findings))
    blocks: list[Block] = [headlines]
    if len(study.runs) > 1 and not differences(study):
        blocks.append(_between_runs(study))
    return Section(HEADLINE, "Headline", lead, tuple(blocks))


def _headline(finding: Finding) -> Headline:
    e2e, candidate = finding.e2e, finding.candidate
    if e2e is None:
        reason = _no_speedup(finding)
        return Headline(candidate.label, candidate.series, Missing(reason), Text("not measured", "muted"), reason)
    return speedup_headline(candidate.label, candidate.series, e2e)


def _headline_table(findings: Sequence[Finding]) -> Table:
    fields: tuple[Field[Finding], ...] = (
        Field("candidate", lambda each: each.candidate.label),
        Field("reference", lambda each: each.reference.label),
        numeric(
            "speedup",
            lambda each: ratio_cell(each.e2e.ratio, each.e2e.interval) if each.e2e else Missing(_no_speedup(each)),
            "median of the pair ratios, 95 % interval",
        ),
        Field("verdict", lambda each: verdict_cell(each.e2e.verdict) if each.e2e else ""),
        numeric("pairs", lambda each: Count(len(each.e2e.ratios)) if each.e2e else ""),
        numeric("ratio of sums", lambda each: Ratio(each.e2e.ratio_of_sums) if each.e2e else "", "what the ledger adds up to"),
        numeric("ratio of minima", lambda each: Ratio(each.e2e.floor) if each.e2e else "", "fastest clip against fastest clip"),
    )
    notes = (
        "Interval: t on the logarithms of the pair ratios. A verdict needs the interval to exclude 1 and the difference to "
        "exceed 1 %.",
    )
    return table_of("End-to-end speedup.", fields, findings, notes=notes)


def _no_speedup(finding: Finding) -> str:
    """Return the reason why a candidate without end-to-end times has none."""
    return finding.stages if isinstance(finding.stages, str) else "no end-to-end times"


def _between_runs(study: RunStudy) -> Table:
    """Build the table of a variant in the first run against later runs; unpaired, so drift is unknown."""
    first, rows = study.runs[0], list[tuple[str, str, Comparison | Missing]]()
    own = {variant.name for variant in first.variants}
    for run in study.runs[1:]:
        for variant in run.variants:
            if variant.name in own:
                try:
                    found: Comparison | Missing = compare_unpaired(first, run, E2E, variant=variant.name, unpaired=True)
                except DataError as error:
                    found = Missing(str(error))
                rows.append((variant.name, run.header.run, found))
    fields: tuple[Field[tuple[str, str, Comparison | Missing]], ...] = (
        Field("variant", lambda row: row[0]),
        Field("run", lambda row: row[1]),
        numeric(
            f"time in {first.header.run} / time in run",
            lambda row: row[2] if isinstance(row[2], Missing) else ratio_cell(row[2].ratio, row[2].interval),
        ),
        Field("verdict", lambda row: "" if isinstance(row[2], Missing) else verdict_cell(row[2].verdict)),
    )
    notes = ("Unpaired: taken at different times, drift between the runs is unknown. Welch's t on logarithms.",)
    return table_of("The same variant in different runs, end to end.", fields, rows, notes=notes)


# ---------------------------------------------------------------------------------------------------------------- chain


def chain_section(findings: Sequence[Finding]) -> Section:
    """Build the section with the speedups from the kernel to end to end, one group of rows per candidate."""
    lead = (
        "A faster kernel is diluted on the way up: each level contains the one before it. All levels compare the time for the "
        "same frame blocks, so fewer denoise steps count as time saved."
    )
    with_ledger = [finding for finding in findings if isinstance(finding.ledger, Ledger)]
    without = tuple(f"{finding.candidate.label}: {finding.ledger}" for finding in findings if isinstance(finding.ledger, str))
    blocks: list[Block] = []
    if with_ledger:
        blocks.append(_chain_figure(with_ledger))
    if without:
        blocks.append(Notes(tuple(f"No chain for {reason}" for reason in without)))
    return Section("chain", "From the kernel to end to end", lead, tuple(blocks))


def _chain_figure(findings: Sequence[Finding]) -> Block:
    fields: tuple[Field[LevelRow], ...] = (
        Field("candidate", lambda row: row.candidate),
        Field("level", lambda row: row.level),
        numeric("speedup", lambda row: row.ratio),
        Field("verdict", lambda row: row.verdict),
        Field("from", lambda row: row.source),
        *level_times("reference"),
        numeric("realised", lambda row: row.realised, "saving of this level / saving of the attention kernel alone"),
    )
    notes = (
        "Times are the account's: sums over the paired clips. The speedups of step, block and e2e are medians of pair ratios "
        "over whole clips: they need not equal the ratio of the times.",
        "Kernel and section, on a GPU: of steady frame blocks of one traced clip each, traced at different times; the interval "
        "is a t over these frame blocks, and drift between the clips is unknown. On a CPU: of the timed clips, paired.",
        f"Realised: above 100 % more than the attention kernel became faster; negative: it became slower. Not shown where the "
        f"kernel changed by less than {100 * FLOOR:.0f} %, or by less than a tenth of what the level saved: other lines did it.",
    )
    rows = [
        _chain_row(finding, finding.ledger, level)
        for finding in findings
        if isinstance(finding.ledger, Ledger)
        for level in finding.ledger.levels
    ]
    references = " or ".join(dict.fromkeys(finding.reference.label for finding in findings))
    title = "Speedup at each level with its 95 % interval, and how much of the attention kernel's saving is realised there."
    return levels_figure(title, references, rows, fields, "Speedup and saving by level.", notes)


def _chain_row(finding: Finding, ledger: Ledger, level: LevelSum) -> LevelRow:
    known, realised = level_ratio(finding, level), _realised(ledger, level)
    timed = known[1] if known else None
    lost = Missing("a trace lacks the spans of this level", "-")
    b, c, saved = (ExactTime(ns) if level.ratio else lost for ns in (level.baseline_ns, level.candidate_ns, level.saved_ns))
    return LevelRow(
        candidate=finding.candidate.label,
        level=Text(level.level.value),
        ratio=known[0] if known else Missing("no time at this level", "-"),
        verdict=verdict_cell(timed.verdict) if timed else Text("not judged", "muted", note=_UNJUDGED),
        times=(b, c, saved),
        realised=realised,
        source=f"{len(timed.ratios)} pairs of clips" if timed else f"{len(level.tiles[0])} {_UNITS[bool(ledger.spread.lines)]}",
        detail=f"{100 * realised.value:.0f} % realised" if isinstance(realised, Share) and level.level != Level.KERNEL else "",
        group=f"{finding.candidate.label} against {finding.reference.label}",
        series=finding.candidate.series,
    )


def _realised(ledger: Ledger, level: LevelSum) -> Cell:
    """Return the level's saving / the kernel's saving in the same frame blocks and passes, or why there is none."""
    inside = level.level in (Level.KERNEL, Level.SECTION, Level.STEP)
    kernel = ledger.levels[0].saved_ns if inside else ledger.kernel_saved_ns
    ratio = ledger.levels[0].ratio
    if level.ratio is None or ratio is None:
        return Missing("a trace does not show the attention kernel", "-")
    if kernel <= 0:
        return Missing("the attention kernel saved nothing", "-")
    if abs(ratio - 1) < FLOOR:
        return Missing(f"the attention kernel changed by less than {100 * FLOOR:.0f} %", "-")
    if abs(level.saved_ns) > MAX_REALISED * kernel:
        return Missing(f"the attention kernel saved {100 * kernel / abs(level.saved_ns):.1f} % as much", "-")
    return Share(level.saved_ns / kernel)
