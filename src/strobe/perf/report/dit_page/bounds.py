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
from strobe.perf.report.model import Cell, Column, Missing, Number, Ratio, Row, Share, Table, Text
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
    columns = (
        Column("candidate"),
        Column("reference"),
        Column("kernel", numeric=True, hint="attention kernel"),
        Column("operator", numeric=True, hint="with tiling, selection and finishing"),
        Column("section", numeric=True, hint="the module of self-attention"),
        Column("end to end", numeric=True, hint="forward passes, untraced; median over mirrored pairs, 95 % interval"),
        Column("verdict"),
        Column("Amdahl bound", numeric=True, hint="end to end, if nothing but the operator had changed"),
        Column("of the bound", numeric=True),
        Column(
            "lost outside the operator", numeric=True, hint="section / what it were with nothing but the operator changed, - 1"
        ),
    )
    notes = (
        "Speedup: time of the reference / time of the candidate. Kernel, operator and section are traced, end to end is not.",
        "Amdahl bound: T / (T - (kernel of the reference - operator of the candidate)), T one denoise step of the reference.",
        "Lost outside the operator: what the section takes beyond that of the reference with the operator for its kernel.",
    )
    return Table("Speedups, and what the operator alone allows.", columns, tuple(map(_row, pairs)), notes)


def _row(pair: Paired) -> Row:
    finding = pair.finding
    head = (Text(finding.candidate.label), Text(finding.reference.label))
    e2e = finding.e2e
    timed: tuple[Cell, Cell] = (Missing("no end-to-end times"), Text(""))
    if e2e is not None:
        timed = (ratio_cell(e2e.ratio, e2e.interval), verdict_cell(e2e.verdict))
    sides = per_step(finding.reference), per_step(finding.candidate)
    b, c = sides
    if isinstance(b, str) or isinstance(c, str):
        why = b if isinstance(b, str) else str(c)
        return Row((*head, *(Missing(why, "-") for _ in range(3)), *timed, *(Missing(why, "-") for _ in range(3))))
    saved = b.kernel - c.operator
    bound = b.step / (b.step - saved)
    reached: Cell = Missing("no end-to-end times") if e2e is None else Share(e2e.ratio / bound)
    section: tuple[Cell, Cell] = (Missing(_APART, "-"), Missing(_APART, "-"))
    if b.section is not None and c.section is not None:
        section = Ratio(b.section / c.section), Number(100 * (c.section / (b.section - saved) - 1), 1, "%")
    return Row(
        (*head, Ratio(b.kernel / c.kernel), Ratio(b.kernel / c.operator), section[0], *timed, Ratio(bound), reached, section[1])
    )
