"""Traced time per call of the attention kernel, the section around it, and every other section with its boundaries."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from strobe.core.spans import ATTENTION, ATTENTION_KERNEL, FRAME_BLOCK, NAMES
from strobe.perf.analysis.ledger.account import is_attention_kernel
from strobe.perf.report.blocks.fields import Field, count, numeric, table_of, time
from strobe.perf.report.model import Cell, Missing, Ratio, Section, Share, Table, Text, Time
from strobe.perf.report.study import Profile, RunStudy, Subject

_HOST_RULE: Final = "A section lasts from entering its span to leaving it, on the thread that runs the frame blocks."
_DEVICE_RULE: Final = "A section is the device time owned by what was launched between entering its span and leaving it."
_ORDER: Final = tuple(name for name in NAMES if name != "e2e")


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """One section over the traced frame blocks: its calls, and its busy and idle time with everything inside it.

    `kernel_ns` is the time of the attention kernel inside; `busy_ns` includes it.
    """

    calls: int
    busy_ns: int
    idle_ns: int
    kernel_ns: int

    @property
    def total_ns(self) -> int:
        return self.busy_ns + self.idle_ns


_Summed: TypeAlias = tuple[Subject, tuple[Extent, Extent, Extent] | str]
"""A variant, and its attention kernel, attention section and frame blocks, or why there are none."""


def extents(profile: Profile) -> dict[str, Extent]:
    """Return the sections of a traced window by span name; the attention kernel's section holds only the kernel's own time."""
    calls = _calls(profile)
    busy: Counter[str] = Counter()
    idle: Counter[str] = Counter()
    kernel: Counter[str] = Counter()
    for label, ns in profile.partition.owned.items():
        for name in {FRAME_BLOCK, *label.path}:
            (busy if label.busy else idle)[name] += ns
            kernel[name] += ns if is_attention_kernel(label) else 0
    found = {
        name: Extent(calls=calls[name], busy_ns=busy[name], idle_ns=idle[name], kernel_ns=kernel[name])
        for name in sorted(calls)
        if busy[name] + idle[name]
    }
    return dict(sorted(found.items(), key=lambda item: (_rank(item[0]), item[0])))


def _rank(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _calls(profile: Profile) -> Counter[str]:
    """Count the regions inside the traced frame blocks by name, on any thread."""
    blocks = sorted(
        (region.start_ns, region.end_ns)
        for region in profile.trace.regions
        if region.name == FRAME_BLOCK and region.index in profile.partition.indices
    )
    starts = [start for start, _ in blocks]
    counts: Counter[str] = Counter()
    for region in profile.trace.regions:
        position = bisect_right(starts, region.start_ns) - 1
        if position >= 0 and region.start_ns < blocks[position][1]:
            counts[region.name] += 1
    return counts


def attention_sections(study: RunStudy) -> tuple[Section, Section]:
    """Build the attention summary, and the section with all sections and their boundaries."""
    found = {subject.label: extents(subject.profile) for subject in study.subjects if isinstance(subject.profile, Profile)}
    lead = (
        "Traced time of the attention kernel alone and of the whole attention section around it, per call. "
        "What the section takes beyond the kernel is what the kernel's speedup has to carry."
    )
    attention = Section("attention", "Attention", lead, (_summary(study, found),))
    if not found:
        return attention, Section("sections", "Sections and their boundaries", "No variant was traced.", ())
    on_device = any(
        isinstance(subject.profile, Profile) and subject.profile.partition.device != "cpu" for subject in study.subjects
    )
    lead = f"{_DEVICE_RULE if on_device else _HOST_RULE} The same rule for every variant: sections are compared with sections."
    return attention, Section("sections", "Sections and their boundaries", lead, (_per_call(study, found), _detail(study, found)))


def _summary(study: RunStudy, found: dict[str, dict[str, Extent]]) -> Table:
    def of(show: Callable[[Extent, Extent, Extent], Any]) -> Callable[[_Summed], Any]:
        return lambda row: Text("") if isinstance(row[1], str) else show(*row[1])

    def over(row: _Summed, name: str, ns: Callable[[Extent], int]) -> Cell:
        subject, own = row
        if isinstance(own, str):
            return Text("")
        reference = study.reference_of(subject)
        theirs = found.get(reference.label, {}) if reference and reference is not subject else {}
        if not theirs:
            return Text("reference", "muted")
        kernel, section, _ = own
        return _speedup(theirs.get(name), kernel if name == ATTENTION_KERNEL else section, ns)

    fields: tuple[Field[_Summed], ...] = (
        Field("variant", lambda row: row[0].label),
        Field("implementation", lambda row: row[0].settings.attention_impl or "not said"),
        count("calls", lambda row: Missing(row[1]) if isinstance(row[1], str) else row[1][0].calls),
        time(
            "kernel",
            of(lambda kernel, section, block: kernel.kernel_ns / kernel.calls),
            hint="attention kernel (operator on a CPU), mean per call",
        ),
        numeric("speedup", lambda row: over(row, ATTENTION_KERNEL, lambda extent: extent.kernel_ns)),
        time(
            "section",
            of(lambda kernel, section, block: section.total_ns / section.calls),
            hint="whole attention section, mean per call",
        ),
        numeric("speedup", lambda row: over(row, ATTENTION, lambda extent: extent.total_ns)),
        numeric("kernel / section", of(lambda kernel, section, block: section.kernel_ns / section.total_ns), show=Share),
        numeric(
            "section / frame block",
            of(lambda kernel, section, block: section.total_ns / block.total_ns),
            "over the traced frame blocks, every pass",
            show=Share,
        ),
    )
    rows = [(subject, _summed(subject, found)) for subject in study.subjects]
    notes = ("Speedup: reference time per call over the variant's. Both are traced, so both carry the profiler's cost.",)
    return table_of("Attention, per call, from the traced clips.", fields, rows, notes=notes)


def _summed(subject: Subject, found: dict[str, dict[str, Extent]]) -> tuple[Extent, Extent, Extent] | str:
    """Return a variant's attention kernel, attention section and frame blocks; a text says why there are none."""
    if not isinstance(subject.profile, Profile):
        return subject.profile
    own = found[subject.label]
    if ATTENTION_KERNEL not in own or ATTENTION not in own:
        return "the trace has no attention regions"
    return own[ATTENTION_KERNEL], own[ATTENTION], own[FRAME_BLOCK]


def _speedup(reference: Extent | None, own: Extent, ns: Callable[[Extent], int]) -> Cell:
    if reference is None:
        return Missing("not traced", "-")
    if not ns(own) or not ns(reference):
        return Missing("no such time", "-")
    return Ratio(ns(reference) / reference.calls / (ns(own) / own.calls))


def _names(found: dict[str, dict[str, Extent]]) -> list[str]:
    names = {name for own in found.values() for name in own}
    return sorted(names, key=lambda name: (_rank(name), name))


def _per_call(study: RunStudy, found: dict[str, dict[str, Extent]]) -> Table:

    def of(subject: Subject) -> Field[str]:
        def mean(name: str) -> Cell | None:
            own = found.get(subject.label, {}).get(name)
            return None if own is None else Time(own.total_ns / own.calls, f"{own.calls} calls")

        return Field(subject.label, mean, unit="ms")

    section: Field[str] = Field("section", lambda name: Text(name, note=NAMES.get(name, "a span of the caller's own")))
    caption = "Every section of the traced frame blocks, mean per call."
    return table_of(caption, (section, *map(of, study.subjects)), _names(found))


def _detail(study: RunStudy, found: dict[str, dict[str, Extent]]) -> Table:
    fields: tuple[Field[tuple[str, str, Extent]], ...] = (
        Field("section", lambda row: row[0]),
        Field("variant", lambda row: row[1]),
        count("calls", lambda row: row[2].calls),
        time("total", lambda row: row[2].total_ns),
        time("busy", lambda row: row[2].busy_ns),
        time("idle inside", lambda row: row[2].idle_ns),
        time("attention kernel inside", lambda row: row[2].kernel_ns),
    )
    rows = [
        (name, subject.label, own)
        for name in _names(found)
        for subject in study.subjects
        if (own := found.get(subject.label, {}).get(name)) is not None
    ]
    caption = "The same sections: total, busy, idle and attention kernel inside."
    return table_of(caption, fields, rows, sortable=True, collapsed=True)
