"""The answer for traces of any framework: speedup, parts of the time, present limit, and unknowns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from strobe.perf.analysis.ledger.account import Line
from strobe.perf.analysis.ledger.answer import Answer
from strobe.perf.analysis.ledger.parts import NAMELESS, trace_part
from strobe.perf.analysis.ledger.speedup import LevelFigure, LevelName
from strobe.perf.analysis.ledger.traces import Account
from strobe.perf.analysis.runs.timeline import Label
from strobe.perf.report.blocks.answer import ANSWER, explained, limit, line_name, part_fields, rest_words
from strobe.perf.report.blocks.fields import heads, rows_of
from strobe.perf.report.blocks.waterfall import Drop, waterfall
from strobe.perf.report.model import Block, Figure, Notes, Section, Table
from strobe.perf.report.speedup_page.ledger import line_title, no_account
from strobe.perf.report.speedup_page.study import SpeedupStudy
from strobe.perf.report.text import significant

_OUTERMOST: Final[tuple[LevelName, ...]] = ("e2e", "stage", "step", "attention", "section", "kernel")
_WHERE: Final[dict[LevelName, str]] = {
    "e2e": "end to end", "stage": "for the stage", "step": "for the traced step", "attention": "for the attention call",
    "section": "for the section", "kernel": "for the focal kernel",
}  # fmt: skip
_SIDES: Final = ("baseline", "candidate")


def answer_section(study: SpeedupStudy) -> Section:
    """Build the section with headline, waterfall and at most eight lines; it says why if there is no account or comparison."""
    blocks: list[Block] = []
    found = study.answer
    if found is None:
        lead = f"{headline(study)} No account of the time: {no_account(study)}."
    else:
        lead = f"{headline(study)} {_took(study, found)}"
        blocks.append(_figure(study, found) if study.comparable else _table(study, found))
    unknown = tuple(not_known(study))
    blocks += [Notes(unknown)] if unknown else []
    title = "Where the saving comes from" if study.comparable else "What each side took"
    return Section(ANSWER, title, lead, tuple(blocks))


def headline(study: SpeedupStudy) -> str:
    """Return a sentence with the speedups of the outermost level and of the account's own level, or why there are none."""
    if not study.comparable:
        return f"Not comparable, so there is no speedup: {'; '.join(map(str, study.comparability.obstacles))}."
    figures = [_figure_words(figure) for figure in headline_levels(study)]
    return f"candidate against baseline: {'; '.join(figures) or 'no level was measured on both sides'}."


def headline_levels(study: SpeedupStudy) -> tuple[LevelFigure, ...]:
    """Return the outermost level with a ratio, and the traced step if the account is of one."""
    known = [study.level(name) for name in _OUTERMOST if study.level(name).ratio is not None]
    of_step = bool(study.accounts) and study.accounts[0][1].unit == "step"
    return tuple(figure for at, figure in enumerate(known) if not at or (of_step and figure.level == "step"))


def _figure_words(figure: LevelFigure) -> str:
    interval = f" [{figure.interval.low:.2f}, {figure.interval.high:.2f}]" if figure.interval else " (no interval)"
    doubt = f", {figure.verdict}" if figure.verdict in ("no difference", "inconclusive") else ""
    unlike = f" ({figure.unlike})" if figure.unlike else ""
    return f"{float(figure.ratio or 0):.2f}x{interval} {_WHERE[figure.level]}{doubt}{unlike}"


def _took(study: SpeedupStudy, found: Answer) -> str:
    """Return a sentence with a unit's time on both sides and the share of it that is explained."""
    ranks = f" on the {study.accounts[0][0]}" if study.accounts[0][0] else ""
    b, c = (significant(float(ns) / 1e6) for ns in (found.baseline_ns, found.candidate_ns))
    if study.comparable:
        return f"A {found.unit} takes {c} ms instead of {b} ms{ranks}. {explained(found)}"
    both = f"A {found.unit} takes {b} ms in the baseline and {c} ms in the candidate{ranks}."
    return f"{both} Explained: {100 * found.explained_time:.1f} % of the time."


def _figure(study: SpeedupStudy, found: Answer) -> Figure:
    drops = [Drop(line_name(line), line.saved_ns) for line in found.lines]
    picture = waterfall((_SIDES[0], found.baseline_ns), (_SIDES[1], found.candidate_ns), drops)
    title = f"From a {found.unit} of the baseline to one of the candidate: bars that go left are time saved."
    alt = "Waterfall from baseline to candidate; the table says the same."
    return Figure(title, alt, picture, _table(study, found), table_open=True)


def _table(study: SpeedupStudy, found: Answer) -> Table:
    """Build the table of at most eight parts before and after; of sides that are not comparable only the times."""
    fields = part_fields(_SIDES, found)[: 5 if study.comparable else 3]
    rows = rows_of(fields, found.lines, totals=((f"a {found.unit}", found.lines),))
    account = study.accounts[0][1]
    notes = (limit(_SIDES[1], found), *unit_notes(account), *rest_words(found), *_nameless(account))
    return Table(f"What a {found.unit} is spent on.", heads(fields), rows, notes)


def unit_notes(account: Account) -> Iterator[str]:
    """Yield notes on the unit if it is no step or stage, and on the profiler's slowdown of a traced step."""
    if account.unit in ("call", "window"):
        reason = account.missing.get("step", "")
        what = "the whole traced window" if account.unit == "window" else "a focal call with the time up to the next one"
        yield f"No step was recognised on both sides ({reason}), so the times are of {what}."
    if account.unit == "window":
        yield "Nothing says that both windows hold the same work."
    if "profiler dilation" in account.missing or account.unit in ("call", "window"):
        yield "The times are those of the traced run: a profiler slows the host, so waiting for it may be shorter without one."


def _nameless(account: Account) -> Iterator[str]:
    """Yield a note that names the unexplained time."""
    lines = [line for line in account.ledger.lines if trace_part(Label(line.path, line.activity)) in NAMELESS]
    if lines:
        yield f"Unexplained: {'; '.join(_both_sides(account, line) for line in lines)}."


def _both_sides(account: Account, line: Line) -> str:
    b, c = (significant(float(account.per_unit(ns)) / 1e6) for ns in (line.baseline_ns, line.candidate_ns))
    return f"{line_title(line)} {b} -> {c} ms"


def not_known(study: SpeedupStudy) -> Iterator[str]:
    """Yield short notes on facts that were not recorded and on levels that were not measured."""
    unknown = study.comparability.unknown
    if unknown:
        many = f"{len(unknown)} facts are" if len(unknown) > 1 else "1 fact is"
        yield f"{many} not recorded on both sides: Experiment settings and --json list them, --fact states them."
    missing: dict[str, list[str]] = {}
    for figure in study.levels:
        if figure.missing:
            reason = figure.baseline if figure.baseline == figure.candidate else figure.missing
            missing.setdefault(str(reason), []).append(figure.level)
    if missing:
        groups = [f"{', '.join(levels)} ({why})" for why, levels in missing.items()]
        yield f"Not measured on both sides: {'; '.join(groups)}."
