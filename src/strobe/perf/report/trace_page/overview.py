"""Top of the page: the files read, and each device on one line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strobe.perf.analysis.device.activity import Activity
from strobe.perf.analysis.device.kernel_table import KernelTable
from strobe.perf.report.blocks.fields import Field, count, exact_time, numeric, share_cell, table_of
from strobe.perf.report.model import Block, Cell, Code, Column, Count, Fact, Missing, Row, Section, Table, Text
from strobe.perf.report.trace_page.seen import Seen, seen_devices
from strobe.perf.report.trace_study import TraceStudy

_FILE_COLUMNS = (
    Column("trace"),
    Column("file"),
    Column("rank", numeric=True),
    Column("events", numeric=True, hint="of every category"),
    Column("device events", numeric=True, hint="kernels, communication, memsets and copies"),
    Column("unlinked", numeric=True, hint="device events whose launch the trace does not hold; kept like any other"),
    Column("lost", numeric=True, hint="events that could not be read at all"),
    Column("mended", numeric=True, hint="events kept after bad characters were replaced or a negative duration set to 0"),
    Column("end"),
)


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
    rows = []
    for trace, label in zip(study.traces, study.labels, strict=True):
        events, counts = trace.device_events, trace.counts
        unlinked = int(np.count_nonzero(np.asarray(events.host) < 0))
        end = Text("truncated", "bad") if counts.truncated else Text("incomplete", "bad") if counts.lost else Text("complete")
        rank = Missing("", "-") if trace.rank is None else Count(trace.rank)
        read = Count(counts.events), Count(len(events)), share_cell(unlinked, len(events))
        rows.append(Row((Code(label), Code(trace.path.name), rank, *read, _count(counts.lost), _count(counts.mended), end)))
    return Table("Files that were read.", _FILE_COLUMNS, tuple(rows), collapsed=len(rows) > 8)


def _count(value: int) -> Cell:
    return Text(str(value), "bad") if value else Count(0)


def _metadata(study: TraceStudy) -> Table | None:
    keys = sorted({key for trace in study.traces for key in trace.metadata})
    if not keys:
        return None
    rows = []
    for key in keys:
        found = {trace.metadata.get(key) for trace in study.traces}
        value = found.pop() if len(found) == 1 else None
        rows.append(Row((Code(key), Text(f"differs: {len(found)} values", "bad") if value is None else Code(value))))
    return Table("What the traces say of themselves.", (Column("key"), Column("value")), tuple(rows), collapsed=True)


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
            times[row.group] = own + row.exclusive_ns, total + row.calls.sum_ns
    if not times:
        return Missing("", "-"), Missing("", "-")
    top = min(times, key=lambda group: (-times[group][0], -times[group][1], group))
    return Code(top), share_cell(times[top][0], table.busy_ns)
