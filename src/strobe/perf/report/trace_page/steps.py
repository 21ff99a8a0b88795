"""Steps: how long each took on the device, which of them are steady, and what says that they are steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from strobe.perf.analysis.device.distribution import Distribution, distribution
from strobe.perf.analysis.structure.steps import NoSteps, Step, Steps
from strobe.perf.analysis.structure.window import Window
from strobe.perf.report.model import (
    Block,
    Cell,
    Code,
    Column,
    Count,
    ExactTime,
    Missing,
    Notes,
    Row,
    Section,
    Share,
    Table,
    Text,
    Time,
)
from strobe.perf.report.text import exact_ms
from strobe.perf.report.trace_page.devices import device_name, share_cell
from strobe.perf.report.trace_page.seen import seen_steps
from strobe.perf.report.trace_page.study import TraceStudy

_SPREAD: Final = (
    Column("min", "ms", True),
    Column("p50", "ms", True, "median, a sample (nearest rank)"),
    Column("mean", "ms", True),
    Column("p99", "ms", True, "a sample (nearest rank), from 459 steps on; below that the maximum is all that can be said"),
    Column("max", "ms", True),
)

Found = Sequence[tuple[str, Steps, Window | None]]


def steps_section(study: TraceStudy) -> Section | None:
    """The steps of every device; `None` if no trace has device events."""
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
    columns = (
        Column("device"), Column("a step starts with"), Column("steps", numeric=True),
        Column("steady", numeric=True, hint="the steps that the times are of"), *_SPREAD,
        Column("busy", numeric=True, hint="of the steady steps' time"),
        Column("kernels", numeric=True, hint="of a step, the median"),
        Column("host p50", "ms", True, "length of the step's range on the host"),
    )  # fmt: skip
    rows = []
    told: dict[str, list[str]] = {}
    for name, steps, window in found:
        kept = [step for step in steps.kept() if _inside(step, window)]
        rows.append(Row((Code(name), Code(steps.starts), Count(len(steps.steps)), Count(len(kept)), *_cells(kept))))
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
    return Table("Length of a step, over the steady ones.", columns, tuple(rows), tuple(_spoken(told)))


def uneven_text(steps: Steps) -> str:
    """What is said of steps that are not one kind of step; empty if they are."""
    if steps.uneven is None:
        return ""
    short, long = steps.uneven
    lengths = f"{exact_ms(short.length_ns)} ms with {short.kernels} kernels to {exact_ms(long.length_ns)} ms with {long.kernels}"
    return f"the steps are uneven, {lengths}: no mean or median stands for all of them"


def _spoken(told: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """What is said of devices, the same thing once for all of them."""
    for note, names in told.items():
        yield f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {note}."


def _inside(step: Step, window: Window | None) -> bool:
    return window is None or (window.start_ns <= step.start_ns and step.end_ns <= window.end_ns)


def _described(values: Sequence[int]) -> Distribution | None:
    return distribution(np.array(values, np.int64))


def _cells(kept: Sequence[Step]) -> Iterator[Cell]:
    length = _described([step.length_ns for step in kept])
    kernels = _described([step.kernels for step in kept])
    if length is None or kernels is None:
        yield from (Missing("no steady step", "-"),) * (len(_SPREAD) + 3)
        return
    p99 = Missing(f"max of {length.n}", "-") if length.p99_ns is None else Time(length.p99_ns)
    yield from (Time(length.min_ns), Time(length.p50_ns), Time(length.mean_ns), p99, Time(length.max_ns))
    yield share_cell(sum(step.busy_ns for step in kept), length.sum_ns)
    yield Count(kernels.p50_ns)
    host = _described([step.host_ns for step in kept if step.host_ns is not None])
    yield Missing("no range on the host", "-") if host is None else Time(host.p50_ns)


def _evidence(found: Found) -> Iterator[Table]:
    columns = (
        Column("device"), Column("a period starts with"), Column("right after"),
        Column("periods", numeric=True, hint="complete ones"), Column("kernels, fewest", numeric=True),
        Column("median", numeric=True), Column("most", numeric=True),
        Column("alike", numeric=True, hint="mean of 1 - kernels that differ from the median period / kernels of that"),
        Column("identical", numeric=True, hint="share of the periods with the same kernels in the same order"),
        Column("covered", numeric=True, hint="share of the stream's kernels that lie in complete periods"),
        Column("anchors", numeric=True, hint="kernels that occur as often, at the same distance"), Column("confidence"),
    )  # fmt: skip
    rows = []
    for name, steps, _ in found:
        period = steps.period
        if period is None:
            continue
        after: Cell = Code(period.after) if period.after else Missing("its name occurs once in a period", "-")
        median = int(np.median(np.array(period.kernels, np.int64)))
        counts = (Count(min(period.kernels)), Count(median), Count(max(period.kernels)))
        shares = (Share(period.likeness), Share(period.identical), Share(period.covered))
        confidence = Text(period.confidence, "good" if period.confidence == "high" else "bad")
        head = (Code(name), Code(period.anchor), after, Count(period.periods))
        rows.append(Row((*head, *counts, *shares, Count(period.anchors), confidence)))
    if rows:
        notes = (
            "No range says what a step is; a period is the longest stretch of kernels of one stream that repeats. It may be a "
            "layer or several steps: name the range or kernel that starts a step where it is not what you mean.",
        )
        yield Table("Why these are steps: the kernels repeat.", columns, tuple(rows), notes)


def _table(name: str, steps: Steps, window: Window | None, top: int) -> Table:
    columns = (
        Column("step"), Column("number", numeric=True), Column("length", "ms", True), Column("busy", "ms", True),
        Column("idle", "ms", True), Column("busy share", numeric=True), Column("kernels", numeric=True),
        Column("host", "ms", True, "length of its range"), Column("not steady because"),
    )  # fmt: skip
    causes = {item.index: item.cause for item in steps.steady.excluded}
    shown = [index for index, step in enumerate(steps.steps) if _inside(step, window)]
    rows = [_row(steps.steps[index], causes.get(index, "")) for index in shown[:top]]
    rest = [steps.steps[index] for index in shown[top:]]
    if rest:
        rows.append(_sum_row(f"{len(rest)} more steps", rest))
    notes = []
    if window is None:
        around = ((steps.before_ns, "before the first step"), (steps.after_ns, "after the last step"))
        rows += [_plain_row(text, ns) for ns, text in around if ns]
        rows.append(_plain_row("span of the device's events", steps.end_ns - steps.start_ns, strong=True))
        notes.append("Lengths add up to the span.")
    else:
        notes.append(f"Steps that lie in the window {window.label}: {len(shown)} of {len(steps.steps)}.")
    caption = f"Steps of {name}, which start with {steps.starts if steps.source != 'period' else 'a period of the kernels'}."
    return Table(caption, columns, tuple(rows), tuple(notes), collapsed=len(rows) > 12)


def _row(step: Step, cause: str) -> Row:
    host: Cell = Missing("", "-") if step.host_ns is None else ExactTime(step.host_ns)
    times = (ExactTime(step.length_ns), ExactTime(step.busy_ns), ExactTime(step.idle_ns))
    share = share_cell(step.busy_ns, step.length_ns)
    return Row((Code(step.label), Count(step.number), *times, share, Count(step.kernels), host, Text(cause, "muted")))


def _sum_row(text: str, steps: Sequence[Step]) -> Row:
    length, busy = sum(step.length_ns for step in steps), sum(step.busy_ns for step in steps)
    host = [step.host_ns for step in steps if step.host_ns is not None]
    times = (ExactTime(length), ExactTime(busy), ExactTime(length - busy), share_cell(busy, length))
    held: Cell = ExactTime(sum(host)) if host else Missing("", "-")
    return Row((Text(text), Text(""), *times, Count(sum(step.kernels for step in steps)), held, Text("")), strong=True)


def _plain_row(text: str, ns: int, *, strong: bool = False) -> Row:
    return Row((Text(text), Text(""), ExactTime(ns), *(Text("") for _ in range(6))), strong=strong)
