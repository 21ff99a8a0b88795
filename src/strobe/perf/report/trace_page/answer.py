"""The answer to a trace in a few sentences: busy or idle and why, what the time is, the slowest step, what would help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from strobe.perf.analysis.critical_path.path import CriticalPath
from strobe.perf.analysis.device.host import BETWEEN, host_work
from strobe.perf.analysis.device.idle import HOST_LATE
from strobe.perf.analysis.device.kernel_kinds import KernelKind, kernel_kind
from strobe.perf.analysis.device.kernel_table import KernelTableRow
from strobe.perf.analysis.structure.steps import Step, Steps
from strobe.perf.report.model import Notes, Section
from strobe.perf.report.text import shorten, significant
from strobe.perf.report.trace_page.critical_path import name_of
from strobe.perf.report.trace_page.devices import CAUSE_HINTS
from strobe.perf.report.trace_page.seen import Seen, seen_devices, seen_paths, seen_steps
from strobe.perf.report.trace_study import TraceStudy

ANSWER: Final = "answer"
_KINDS: Final = {"comm": "communication", "memcpy": "copies", "memset": "copies"}
_OF_KERNELS: Final = {KernelKind.ATTENTION: "attention", KernelKind.MATRIX: "matrix products", KernelKind.OTHER: "other kernels"}
_MOST: Final = 3
"""Kernels that are named."""
_LITTLE: Final = 0.01
"""Idle share of the span below which no line tells of it."""
_SLOW: Final = 1.2
"""Length of a step that is named as slow, in medians."""


def answer_section(study: TraceStudy) -> Section | None:
    """Build the section that a reader begins with; `None` without device events."""
    seen = seen_devices(study)
    if not seen:
        return None
    return Section(ANSWER, "The answer", "", (Notes(tuple(_sentences(study, seen[0], len(seen)))),))


def _sentences(study: TraceStudy, one: Seen, devices: int) -> Iterator[str]:
    done, busy = one.launch.activity, max(1, one.hot.busy_ns)
    more = f" ({devices - 1} more below)" if devices > 1 else ""
    yield f"{one.name}{more}: busy for {_share(done.busy_ns, done.span_ns)} of {_ms(done.span_ns)} ms; {one.launch.verdict}."
    classes: Counter[str] = Counter()
    for row in one.hot.rows:
        classes[_class(row)] += row.exclusive_ns or 0
    yield f"Of the busy time: {', '.join(f'{name} {_share(ns, busy)}' for name, ns in classes.most_common())}."
    most = [f"{shorten(row.group)} {_share(row.exclusive_ns or 0, busy)}" for row in one.hot.rows[:_MOST]]
    yield f"Most time: {', '.join(most)}."
    host = host_work(one.view)
    if sum(host.before.values()) > _LITTLE * done.span_ns:
        yield f"Before the first kernel {_ms(sum(host.before.values()))} ms passed on the host: {_spent(host.before)}."
    idle = [(ns, cause) for cause, ns in done.idle.items() if ns]
    if idle and done.idle_ns > _LITTLE * done.span_ns:
        ns, cause = max(idle)
        late = f" Of this the host spent {_spent(host.late)}." if cause == HOST_LATE else ""
        yield f"Idle for {_ms(done.idle_ns)} ms, {_share(ns, done.idle_ns)} of it because {CAUSE_HINTS[cause]} ({cause}).{late}"
    yield from _steps(study, one)
    for label, path in zip(study.labels, seen_paths(study), strict=True):
        if isinstance(path, CriticalPath) and path.what_if:
            first = path.what_if[0]
            if first.speedup is not None:
                where = f"{label}: " if len(study.labels) > 1 else ""
                yield f"{where}If {shorten(name_of(first))} took no time, the trace would be {first.speedup:.2f}x faster."
            break


def _spent(by_name: Counter[str]) -> str:
    """Return the names that took most of a time."""
    return ", ".join(
        f"{_ms(ns)} ms {name if name == BETWEEN else f'in {shorten(name)}'}" for name, ns in by_name.most_common(_MOST)
    )


def _class(row: KernelTableRow) -> str:
    if row.kind in _KINDS:
        return _KINDS[row.kind]
    return _OF_KERNELS[kernel_kind(row.members[0].name if row.members else row.group)]


def _steps(study: TraceStudy, one: Seen) -> Iterator[str]:
    """Yield the length of a step, and the slowest with the time before the first one."""
    at = next(number for number, trace in enumerate(study.traces) if trace is one.view.trace)
    found = next((steps for steps in seen_steps(study)[at] if steps.device == one.view.device), None)
    if not isinstance(found, Steps):
        return
    lengths = sorted(step.length_ns for step in found.steps)
    median, slowest = lengths[len(lengths) // 2], max(found.steps, key=_whole_ns)
    if len(lengths) == 1:
        return
    said = f"{len(lengths)} steps of {_ms(median)} ms, the median"
    if _whole_ns(slowest) > _SLOW * median:
        said += f"; the slowest, {slowest.label}, takes {_ms(_whole_ns(slowest))} ms"
        if _whole_ns(slowest) > slowest.length_ns:
            said += f" on the host, {_ms(slowest.busy_ns)} of it busy on the device"
        else:
            said += f", {_ms(slowest.idle_ns)} of it idle"
    yield f"{said}."


def _whole_ns(step: Step) -> int:
    """The length of a step on the device, or that of its range on the host where that is longer, as in a first step."""
    return max(step.length_ns, step.host_ns or 0)


def _ms(ns: int) -> str:
    return significant(ns / 1e6)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(1, whole):.1f} %"
