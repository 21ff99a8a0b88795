"""Steps: their lengths on the device, the steady ones, and the evidence that they are steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from strobe.core.printable import first_of
from strobe.perf.analysis.device.distribution import Distribution, distribution
from strobe.perf.analysis.structure.periods import Period
from strobe.perf.analysis.structure.steps import NoSteps, Step, Steps
from strobe.perf.analysis.window import Window
from strobe.perf.report.blocks.fields import Field, count, exact_time, heads, numeric, padded, rows_of, share_cell, table_of, time
from strobe.perf.report.blocks.spread import spread
from strobe.perf.report.model import Block, Cell, Code, ExactTime, Missing, Notes, Section, Share, Table, Text
from strobe.perf.report.text import exact_ms
from strobe.perf.report.trace_page.devices import device_name
from strobe.perf.report.trace_page.seen import seen_steps
from strobe.perf.report.trace_study import TraceStudy

Found = Sequence[tuple[str, Steps, Window | None]]


def steps_section(study: TraceStudy) -> Section | None:
    """Build the section with the steps of every device; `None` if no trace has device events."""
    found: list[tuple[str, Steps, Window | None]] = []
    without: dict[str, list[str]] = {}
    for tiled, label, window in zip(seen_steps(study), study.labels, study.windows, strict=True):
        for steps in tiled:
            name = device_name(study, label, steps.device)
            if isinstance(steps, NoSteps):
                without.setdefault(steps.reason, []).append(name)
            else:
                found.append((name, steps, window))
    blocks: list[Block] = []
    if found:
        blocks = [_summary(found), *_evidence(found), *(_table(*one, study.options.top) for one in found)]
    if without:
        blocks.append(Notes(tuple(_spoken(without))))
    if not blocks:
        return None
    lead = (
        "A step lasts from its first device event to the first one of the next step, so the steps, with what lies before and "
        "after them, add up to the span of the device exactly. Steps of the host are something else: the device lags behind."
    )
    return Section("steps", "Steps", lead, tuple(blocks))


def _summary(found: Found) -> Table:
    kept = {name: [step for step in steps.kept() if _inside(step, window)] for name, steps, window in found}
    none = "no steady step"
    fields: tuple[Field[tuple[str, Steps]], ...] = (
        Field("device", lambda row: row[0], Code),
        Field("a step starts with", lambda row: row[1].starts, Code),
        count("steps", lambda row: len(row[1].steps)),
        count("steady", lambda row: len(kept[row[0]]), "the steps that the times are of"),
        *spread(lambda row: _described([step.length_ns for step in kept[row[0]]]), "ms", what="steps", missing=none),
        numeric("busy", lambda row: _busy(kept[row[0]]), "of the steady steps' time", show=_share, missing=none),
        count("kernels", lambda row: _median([step.kernels for step in kept[row[0]]]), "of a step, the median", missing=none),
        time("host p50", lambda row: _host(kept[row[0]]), "ms", "length of the step's range on the host"),
    )
    told: dict[str, list[str]] = {}
    for name, steps, _ in found:
        causes = Counter(item.cause for item in steps.steady.excluded)
        excluded = "; ".join(f"{cause} ({n})" for cause, n in sorted(causes.items()))
        for note in (
            f"left out of the times: {excluded}" if excluded else "",
            *steps.notes,
            steps.steady.note,
            uneven_text(steps),
        ):
            if note:
                told.setdefault(note, []).append(name)
    rows = [(name, steps) for name, steps, _ in found]
    return table_of("Length of a step, over the steady ones.", fields, rows, notes=_spoken(told))


def _busy(kept: Sequence[Step]) -> tuple[int, int] | None:
    return (sum(step.busy_ns for step in kept), sum(step.length_ns for step in kept)) if kept else None


def _median(values: Sequence[int]) -> int | None:
    found = _described(values)
    return None if found is None else found.p50_ns


def _host(kept: Sequence[Step]) -> int | Missing:
    median = _median([step.host_ns for step in kept if step.host_ns is not None])
    return Missing("no range on the host" if kept else "no steady step", "-") if median is None else median


def uneven_text(steps: Steps) -> str:
    """Return a note on steps of different kinds; empty if all are of one kind."""
    if steps.uneven is None:
        return ""
    short, long = steps.uneven
    lengths = f"{exact_ms(short.length_ns)} ms with {short.kernels} kernels to {exact_ms(long.length_ns)} ms with {long.kernels}"
    return f"the steps are uneven, {lengths}: no mean or median stands for all of them"


def _spoken(told: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield each note with the devices it applies to, once for all of them."""
    for note, names in told.items():
        yield f"{first_of(names, 1)}: {note}."


def _inside(step: Step, window: Window | None) -> bool:
    return window is None or (window.start_ns <= step.start_ns and step.end_ns <= window.end_ns)


def _described(values: Sequence[int]) -> Distribution | None:
    return distribution(np.array(values, np.int64))


def _evidence(found: Found) -> Iterator[Table]:
    alike = "mean of 1 - kernels that differ from the median period / kernels of that"
    fields: tuple[Field[tuple[str, Period]], ...] = (
        Field("device", lambda row: row[0], Code),
        Field("a period starts with", lambda row: row[1].anchor, Code),
        Field("right after", lambda row: row[1].after or None, Code, missing="its name occurs once in a period"),
        count("periods", lambda row: row[1].periods, "complete ones"),
        count("kernels, fewest", lambda row: min(row[1].kernels)),
        count("median", lambda row: int(np.median(np.array(row[1].kernels, np.int64)))),
        count("most", lambda row: max(row[1].kernels)),
        numeric("alike", lambda row: row[1].likeness, alike, show=Share),
        numeric(
            "identical", lambda row: row[1].identical, "share of the periods with the same kernels in the same order", show=Share
        ),
        numeric("covered", lambda row: row[1].covered, "share of the stream's kernels that lie in complete periods", show=Share),
        count("anchors", lambda row: row[1].anchors, "kernels that occur as often, at the same distance"),
        Field("confidence", lambda row: Text(row[1].confidence, "good" if row[1].confidence == "high" else "bad")),
    )
    rows = [(name, steps.period) for name, steps, _ in found if steps.period is not None]
    if rows:
        notes = (
            "No range says what a step is; a period is the longest stretch of kernels of one stream that repeats. It may be a "
            "layer or several steps: name the range or kernel that starts a step where it is not what you mean.",
        )
        yield table_of("Why these are steps: the kernels repeat.", fields, rows, notes=notes)


def _table(name: str, steps: Steps, window: Window | None, top: int) -> Table:
    causes = {item.index: item.cause for item in steps.steady.excluded}
    fields: tuple[Field[tuple[int, Step]], ...] = (
        Field("step", lambda row: row[1].label, Code),
        count("number", lambda row: row[1].number),
        exact_time("length", lambda row: row[1].length_ns, total=sum),
        exact_time("busy", lambda row: row[1].busy_ns, total=sum),
        exact_time("idle", lambda row: row[1].idle_ns, total=sum),
        numeric("busy share", lambda row: (row[1].busy_ns, row[1].length_ns), show=_share, total=_sums),
        count("kernels", lambda row: row[1].kernels, total=sum),
        exact_time("host", lambda row: row[1].host_ns, "length of its range", total=sum),
        Field("not steady because", lambda row: Text(causes.get(row[0], ""), "muted")),
    )
    shown = [(index, step) for index, step in enumerate(steps.steps) if _inside(step, window)]
    rows = rows_of(fields, shown, top=top, left="steps")
    notes = []
    if window is None:
        whole = (
            (steps.before_ns, "before the first step"),
            (steps.after_ns, "after the last step"),
            (steps.end_ns - steps.start_ns, "span of the device's events"),
        )
        for number, (ns, text) in enumerate(whole):
            if ns or number == 2:
                rows += (padded(len(fields), Text(text), Text(""), ExactTime(ns), strong=number == 2),)
        notes.append("Lengths add up to the span.")
    else:
        notes.append(f"Steps that lie in the window {window.label}: {len(shown)} of {len(steps.steps)}.")
    caption = f"Steps of {name}, which start with {steps.starts if steps.source != 'period' else 'a period of the kernels'}."
    return Table(caption, heads(fields), rows, tuple(notes), collapsed=len(rows) > 12)


def _share(both: tuple[int, int]) -> Cell:
    return share_cell(*both)


def _sums(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
    busy, length = zip(*pairs, strict=True)
    return sum(busy), sum(length)
