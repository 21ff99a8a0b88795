"""Focal kernels, and sections: device time between two boundaries around a focal event."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Annotated as A
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from strobe.core.errors import ConfigError, DataError, nearest
from strobe.perf.analysis.device.activity import EventView, all_events, events_by_device
from strobe.perf.analysis.device.intervals import (
    Distribution,
    Intervals,
    Ints,
    Window,
    column,
    distribution,
    intervals_of,
    marked,
    overlaps,
    reach,
    totals,
    union,
)
from strobe.perf.analysis.device.kernels import full_name, kernel_name, kernel_part
from strobe.perf.analysis.parts import Part
from strobe.perf.analysis.structure.ranges import device_times
from strobe.perf.logs.series import Constraint, short
from strobe.perf.measure.stats import percentile
from strobe.perf.table.rows import OnDevice, col
from strobe.perf.trace.events import DEVICE_KINDS, Trace

# Sections: device time between two boundaries around a focal event, by a definition that can be stored and compared.
#
# `memcpy:end -> flash_fwd -> gather:end` is the time from the end of the last copy before each `flash_fwd` kernel to the end of
# the first gather after it. A boundary is `WHAT:start` or `WHAT:end`, on the stream of the focal event, or on any stream of its
# device with `@any` behind it. `WHAT` is a kind (`kernel`, `comm`, `memset`, `memcpy`), a regular expression that is searched in
# the names of device events (`name:` before it where it could be read otherwise), `range:NAME` or `module:NAME`, where `NAME` is
# a regular expression for the whole name (without `strobe::`, `#3` or `_3` as well).

Source = Literal["kind", "name", "range", "module"]
Moment = Literal["start", "end"]
CROSSED: Final = "its boundaries cross"
_EDGE: Final = re.compile(r"(?:(?P<source>name|range|module):)?(?P<what>.+):(?P<at>start|end)(?P<any>@any)?")
_SOURCED: Final = re.compile(r"(name|range|module):")
_SOURCES: Final = ("name", "range", "module")
_ARROW: Final = re.compile(r"\s+->\s+")
_FORM: Final = "write LEFT -> RIGHT or LEFT -> FOCAL -> RIGHT, e.g. 'memcpy:end -> flash_fwd -> gather:end'"
_NUMBERED: Final = {"range": re.compile(r"#\d+$"), "module": re.compile(r"_\d+$")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """One boundary: start or end of an event, or of the device time of a range or module.

    Args:
        what: a kind, or a regular expression.
        any_stream: the nearest on any stream of the device, not on the focal event's stream alone.
    """

    source: Source
    what: str
    at: Moment
    any_stream: bool = False

    def __str__(self) -> str:
        said = self.what in DEVICE_KINDS or _SOURCED.match(self.what)  # what would be read otherwise
        plain = self.source == "kind" or (self.source == "name" and not said)
        return f"{self.what if plain else f'{self.source}:{self.what}'}:{self.at}{'@any' if self.any_stream else ''}"

    @property
    def hint(self) -> str:
        """Return a kind or source that is spelled nearly like a name that no event has; else empty."""
        if self.source != "name":
            return ""
        head, colon, rest = self.what.partition(":")
        misspelt = nearest(head, _SOURCES) if colon and not rest.startswith(":") else ""
        return misspelt or nearest(self.what, DEVICE_KINDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class SectionDefinition:
    """Definition of a section. Its text is canonical: two definitions are the same if their texts are."""

    left: Edge
    focal: str
    right: Edge

    @property
    def is_one_call(self) -> bool:
        """Whether both boundaries belong to one call of a range or module: the one around the focal event."""
        scopes = [(edge.source, edge.what) for edge in (self.left, self.right)]
        return scopes[0] == scopes[1] and scopes[0][0] in _NUMBERED and (self.left.at, self.right.at) == ("start", "end")

    @property
    def boundaries(self) -> str:
        """The definition without the focal event; it must be the same on both sides of a comparison."""
        return f"{self.left} -> {self.right}"

    def __str__(self) -> str:
        return f"{self.left} -> {self.focal} -> {self.right}"


def parse_section(text: str, focal: str | None = None) -> SectionDefinition:
    """Parse a definition.

    Args:
        text: `LEFT -> FOCAL -> RIGHT`; `LEFT -> RIGHT` if the focal event is given apart.
        focal: regular expression that is searched in the names of device events.

    Raises:
        ConfigError: the text is no definition, or the focal event is given twice or not at all.
    """
    parts = _ARROW.split(text.strip())
    if len(parts) not in (2, 3):
        raise ConfigError(f"section {text!r} has {len(parts)} parts; {_FORM}")
    if len(parts) == 3 and focal is not None and parts[1] != focal:
        raise ConfigError(f"section {text!r} names the focal event {parts[1]!r}, and {focal!r} is given apart; give one of them")
    chosen = parts[1] if len(parts) == 3 else focal
    if not chosen:
        raise ConfigError(f"section {text!r} names no focal event; {_FORM}")
    return SectionDefinition(left=_edge(parts[0], text), focal=chosen, right=_edge(parts[-1], text))


def _edge(part: str, text: str) -> Edge:
    found = _EDGE.fullmatch(part)
    if found is None:
        end = nearest(part.rpartition(":")[2], ("start", "end"))
        raise ConfigError(f"section {text!r}: the boundary {part!r} must end with :start or :end{end}; {_FORM}")
    what = found["what"]
    pattern(what)
    source = found["source"] or ("kind" if what in DEVICE_KINDS else "name")
    return Edge(source=cast(Source, source), what=what, at=cast(Moment, found["at"]), any_stream=bool(found["any"]))


def pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression from the command line."""
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(f"{text!r} is not a regular expression: {error}; escape what is meant literally") from error


class SectionRow(OnDevice, frozen=True, kw_only=True):
    """One section: the time between two boundaries around a focal event.

    Args:
        members: places of its events among the trace's device events: those of the focal event's stream, or of all streams if a
            boundary may lie on any.
    """

    section: A[str, col("definition of the section by its boundaries")]
    start_ns: A[int, col("start on the clock of the trace")]
    length_ns: A[int, col("time from boundary to boundary")]
    busy_ns: A[int, col("time in which at least one event of the section ran")]
    focal_ns: A[int, col("time in which a focal event ran")]
    members: tuple[int, ...]

    @property
    def span(self) -> tuple[int, int]:
        return self.start_ns, self.start_ns + self.length_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class Sections:
    """The sections of one device, in order of start.

    Args:
        num_focal: focal events that start in the window.
        skipped: focal events without a section, by reason.
        merged: focal events whose section is also that of an earlier one: it is there once.
        overlapping: sections that start before an earlier one ends: their lengths do not add up to time.
    """

    definition: SectionDefinition
    device: int
    num_focal: int
    found: tuple[SectionRow, ...]
    skipped: Mapping[str, int]
    merged: int
    overlapping: int

    @property
    def busy_ns(self) -> int:
        return sum(section.busy_ns for section in self.found)

    @property
    def length_ns(self) -> int:
        return sum(section.length_ns for section in self.found)


def find_sections(trace: Trace, definition: SectionDefinition, window: Window | None = None) -> tuple[Sections, ...]:
    """Find the sections around the focal events of every device that has any.

    A boundary of kind or name belongs to the nearest event that started before (right: after) the focal event in the order of
    start; one of a range or module is the nearest moment not after the focal event's start (right: not before its end). Start and
    end of the same range or module are those of the call around the focal event. A focal event that misses a boundary, or whose
    boundaries cross, is skipped and counted.

    Args:
        window: focal events must start in it; boundaries may lie outside.
    """
    found = []
    for device, work in events_by_device(trace):
        inside = None if window is None else (work.start >= window.start_ns) & (work.start < window.end_ns)
        found.append(sections_of(trace, device, work, definition, inside))
    return tuple(sections for sections in found if sections.num_focal)


def sections_of(
    trace: Trace, device: int, work: EventView, definition: SectionDefinition, chosen: NDArray[np.bool_] | None = None
) -> Sections:
    """Find the sections of one device; `chosen` masks the events that may be focal ones."""
    focal = matching(trace, work, definition.focal)
    anchors, skipped, merged = np.flatnonzero(focal if chosen is None else focal & chosen), Counter[str](), 0
    found: list[SectionRow] = []
    told = {"trace": trace.label, "device": device, "section": str(definition)}
    wide = definition.left.any_stream or definition.right.any_stream
    for stream in np.unique(work.stream[anchors]).tolist():
        lane = np.flatnonzero(work.stream == stream)
        own, seen = anchors[work.stream[anchors] == stream], np.arange(len(work)) if wide else lane
        if definition.is_one_call:
            left, right = _around(definition.left, trace, work, seen, own)
            reasons = (f"in no {definition.left.source}:{definition.left.what}", "")
        else:
            left, right = (
                _boundaries(edge, trace, work, np.arange(len(work)) if edge.any_stream else lane, own, before=before)
                for edge, before in ((definition.left, True), (definition.right, False))
            )
            left_hint, right_hint = definition.left.hint, definition.right.hint
            reasons = (f"no {definition.left} before it{left_hint}", f"no {definition.right} after it{right_hint}")
        has_left, both = left != _NOWHERE, (left != _NOWHERE) & (right != _NOWHERE)
        whole = both & (left <= right)
        skipped[reasons[0]] += int((~has_left).sum())
        skipped[reasons[1]] += int((has_left & ~both).sum())
        skipped[CROSSED] += int((both & ~whole).sum())
        starts, ends = np.unique(np.stack((left[whole], right[whole])), axis=1)
        merged += int(whole.sum()) - len(starts)
        found += _measure(work, seen, focal, Intervals(starts, ends), told)
    found.sort(key=lambda section: section.span)
    bounds = intervals_of(section.span for section in found)
    return Sections(
        definition=definition,
        device=device,
        num_focal=len(anchors),
        found=tuple(found),
        skipped={reason: count for reason, count in sorted(skipped.items()) if count},
        merged=merged,
        overlapping=int((bounds.start < reach(*bounds)).sum()),
    )


def matching(trace: Trace, work: EventView, text: str) -> NDArray[np.bool_]:
    """Mark the events of a device whose name, as in the trace or demangled, matches a regular expression."""
    searched = pattern(text)
    hits = [bool(searched.search(name) or searched.search(full_name(name))) for name in trace.device_events.names]
    found: NDArray[np.bool_] = np.array(hits or [False])[work.name]
    return found


_NOWHERE: Final = -(1 << 63)
"""Moment of a boundary that a focal event lacks."""


def _boundaries(edge: Edge, trace: Trace, work: EventView, events: Ints, anchors: Ints, *, before: bool) -> Ints:
    """Find the nearest boundary before or after each focal event (`anchors`), among some events."""
    if edge.source in ("kind", "name"):
        chosen = work.kind == DEVICE_KINDS.index(edge.what) if edge.source == "kind" else matching(trace, work, edge.what)
        events = events[chosen[events]]
        place = np.searchsorted(events, anchors, "left") - 1 if before else np.searchsorted(events, anchors, "right")
        moments = (work.start if edge.at == "start" else work.end)[events]
    else:
        spans = _scope_times(edge, trace, work, events)
        moments = np.sort(spans.start if edge.at == "start" else spans.end)
        first, last = work.start[anchors], work.end[anchors]
        place = np.searchsorted(moments, first, "right") - 1 if before else np.searchsorted(moments, last, "left")
    return np.append(moments, _NOWHERE)[place]  # neither -1 nor the last place is one of theirs


def _around(edge: Edge, trace: Trace, work: EventView, events: Ints, anchors: Ints) -> tuple[Ints, Ints]:
    """Find the call of a range or module around each focal event: of several, the one that started last."""
    spans = _scope_times(edge, trace, work, events)
    order = np.argsort(spans.start, kind="stable")
    start, end = np.append(spans.start[order], _NOWHERE), np.append(spans.end[order], _NOWHERE)
    place = np.searchsorted(start[:-1], work.start[anchors], "right") - 1
    place[end[place] < work.end[anchors]] = -1
    return start[place], end[place]


def _scope_times(edge: Edge, trace: Trace, work: EventView, events: Ints) -> Intervals:
    """Return the device time of every call of a range or module: first start to last end of its work among some events."""
    scopes = trace.ranges if edge.source == "range" else trace.modules
    chosen = np.flatnonzero(marked(scopes, partial(_spells, edge)))
    _, times = device_times(trace, work.at(events), scopes, chosen)
    if edge.source != "module":
        return times
    start, end = column(trace.device_events.start_ns), column(trace.device_events.end_ns)
    members = _graph_calls(edge, trace, work.position[events])
    more = intervals_of((int(start[each].min()), int(end[each].max())) for each in members)
    return Intervals(np.concatenate((times.start, more.start)), np.concatenate((times.end, more.end)))


def _graph_calls(edge: Edge, trace: Trace, positions: Ints) -> list[Ints]:
    """Return runs of events that one graph launch made under one module path."""
    runs: list[list[int]] = [[]]
    before: tuple[int, str] | None = None
    for position in positions.tolist() if trace.module_paths else ():
        parts = trace.module_paths.get(position, "").split(".")
        prefixes = (".".join(parts[: depth + 1]) for depth in range(len(parts)))
        inside = next((prefix for prefix in prefixes if prefix and _spells(edge, prefix)), None)
        now = None if inside is None else (trace.device_events.host[position], inside)
        if now != before:
            runs.append([])
        if now is not None:
            runs[-1].append(position)
        before = now
    return [np.array(run, np.int64) for run in runs if run]


def _spells(edge: Edge, name: str) -> bool:
    """Return whether a name is the edge's: in full, without our prefix, without its number, or by the end of its path."""
    plain = name.removeprefix("strobe::").rpartition("." if edge.source == "module" else "\0")[2]
    spelled = {name, plain, _NUMBERED[edge.source].sub("", name), _NUMBERED[edge.source].sub("", plain)}
    return any(re.fullmatch(edge.what, text) for text in spelled)


def _measure(
    work: EventView, lane: Ints, focal: NDArray[np.bool_], sections: Intervals, told: Mapping[str, Any]
) -> Iterator[SectionRow]:
    """Measure sections of one lane: the positions of its events, in order of start."""
    start, end, own = work.start[lane], work.end[lane], lane[focal[lane]]
    shared = [overlaps(sections, union(*columns)) for columns in ((start, end), (work.start[own], work.end[own]))]
    busy, focal_ns = (totals(each.length, of, len(sections.start)) for of, _, each in shared)
    reached = np.maximum.accumulate(end) if len(end) else end
    first, last = np.searchsorted(reached, sections.start, "right"), np.searchsorted(start, sections.end, "left")
    # an event of length 0 is a member where it starts
    first = np.minimum(first, np.searchsorted(start, sections.start, "left"))
    for at, (left, right) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        begin, long = int(sections.start[at]), int(sections.end[at] - sections.start[at])
        members = lane[left:right][(end[left:right] > begin) | (start[left:right] >= begin)]
        numbers = tuple(work.position[members].tolist())
        times: dict[str, Any] = {"start_ns": begin, "length_ns": long, "busy_ns": int(busy[at]), "focal_ns": int(focal_ns[at])}
        yield SectionRow(**told, **times, members=numbers)


def check_alike(baseline: str, candidate: str, *, allow_unlike: bool) -> str:
    """Check that both sides of a comparison are cut at the same boundaries.

    Args:
        baseline: `SectionDefinition.boundaries`, or `kernel` for the focal kernel alone.
        candidate: likewise.

    Returns:
        Empty if they are alike, else the words that must stand beside every figure that compares them.

    Raises:
        ConfigError: they are not alike and nobody asked for it.
    """
    if baseline == candidate:
        return ""
    said = f"{baseline} of the baseline against {candidate} of the candidate"
    if not allow_unlike:
        raise ConfigError(f"{said}: not the same section; give both the same boundaries, or --allow-unlike to label it as unlike")
    return f"unlike: {said}"


def skipped_text(sections: Sections) -> str:
    """Format the reasons why focal events have no section, with their counts."""
    return "; ".join(f"{count} {reason}" for reason, count in sections.skipped.items()) or "none skipped"


# Kernels of a trace whose name matches a regular expression, and the bounds that they set for a timer around them.


class FocalKernels(NamedTuple):
    """Device events of one device whose name matches a regular expression.

    `names` are those found, normalised, those with most calls first; `num_same` are the calls of the first. `window_ns` is from
    the start of the device's first event to the end of its last, of any name.
    """

    device: int
    names: tuple[str, ...]
    num_same: int
    calls: Distribution
    window_ns: int


_NEARLY_ALL: Final = Fraction(9, 10)


def attention_kernel(traces: Sequence[Trace]) -> str | None:
    """Return a regular expression of the kernel that takes nine tenths or more of all attention; None if there is none."""
    spent: Counter[str] = Counter()
    names: dict[str, set[str]] = {}
    for trace in traces:
        events = trace.device_events
        took = totals(column(events.end_ns) - column(events.start_ns), column(events.name), len(events.names))
        for raw, ns in zip(events.names, took.tolist(), strict=True):
            if kernel_part(raw) is Part.OTHER_ATTENTION:
                group, full = kernel_name(raw), full_name(raw)
                spent[group] += ns
                names.setdefault(group, set()).add(full)
    if not spent:
        return None
    (first, most), *_ = spent.most_common(1)
    if most < _NEARLY_ALL * spent.total():
        return None
    fulls = sorted(names[first])
    return re.escape(first) if all(first in full for full in fulls) else "|".join(map(re.escape, fulls))


def focal_kernels(trace: Trace, text: str) -> tuple[FocalKernels, ...]:
    """Search the names of device events, as the trace has them and demangled; one result for each device with a match."""
    events, chosen = trace.device_events, matching(trace, all_events(trace), text)
    start, end, device, name = (column(values) for values in (events.start_ns, events.end_ns, events.device, events.name))
    found = []
    for number in np.unique(device[chosen]).tolist():
        own = device == number
        focal = np.flatnonzero(own & chosen)
        calls = distribution(end[focal] - start[focal])
        assert calls is not None, "a device is listed because it has a match"
        groups = Counter(kernel_name(events.names[i]) for i in name[focal].tolist())
        names = tuple(sorted(groups, key=lambda name: (-groups[name], name)))
        found.append(FocalKernels(number, names, max(groups.values()), calls, int(end[own].max() - start[own].min())))
    return tuple(found)


def kernel_constraints(found: Sequence[FocalKernels]) -> tuple[Constraint, ...]:
    """Return the bounds that kernels set for a call that runs one of them, or two, inside.

    A call is no shorter than the shortest kernel, and calls that run one after another fit into the trace they are in: as many as
    there are kernels of one name, less one that may be in it only in part.
    """
    if not found:
        return ()
    least = min(found, key=lambda kernels: kernels.calls.min_ns)
    tightest = min(found, key=lambda kernels: Fraction(kernels.window_ns, kernels.num_same))
    bound = least.calls.min_ns
    what = f"the {short(bound)} kernel inside it ({least.names[0][:60]}, shortest of {least.calls.n})"
    floor = Constraint(rule="at_least", bound_ns=bound, what=what)
    if tightest.num_same < 2:
        return (floor,)
    whole = f"the whole trace of {short(tightest.window_ns)} that has them"
    return floor, Constraint(rule="at_most", bound_ns=tightest.window_ns, what=whole, calls=tightest.num_same - 1)


TraceEvidence: TypeAlias = tuple[tuple[Constraint, ...], tuple[int, str] | None]
"""Bounds on the values of a timer; and the median device time of one call of the range that it is around, with the range in
words, if that was asked for."""


def trace_evidence(traces: Sequence[Trace], focal: str | None = None, timed: str | None = None) -> TraceEvidence:
    """Collect the bounds that the traces of one side, one per rank, set for a timer.

    Args:
        focal: regular expression of the kernel inside the timer.
        timed: regular expression of the range that the timer is around.

    Raises:
        DataError: the traces have no such kernel or range.
    """
    found = () if focal is None else tuple(kernels for trace in traces for kernels in focal_kernels(trace, focal))
    spans: list[int] = []  # device time of each call of the range
    for trace in traces if timed is not None else ():
        calls = np.flatnonzero(marked(trace.ranges, pattern(timed or "").search))
        _, times = device_times(trace, all_events(trace), trace.ranges, calls)
        spans += (times.end - times.start).tolist()
    files = ", ".join(str(trace.path) for trace in traces)
    if focal is not None and not found:
        raise DataError(f"no device event of {files} has a name with {focal!r}; `strobe trace` lists the names")
    if timed is not None and not spans:
        raise DataError(f"no range of {files} with {timed!r} in its name launched device work; `strobe trace` lists the ranges")
    bounds = kernel_constraints(found)
    if not spans:
        return bounds, None
    what = f"the {short(min(spans))} that the device takes for the range {timed}, shortest of {len(spans)}"
    floor = Constraint(rule="at_least", bound_ns=min(spans), what=what)
    return (*bounds, floor), (percentile(spans, 0.5), f"the range {timed}")
