"""Launches of device work: whether the host keeps the device busy, and signs that the trace is incomplete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from strobe.perf.analysis.device.distribution import Distribution
from strobe.perf.analysis.device.idle import HOST_LATE
from strobe.perf.analysis.device.launch import MAX_PROMPT_NS, MIN_IDLE_SHARE, CallRow, Launch, integrity
from strobe.perf.report.blocks.fields import Field, count, exact_time, numeric, share_cell, table_of, time
from strobe.perf.report.blocks.spread import spread
from strobe.perf.report.model import Block, Cell, Code, Count, Section, Table, Text
from strobe.perf.report.trace_page.seen import seen_devices, whole_views
from strobe.perf.report.trace_study import TraceStudy

_MEANING: Final = {
    "busy": f"idle for less than {MIN_IDLE_SHARE:.0%} of the span: faster launches gain little",
    "host-bound": "most idle time is the host being late; what it then launches starts at once: give the device more per launch",
    "host late, slow launches": "most idle time is the host being late, and what it then launches also starts late",
    "launch latency": "most idle time lies between the launch call and the start on the device",
    "queued": "most idle time is waiting for something on the device or a copy: dependencies, synchronisation",
    "profiler overhead": "most idle time is overhead that the profiler records: time without it, and warm up, before concluding",
    "unknown": "most gaps end with work whose launch the trace does not hold",
    "mixed": "no cause has more than half of the idle time",
}

Seen = Sequence[tuple[str, Launch]]


def launch_section(study: TraceStudy) -> Section | None:
    """Build the section with verdict, delays, launch calls and signs of loss; `None` if nothing was launched."""
    seen = [(one.name, one.launch) for one in seen_devices(study)]
    blocks: list[Block] = []
    if seen:
        blocks += [_verdicts(seen), _delays(seen), _calls(seen, study.options.top)]
    signs = _signs(study)
    if signs:
        blocks.append(signs)
    if not blocks:
        return None
    lead = (
        "A delay runs from the launch call to the start on the device. Negative ones are legal and kept: a kernel may start "
        "before its call returns. Delays overlap each other and do not add up; the idle causes do."
    )
    return Section("launch", "Launches", lead, tuple(blocks))


def _verdicts(seen: Seen) -> Table:
    delay = "median start to start of the launches that end a gap with the host late"
    fields: tuple[Field[tuple[str, Launch]], ...] = (
        Field("device", lambda row: row[0], Code),
        Field("verdict", lambda row: Text(row[1].verdict, "good" if row[1].verdict == "busy" else "bad")),
        numeric("idle share", lambda row: share_cell(row[1].activity.idle_ns, row[1].activity.span_ns), "of the span"),
        numeric(
            "host late", lambda row: share_cell(row[1].activity.idle[HOST_LATE], row[1].activity.idle_ns), "of the idle time"
        ),
        time(
            "delay after a late host", lambda row: row[1].activity.late_delay_ns, "µs", delay, missing="no gap with the host late"
        ),
        Field("that is", lambda row: _meaning(row[1])),
    )
    notes = (
        f"Host-bound: idle for at least {MIN_IDLE_SHARE:.0%} of the span, more than half of that with the host late, and a "
        f"median delay below {MAX_PROMPT_NS // 1000} µs of what ends those gaps. Delays of launches behind a busy device say how "
        "long the queue was, and nothing of the host. Another cause with more than half of the idle time gives its name.",
    )
    return table_of("What keeps each device from being busy.", fields, seen, notes=notes)


def _meaning(found: Launch) -> str:
    """Return the meaning of the verdict and the remedy."""
    if found.verdict != "unknown":
        return _MEANING[found.verdict]
    if 2 * found.num_uncorrelated > found.num_unlinked:
        return f"{_MEANING['unknown']}: events of this device carry no correlation, so nothing says what launched them"
    return f"{_MEANING['unknown']}: it lies before the trace; record a longer window"


def _delays(seen: Seen) -> Table:
    fields: tuple[Field[tuple[str, str, str, Distribution, int]], ...] = (
        Field("device", lambda row: row[0], Code),
        Field("launched as", lambda row: row[1], hint="a graph is a call by that name, or one call that launched several events"),
        Field("from", lambda row: row[2], hint="start or end of the launch call, to the start on the device"),
        count("n", lambda row: row[3].n, "device events"),
        count("negative", lambda row: _negative(row[2], row[4])),
        *spread(lambda row: row[3], "µs"),
    )
    rows = []
    for name, found in seen:
        for kind, delays in found.kinds.items():
            rows.append((name, kind, "start", delays.start_to_start, delays.num_negative_ss))
            rows.append((name, kind, "end", delays.end_to_start, delays.num_negative_es))
    notes = [_unlinked(name, found) for name, found in seen if found.num_unlinked]
    notes.append(
        "Later events of a graph wait for the graph's own events, not for the host: their delays say nothing of launching."
    )
    return table_of("Launch delays, of events that start in the window.", fields, rows, notes=notes)


def _negative(of: str, num: int) -> Cell:
    """Return the count of negative delays; marked bad if start to start, since no event can start before its launch call."""
    return Text(str(num), "bad", "clocks or correlation are wrong") if num and of == "start" else Count(num)


def _unlinked(name: str, found: Launch) -> str:
    """Return a sentence with the number of events without a known launch call, and the reasons."""
    before = found.num_unlinked - found.num_uncorrelated
    why = [f"{before} were launched before the trace"] if before else []
    why += [f"{found.num_uncorrelated} carry no correlation"] if found.num_uncorrelated else []
    return f"{name}: {found.num_unlinked} of {found.num_events} events have no known launch call: {', '.join(why)}."


def _calls(seen: Seen, top: int) -> Table:
    fields: tuple[Field[tuple[str, CallRow]], ...] = (
        Field("device", lambda row: row[0], Code),
        Field("launch call", lambda row: row[1].name, Code),
        count("calls", lambda row: row[1].n),
        count("events", lambda row: row[1].num_events, "device events they launched"),
        exact_time("host sum", lambda row: row[1].host.sum_ns, "time in the calls; inclusive, on all threads"),
        time("host p50", lambda row: row[1].host.p50_ns, "µs"),
        time("host max", lambda row: row[1].host.max_ns, "µs"),
        time(
            "delay p50",
            lambda row: row[1].delays.start_to_start.p50_ns,
            "µs",
            "start of the call to start of its first device event",
        ),
        time("delay max", lambda row: row[1].delays.start_to_start.max_ns, "µs"),
    )
    rows = [(name, call) for name, found in seen for call in found.calls[:top]]
    return table_of("Launch calls that device events of the window answer to.", fields, rows, sortable=True)


def _signs(study: TraceStudy) -> Table | None:
    """Build the table of signs that the profiler lost events of whole traces without saying so; None if there are none."""
    rows = []
    for trace, label in zip(study.traces, study.labels, strict=True):
        found = integrity(trace, whole_views(study, trace))
        for name, (n, missing) in found.unanswered.items():
            rows.append((label, "launch calls that no device event answers to", name, f"{missing} of {n}"))
        for graph in found.short_graphs:
            fewer = f"{len(graph.short)} of {graph.n} launches have {graph.short[0]} to {graph.short[-1]} events"
            what = f"{fewer}, most have {graph.num_nodes}"
            rows.append((label, "graph launches with fewer events than their like", graph.first, what))
        if found.past_end_ns:
            rows.append((label, "last device event ends after the recorded window", "", f"{found.past_end_ns / 1e3:.3f} µs"))
        for device, stream, excess in found.impossible:
            where = f"device {device}, stream {stream}"
            rows.append((label, "durations of one stream exceed its span", where, f"{excess / 1e3:.3f} µs"))
    if not rows:
        return None
    fields: tuple[Field[tuple[str, str, str, str]], ...] = (
        Field("trace", lambda row: row[0], Code),
        Field("sign", lambda row: row[1]),
        Field("where", lambda row: row[2], Code),
        Field("how much", lambda row: Text(row[3], "bad")),
    )
    notes = ("A call can launch nothing by right: while a graph is captured, or as the last ones before the window closed.",)
    caption = "Signs that a trace does not hold all that ran (whole traces, whatever the window)."
    return table_of(caption, fields, rows, notes=notes)
