"""Top of the page: the files read, and each device on one line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strobe.perf.analysis.device.activity import Activity
from strobe.perf.analysis.device.kernel_table import KernelTable
from strobe.perf.report.blocks.fields import Field, count, exact_time, numeric, share_cell, table_of
from strobe.perf.report.model import Block, Cell, Code, Count, Fact, Missing, Section, Table, Text
from strobe.perf.report.trace_page.seen import Seen, seen_devices
from strobe.perf.report.trace_study import TraceStudy
from strobe.perf.trace import Trace


def overview_section(study: TraceStudy) -> Section:
    """Build the section with the devices on one line each, the files and the metadata."""
    blocks: list[Block] = []
    devices = _devices(study)
    if devices:
        blocks.append(devices)
    blocks.append(_files(study))
    metadata = _metadata(study)
    if metadata:
        blocks.append(metadata)
    return Section("overview", "What was read", "", tuple(blocks))


def trace_facts(study: TraceStudy) -> tuple[Fact, ...]:
    """Return the facts below the title: files, ranks, devices, events, window."""
    traces = study.traces
    products = sorted({device.name for trace in traces for device in trace.devices if device.name})
    ranks = sorted({trace.rank for trace in traces if trace.rank is not None})
    worlds = sorted({trace.world_size for trace in traces if trace.world_size is not None})
    facts = [
        Fact("Files", Count(len(traces))),
        Fact("Ranks", Text(f"{_listed(ranks)}{f' of {worlds[0]}' if len(worlds) == 1 else ''}" if ranks else "not said")),
        Fact("Devices", Code(", ".join(products)) if products else Text("not said")),
        Fact("Device events", Count(sum(len(trace.device_events) for trace in traces))),
        Fact("Events read", Count(sum(trace.counts.events for trace in traces))),
        Fact("Window", Code(study.options.window) if study.options.window else Text("the whole trace")),
    ]
    return tuple(facts)


def _listed(numbers: Sequence[int]) -> str:
    """Format numbers with runs joined: `0-3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _files(study: TraceStudy) -> Table:
    unlinked = "device events whose launch the trace does not hold; kept like any other"
    mended = "events kept after bad characters were replaced or a negative duration set to 0"
    fields: tuple[Field[tuple[str, Trace]], ...] = (
        Field("trace", lambda row: row[0], Code),
        Field("file", lambda row: row[1].path.name, Code),
        count("rank", lambda row: row[1].rank),
        count("events", lambda row: row[1].counts.events, "of every category"),
        count("device events", lambda row: len(row[1].device_events), "kernels, communication, memsets and copies"),
        numeric("unlinked", lambda row: _unlinked(row[1]), unlinked),
        numeric("lost", lambda row: row[1].counts.lost, "events that could not be read at all", show=_count),
        numeric("mended", lambda row: row[1].counts.mended, mended, show=_count),
        Field("end", lambda row: _end(row[1])),
    )
    rows = list(zip(study.labels, study.traces, strict=True))
    return table_of("Files that were read.", fields, rows, collapsed=len(rows) > 8)


def _unlinked(trace: Trace) -> Cell:
    events = trace.device_events
    return share_cell(int(np.count_nonzero(np.asarray(events.host) < 0)), len(events))


def _end(trace: Trace) -> Cell:
    return (
        Text("truncated", "bad")
        if trace.counts.truncated
        else Text("incomplete", "bad")
        if trace.counts.lost
        else Text("complete")
    )


def _count(value: int) -> Cell:
    return Text(str(value), "bad") if value else Count(0)


def _metadata(study: TraceStudy) -> Table | None:
    keys = sorted({key for trace in study.traces for key in trace.metadata})
    if not keys:
        return None

    def value(key: str) -> Cell:
        found = {trace.metadata.get(key) for trace in study.traces}
        only = found.pop() if len(found) == 1 else None
        return Text(f"differs: {len(found)} values", "bad") if only is None else Code(only)

    fields: tuple[Field[str], ...] = (Field("key", Code), Field("value", value))
    return table_of("What the traces say of themselves.", fields, keys, collapsed=True)


def _devices(study: TraceStudy) -> Table | None:
    tops = {one.name: _top(one.hot) for one in seen_devices(study)}
    fields: tuple[Field[Seen], ...] = (
        Field("device", lambda one: one.name, Code),
        exact_time("span", lambda one: _done(one).span_ns, "from the first event's start to the last one's end, or the window"),
        exact_time("busy", lambda one: _done(one).busy_ns, "time in which at least one event ran on any stream"),
        numeric("busy share", lambda one: share_cell(_done(one).busy_ns, _done(one).span_ns)),
        exact_time("idle", lambda one: _done(one).idle_ns, "span - busy"),
        count("events", lambda one: _done(one).n),
        Field("verdict", _verdict, hint="what most of the idle time waited for; the section on launches says how it is found"),
        Field("top kernel", lambda one: tops[one.name][0], hint="the group with the largest exclusive time"),
        numeric("its share", lambda one: tops[one.name][1], "of the busy time"),
    )
    devices = seen_devices(study)
    return table_of("Each device in one line.", fields, devices) if devices else None


def _done(one: Seen) -> Activity:
    return one.launch.activity


def _verdict(one: Seen) -> Cell:
    return Text(one.launch.verdict, "good" if one.launch.verdict == "busy" else "bad")


def _top(table: KernelTable) -> tuple[Cell, Cell]:
    """Return the cells of the group of kernels with the largest exclusive time, and of its share of busy time."""
    times: dict[str, tuple[int, int]] = {}
    for row in table.rows:
        if row.kind == "kernel":
            own, total = times.get(row.group, (0, 0))
            times[row.group] = own + (row.exclusive_ns or 0), total + row.calls.sum_ns
    if not times:
        return Missing("", "-"), Missing("", "-")
    top = min(times, key=lambda group: (-times[group][0], -times[group][1], group))
    return Code(top), share_cell(times[top][0], table.busy_ns)
