"""The answer for traces of any framework: speedup, parts of the time, present limit, and unknowns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

from strobe.perf.analysis.ledger.account import Line
from strobe.perf.analysis.ledger.answer import Answer, PartLine
from strobe.perf.analysis.ledger.parts import NAMELESS, Part, trace_part
from strobe.perf.analysis.ledger.speedup import LevelFigure, LevelName
from strobe.perf.analysis.ledger.traces import Account
from strobe.perf.analysis.runs.timeline import Label
from strobe.perf.report.blocks.answer import ANSWER, explained, limit, line_name, part_fields, rest_words
from strobe.perf.report.blocks.fields import heads, rows_of
from strobe.perf.report.blocks.waterfall import Drop, waterfall
from strobe.perf.report.model import Block, Figure, Notes, Section, Table
from strobe.perf.report.speedup_page.ledger import line_title, no_account
from strobe.perf.report.speedup_page.study import SpeedupStudy
from strobe.perf.report.text import shorten, significant

_OUTERMOST: Final[tuple[LevelName, ...]] = ("e2e", "stage", "step", "attention", "section", "kernel")
_WHERE: Final[dict[LevelName, str]] = {
    "e2e": "end to end", "stage": "for the stage", "step": "for the traced step", "attention": "for the attention call",
    "section": "for the section", "kernel": "for the focal kernel",
}  # fmt: skip
_NAMES: Final[dict[LevelName, str]] = {
    "e2e": "whole run", "stage": "stage", "step": "traced step", "attention": "attention call", "section": "section",
    "kernel": "kernel",
}  # fmt: skip
_LEVELS: Final = 2
"""Fewest measured levels of which the first sentence tells."""
_TOLD: Final = 3
"""Parts and kernels that the first sentences name."""
_SIDES: Final = ("baseline", "candidate")


def answer_section(study: SpeedupStudy) -> Section:
    """Build the section with headline, waterfall and at most eight lines; it says why if there is no account or comparison."""
    blocks: list[Block] = []
    found = study.answer
    if found is None:
        lead = f"{headline(study)} No account of the time: {no_account(study)}."
    else:
        lead = " ".join(filter(None, (story(study), headline(study), _took(study, found))))
        blocks.append(_figure(study, found) if study.comparable else _table(study, found))
        blocks += [Notes((most,))] if (most := changed_most(study)) else []
    unknown = tuple(not_known(study))
    blocks += [Notes(unknown)] if unknown else []
    title = "Where the saving comes from" if study.comparable else "What each side took"
    return Section(ANSWER, title, lead, tuple(blocks))


def story(study: SpeedupStudy) -> str:
    """Return the answer in two sentences: kernel and outermost level, then what a unit saves and what takes time back.

    Empty where nothing is comparable, or only one level was measured.
    """
    found = study.answer
    known = [study.level(name) for name in reversed(_OUTERMOST) if study.level(name).ratio is not None]
    if not study.comparable or found is None or len(known) < _LEVELS:
        return ""
    inner, outer = known[0], known[-1]
    said = f"The {_NAMES[inner.level]} is {_faster(inner.ratio)}, the {_NAMES[outer.level]} {_faster(outer.ratio)}."
    attention = next((line for line in found.lines if line.parts == (Part.OTHER_ATTENTION,)), None)
    if inner.level != "kernel" and attention is not None and attention.baseline_ns and attention.candidate_ns:
        ratio = attention.baseline_ns / attention.candidate_ns
        said = f"The attention kernels are {_faster(ratio)}, the {_NAMES[outer.level]} {_faster(outer.ratio)}."
    lines = sorted(found.lines, key=lambda line: -abs(line.saved_ns))
    gains = [line for line in lines if line.saved_ns > 0][:_TOLD]
    losses = [line for line in lines if line.saved_ns < 0][:_TOLD]
    unit = f"a {found.unit} of {_ms(found.baseline_ns)} ms"
    if not gains:
        return f"{said} Nothing in {unit} became faster; {_taken(losses)}." if losses else f"{said} Nothing in {unit} changed."
    first, *others = gains
    saved = f"{_name(first)} {_verb('save', first)} {_ms(first.saved_ns)} ms of {unit}"
    saved += "".join(f", {_name(line)} {_ms(line.saved_ns)}" for line in others)
    return f"{said} {saved[0].upper()}{saved[1:]}{f'; {_taken(losses)}' if losses else ''}."


def _taken(losses: Sequence[PartLine]) -> str:
    first, *others = losses
    more = "".join(f", {_name(line)} {_ms(-line.saved_ns)}" for line in others)
    return f"{_name(first)} {_verb('take', first)} {_ms(-first.saved_ns)} ms back{more}"


def _verb(word: str, line: PartLine) -> str:
    return word if _name(line).endswith("s") else f"{word}s"


def _name(line: PartLine) -> str:
    if line.parts == (Part.UNNAMED,):
        return "time that was not traced"
    if line.parts == (Part.WAITING,):
        return "less waiting for the host" if line.saved_ns > 0 else "waiting for the host"
    if line.parts == (Part.FOCAL,):
        return "the kernel"
    name = line_name(line)
    return f"the {name}" if line.parts == (Part.SECTION,) else name


def _ms(ns: Fraction) -> str:
    return significant(float(ns) / 1e6)


def _faster(ratio: Fraction | float | None) -> str:
    times = float(ratio or 0)
    return f"{times:.2f}x faster" if times >= 1 else f"{times:.2f}x as fast"


def changed_most(study: SpeedupStudy) -> str:
    """Return the kernels whose time in a unit changed most, by name; empty where none did or sides are not comparable."""
    if not study.accounts or not study.comparable:
        return ""
    account = study.accounts[0][1]
    found, effects = study.answer, [each for each in account.ledger.effects if each.saved_ns][:_TOLD]
    said = []
    for each in effects:
        before, after = _ms(account.per_unit(each.baseline_ns)), _ms(account.per_unit(each.candidate_ns))
        here = "new" if not each.baseline_calls else "gone" if not each.candidate_calls else ""
        times = f"{after} ms" if here == "new" else f"{before} ms" if here == "gone" else f"{before} -> {after} ms"
        said.append(f"{shorten(each.name)} {times}{f' ({here})' if here else ''}")
    return f"Changed most in a {found.unit}: {'; '.join(said)}." if said and found is not None else ""


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
