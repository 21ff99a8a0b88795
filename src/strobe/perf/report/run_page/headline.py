"""The headline, and the chain of speedups from the attention kernel to end to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from strobe.core.errors import DataError
from strobe.core.spans import E2E
from strobe.perf.analysis.ledger.account import Ledger, Level, LevelSum
from strobe.perf.analysis.runs.compare import compare_unpaired
from strobe.perf.measure.stats import FLOOR
from strobe.perf.report.blocks.levels import level_ratio
from strobe.perf.report.blocks.ratios import ratio_cell, speedup_headline, verdict_cell
from strobe.perf.report.blocks.settings import differences
from strobe.perf.report.findings import Finding
from strobe.perf.report.model import (
    Block,
    Cell,
    Column,
    Count,
    ExactTime,
    Figure,
    Headline,
    Headlines,
    Missing,
    Notes,
    Paragraph,
    Ratio,
    Row,
    Section,
    Share,
    Table,
    Text,
    Whisker,
    Whiskers,
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
        reason = finding.stages if isinstance(finding.stages, str) else "no end-to-end times"
        return Headline(candidate.label, candidate.series, Missing(reason), Text("not measured", "muted"), reason)
    return speedup_headline(candidate.label, candidate.series, e2e)


def _headline_table(findings: Sequence[Finding]) -> Table:
    columns = (
        Column("candidate"),
        Column("reference"),
        Column("speedup", numeric=True, hint="median of the pair ratios, 95 % interval"),
        Column("verdict"),
        Column("pairs", numeric=True),
        Column("ratio of sums", numeric=True, hint="what the ledger adds up to"),
        Column("ratio of minima", numeric=True, hint="fastest clip against fastest clip"),
    )
    notes = (
        "Interval: t on the logarithms of the pair ratios. A verdict needs the interval to exclude 1 and the difference to "
        "exceed 1 %.",
    )
    return Table("End-to-end speedup.", columns, tuple(_headline_row(finding) for finding in findings), notes)


def _headline_row(finding: Finding) -> Row:
    e2e, head = finding.e2e, (Text(finding.candidate.label), Text(finding.reference.label))
    if e2e is None:
        reason = finding.stages if isinstance(finding.stages, str) else "no end-to-end times"
        return Row((*head, Missing(reason), *(Text("") for _ in range(4))))
    cells = (verdict_cell(e2e.verdict), Count(len(e2e.ratios)), Ratio(e2e.ratio_of_sums), Ratio(e2e.floor))
    return Row((*head, ratio_cell(e2e.ratio, e2e.interval), *cells))


def _between_runs(study: RunStudy) -> Table:
    """Build the table of a variant in the first run against later runs; unpaired, so drift is unknown."""
    first, rows = study.runs[0], []
    for run in study.runs[1:]:
        for name in (variant.name for variant in run.variants if any(variant.name == other.name for other in first.variants)):
            try:
                found = compare_unpaired(first, run, E2E, variant=name, unpaired=True)
            except DataError as error:
                rows.append(Row((Text(name), Text(run.header.run), Missing(str(error)), Text(""))))
                continue
            rows.append(
                Row((Text(name), Text(run.header.run), ratio_cell(found.ratio, found.interval), verdict_cell(found.verdict)))
            )
    columns = (
        Column("variant"),
        Column("run"),
        Column(f"time in {first.header.run} / time in run", numeric=True),
        Column("verdict"),
    )
    notes = ("Unpaired: taken at different times, drift between the runs is unknown. Welch's t on logarithms.",)
    return Table("The same variant in different runs, end to end.", columns, tuple(rows), notes)


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


def _chain_figure(findings: Sequence[Finding]) -> Figure:
    whiskers, rows = [], []
    for finding in findings:
        assert isinstance(finding.ledger, Ledger)
        for level in finding.ledger.levels:
            known, realised = level_ratio(finding, level), _realised(finding, finding.ledger, level)
            if known is not None:
                detail = (
                    f"{100 * realised.value:.0f} % realised"
                    if isinstance(realised, Share) and level.level != Level.KERNEL
                    else ""
                )
                group = f"{finding.candidate.label} against {finding.reference.label}"
                whiskers.append(Whisker(level.level.value, known[0], group, detail, finding.candidate.series))
            rows.append(_chain_row(finding, level, realised))
    columns = (
        Column("candidate"),
        Column("level"),
        Column("speedup", numeric=True),
        Column("verdict"),
        Column("from"),
        Column("reference", "ms", True),
        Column("candidate", "ms", True),
        Column("saved", "ms", True),
        Column("realised", numeric=True, hint="saving of this level / saving of the attention kernel alone"),
    )
    notes = (
        "Times are the account's: sums over the paired clips. The speedups of step, block and e2e are medians of pair ratios "
        "over whole clips: they need not equal the ratio of the times.",
        "Kernel and section, on a GPU: of steady frame blocks of one traced clip each, traced at different times; the interval "
        "is a t over these frame blocks, and drift between the clips is unknown. On a CPU: of the timed clips, paired.",
        f"Realised: above 100 % more than the attention kernel became faster; negative: it became slower. Not shown where the "
        f"kernel changed by less than {100 * FLOOR:.0f} %, or by less than a tenth of what the level saved: other lines did it.",
    )
    table = Table("Speedup and saving by level.", columns, tuple(rows), notes)
    references = " or ".join(dict.fromkeys(finding.reference.label for finding in findings))
    title = "Speedup at each level with its 95 % interval, and how much of the attention kernel's saving is realised there."
    return Figure(title, "Speedups by level; the table says the same.", Whiskers(references, tuple(whiskers)), table)


def _chain_row(finding: Finding, level: LevelSum, realised: Cell) -> Row:
    known = level_ratio(finding, level)
    ratio: Cell = Missing("no time at this level", "-") if known is None else known[0]
    timed = known[1] if known else None
    verdict: Cell = verdict_cell(timed.verdict) if timed else Text("not judged", "muted", note=_UNJUDGED)
    paired = isinstance(finding.ledger, Ledger) and bool(finding.ledger.spread.lines)
    source = f"{len(timed.ratios)} pairs of clips" if timed else f"{len(level.tiles[0])} {_UNITS[paired]}"
    lost = Missing("a trace lacks the spans of this level", "-")
    times = tuple(ExactTime(ns) if level.ratio else lost for ns in (level.baseline_ns, level.candidate_ns, level.saved_ns))
    return Row((Text(finding.candidate.label), Text(level.level.value), ratio, verdict, Text(source), *times, realised))


def _realised(finding: Finding, ledger: Ledger, level: LevelSum) -> Cell:
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
