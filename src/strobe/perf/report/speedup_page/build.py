"""Builder of the report of a `SpeedupStudy`: answer, settings, notes. No clock, no randomness."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final, TypeAlias

import msgspec

from strobe.perf.analysis.comparable import FACTS, Verdict, obstacles, shown
from strobe.perf.analysis.comparable import doubts as weakening
from strobe.perf.analysis.comparable import unknown as unknown_facts
from strobe.perf.analysis.device.kernels import kernel_part
from strobe.perf.analysis.ledger.account import DILATION, Ledger, total
from strobe.perf.analysis.ledger.speedup import DRIFT, Answer, LevelFigure, PartLine
from strobe.perf.analysis.ledger.traces import FOCAL_NAME
from strobe.perf.analysis.parts import Part
from strobe.perf.analysis.structure.steps import Steps
from strobe.perf.logs.series import Resolved
from strobe.perf.measure.stats import FLOOR
from strobe.perf.report.blocks.answer import ANSWER, SHORT_NS, answer_figure, limit, line_name, part_fields, rest_words
from strobe.perf.report.blocks.fields import damage_banners, page
from strobe.perf.report.blocks.logs import attention_section, input_file, inputs_section, stages_section, unit_notes
from strobe.perf.report.speedup_page.study import LoadedSide, SpeedupStudy
from strobe.perf.report.speedup_page.tables import (
    flame_section,
    focal_kernels,
    ladder,
    ledger_section,
    levels_section,
    ms,
    no_account,
    sections_section,
    speedups,
    timeline_section,
)
from strobe.perf.table.fields import beside, heads, rows_of, table_of
from strobe.perf.table.model import (
    Banner,
    Block,
    Code,
    LevelName,
    Missing,
    Notes,
    Ratio,
    Report,
    Section,
    Share,
    Table,
    Text,
    Tone,
    doubt_words,
    ratio_text,
    shorten,
    significant,
)
from strobe.perf.table.rows import gathered


def _notes_section(study: SpeedupStudy) -> Section:
    units, notes = list[str](), list[str]()
    for side in study.sides:
        for of, resolved in _logged(side):
            units += [f"{of} of the {side.name}: {note}." for note in unit_notes(resolved)]
        notes += _side_notes(side)
    items = [*units, *_remarks(study), *notes]
    items.append(f"Both sides were measured at different times: every interval is {DRIFT}. Interleave runs to do better.")
    return Section("notes", "Notes", "", (Notes(tuple(items)),))


def _logged(side: LoadedSide) -> tuple[tuple[str, Sequence[Resolved]], ...]:
    stage = () if isinstance(side.timings.stage, str) else side.timings.stage.resolved
    return ("Attention timer", [timer.resolved for timer in side.timings.timers]), ("Stage", stage)


def anomalies(study: SpeedupStudy) -> Iterator[str]:
    """Yield sentences on figures that cannot be right, or that need a second look."""
    yield from _coincidences(study)
    yield from contradictions(study)
    yield from _remarks(study)


def contradictions(study: SpeedupStudy) -> Iterator[str]:
    """Yield sentences on contradicting figures: parts longer than their whole, wrong units, timers that did not wait."""
    yield from _orders(study)
    choices = [[(timer, choice) for timer in side.timings.timers for choice in timer.resolved.choices] for side in study.sides]
    own, other = ({choice.label: choice.unit for _, choice in of_side} for of_side in choices)
    for label in sorted(own.keys() & other.keys()):
        if own[label] != other[label]:
            yield (
                f"attention times labelled {label or 'with no unit'!r} are read as {own[label]} on the baseline and as "
                f"{other[label]} on the candidate: give the other side its trace and focal kernel too, or --unit"
            )
    for side, of_side in zip(study.sides, choices, strict=True):
        refuted = ((timer.resolved.series.title, choice.text) for timer, choice in of_side if choice.violated)
        yield from (f"{side.name}: {title}: {text}" for title, text in refuted)
    for side in study.sides:
        yield from (f"{side.name}: {remark}" for remark in side.remarks)


def _coincidences(study: SpeedupStudy) -> Iterator[str]:
    for a, b, apart in study.equal:
        yield f"{a} equals {b} to {float(apart):.0e}: a copy or a coincidence; check where both come from"


def _remarks(study: SpeedupStudy) -> Iterator[str]:
    if study.implied is not None:
        calls, candidates = study.implied
        known = [side.timings.calls for side in study.sides]
        rests = "; ".join(f"N = {n} leaves {ms(rest)}" for n, rest in candidates)
        if None in known:
            said = "is a whole number" if calls.denominator == 1 else "is no integer"
            yield (
                f"Calls per stage were not recorded. If the attention calls were all that changed in the stage, "
                f"N = {float(calls):.2f}, which {said}; {rests}. Record the calls, or give --calls-per-stage."
            )
        elif known[0] == known[1] and calls != known[0]:
            yield f"The attention calls explain the stage's saving if there were {float(calls):.2f} of them: {rests}."
    for side in study.sides:
        if side.silent:
            yield f"{side.name.capitalize()}, {side.silent}."
    for account in study.accounts[:1]:
        for line in account.lines:
            if line.name == DILATION and all(line.both):
                sides = -line.baseline_ns, -line.candidate_ns
                where = f" ({account.ranks})" if account.ranks else ""
                yield f"Profiling added {ms(sides[0])} to the baseline's steps and {ms(sides[1])} to the candidate's{where}."


def _orders(study: SpeedupStudy) -> Iterator[str]:
    for side in study.sides:
        if side.other_run:
            yield f"{side.name}: log and trace are of different runs: {side.other_run}"
        inner = [
            (word, got)
            for word, got in (("kernel", side.times("kernel")), ("section", side.times("section")))
            if not isinstance(got, str)
        ]
        call, stage = side.times("attention"), side.times("stage")
        if isinstance(call, str):
            continue
        for word, got in inner:
            if got.mean_ns > call.mean_ns:
                yield (
                    f"{side.name}: the traced {word} ({ms(got.mean_ns)}) is longer than the whole attention "
                    f"call of the log ({ms(call.mean_ns)}): other shapes, another timer, or one that did not wait"
                )
        calls = side.timings.calls
        if calls is not None and not isinstance(stage, str) and calls * call.mean_ns > stage.mean_ns:
            yield (
                f"{side.name}: {calls} attention calls of {ms(call.mean_ns)} are longer than the stage "
                f"({ms(stage.mean_ns)}): the calls overlap, or are not all in the stage"
            )


def _side_notes(side: LoadedSide) -> Iterator[str]:
    name = side.name
    yield f"Focal calls in a stage, {name}: {side.timings.calls_from}."
    logged, chosen = side.timings.step, side.chosen
    if not isinstance(logged, str) and chosen is not None and "step" not in side.timed():
        known = "has none" if isinstance(chosen.steps, str) else f"has one of {ms(chosen.mean_ns)}"
        yield (
            f"Steps, {name}: the log's step {logged.series.title!r} of {ms(logged.mean_ns)} cannot be "
            f"the trace's, which {known}, so it does not tell what profiling added."
        )
    for traced in () if isinstance(side.traced, str) else side.traced:
        steps = traced.steps
        notes: tuple[str, ...] = (f"{steps}; the whole device time is compared",)
        if not isinstance(steps, str):
            notes = (f"{steps.starts}; {_compared(steps)}", *steps.notes)
        yield from (f"Steps, {name}, {traced.label}: {note}." for note in notes)


def _compared(steps: Steps) -> str:
    causes = "; ".join(f"{steps.steps[index].step} ({cause})" for index, cause in steps.steady.excluded.items())
    kept = len(steps.steady.kept)
    if not kept:
        return f"no step is steady, so none of {len(steps.steps)} is left out: {causes}"
    return f"{kept} of {len(steps.steps)} compared{f'; left out: {causes}' if causes else ''}"


_SAID: Final[dict[Verdict, tuple[str, Tone]]] = {
    "same": ("same", "muted"), "differs": ("differs", "bad"), "allowed": ("differs, as meant", "good"),
    "unknown": ("unknown", "muted"),
}  # fmt: skip


def _settings_section(study: SpeedupStudy) -> Section:
    rows: list[Sequence[object]] = []
    for check in study.checks:
        values = (
            Missing("", "not recorded") if each is None else Text(shown(each)) for each in (check.baseline, check.candidate)
        )
        rows.append((check.title, *values, "" if check.weight == "told" else Text(*_SAID[check.verdict])))
    for title, read in (
        ("log", [side.log and str(side.log.path) for side in study.sides]),
        ("traces", [", ".join(str(trace.path) for trace in side.traces) for side in study.sides]),
        ("focal kernel", [side.request.focal for side in study.sides]),
        ("section", [side.request.section and str(side.request.section) for side in study.sides]),
    ):
        if any(read):
            rows.append((title, *(Code(each) if each else Missing("", "none") for each in read), ""))
    if study.common is not None:
        shares = (Share(share) for share in (study.common.baseline_share, study.common.candidate_share))
        rows.append(("kernel time in kernels that both sides ran", *shares, f"{len(study.common.names)} kernels"))
    named = ", ".join(check.title for check in unknown_facts(study.checks))
    unknown = (f"Not recorded on both sides, so nobody knows whether they agree: {named}.",) if named else ()
    notes = (
        "A fact that nobody recorded is unknown, not equal; state it with --fact NAME=VALUE or candidate:NAME=VALUE.",
        "--allow-different NAME declares what is meant to differ.",
        "What a trace or a record says of a fact is not replaced by what is stated.",
        *unknown,
    )
    lead = "What ran on both sides, as their traces, records and the command line say it."
    table = table_of("Settings and metadata.", beside("", ("baseline", "candidate", "verdict")), rows, notes=notes)
    return Section("settings", "Experiment settings", lead, (table,))


def banners(study: SpeedupStudy) -> tuple[Banner, ...]:
    """Return banners on why the sides are not comparable, on contradicting figures, and on what weakens the comparison."""
    prevent = obstacles(study.checks)
    doubts, (ours, theirs) = list[str](), (side.files for side in study.sides)
    for path in ours:
        alike = [each for each in theirs if each.stat().st_size == path.stat().st_size]
        if any(each.samefile(path) or input_file(each).sha256 == input_file(path).sha256 for each in alike):
            doubts.append(f"{path.name} is the same file on both sides")
    doubts += map(str, weakening(study.checks))
    doubts += _unlike_kernels(study)
    doubts += [
        f"{FACTS[name][0]} of the {side.name} is stated as {shown(value)}, and {shown(side.facts[name])} was found: that counts"
        for side in study.sides
        for name, value in side.contradicted.items()
    ]
    doubts += _coincidences(study)
    if study.unlike:
        doubts.append(f"section level, {study.unlike}")
    resolved = [timer.resolved for side in study.sides for timer in side.timings.timers]
    relabelled = (each for each in resolved for choice in each.choices if choice.differs and not choice.violated)
    doubts += dict.fromkeys(note for each in relabelled for note in each.notes)
    sides = ((side.name, zip(side.traces, side.labels, strict=True)) for side in study.sides)
    traces = [(f"trace {label} of the {name}", trace) for name, told in sides for trace, label in told]
    for which, trace in traces:
        counts, cut = trace.counts, ", and it ends before its JSON does" if trace.counts.truncated else ""
        doubts += [] if counts.clean else [f"{which}: events lost: {counts.lost}, mended: {counts.mended}{cut}"]
        doubts += [f"{which}: {trace.foreign}"] if trace.foreign else []
        n, one = len(set(trace.device_events.device)), "only the one whose focal kernels, or else all, take longest is compared"
        doubts += [f"{which}: of its {n} devices {one}"] if n > 1 else []
    names = " ".join(each.name for each in prevent)
    advice = (f"if that is meant, say so: --allow-different {names}",) if names else ()
    groups = (
        Banner("stop", "Not comparable, so there is no speedup.",
               (*map(str, prevent), *advice)),
        Banner("stop", "Figures contradict each other: at least one of each is wrong.", tuple(contradictions(study))),
        Banner("caution", "Read the numbers with this in mind.", tuple(doubts)),
    )  # fmt: skip
    damage = [(f"log of the {side.name}", side.log.damage) for side in study.sides if side.log]
    timed = [(side.name, each.series) for side in study.sides for _, resolved in _logged(side) for each in resolved]
    damage += [(f"log of the {name}", (f"{each.title}, in no figure: {each.left_out}",)) for name, each in timed if each.rejected]
    damage += [(which, trace.damage) for which, trace in traces]
    return (*damage_banners(damage), *(banner for banner in groups if banner.items))


def _unlike_kernels(study: SpeedupStudy) -> Iterator[str]:
    known = {check.name: check.verdict for check in study.checks}
    if study.common is None or (known["model"], known["weights"]) != ("unknown", "unknown"):
        return
    shares = study.common.baseline_share, study.common.candidate_share
    if min(shares) < 0.5:
        yield (
            f"the models may differ: shared kernels are only {100 * shares[0]:.1f} % of the baseline's kernel time and "
            f"{100 * shares[1]:.1f} % of the candidate's; record shapes or state --fact model=NAME"
        )


# The answer for traces of any framework: speedup, parts of the time, present limit, and unknowns.

_OUTERMOST: Final[tuple[LevelName, ...]] = ("e2e", "stage", "step", "attention", "section", "kernel")
_NAMES: Final[dict[LevelName, str]] = {
    "e2e": "whole run", "stage": "stage", "step": "traced step", "attention": "attention call", "section": "section",
    "kernel": "kernel",
}  # fmt: skip
_LEVELS: Final = 2
"""Fewest measured levels of which the first sentence tells."""
_TOLD: Final = 3
"""Parts and kernels that the first sentences name."""
_TOLD_SHARE: Final = Fraction(1, 10)
"""Least part of the largest change from which the first sentences name another."""
_REST_SHARE: Final = Fraction(1, 100)
"""Least part of what a unit saves from which the first sentences tell of all other changes together."""
_UNEXPLAINED: Final = "unexplained time"
_DOING: Final = {
    "tile": "tiling", "untile": "untiling", "gather": "gathering", "scatter": "scattering", "transpose": "transposing",
    "permute": "permuting", "sort": "sorting", "quant": "quantising", "quantize": "quantising", "rope": "rotating",
    "cat": "joining", "copy": "copying", "reduce": "reducing", "elementwise": "elementwise operations", "topk": "choosing blocks",
}  # fmt: skip
"""What a kernel does, by a word of its name."""
_SIDES: Final = ("baseline", "candidate")


def _answer_section(study: SpeedupStudy) -> Section:
    blocks: list[Block] = []
    found = study.answer
    lead = f"{headline(study)} {f'No account of the time: {no_account(study)}.' if found is None else _took(study, found)}"
    blocks += [ladder(study)] if study.comparable and any(not figure.missing for figure in study.levels) else []
    if found is not None:
        table = _table(study, found)
        blocks.append(answer_figure(_SIDES, found, table, "the ") if study.comparable else table)
        blocks += [Notes((most,))] if (most := _changed_most(study)) else []
    blocks += [Notes(said) for said in (tuple(_calls_said(study)), tuple(not_known(study))) if said]
    title = "Where the saving comes from" if study.comparable else "What each side took"
    return Section(ANSWER, title, lead, tuple(blocks))


def story(study: SpeedupStudy) -> str:
    """Return the answer in two sentences: kernel and outermost level, then what a unit saves and what takes time back.

    Empty where nothing is comparable, or only one level was measured.
    """
    found = study.answer
    known = [study.level(name) for name in reversed(_OUTERMOST) if study.level(name).ratio is not None]
    if not study.comparable or len(known) < _LEVELS:
        return ""
    inner, outer = known[0], known[-1]
    name, ratio, doubts = _NAMES[inner.level], inner.ratio or 0.0, (_doubt(inner), _doubt(outer))
    attention = next((line for line in (found.lines if found else ()) if line.parts == (Part.OTHER_ATTENTION,)), None)
    if inner.level != "kernel" and attention is not None and attention.baseline_ns and attention.candidate_ns:
        name, ratio = "attention kernels", float(attention.baseline_ns / attention.candidate_ns)
        doubts = "no difference" if abs(ratio - 1) <= FLOOR else "", doubts[1]
    are, whole = "are" if name.endswith("s") else "is", outer.ratio or 0.0
    if any(doubts):
        said = f"The {name} {are} {_times(ratio, doubts[0])}; the {_NAMES[outer.level]} is {_times(whole, doubts[1])}."
    else:
        second = f"{ratio_text(Ratio(whole))}" if min(ratio, whole) >= 1 else _times(whole)
        said = f"The {name} {are} {_times(ratio)}, the {_NAMES[outer.level]} {second}."
    if found is None:
        return f"{said} No account of the time: {no_account(study)}."
    items = sorted(_items(study, found), key=lambda item: -abs(item[-1]))
    told = [(words, many, ns) for words, many, ns in items if ns and abs(ns) >= _TOLD_SHARE * abs(items[0][-1])]
    gains, losses = [item for item in told if item[-1] > 0][:_TOLD], [item for item in told if item[-1] < 0][:_TOLD]
    took = _ms(found.baseline_ns)
    article = "an" if re.match(r"8|1[18](?!\d)", took) else "a"
    unit = f"{article} {took} ms {found.unit}"
    net = found.saved_ns
    rest = net - total(ns for *_, ns in (*gains, *losses))
    others = f"other changes {'save' if rest > 0 else 'take'} {_ms(abs(rest))} ms" if abs(rest) > _REST_SHARE * abs(net) else ""
    after = ", ".join(filter(None, (_taken(losses), others)))
    if not gains:
        slower = f"No large part of {unit} became faster" if rest > 0 else f"Nothing in {unit} became faster"
        return f"{said} {slower}; {after}." if after else f"{said} Nothing in {unit} changed."
    (words, many, ns), *more = gains
    saved = f"{words} {'save' if many else 'saves'} {_ms(ns)} ms of {unit}"
    saved += "".join(f", {words} {_ms(ns)} ms" for words, _, ns in more)
    return f"{said} {saved[0].upper()}{saved[1:]}{f'; {after}' if after else ''}."


def _doubt(figure: LevelFigure) -> str:
    """Return why a level is neither faster nor slower; empty where its interval proves that it is."""
    return doubt_words(Ratio(1.0, figure.low, figure.high), figure.verdict or "")


def _times(ratio: float, doubt: str = "") -> str:
    """Return a speedup in words: `1.70x faster`, `0.84x as fast`, or `1.53x: not proven, the interval holds 1`."""
    return f"{ratio_text(Ratio(ratio))}{f': {doubt}' if doubt else ' faster' if ratio >= 1 else ' as fast'}"


_Item: TypeAlias = tuple[str, bool, Fraction]
"""What saved time in a unit or took it back: in words, whether they are plural, and what it saved, ns."""


def _items(study: SpeedupStudy, found: Answer) -> Iterator[_Item]:
    """Yield the parts of the answer; other kernels by name, those that grew and those that shrank; what is untraced by line."""
    account = study.accounts[0]
    kernels = [line for line in found.lines if line.parts in ((Part.OTHER_KERNELS,), (Part.SECTION,))]
    unknown = (each for each in account.kernels if each.kernel != FOCAL_NAME and kernel_part(each.kernel) is Part.OTHER_KERNELS)
    named = [each for each in unknown if not each.kernel.startswith(("Memcpy", "Memset"))]
    by_name = total(effect.saved_ns for effect in named) == total(line.saved_ns for line in kernels)
    for line in found.lines:
        if line.parts == (Part.UNNAMED,):
            yield f"less {_UNEXPLAINED}" if line.saved_ns > 0 else _UNEXPLAINED, False, line.saved_ns
        elif not (by_name and line in kernels):
            words = _name(line)
            yield words, words.endswith("s"), line.saved_ns
    for sign in (1, -1) if by_name else ():
        moved = [effect for effect in named if sign * effect.saved_ns > 0]
        does = list(dict.fromkeys(_doing(effect.kernel) for effect in moved))
        if len(does) > _TOLD:
            does = [*does[: _TOLD - 1], f"{len(does) - _TOLD + 1} other kernels"]
        if moved:
            words = " and ".join(filter(None, (", ".join(does[:-1]), does[-1])))
            yield words, len(does) > 1, total(effect.saved_ns for effect in moved)


def _doing(name: str) -> str:
    return next((_DOING[word] for word in re.findall("[a-z]+", name.lower()) if word in _DOING), shorten(name))


def _taken(losses: Sequence[_Item]) -> str:
    said: list[str] = []
    for words, many, ns in losses:
        took = f"{_ms(-ns)} ms"
        verb = f"{took}" if said else f"{'take' if many else 'takes'} {took} back"
        said.append(f"{words} {f'grows by {took}' if words == _UNEXPLAINED else verb}")
    return ", ".join(said)


def _name(line: PartLine) -> str:
    if line.parts == (Part.WAITING,):
        return "less waiting for the host" if line.saved_ns > 0 else "waiting for the host"
    if line.parts == (Part.FOCAL,):
        return "the kernel"
    name = line_name(line)
    return f"the {name}" if line.parts == (Part.SECTION,) else name


def _ms(ns: Fraction) -> str:
    """Format a time in ms: whole from 100 on, else with four significant digits."""
    return f"{float(ns) / 1e6:,.0f}" if abs(ns) >= SHORT_NS else significant(float(ns) / 1e6)


def _changed_most(study: SpeedupStudy) -> str:
    """Return the kernels whose time in a unit changed most, by name; empty where none did or sides are not comparable."""
    if not study.accounts or not study.comparable:
        return ""
    account = study.accounts[0]
    found, effects = study.answer, [each for each in account.kernels if each.saved_ns][:_TOLD]
    said = []
    for each in effects:
        before, after = map(_ms, each.both)
        here = "new" if not each.calls[0] else "gone" if not each.calls[1] else ""
        times = f"{after} ms" if here == "new" else f"{before} ms" if here == "gone" else f"{before} -> {after} ms"
        said.append(f"{shorten(each.kernel)} {times}{f' ({here})' if here else ''}")
    return f"Changed most in a {found.unit}: {'; '.join(said)}." if said and found is not None else ""


def headline(study: SpeedupStudy) -> str:
    """Return a sentence with the speedups of the outermost level and of the account's own level, or why there are none."""
    if not study.comparable:
        return f"Not comparable, so there is no speedup: {'; '.join(map(str, obstacles(study.checks)))}."
    figures = [_figure_words(figure) for figure in headline_levels(study)]
    return f"candidate against baseline: {'; '.join(figures) or 'no level was measured on both sides'}."


def headline_levels(study: SpeedupStudy) -> tuple[LevelFigure, ...]:
    """Return the outermost level with a ratio, and the traced step if the account is of one."""
    known = [study.level(name) for name in _OUTERMOST if study.level(name).ratio is not None]
    of_step = bool(study.accounts) and study.accounts[0].unit == "step"
    return tuple(figure for at, figure in enumerate(known) if not at or (of_step and figure.level == "step"))


def _figure_words(figure: LevelFigure) -> str:
    interval = " (no interval)" if figure.low is None else ""
    said = figure.verdict if figure.low is None else _doubt(figure)
    doubt = f", {said}" if said else ""
    unlike = f" ({figure.unlike})" if figure.unlike else ""
    name = "focal kernel" if figure.level == "kernel" else _NAMES[figure.level]
    where = "end to end" if figure.level == "e2e" else f"for the {name}"
    return f"{ratio_text(Ratio(figure.ratio or 0.0, figure.low, figure.high), 2)}{interval} {where}{doubt}{unlike}"


def _took(study: SpeedupStudy, found: Answer) -> str:
    ranks = f" on the {study.accounts[0].ranks}" if study.accounts[0].ranks else ""
    b, c = (significant(float(ns) / 1e6) for ns in (found.baseline_ns, found.candidate_ns))
    whole = f"{100 * found.explained_time_share:.1f} % of a {found.unit}"
    if not study.comparable:
        return f"A {found.unit} takes {b} ms in the baseline and {c} ms in the candidate{ranks}. Explained: {whole}."
    saved = f"{100 * found.explained_saving_share:.1f} % of what it saves" if found.explained_saving_share is not None else ""
    if found.difference == "loss":
        saved = saved.replace("saves", "loses")
    told = " and ".join(filter(None, (whole, saved)))
    return f"A {found.unit} takes {c} ms instead of {b} ms{ranks}. Explained: {told}."


def _table(study: SpeedupStudy, found: Answer) -> Table:
    fields = part_fields(_SIDES, found)[: 5 if study.comparable else 3]
    if study.comparable:
        fields = (*fields[:-1], replace(fields[-1], head=f"of the {found.difference}"))
    rows = rows_of(fields, found.lines, totals=((f"a {found.unit}", found.lines),))
    account = study.accounts[0]
    notes = (limit(_SIDES[1], found), *_notes_on_unit(account), *rest_words(found))
    return Table(f"What a {found.unit} is spent on.", heads(fields), rows, notes)


def _notes_on_unit(account: Ledger) -> Iterator[str]:
    if account.unit in ("call", "window"):
        reason = account.missing.get("step", "")
        what = "the whole traced window" if account.unit == "window" else "a focal call with the time up to the next one"
        yield f"No step was recognised on both sides ({reason}), so the times are of {what}."
    if account.unit == "window":
        yield "Nothing says that both windows hold the same work."
    if "profiler dilation" in account.missing or account.unit in ("call", "window"):
        yield "The times are those of the traced run: a profiler slows the host, so waiting for it may be shorter without one."


def _not_of_the_stage(study: SpeedupStudy) -> str:
    """Return why the account is not of the stage that was measured, and what would make it so; empty if it is."""
    saved, account = study.level("stage").saved_ns, study.accounts[0] if study.accounts else None
    if saved is None or account is None or account.unit == "stage" or not study.comparable:
        return ""
    lacking = {side.name: side.timings.calls_from for side in study.sides if side.timings.calls is None}
    known = f"The {_ms(abs(saved))} ms that the stage {'saves' if saved > 0 else 'loses'} cannot be split by part"
    if not lacking:
        return f"{known}: {account.missing['stage']}."
    reasons = dict.fromkeys(lacking.values())
    same = len(reasons) == 1 < len(lacking)
    why = next(iter(reasons)) if same else "; ".join(f"{name}: {reason}" for name, reason in lacking.items())
    kernel = study.level("kernel").saved_ns
    each = "" if kernel is None else f"; each call saves {_ms(kernel)} ms"
    return f"{known}: {why}. --calls-per-stage N splits them{each}."


def not_measured(study: SpeedupStudy, beside: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield a note on the levels that were not measured, each with the reason; none if only levels in `beside` were not."""
    missing = gathered((figure.reason, figure.level) for figure in study.levels if figure.missing)
    if any(not beside.issuperset(levels) for levels in missing.values()):
        groups = [f"{', '.join(levels)} ({why})" for why, levels in missing.items()]
        yield f"Not measured on both sides: {'; '.join(groups)}."


NO_CLOCKS: Final = (
    "Traces have no clock rates. If the GPU's clock changed, every line contains the effect; strobe compare separates it."
)


def _calls_said(study: SpeedupStudy) -> Iterator[str]:
    """Yield where the number of calls in a stage is from, or what its absence leaves open."""
    if unreached := _not_of_the_stage(study):
        yield unreached
    counted = {side.timings.calls: side.timings.calls_from for side in study.sides}
    if None not in counted and study.request.calls is None:
        yield f"Focal calls in a stage: {'; '.join(f'{calls} ({source})' for calls, source in counted.items())}."


def not_known(study: SpeedupStudy) -> Iterator[str]:
    """Yield short notes on facts that were not recorded and on levels that were not measured."""
    unknown = unknown_facts(study.checks)
    if unknown:
        many = f"{len(unknown)} facts are" if len(unknown) > 1 else "1 fact is"
        yield f"{many} missing on at least one side: Experiment settings and --json list them, --fact states them."
    yield from not_measured(study)
    if any(side.traces for side in study.sides):
        yield NO_CLOCKS


def build_speedup_report(study: SpeedupStudy) -> Report:
    """Build the report: the answer, and folded sections on settings, stages, attention, kernels, speedups and the ledger."""
    paths = dict.fromkeys(path for side in study.sides for path in side.files)
    sections = (
        _answer_section(study),
        _settings_section(study),
        *_of_logs(study),
        focal_kernels(study),
        sections_section(study),
        levels_section(study),
        ledger_section(study),
        timeline_section(study),
        flame_section(study),
        _notes_section(study),
        inputs_section(list(map(input_file, paths)), [side.log for side in study.sides if side.log is not None]),
    )
    return page(
        speedups=speedups(study),
        title="Speedup: candidate against baseline" if study.comparable else "Not comparable: candidate against baseline",
        subtitle=story(study) or "from logs and traces",
        banners=banners(study),
        sections=tuple(
            msgspec.structs.replace(section, folded=place > 0) for place, section in enumerate(filter(None, sections))
        ),
    )


def _of_logs(study: SpeedupStudy) -> tuple[Section, Section]:
    timed = [
        (side.name, tuple(each for each in (side.timings.stage, side.timings.e2e) if not isinstance(each, str)))
        for side in study.sides
    ]
    timers = [(side.name, side.timings.timers, side.remarks) for side in study.sides if side.timings.timers]
    no_stage = "; ".join(f"{side.name}: {side.timings.stage}" for side in study.sides)
    no_timer = "; ".join(f"{side.name}: {side.timings.attention}" for side in study.sides)
    stages = Section("stages", "Stages", "", (Notes((f"No stage table; {no_stage}.",)),))
    attention = Section("attention", "Attention end to end", "", (Notes((f"No attention timers; {no_timer}.",)),))
    logs = [each for each in timed if each[1]]
    return stages_section(logs) if logs else stages, attention_section(timers) if timers else attention
