"""Warnings above the numbers: damaged or incomplete traces, overlap, and a late host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from strobe.core.printable import first_of
from strobe.perf.analysis.device.idle import HOST_LATE
from strobe.perf.analysis.device.launch import integrity
from strobe.perf.analysis.structure.steps import Steps
from strobe.perf.report.model import Banner
from strobe.perf.report.text import shorten
from strobe.perf.report.trace_page.devices import device_name
from strobe.perf.report.trace_page.seen import Seen, seen_devices, seen_steps, whole_views
from strobe.perf.report.trace_page.steps import uneven_text
from strobe.perf.report.trace_study import TraceStudy
from strobe.perf.trace import Trace

_NOTHING_NS = 1_000
"""Longest overrun of the last device event that is no sign of dropped events, ns."""

_SLOW = ("with_stack", "profile_memory", "record_shapes")
"""Names of profiler options that cost the host time in every operator."""
MAX_ITEMS = 8
"""Most items of one banner."""
_CATEGORIES = 6


def trace_banners(study: TraceStudy) -> tuple[Banner, ...]:
    """Return the banners, those that void numbers first."""
    told = list(zip(study.traces, study.labels, strict=True))
    seen = seen_devices(study)
    late = [text for one in seen for text in _host_bound(one)]
    found: tuple[tuple[Literal["stop", "caution"], str, Iterable[str]], ...] = (
        ("stop", "Truncated", (text for one in told for text in _truncated(*one))),
        ("stop", "Events lost", (text for one in told for text in _lost(*one))),
        ("stop", "Damaged events", (f"{label}: {line}" for trace, label in told for line in trace.damage)),
        ("caution", "A trace of another profiler", (f"{label}: {trace.foreign}" for trace, label in told if trace.foreign)),
        ("caution", "Events not used", (text for one in told for text in _unused(*one))),
        ("caution", "Events mended", (text for one in told for text in _mended(*one))),
        ("caution", "Skipped, no traces", study.skipped),
        ("caution", "No device events", (text for one in told for text in _empty(*one))),
        ("caution", "The trace may not hold all that ran", (text for one in told for text in _loss(*one, study))),
        (
            "caution", "Work of one stream overlaps: durations add up to more than the busy time",
            (text for one in seen for text in _overlap(one)),
        ),
        ("caution", "Host-bound", late),
        ("caution", "Uneven steps", _uneven(study)),
        ("caution", "The profiler slowed the host down", (text for one in told if late for text in _slowed(*one))),
    )  # fmt: skip
    banners = (Banner(level, title, tuple(_few(list(items)))) for level, title, items in found)
    return tuple(banner for banner in banners if banner.items)


def _few(items: Sequence[str]) -> Iterator[str]:
    """Yield the items; of many only the first ones, and the count of the others."""
    yield from items[:MAX_ITEMS]
    if len(items) > MAX_ITEMS:
        yield f"and {len(items) - MAX_ITEMS} more like these; the tables have all of them"


def _truncated(trace: Trace, label: str) -> Iterator[str]:
    if trace.counts.truncated:
        yield f"{label}: the file ends before its JSON does; what stands before is analysed"


def _lost(trace: Trace, label: str) -> Iterator[str]:
    counts = trace.counts
    if counts.lost:
        why = "; ".join(f"{count} have {reason}" for reason, count in counts.reasons.items())
        said = f": {why}" if why else ""
        yield f"{label} is incomplete: {counts.lost} of {counts.events + counts.lost} events could not be read{said}"
    if counts.trailing:
        yield (
            f"{label}: {counts.trailing} of these stand behind the end of the JSON and were not read, as where two traces were "
            "put into one file; give each trace a file of its own"
        )


def _mended(trace: Trace, label: str) -> Iterator[str]:
    if trace.counts.mended:
        yield f"{label}: {trace.counts.mended} events were kept after bad characters or durations were replaced"


def _unused(trace: Trace, label: str) -> Iterator[str]:
    unused = trace.counts.unused
    if unused and not trace.foreign:
        found = [f"{count} of {repr(name) if name else 'no category'}" for name, count in unused.items()]
        yield f"{label}: {sum(unused.values())} events are of categories that are not read: {first_of(found, _CATEGORIES)}"


def _empty(trace: Trace, label: str) -> Iterator[str]:
    if len(trace.device_events):
        return
    launched = sum(n for n, _ in trace.launched.values())
    if launched:
        yield f"{label}: {launched} launch calls were recorded and no device event answers to one; the device was not recorded"
    elif not (trace.counts.events or len(trace.ops)):
        yield f"{label}: the trace holds no events at all"
    elif trace.counts.truncated:
        yield f"{label}: none stands before the place where the file ends; it may have held some"
    else:
        yield f"{label}: the trace holds host events only; the tables are about the host"


def _loss(trace: Trace, label: str, study: TraceStudy) -> Iterator[str]:
    views = whole_views(study, trace)
    if not views:
        return
    found = integrity(trace, views)
    unanswered = ", ".join(f"{shorten(name)} {missing} of {n}" for name, (n, missing) in found.unanswered.items())
    if unanswered:
        yield f"{label}: launch calls that no device event answers to: {unanswered}"
    for graph in found.short_graphs:
        yield (
            f"{label}: {len(graph.short)} of {graph.n} {shorten(graph.call)} calls of the graph that starts with "
            f"{shorten(graph.first)} recorded fewer than its {graph.num_nodes} events (the fewest: {graph.short[0]})"
        )
    if found.past_end_ns > _NOTHING_NS:
        late = f"{found.past_end_ns / 1e6:.3f} ms after the recorded window"
        yield f"{label}: the last device event ends {late}; later ones were dropped"
    for device, stream, excess in found.impossible:
        yield f"{label}: device {device}, stream {stream}: durations exceed the stream's span by {excess / 1e6:.3f} ms"


def _overlap(seen: Seen) -> Iterator[str]:
    for stream in seen.launch.activity.streams:
        if stream.overlap_pairs:
            yield (
                f"{seen.name}, stream {stream.stream}: {stream.overlap_pairs} pairs of {stream.n} events, "
                f"{stream.overlap_ns / 1e3:.3f} µs in all, {stream.longest_overlap_ns / 1e3:.3f} µs at most"
            )


def _host_bound(seen: Seen) -> Iterator[str]:
    done = seen.launch.activity
    median = done.late_delay_ns
    if seen.launch.verdict == "host-bound" and median is not None:
        yield (
            f"{seen.name} is idle for {100 * done.idle_ns / done.span_ns:.1f} % of its span, "
            f"{100 * done.idle[HOST_LATE] / done.idle_ns:.1f} % of that because the host had not launched yet; "
            f"what it then launches starts {median / 1e3:.1f} µs after its call (median)"
        )


def _uneven(study: TraceStudy) -> Iterator[str]:
    for found, label in zip(seen_steps(study), study.labels, strict=True):
        for steps in found:
            if isinstance(steps, Steps) and (text := uneven_text(steps)):
                yield f"{device_name(study, label, steps.device)}: {text}"


def _slowed(trace: Trace, label: str) -> Iterator[str]:
    found = [key for key in _SLOW if trace.metadata.get(key) == "1"]
    if found:
        yield f"{label}: recorded with {', '.join(found)}, which holds up the host at every operator: check against a timed run"
