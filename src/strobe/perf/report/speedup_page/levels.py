"""Speedups at every level, and the account from one kernel to the stage."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

import msgspec

from strobe.perf.analysis.ledger.account import Ledger, Level, Line
from strobe.perf.analysis.ledger.speedup import DRIFT, MAX_REALISED, LevelFigure, Measured
from strobe.perf.analysis.ledger.traces import Account
from strobe.perf.report.blocks.fields import Field, both_sides, heads, numeric, rows_of, share_cell, table_of
from strobe.perf.report.blocks.levels import LevelRow, level_times, levels_figure
from strobe.perf.report.blocks.logs import unit_notes
from strobe.perf.report.blocks.waterfall import Drop, waterfall
from strobe.perf.report.model import (
    Block,
    Cell,
    ExactTime,
    Figure,
    Missing,
    Notes,
    Number,
    Paragraph,
    Ratio,
    Section,
    Share,
    Speedup,
    Table,
    Text,
    Tone,
)
from strobe.perf.report.speedup_page.study import SpeedupStudy

LEVEL_TITLES: Final = {
    "kernel": "focal kernel, one call",
    "section": "section around it",
    "attention": "attention call, end to end",
    "step": "traced step",
    "stage": "stage",
    "e2e": "end to end",
}
LINE_LEVELS: Final = {
    Level.KERNEL: "kernel", Level.SECTION: "section", Level.CALL: "attention", Level.STEP: "step", Level.STAGE: "stage",
    Level.E2E: "e2e",
}  # fmt: skip
_WHOLES: Final = {Level.KERNEL: "kernel", Level.SECTION: "section", Level.CALL: "attention call", Level.STAGE: "stage"}


def speedups(study: SpeedupStudy) -> tuple[Speedup, ...]:
    """Return the speedups that a requirement can refer to."""
    return tuple(
        Speedup("candidate", "baseline", figure.level, ratio)
        for figure in study.levels
        if (ratio := ratio_of(figure)) is not None
    )


def ratio_of(figure: LevelFigure) -> Ratio | None:
    """Return the level's ratio with its interval; None if it has none."""
    if figure.ratio is None:
        return None
    if figure.interval is None:
        return Ratio(float(figure.ratio))
    return Ratio(float(figure.ratio), figure.interval.low, figure.interval.high)


def levels_section(study: SpeedupStudy) -> Section:
    """Build the section with theoretical and actual speedups, and the losses between them."""
    lead = (
        "Time of the baseline / time of the candidate; above 1 the candidate is faster. Kernel and section are what the traces "
        "promise, the stage is what arrives."
    )
    if not study.comparable:
        lead = "The sides are not comparable: what each took stands here, and no ratio."
    blocks: list[Block] = [_figure(study), *_missing(study)]
    account = study.call_account
    if account is not None and len(account.ledger.levels) > 1:
        blocks.append(_account_figure(study, account))
        blocks += [Notes(tuple(_eaten(account)))] if study.comparable else []
    elif account is None:
        blocks.append(Paragraph("No account from the kernel to the stage: no level was measured on both sides."))
    return Section("speedups", "Speedups", lead, tuple(blocks))


def _missing(study: SpeedupStudy) -> Iterator[Table]:
    """Yield the table of levels that were not measured on both sides, with the time of the side that was."""
    lacking = [figure for figure in study.levels if figure.missing]
    if lacking:
        fields: tuple[Field[LevelFigure], ...] = (
            Field("level", _level_name),
            Field("baseline", lambda figure: _mean(figure.baseline), unit="ms"),
            Field("candidate", lambda figure: _mean(figure.candidate), unit="ms"),
            Field("why", lambda figure: figure.missing),
        )
        caption = f"Not measured on both sides: {', '.join(LEVEL_TITLES[figure.level] for figure in lacking)}."
        yield table_of(caption, fields, lacking, collapsed=True)


def _figure(study: SpeedupStudy) -> Block:
    """Build the figure of the levels that were measured on both sides."""
    measured = [figure for figure in study.levels if not figure.missing]
    if not measured:
        return Paragraph("No level was measured on both sides.")
    fields: tuple[Field[LevelRow], ...] = (
        Field("level", lambda row: row.level),
        numeric(
            "speedup, x",
            lambda row: row.ratio if isinstance(row.ratio, Missing) else Number(row.ratio.value, 4),
            "baseline / candidate",
        ),
        Field(
            "95 % interval",
            lambda row: "" if isinstance(row.ratio, Missing) else _interval_cell(row.ratio),
            hint=f"Welch's t on logarithms, over steps or rounds: {DRIFT}",
        ),
        Field("verdict", lambda row: row.verdict),
        *level_times("baseline"),
        numeric("realised", lambda row: row.realised, "saved / what the focal calls in it saved"),
        Field("from", lambda row: row.source),
    )
    notes = [
        f"Intervals are {DRIFT}: the sides were measured at different times. None where there are fewer than two steps or rounds "
        "on a side; calls inside one depend on each other.",
        "Realised is not shown where the number of focal calls is not known, or where the kernel did not move the level.",
        *_common_kernels(study),
        *(f"{LEVEL_TITLES[figure.level]}: {figure.unlike}" for figure in study.levels if figure.unlike and figure.ratio),
        *loud_units(study),
    ]
    title = "Speedup at each level, with the 95 % interval where there is one."
    rows = [_level_row(figure, study.comparable) for figure in measured]
    found = levels_figure(title, "baseline", rows, fields, "Speedups." if study.comparable else "Times.", notes)
    return msgspec.structs.replace(found, table_open=True) if isinstance(found, Figure) else found


def _common_kernels(study: SpeedupStudy) -> Iterator[str]:
    """Yield a sentence with the share of kernel time in kernels that both sides ran."""
    if study.common is not None:
        shares = (f"{100 * float(share):.1f} %" for share in (study.common.baseline_share, study.common.candidate_share))
        yield f"Kernels that both sides ran take {' of the kernel time of the baseline and '.join(shares)} of the candidate's."


def loud_units(study: SpeedupStudy) -> Iterator[str]:
    """Yield notes on units that differ from their labels, for every table that uses the attention timers."""
    timers = [timer.resolved for side in study.sides for timer in side.side.timings.timers if timer.resolved.prominent]
    yield from dict.fromkeys(unit_notes(timers))


def _level_name(figure: LevelFigure) -> Text:
    return Text(LEVEL_TITLES[figure.level], note="unlike" if figure.unlike else "")


def _mean(side: Measured | str) -> Cell:
    return Missing("", "-") if isinstance(side, str) else ExactTime(round(side.mean_ns))


def _interval_cell(ratio: Ratio) -> Cell:
    if ratio.low is None or ratio.high is None:
        return Missing("fewer than two steps or rounds", "none")
    return Text(f"{ratio.low:.4f} to {ratio.high:.4f}", note=DRIFT)


def _level_row(figure: LevelFigure, comparable: bool) -> LevelRow:
    b, c, saved, ratio = figure.baseline, figure.candidate, figure.saved_ns, ratio_of(figure)
    assert not isinstance(b, str) and not isinstance(c, str) and saved is not None
    reason = "no time on one side" if comparable else "not comparable"
    tone: Tone = "good" if figure.verdict == "faster" else "bad" if figure.verdict == "slower" else "muted"
    realised = None if ratio is None or figure.level == "kernel" else figure.realised
    return LevelRow(
        candidate="candidate",
        level=_level_name(figure),
        ratio=ratio or Missing(reason, reason),
        verdict=Text("") if ratio is None else Text(figure.verdict or "", tone),
        times=(_mean(b), _mean(c), ExactTime(round(saved))),
        realised=Missing("", "-") if realised is None else Share(float(realised)),
        source=b.what if b.what == c.what else f"{b.what}; {c.what}",
        detail="unlike" if figure.unlike else "",
    )


# --------------------------------------------------------------------------------------------------------------- account


def _account_figure(study: SpeedupStudy, account: Account) -> Figure:
    ledger, unit = account.ledger, _unit(account)
    kernel = account.per_unit(ledger.kernel_saved_ns) if kernel_moved(account) else 0
    fields: tuple[Field[Line | Ledger], ...] = (
        Field("line", lambda line: line.name if isinstance(line, Line) else f"{unit} = sum of all lines"),
        *both_sides(
            ("baseline", "candidate"), lambda line: (account.per_unit(line.baseline_ns), account.per_unit(line.candidate_ns))
        ),
        numeric("of the kernel's saving", lambda line: share_cell(account.per_unit(line.saved_ns), kernel)),
    )
    rows = (*rows_of(fields, ledger.lines), *rows_of(fields, (ledger,), strong=lambda _: True))
    notes = [
        f"{account.why[0].upper()}{account.why[1:]}; each line is exact, printed to the nanosecond.",
        *(f"Not in the account, {LINE_LEVELS[Level(level)]}: {reason}" for level, reason in account.missing.items()),
        *([f"Section: {study.unlike}"] if study.unlike else []),
        *(_other_calls(study) if Level.SECTION in (level.level for level in ledger.levels) else ()),
        *loud_units(study),
    ]
    table = Table(f"From the kernel to {unit}.", heads(fields), rows, tuple(notes))
    lines = [Drop(line.name, account.per_unit(line.saved_ns)) for line in ledger.lines]
    sides = account.per_unit(ledger.baseline_ns), account.per_unit(ledger.candidate_ns)
    picture = waterfall(("baseline", sides[0]), ("candidate", sides[1]), lines)
    title = f"What {unit} saves, from the kernel outwards. Bars that go left are time saved, bars that go right time added."
    return Figure(title, "Waterfall of one call; the table says the same.", picture, table, table_open=True)


def _other_calls(study: SpeedupStudy) -> Iterator[str]:
    """Yield notes where focal time inside the sections differs from the mean of all focal calls."""
    for side in study.sides:
        inside, kernel, own = side.side.focal_in_section(), side.side.kernel(), side.side.chosen
        if inside is None or isinstance(kernel, str) or own is None or own.sections is None or inside == kernel.mean_ns:
            continue
        yield (
            f"The focal kernel here is what runs inside one section of the {side.request.name}, {ms(inside)} over "
            f"{len(own.sections.found)} sections; the mean of all {kernel.n} focal calls is {ms(kernel.mean_ns)}."
        )


def _eaten(account: Account) -> Iterator[str]:
    """Yield sentences on how much of the kernel's saving reached the whole."""
    ledger = account.ledger
    kernel = account.per_unit(ledger.kernel_saved_ns)
    saved, unit = account.per_unit(ledger.saved_ns), _unit(account)
    if Level.KERNEL in account.missing:
        yield "What the focal kernel saved is not known, as not both sides have a trace that shows it; nor is an ideal."
        return
    if kernel <= 0:
        yield "The focal kernel saved nothing, so there is no ideal to compare with."
        return
    if not kernel_moved(account):
        yield f"The focal kernel saved {ms(kernel)} of the {ms(saved)} that {unit} moved by: other lines did it."
        return
    ideal = account.per_unit(ledger.baseline_ns) / account.per_unit(ledger.ideal_ns) if ledger.ideal_ns > 0 else None
    yield (
        f"Ideal by Amdahl: if nothing but the kernel had changed, {unit} would take {ms(account.per_unit(ledger.ideal_ns))}"
        f"{f', {float(ideal):.4f}x' if ideal else ''}. Realised: {ms(saved)} of {ms(kernel)}, {float(saved / kernel):.1%}."
    )
    grew = sorted((line for line in ledger.lines if line.saved_ns < 0), key=lambda line: line.saved_ns)
    if grew:
        yield "Lines that ate the rest: " + "; ".join(
            f"{line.name} {ms(account.per_unit(line.saved_ns))} ({float(account.per_unit(line.saved_ns) / kernel):+.1%})"
            for line in grew
        )


def kernel_moved(account: Account) -> bool:
    """Return whether the whole saving is at most `MAX_REALISED` times the kernel's, so that the two can be compared."""
    ledger = account.ledger
    return ledger.kernel_saved_ns > 0 and abs(ledger.saved_ns) <= MAX_REALISED * ledger.kernel_saved_ns


def _unit(account: Account) -> str:
    """Return the name of the whole that the account adds up to."""
    return f"one {_WHOLES[account.ledger.levels[-1].level]}"


def ms(ns: Fraction) -> str:
    """Format a time in milliseconds with six decimals."""
    return f"{float(ns) / 1e6:.6f} ms"
