"""Attention times and speedups of every pair, and the end-to-end bound that the attention operator sets (Amdahl)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from strobe.core.spans import ATTENTION, ATTENTION_OPERATOR, DENOISE_STEP
from strobe.perf.analysis.ledger.account import is_attention_kernel
from strobe.perf.analysis.runs.compare import stage_totals
from strobe.perf.report.blocks.fields import Field, numeric, table_of, time
from strobe.perf.report.blocks.ratios import ratio_cell, verdict_cell
from strobe.perf.report.dit_page.pairs import Paired
from strobe.perf.report.model import Cell, Missing, Number, Ratio, Share, Table, Text
from strobe.perf.report.study import Profile, RunStudy, Subject

_APART: Final = "blocks that are compiled have no regions but those of the attention operator"


@dataclass(frozen=True, kw_only=True, slots=True)
class PerStep:
    """Time of attention in one denoise step of a variant, ns.

    Args:
        step: untraced, mean over timed clips.
        kernel: the attention kernel, traced.
        operator: the same with tiling, selection and finishing; of dense attention the kernel.
        section: the whole module of self-attention, traced; None where it cannot be told apart.
    """

    step: float
    kernel: float
    operator: float
    section: float | None


_Row: TypeAlias = tuple[Subject, PerStep | str]
_Pair: TypeAlias = tuple[Paired, PerStep | str, PerStep | str]
"""A pair, and the attention times of its reference and of its candidate, or why there are none."""


def per_step(subject: Subject) -> PerStep | str:
    """Return the attention times of a variant from its trace and timed clips; a text says why there are none."""
    totals = [each for each in stage_totals(subject.run, subject.name, DENOISE_STEP) if each.clip.phase == "timed" and each.calls]
    if not totals:
        return "no timed clip"
    if not isinstance(subject.profile, Profile):
        return subject.profile
    owned, steps = subject.profile.partition.owned, len(subject.profile.partition.tiles)
    kernel = sum(ns for label, ns in owned.items() if ATTENTION in label.path and is_attention_kernel(label))
    if not kernel:
        return "the trace shows no attention kernel in a section of self-attention"
    operator = sum(ns for label, ns in owned.items() if ATTENTION in label.path and not ATTENTION_OPERATOR.isdisjoint(label.path))
    section = sum(ns for label, ns in owned.items() if ATTENTION in label.path)
    return PerStep(
        step=statistics.fmean(each.total_ns / each.calls for each in totals),
        kernel=kernel / steps,
        operator=operator / steps,
        section=None if subject.settings.compile_mode else section / steps,
    )


def attention_table(study: RunStudy) -> Table:
    """Build the table of every variant's attention times per denoise step."""
    kernel = "attention kernel of the video's self-attention, traced"
    section = "the module of self-attention: projections, norms, RoPE, operator, output projection"

    def of(get: Callable[[PerStep], float | None]) -> Callable[[_Row], Any]:
        return lambda row: Text("") if isinstance(row[1], str) else get(row[1])

    fields: tuple[Field[_Row], ...] = (
        Field("variant", lambda row: row[0].label),
        Field("implementation", lambda row: row[0].settings.attention_impl or "not said"),
        Field("sparsity", lambda row: f"{100 * row[0].settings.sparsity:g} %" if row[0].settings.sparsity else "dense"),
        time("kernel", lambda row: Missing(row[1]) if isinstance(row[1], str) else row[1].kernel, "ms", kernel),
        time("operator", of(lambda found: found.operator), "ms", "with tiling, selection and finishing"),
        time("section", of(lambda found: found.section), "ms", section, missing=_APART),
        time("denoise step", of(lambda found: found.step), "ms", "one forward pass, untraced, mean"),
        numeric("kernel / step", of(lambda found: found.kernel / found.step), show=Share),
    )
    rows = [(subject, per_step(subject)) for subject in study.subjects]
    return table_of("Self-attention of the video in one denoise step.", fields, rows)


def bounds_table(pairs: Sequence[Paired]) -> Table:
    """Build the table of speedups (kernel, operator, section, end to end), with the Amdahl bound and the loss outside of it."""

    def of(get: Callable[[PerStep, PerStep], Any]) -> Callable[[_Pair], Any]:
        def cell(row: _Pair) -> Any:
            _, reference, candidate = row
            if isinstance(reference, str) or isinstance(candidate, str):
                return Missing(reference if isinstance(reference, str) else str(candidate), "-")
            return get(reference, candidate)

        return cell

    def reached(row: _Pair) -> Any:
        e2e = row[0].finding.e2e
        return of(lambda b, c: Missing("no end-to-end times") if e2e is None else e2e.ratio / _bound(b, c))(row)

    timed = "forward passes, untraced; median over mirrored pairs, 95 % interval"
    lost = "section / what it were with nothing but the operator changed, - 1"
    fields: tuple[Field[_Pair], ...] = (
        Field("candidate", lambda row: row[0].finding.candidate.label),
        Field("reference", lambda row: row[0].finding.reference.label),
        numeric("kernel", of(lambda b, c: b.kernel / c.kernel), "attention kernel", show=Ratio),
        numeric("operator", of(lambda b, c: b.kernel / c.operator), "with tiling, selection and finishing", show=Ratio),
        numeric("section", of(_section), "the module of self-attention", show=Ratio, missing=_APART),
        numeric("end to end", lambda row: _timed(row)[0], timed),
        Field("verdict", lambda row: _timed(row)[1]),
        numeric("Amdahl bound", of(_bound), "end to end, if nothing but the operator had changed", show=Ratio),
        numeric("of the bound", reached, show=Share),
        numeric("lost outside the operator", of(_lost), lost, show=lambda share: Number(100 * share, 1, "%"), missing=_APART),
    )
    notes = (
        "Speedup: time of the reference / time of the candidate. Kernel, operator and section are traced, end to end is not.",
        "Amdahl bound: T / (T - (kernel of the reference - operator of the candidate)), T one denoise step of the reference.",
        "Lost outside the operator: what the section takes beyond that of the reference with the operator for its kernel.",
    )
    rows = [(pair, per_step(pair.finding.reference), per_step(pair.finding.candidate)) for pair in pairs]
    return table_of("Speedups, and what the operator alone allows.", fields, rows, notes=notes)


def _timed(row: _Pair) -> tuple[Cell, Cell]:
    e2e = row[0].finding.e2e
    if e2e is None:
        return Missing("no end-to-end times"), Text("")
    return ratio_cell(e2e.ratio, e2e.interval), verdict_cell(e2e.verdict)


def _section(reference: PerStep, candidate: PerStep) -> float | None:
    if reference.section is None or candidate.section is None:
        return None
    return reference.section / candidate.section


def _bound(reference: PerStep, candidate: PerStep) -> float:
    """Return the end-to-end speedup if nothing but the operator had changed."""
    return reference.step / (reference.step - (reference.kernel - candidate.operator))


def _lost(reference: PerStep, candidate: PerStep) -> float | None:
    """Return by what share the section takes longer than it would if nothing but the operator had changed."""
    if reference.section is None or candidate.section is None:
        return None
    return candidate.section / (reference.section - (reference.kernel - candidate.operator)) - 1
