"""Speedups of each level, from the attention kernel to end to end: the figure of all pages, and what gates refer to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from strobe.core.spans import DENOISE_STEP, E2E, FRAME_BLOCK
from strobe.perf.analysis.ledger.account import Ledger, Level, LevelSum
from strobe.perf.analysis.runs.compare import Comparison
from strobe.perf.measure.stats import paired_interval
from strobe.perf.report.blocks.fields import Field, table_of
from strobe.perf.report.blocks.ratios import ratio_cell
from strobe.perf.report.findings import Finding
from strobe.perf.report.model import Cell, Figure, LevelName, Missing, Ratio, Speedup, Table, Text, Whisker, Whiskers

_TIMED: Final = {Level.STEP: DENOISE_STEP, Level.BLOCK: FRAME_BLOCK, Level.E2E: E2E}
_GATE_NAMES: Final[dict[Level, LevelName]] = {
    Level.KERNEL: "kernel", Level.SECTION: "section", Level.STEP: "step", Level.BLOCK: "block", Level.E2E: "e2e",
}  # fmt: skip


class LevelRow(NamedTuple):
    """One level of one comparison as the table and the figure show it.

    `times` are those of the reference, of the candidate, and what was saved; `detail`, `group` and `series` are of the figure.
    """

    candidate: str
    level: Text
    ratio: Ratio | Missing
    verdict: Text
    times: tuple[Cell, Cell, Cell]
    realised: Cell
    source: str
    detail: str = ""
    group: str = ""
    series: int = 0


def level_times(reference: str) -> tuple[Field[LevelRow], ...]:
    """Return the columns of the times of both sides and of what was saved."""
    return (
        Field(reference, lambda row: row.times[0], unit="ms"),
        Field("candidate", lambda row: row.times[1], unit="ms"),
        Field("saved", lambda row: row.times[2], unit="ms"),
    )


def levels_figure(
    title: str, reference: str, rows: Sequence[LevelRow], fields: Sequence[Field[LevelRow]], caption: str, notes: Sequence[str]
) -> Figure | Table:
    """Build the figure of the speedup of each level with its table; the table alone where no level has a speedup."""
    table = table_of(caption, fields, rows, notes=notes)
    known = [(row, row.ratio) for row in rows if isinstance(row.ratio, Ratio)]
    if not known:
        return table
    whiskers = tuple(Whisker(row.level.text, ratio, row.group, row.detail, row.series) for row, ratio in known)
    return Figure(title, "Speedups by level; the table says the same.", Whiskers(reference, whiskers), table)


def level_ratio(finding: Finding, level: LevelSum) -> tuple[Ratio, Comparison | None] | None:
    """Return the speedup of a level and the timed comparison behind it; traced levels have none. None: nothing to divide by."""
    timed = finding.stage(_TIMED[level.level]) if level.level in _TIMED else None
    if timed is not None:
        return ratio_cell(timed.ratio, timed.interval), timed
    sums = sum(level.tiles[0]), sum(level.tiles[1])
    if not all(sums):
        return None
    many = min(len(level.tiles[0]), len(level.tiles[1]))
    each = zip(level.tiles[0][:many], level.tiles[1][:many], strict=True)
    logs = [math.log(reference / candidate) for reference, candidate in each if reference and candidate]
    ratio = sums[0] * len(level.tiles[1]) / (sums[1] * len(level.tiles[0]))
    return ratio_cell(ratio, paired_interval(logs)), None


def speedups(findings: Sequence[Finding]) -> tuple[Speedup, ...]:
    """Return the speedups that a gate can refer to. Without a ledger only the timed levels exist."""
    found = []
    for finding in findings:
        names = (finding.candidate.label, finding.reference.label)
        if isinstance(finding.ledger, Ledger):
            levels = [(level, level_ratio(finding, level)) for level in finding.ledger.levels]
            found += [
                Speedup(*names, _GATE_NAMES[level.level], known[0], _saved_ns(level, known[1]))
                for level, known in levels
                if known
            ]
            continue
        for name, stage in _TIMED.items():
            timed = finding.stage(stage)
            if timed is not None:
                found.append(Speedup(*names, _GATE_NAMES[name], ratio_cell(timed.ratio, timed.interval), _per_clip_ns(timed)))
    return tuple(found)


def _saved_ns(level: LevelSum, timed: Comparison | None) -> float:
    """Return the time saved, ns: per clip, or per frame block for a traced level."""
    return _per_clip_ns(timed) if timed else level.saved_ns / max(1, len(level.tiles[0]))


def _per_clip_ns(timed: Comparison) -> float:
    return timed.saved_ns / len(timed.baseline.clips_ns)
