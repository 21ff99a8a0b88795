"""Conversion of a `SpeedupStudy` to its document: exact values as fractions of nanoseconds, others as numbers and words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

from strobe.perf.analysis.comparable.checks import Value
from strobe.perf.analysis.comparable.traces import CommonKernels
from strobe.perf.analysis.ledger.label_trace import TracedSide
from strobe.perf.analysis.ledger.paths import Node, PathTree
from strobe.perf.analysis.ledger.speedup import LevelFigure, Measured
from strobe.perf.analysis.ledger.traces import Account
from strobe.perf.analysis.structure.sections import Sections
from strobe.perf.measure.stats import Interval
from strobe.perf.report.blocks.answer import limit
from strobe.perf.report.documents import speedup as doc
from strobe.perf.report.documents.logs import log_document, rounds_document, timer_document
from strobe.perf.report.documents.value import ends, part_of
from strobe.perf.report.speedup_page.answer import headline, headline_levels
from strobe.perf.report.speedup_page.ledger import line_title, no_account
from strobe.perf.report.speedup_page.levels import LINE_LEVELS, kernel_moved
from strobe.perf.report.speedup_page.notes import anomalies, contradictions
from strobe.perf.report.speedup_page.study import Loaded, SpeedupStudy


def speedup_document(study: SpeedupStudy) -> doc.SpeedupDocument:
    """Return the document with everything that the report says."""
    checks = study.comparability.checks
    baseline, candidate = map(_side, study.sides)
    return doc.SpeedupDocument(
        comparable=study.comparable,
        not_comparable_because=tuple(map(str, study.comparability.obstacles)),
        obstacles=tuple(check.name for check in study.comparability.obstacles),
        unlike=study.unlike,
        allowed_different=tuple(check.name for check in checks if check.verdict == "allowed"),
        facts=tuple(
            part_of(doc.FactPart, check, baseline=_value(check.baseline), candidate=_value(check.candidate)) for check in checks
        ),
        common_kernels=None if study.common is None else _common(study.common),
        levels={figure.level: _level(figure) for figure in study.levels},
        call_ledger=None if study.call_account is None else _account(study.call_account),
        ledgers=tuple(_account(account, name) for name, account in study.accounts),
        answer=_answer(study),
        tree=None if study.tree is None else _tree(study.tree),
        contradictions=tuple(contradictions(study)),
        anomalies=tuple(anomalies(study)),
        sides=doc.SidesPart(baseline=baseline, candidate=candidate),
    )


def exact(ns: Fraction | int) -> str:
    """Format a time exactly: `12345` or `12345/7` nanoseconds."""
    return str(Fraction(ns))


def _times(found: object, text: Callable[[int | Fraction], str] = exact) -> dict[str, str]:
    """Return the times of both sides and what was saved, as exact text."""
    return {name: text(getattr(found, name)) for name in ("baseline_ns", "candidate_ns", "saved_ns")}


def _answer(study: SpeedupStudy) -> doc.AnswerPart:
    found = study.answer
    said = {"headline": headline(study), "levels": tuple(figure.level for figure in headline_levels(study))}
    if found is None:
        nothing = dict.fromkeys(("baseline_ns", "candidate_ns", "explained_time_share", "explained_saving_share"))
        return part_of(doc.AnswerPart, **said, **nothing, missing=no_account(study), unit="", limit="", parts=())
    return part_of(
        doc.AnswerPart,
        found,
        **said,
        missing="",
        baseline_ns=exact(found.baseline_ns),
        candidate_ns=exact(found.candidate_ns),
        explained_time_share=found.explained_time,
        explained_saving_share=found.explained_saving if study.comparable else None,
        limit=limit("candidate", found),
        parts=tuple(
            part_of(
                doc.AnswerLine,
                part=", ".join(part.value for part in line.parts),
                **_times(line),
                share=line.share if study.comparable else None,
            )
            for line in found.lines
        ),
    )


def _tree(tree: PathTree) -> doc.TreePart:
    nodes = (
        doc.NodePart(
            path=path,
            baseline_ns=exact(node.baseline_ns),
            candidate_ns=exact(node.candidate_ns),
            saved_ns=exact(node.baseline_ns - node.candidate_ns),
            leaf=not node.children,
        )
        for path, node in _nodes(tree.root, ())
    )
    root = tree.root
    return part_of(
        doc.TreePart, tree, baseline_ns=exact(root.baseline_ns), candidate_ns=exact(root.candidate_ns), nodes=tuple(nodes)
    )


def _nodes(node: Node, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Node]]:
    for child in node.children:
        path = (*above, child.name)
        yield path, child
        yield from _nodes(child, path)


def _value(found: Value | None) -> str | tuple[str, ...] | None:
    return tuple(sorted(found)) if isinstance(found, frozenset) else found


def _common(common: CommonKernels) -> doc.CommonPart:
    shares = float(common.baseline_share), float(common.candidate_share)
    return doc.CommonPart(baseline_share=shares[0], candidate_share=shares[1], names=tuple(common.names))


def _level(figure: LevelFigure) -> doc.LevelPart:
    return part_of(
        doc.LevelPart,
        figure,
        ratio=None if figure.ratio is None else float(figure.ratio),
        **ends(figure.interval),
        baseline=_measured(figure.baseline),
        candidate=_measured(figure.candidate),
        saved_ns=None if figure.saved_ns is None else exact(figure.saved_ns),
        realised=None if figure.realised is None else float(figure.realised),
    )


def _measured(measured: Measured | str) -> doc.MeasuredPart | None:
    if isinstance(measured, str):
        return None
    return part_of(doc.MeasuredPart, measured, mean_ns=exact(measured.mean_ns), groups=len(measured.groups_ns))


def _account(account: Account, ranks: str = "") -> doc.LedgerPart:
    ledger, spread = account.ledger, account.ledger.spread

    def per_unit(ns: int | Fraction) -> str:
        return exact(account.per_unit(ns))

    return part_of(
        doc.LedgerPart,
        account,
        ranks=ranks,
        missing=dict(account.missing),
        **_times(ledger, per_unit),
        **_interval(spread.total),
        intervals=doc.IntervalsPart(steps=tuple(spread.samples), none_because=spread.why_none),
        kernel_saved_ns=per_unit(ledger.kernel_saved_ns),
        ideal_ns=per_unit(ledger.ideal_ns),
        realised_share=ledger.realised_share if kernel_moved(account) else None,
        lost_ns=per_unit(ledger.lost_ns),
        lines=tuple(
            part_of(
                doc.LinePart,
                level=LINE_LEVELS[line.level],
                line=line_title(line),
                **_times(line, per_unit),
                **_interval(spread.lines.get(line.name)),
                share=line.share,
            )
            for line in ledger.lines
        ),
        kernels=tuple(
            doc.EffectPart(
                kernel=effect.name,
                calls=(per_unit(effect.baseline_calls), per_unit(effect.candidate_calls)),
                saved_ns=per_unit(effect.saved_ns),
                by_calls_ns=per_unit(effect.calls_effect_ns),
                by_speed_ns=per_unit(effect.speed_effect_ns),
            )
            for effect in ledger.effects
        ),
    )


def _interval(saved: Interval | None) -> dict[str, float | None]:
    """Return the ends of a saving's 95 % interval, ns; null where there is none."""
    return {
        "saved_low_ns": None if saved is None else round(saved.low, 3),
        "saved_high_ns": None if saved is None else round(saved.high, 3),
    }


def _side(side: Loaded) -> doc.SidePart:
    timings, traced = side.side.timings, side.side.traced
    return doc.SidePart(
        focal=side.request.focal,
        section=None if side.request.section is None else str(side.request.section),
        calls_per_stage=timings.calls,
        calls_from=timings.calls_from,
        log=None if side.log is None else log_document(side.log),
        attention=tuple(timer_document(side.request.name, timer, side.remarks) for timer in timings.timers),
        stage=None if isinstance(timings.stage, str) else rounds_document(side.request.name, timings.stage),
        traces=() if isinstance(traced, str) else tuple(map(_trace, traced)),
    )


def _trace(own: TracedSide) -> doc.TracePart:
    return part_of(
        doc.TracePart,
        own,
        trace=own.label,
        compared_ns=own.total_ns,
        steps=len(own.tiles),
        focal_ns=tuple(map(tuple, own.focal)),
        sections=None if own.sections is None else _sections(own.sections),
    )


def _sections(sections: Sections) -> doc.SectionsPart:
    return part_of(
        doc.SectionsPart,
        sections,
        definition=str(sections.definition),
        found=len(sections.found),
        length_ns=tuple(section.length_ns for section in sections.found),
        busy_ns=tuple(section.busy_ns for section in sections.found),
        focal_inside_ns=tuple(section.focal_ns for section in sections.found),
        skipped=dict(sections.skipped),
    )
