"""What was found in the traces of a study, and the rows of its tables: pages and documents show the same ones."""

# No `from __future__ import annotations`: annotations of the rows are values, which hold how a column is shown.

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Annotated as A
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from strobe.core.costs import DevicePeaks, device_peaks
from strobe.core.errors import DataError
from strobe.perf.analysis.critical_path import CriticalPath, critical_path
from strobe.perf.analysis.device.activity import Activity, DeviceRow, DeviceView, activity, device_views
from strobe.perf.analysis.device.kernels import KernelRow, KernelTable, kernel_table
from strobe.perf.analysis.device.launch import Gaps, Launch, QueueRow, graph_calls, queues
from strobe.perf.analysis.device.roofline import Roofline
from strobe.perf.analysis.operators import OperatorRateRow, Operators, OperatorTimes, operator_rates, operator_times, operators
from strobe.perf.analysis.structure.collectives import Communication, communication
from strobe.perf.analysis.structure.ranges import MemoryUse, Ranges, memory_use, range_table, unnumbered
from strobe.perf.analysis.structure.sections import SectionRow, find_sections, parse_section
from strobe.perf.analysis.structure.steps import LayerGroup, Steps, find_steps, layer_groups
from strobe.perf.report.study import TraceStudy
from strobe.perf.table.fields import Field, share_cell
from strobe.perf.table.model import Cell, Code, Count, ExactTime, Share, Text
from strobe.perf.table.rows import DocumentPart, OnDevice, PartT, col, columns, part_of, term

MAX_POINTS: Final = 200
"""Most stretches of the course of memory."""


class TraceFindings:
    """One trace of a study, and what is found in it: each thing once, when it is first asked for.

    Attributes:
        window: the chosen part of it; `None` is all of it.
        replays: what names the kernels of its graph replays, a sentence; empty without replays.
        devices: those that have events, in order of number.
    """

    def __init__(self, study: TraceStudy, place: int) -> None:
        self.options, self.only = study.options, len(study.traces) == 1
        self.trace, self.window = study.labels[place], study.windows[place]
        self.read = replace(study.traces[place], label=self.trace)
        self.replays = study.replays[place] if place < len(study.replays) else ""
        self.devices = tuple(DeviceFindings(self, view) for view in device_views(self.read, self.window))

    @property
    def file(self) -> "TraceFile":
        read, window = self.read, self.window
        ends = (None, None) if window is None else (window.start_ns, window.end_ns)
        unlinked, events = int(np.count_nonzero(np.asarray(read.device_events.host) < 0)), len(read.device_events)
        given = {"path": str(read.path), "device_events": events, "unlinked_events": unlinked}
        return part_of(TraceFile, self, read.counts, read, window_start_ns=ends[0], window_end_ns=ends[1], **given)

    @property
    def sections(self) -> Iterator[SectionRow]:
        for definition in map(parse_section, self.options.sections):
            for found in find_sections(self.read, definition, self.window):
                yield from found.found

    @property
    def whole(self) -> tuple[DeviceView, ...]:
        """The devices over the whole length of the trace, whatever the window."""
        return tuple(one.view for one in self.devices) if self.window is None else device_views(self.read)

    @cached_property
    def graphs(self) -> NDArray[np.bool_]:
        return graph_calls(self.read)

    @cached_property
    def steps(self) -> dict[int, Steps | str]:
        return find_steps(self.read, self.options.steps)

    @cached_property
    def ranges(self) -> dict[int, Ranges]:
        bare = replace(self.read, ranges=unnumbered(self.read.ranges), modules=unnumbered(self.read.modules))
        return {found.device: found for found in range_table(bare, self.window)}

    @cached_property
    def layers(self) -> dict[int, tuple[LayerGroup, ...]]:
        return dict(layer_groups(self.read, self.window))

    @cached_property
    def times(self) -> dict[int, OperatorTimes]:
        return {found.device: found for found in operator_times([one.view for one in self.devices])}

    @cached_property
    def path(self) -> CriticalPath | str | None:
        """The critical path, or why there is none; `None` without device events or details."""
        if self.read.details is None or not len(self.read.device_events):
            return None
        try:
            return critical_path(self.read, self.window)
        except DataError as error:
            return str(error)

    @property
    def known_path(self) -> tuple[CriticalPath, ...]:
        return (self.path,) if isinstance(self.path, tuple) else ()

    @cached_property
    def communication(self) -> tuple[Communication, ...]:
        return communication((self.read,), (self.window,))

    @cached_property
    def memory(self) -> tuple[MemoryUse, ...]:
        return memory_use(self.read, self.window, MAX_POINTS)

    @cached_property
    def host(self) -> Operators | None:
        return None if len(self.read.device_events) else operators(self.read, self.window)


class DeviceFindings:
    """One device of a trace, and what is found on it in the chosen window: each thing once, when it is first asked for."""

    def __init__(self, of: TraceFindings, view: DeviceView) -> None:
        self.of, self.view, self.trace, self.device = of, view, of.trace, view.device

    @property
    def name(self) -> str:
        """Name of the device: its number, after the trace's label if there are several traces."""
        return f"device {self.device}" if self.of.only else f"{self.trace}, device {self.device}"

    @cached_property
    def account(self) -> Activity:
        return activity(self.view)

    @property
    def done(self) -> DeviceRow:
        return self.account.device

    @property
    def idle(self) -> "Iterator[IdleRow]":
        yield from (part_of(IdleRow, self, cause=cause, idle_ns=ns) for cause, ns in self.account.idle.items())

    @cached_property
    def launches(self) -> Launch:
        return Launch(self.view, self.of.graphs)

    @cached_property
    def kernels(self) -> KernelTable:
        return kernel_table(self.view, self.of.options.by)

    @property
    def hot(self) -> tuple[KernelRow, ...]:
        return tuple(row for row, _ in self.kernels)

    @cached_property
    def queues(self) -> tuple[QueueRow, ...]:
        return queues(self.view)

    @cached_property
    def gaps(self) -> Gaps:
        return Gaps(self.view)

    @property
    def steps(self) -> Steps | str:
        return self.of.steps[self.device]

    @property
    def ranges(self) -> Ranges:
        return self.of.ranges[self.device]

    @property
    def layers(self) -> tuple[LayerGroup, ...]:
        return self.of.layers[self.device]

    @property
    def times(self) -> OperatorTimes | None:
        return self.of.times.get(self.device)

    @property
    def peaks(self) -> DevicePeaks | None:
        return device_peaks(self.done.product) if self.done.product else None

    @cached_property
    def rates(self) -> tuple[tuple[OperatorRateRow, Roofline | None], ...]:
        return () if self.times is None else operator_rates(self.times, self.peaks)


def seen(study: TraceStudy) -> Sequence[TraceFindings]:
    """Return the traces of a study with what is found in them."""
    if not study.kept:
        study.kept.extend(TraceFindings(study, place) for place in range(len(study.traces)))
    return study.kept


def seen_devices(study: TraceStudy) -> list[DeviceFindings]:
    """Return every device that has events."""
    return [one for found in seen(study) for one in found.devices]


def on_devices(study: TraceStudy, kind: type[PartT], *names: str) -> tuple[Field[PartT], ...]:
    """Return the columns of a table about several devices: which one, and those of the rows, with shares of its times."""
    place: Callable[[Any], tuple[str, int]] = attrgetter("trace", "device")
    devices = {place(one): one for one in seen_devices(study)}
    which: Field[PartT] = Field("device", lambda row: devices[place(row)].name, Code)
    return (which, *columns(kind, *names, of=lambda row: devices[place(row)].done))


def _bad(value: int) -> Cell:
    return Text(str(value), "bad") if value else Count(0)


def _unlinked(row: "TraceFile") -> Cell:
    return share_cell(row.unlinked_events, row.device_events)


def _end(row: "TraceFile") -> Text:
    if row.truncated or row.lost:
        return Text("truncated" if row.truncated else "incomplete", "bad")
    return Text("complete")


class TraceFile(DocumentPart, frozen=True, kw_only=True):
    """One trace file that was read."""

    trace: A[str, col("label of the trace in every other table: its rank, or the name of the file", "trace", Code)]
    path: A[str, col("path of the file", "file", Code, get=lambda row: Path(row.path).name)]
    rank: A[int | None, col("rank of the process; null: not in the trace", "rank", Count)]
    world_size: A[int | None, col("number of processes of the job; null: not in the trace")]
    events: A[int, col("number of events read, of every category", "events", Count)]
    device_events: A[int, col("number of kernels, communication, memsets and copies", "device events", Count)]
    unlinked_events: A[int, term("device events whose launch call is not in the trace", "unlinked", Share, get=_unlinked)]
    lost: A[int, col("number of events that could not be read", "lost", _bad)]
    mended: A[int, term("number of events that were repaired to be read", "mended", _bad)]
    truncated: A[bool, col("true: the file ends in the middle of its JSON", "end", get=_end)]
    damage: A[tuple[str, ...], col("what the file says of events that cannot be, and what became of them, one sentence each")]
    foreign: A[str, col("whose profiler wrote the file and what that cannot say; empty: `torch.profiler`")]
    base_ns: A[int, col("nanoseconds since the Unix epoch that the trace's times are relative to; 0: no such offset")]
    window_start_ns: A[int | None, col("start of the chosen window; null: the whole trace")]
    window_end_ns: A[int | None, col("end of the chosen window; null: the whole trace")]


class IdleRow(OnDevice, frozen=True, kw_only=True):
    """Idle time of one device by cause; the causes add up to its idle time."""

    cause: A[str, term("cause of the idle time, e.g. `host_late`; docs/traces.md explains them", "idle because")]
    idle_ns: A[int, col("idle time with this cause", "time", ExactTime, of={"of idle": "idle_ns", "of span": "span_ns"})]
