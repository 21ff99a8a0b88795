"""Reads a chrome trace as `torch.profiler` writes it, or another profiler, into a `Trace`, exactly and in bounded memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from strobe.core.errors import DataError, TraceFormatError
from strobe.core.files import refused
from strobe.core.printable import first_of
from strobe.perf.trace import metadata
from strobe.perf.trace.chunks import EventCutter
from strobe.perf.trace.columns import nanoseconds, view
from strobe.perf.trace.events import DeviceEvents, HostEvent, HostEvents, ReadCounts, Region, Trace
from strobe.perf.trace.foreign import (
    CANNOT,
    MAGIC,
    REPORTS,
    ForeignDecoder,
    export_batches,
    export_metadata,
    opened_export,
    profiler_of,
)
from strobe.perf.trace.join import freeze_operators, host_events, join
from strobe.perf.trace.schema import Batch, Buffer, Decoder, Group, NameOf, names_of
from strobe.perf.trace.tables import (
    LONG_CALL_NS,
    DeviceTable,
    HostTable,
    InputTable,
    LaunchTable,
    MemoryColumns,
    OperatorTable,
    Times,
    add_memory,
    launches_nothing,
    memory_track,
    threads_of,
    times_of,
    waiting,
)

Report = Callable[[int, int, str], object]

_SUFFIXES: Final = (".json", ".json.gz", ".sqlite")
_READ: Final = (
    "read are torch.profiler (.json, .json.gz), JAX and XLA (.trace.json.gz), Ascend (trace_view.json) and Nsight Systems (the "
    "export `nsys export --type sqlite` of a report)"
)
NOTHING_RAN: Final = "no operator ran while the profiler recorded, or only in threads other than the one that started it"
CAPTURES: Final = ("capture_traces", "graph_capture_profile")
"""Folders of traces of the captures of graphs, as vLLM, SGLang and xDiT write them beside the traces of replays."""
_RANK: Final = re.compile(r"(?:rank_?|TP-)(?P<rank>\d+)")
_NUMBER: Final = re.compile(r"\d+")
_LISTED: Final = 6
_STEP: Final = "ProfilerStep#"
_SPAN: Final = re.compile(r"strobe::(?P<name>.+?)(?:#(?P<index>[0-9]{1,18}))?")
_MODULE: Final = "nn.Module: "
_COMM_OPERATOR: Final = "record_param_comms"
_COMPILED: Final = "Torch-Compiled Region"
_ALWAYS_READ: Final = (_COMM_OPERATOR.encode(), _COMPILED.encode())


def find_traces(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The trace files among files and folders: a folder gives every `*.json` and `*.json.gz` below it, in order of name.

    Those in folders of captures of graphs are left out where there are others: they are the keys to these.
    """
    found = list(dict.fromkeys(one for path in map(Path, paths) for one in _inside(path)))
    if not found:
        given = ", ".join(map(str, paths)) or "nothing"
        raise DataError(f"no trace in {given}; give .json or .json.gz files as torch.profiler writes them, or folders of them")
    return tuple([path for path in found if not _of_capture(path)] or found)


def _inside(path: Path) -> list[Path]:
    return sorted(one for one in path.rglob("*") if one.name.endswith(_SUFFIXES) and one.is_file()) if path.is_dir() else [path]


def _of_capture(path: Path) -> bool:
    return path.parent.name in CAPTURES


def captures_of(trace: Trace, paths: Sequence[Path] = ()) -> tuple[Path, ...]:
    """The traces of captures among files and folders and beside a trace: those of its rank, if their names tell it.

    Those whose name has a number that ranges of the trace have too, such as the batch size of its steps, come first.
    """
    beside = (folder for name in CAPTURES if (folder := trace.path.parent / name).is_dir())
    every = (path for place in (*paths, *beside) for path in _inside(place))
    found = [path for path in dict.fromkeys(every) if _of_capture(path) and path != trace.path]
    rank = None if trace.rank is None else str(trace.rank)
    told = {path: one["rank"] for path in found if (one := _RANK.search(path.name))}
    mine = [path for path in found if rank is None or told.get(path, rank) == rank]
    numbers = set(_NUMBER.findall(" ".join(trace.ranges.names)))
    return tuple(sorted(mine or found, key=lambda path: numbers.isdisjoint(_NUMBER.findall(_RANK.sub("", path.name)))))


def read_trace(
    path: str | Path, *, ops: bool = True, shapes: bool = False, details: bool = False, progress: Report | None = None
) -> Trace:
    """Read a profiler trace: `.json` or `.json.gz` of `torch.profiler`, JAX or Ascend, or `.sqlite` of Nsight Systems.

    A truncated or partly malformed file is read as far as possible; `Trace.counts` says what was bad.

    Memory is some 110 MB plus at most 72 bytes per device event, 24 per range and module call, and 24 to 48 per operator.

    Args:
        ops: keep the host operators. Without it they are kept only if there are no device events; the file is read twice then.
        shapes: describe a device event by the input sizes of its operator where they were recorded, and add up the time of
            operators whose cost follows from them.
        details: keep the host operators with what they were given, the calls that wait for a device, and the launches that no
            device event answers to, as those that are captured into a graph.
        progress: called with the bytes read so far, all bytes and the name of the file.

    Raises:
        TraceFormatError: the file cannot be opened, is not a trace, or has no readable event.
    """
    path = Path(path)
    if path.name.endswith(REPORTS):
        raise TraceFormatError(
            f"{path} is a report of Nsight Systems; export it with `nsys export --type sqlite`, and give the export"
        )
    contents = _Contents(ops=ops, shapes=shapes, details=details)
    trace = _read(path, contents, progress)
    if profiler_of(names_of(contents.names)[0].values()):
        contents = _Contents(ops=ops, shapes=shapes, details=details, names=contents.names)
        trace = _read(path, contents, progress)
    if not (ops or details) and not len(trace.device_events):
        contents = _Contents(ops=True, shapes=shapes, details=False, names=contents.names)
        trace = _read(path, contents, progress)
    if contents.useless(trace):
        raise TraceFormatError(f"{path}: {_nothing_used(contents, trace.counts)}")
    return trace


def _nothing_used(contents: _Contents, counts: ReadCounts) -> str:
    seen = [f"{count} of {repr(name) if name else 'no category'}" for name, count in contents.unused.most_common()]
    processes = list(dict.fromkeys(names_of(contents.names)[0].values()))
    if processes and not seen:  # what a profiler writes around its events
        return f"it has no operator, range or device event; {NOTHING_RAN}"
    called = f"; its processes are called {first_of([*map(repr, processes)], _LISTED)}" if processes else ""
    found = f": {first_of(seen, _LISTED, 'categories')}" if seen else ""
    return f"none of its {counts.events} events is one that is read{found}{called}; {_READ}"


def _read(path: Path, contents: _Contents, progress: Report | None) -> Trace:
    try:
        with path.open("rb") as file:
            total, head = path.stat().st_size, file.read(len(MAGIC))
            if head == MAGIC:
                return _read_export(path, contents)
            if why := refused(head):
                raise TraceFormatError(why)
            file.seek(0)
            state = EventCutter(file, contents.decoder_for)
            for batch in state.batches():
                contents.add(batch)
                if progress is not None:
                    progress(min(file.tell(), total), total, path.name)
    except OSError as error:
        raise TraceFormatError(f"cannot read trace {path}: {error.strerror or error}") from error
    except TraceFormatError as error:
        raise TraceFormatError(f"{path}: {error}") from error
    mistyped, garbled = contents.mistyped, state.lost - contents.mistyped - state.trailing
    reasons = {"no JSON": garbled, "a field of a wrong type": mistyped, "no number as its time": contents.lost}
    counts = ReadCounts(
        events=contents.events - contents.lost - mistyped,
        lost=state.lost + contents.lost,
        trailing=state.trailing,
        reasons={reason: count for reason, count in reasons.items() if count},
        mended=state.mended + contents.mended,
        unused=dict(contents.unused.most_common()),
        truncated=state.truncated,
    )
    if counts.lost and not counts.events:
        raise TraceFormatError(f"{path}: none of its {counts.lost} events can be read; capture the trace again")
    try:
        return contents.trace(path, state.metadata, counts)
    except TraceFormatError as error:
        raise TraceFormatError(f"{path}: {error}") from error


def _read_export(path: Path, contents: _Contents) -> Trace:
    with opened_export(path) as rows:
        found = export_metadata(rows)
        for batch in export_batches(rows):
            contents.add(batch)
    contents.cannot = CANNOT
    read = contents.events - contents.lost
    return contents.trace(path, found, ReadCounts(events=read, lost=contents.lost, mended=contents.mended))


class _Contents:
    """Tables of the events kept, until `trace` sorts and joins them. With names it is the trace of another profiler."""

    def __init__(self, *, ops: bool, shapes: bool, details: bool, names: Sequence[NameOf] = ()) -> None:
        self.events = self.lost = self.mended = self.mistyped = 0
        self.names, self.unused, self.cannot = list[NameOf](), Counter[str](), ""
        self._keep_ops, self._keep_sizes = ops or details, shapes
        self._details = OperatorTable() if details else None
        wanted = set(Group)
        self._with_ops, self._without_ops = Decoder(wanted), Decoder(wanted - {Group.OP})
        if profiler_of(names_of(names)[0].values()):
            foreign = ForeignDecoder(names, wanted)
            self._with_ops = self._without_ops = foreign
            self.names, self.cannot = list(names), foreign.cannot
        self._ops: HostTable = self._details or HostTable()
        self._ranges, self._modules, self._waits = HostTable(), HostTable(), HostTable()
        self._launches = LaunchTable(kernels=details)
        self._long_calls = HostTable(LONG_CALL_NS)
        self._devices = DeviceTable(linked=shapes or details)
        self._sizes = InputTable()
        self._memory: MemoryColumns = {}
        self._overheads: list[HostEvent] = []
        self._window_end: int | None = None

    def decoder_for(self, piece: Buffer) -> Decoder:
        """Operators are built only where they are kept, say something of collectives, or are compiled regions."""
        if self._keep_ops or self._keep_sizes:
            return self._with_ops
        text = bytes(piece)
        return self._with_ops if any(name in text for name in _ALWAYS_READ) else self._without_ops

    def add(self, batch: Batch) -> None:
        self.events += batch.events
        self.mistyped += batch.mistyped
        self.names += batch.names
        self.unused += batch.unused
        for group in (Group.KERNEL, Group.MEMCPY, Group.MEMSET):
            if batch.of[group]:
                self._devices.add(group, self._times(batch.of[group]))
        self._launches.add(self._times(self._launches.worth(batch.of[Group.LAUNCH])))
        self._long_calls.add(times_of(launches_nothing(batch.of[Group.LAUNCH])))
        if self._details is not None:
            self._waits.add(times_of(waiting(batch.of[Group.LAUNCH])))
        self._ranges.add(self._times(batch.of[Group.RANGE]))
        modules = [frame for frame in batch.of[Group.FRAME] if frame.name.startswith(_MODULE)]
        for module in modules:
            module.name = module.name.removeprefix(_MODULE)
        self._modules.add(self._times(modules))
        self._add_operators([*batch.of[Group.OP], *batch.of[Group.OLD_OP]] if self._keep_ops else batch.of[Group.OP])
        steps = [one for one in batch.of[Group.OLD_OP] if one.name.startswith(_STEP)]
        self._ranges.add(times_of(steps) if self._keep_ops else self._times(steps))  # what is bad counts once
        overhead = self._times(batch.of[Group.OVERHEAD])
        ends = (overhead.start + overhead.duration).tolist()
        for event, start, end in zip(overhead.events, overhead.start.tolist(), ends, strict=True):
            self._overheads.append(HostEvent(event.name, start, end, 0))
        self.lost += add_memory(self._memory, batch.of[Group.MEMORY])
        for event in batch.of[Group.WINDOW_END]:
            try:
                self._window_end = max(nanoseconds(bytes(event.ts)), self._window_end or 0)
            except ValueError:
                self.lost += 1

    def _times(self, events: Sequence[Any]) -> Times:
        times = times_of(events)
        self.lost += times.lost
        self.mended += times.mended
        return times

    def _add_operators(self, operators: Sequence[Any]) -> None:
        compiled = []
        for operator in operators:
            if operator.name == _COMM_OPERATOR and operator.args is not None:
                self._devices.add_operator(operator.args)
            elif operator.name.startswith(_COMPILED):
                compiled.append(operator)
        if self._keep_sizes:
            self._sizes.add(operators)
        if self._keep_ops:
            self._ops.add(self._times(operators))
        self._ranges.add(times_of(compiled) if self._keep_ops else self._times(compiled))  # what is bad counts once

    def useless(self, trace: Trace) -> bool:
        """Return whether the file has events and none of them is one that says anything here."""
        tables = (trace.device_events, trace.ops, trace.ranges, trace.modules, trace.launched, trace.memory, trace.overheads)
        return bool(self.unused or self.names) and not trace.counts.truncated and not any(len(table) for table in tables)

    def trace(self, path: Path, found: metadata.Metadata, counts: ReadCounts) -> Trace:
        threads = threads_of((self._ops, self._ranges, self._modules, self._launches, self._waits, self._long_calls))
        joined, operator, once = join(path, self._devices, self._launches, self._sizes, threads)
        ranges = host_events(self._ranges, threads, once=once)
        ops, details = (
            (host_events(self._ops, threads, once=once), None)
            if self._details is None
            else freeze_operators(self._details, threads, operator, once=once)
        )
        rank, world_size = metadata.job(found)
        return replace(
            joined,
            base_ns=metadata.base_ns(found),
            rank=rank,
            world_size=world_size,
            devices=_numbered(metadata.devices(found), joined.device_events),
            metadata=metadata.facts(found),
            counts=counts,
            ops=ops,
            regions=tuple(_regions(ranges)),
            ranges=ranges,
            modules=host_events(self._modules, threads, once=once),
            details=details,
            waits=host_events(self._waits, threads, once=once),
            long_calls=host_events(self._long_calls, threads, once=once),
            memory=tuple(memory_track(device, *map(view, each)) for device, each in sorted(self._memory.items())),
            overheads=HostEvents.from_rows(sorted(self._overheads, key=lambda one: (one.start_ns, -one.end_ns, one.name))),
            window_end_ns=self._window_end,
            foreign=self.cannot,
        )


def _numbered(devices: Mapping[int, str], events: DeviceEvents) -> Mapping[int, str]:
    """An only device gets the number that all device events carry: AMD lists GPUs from 0 but numbers processors first."""
    used = {number for number in set(events.device) if number >= 0}
    return dict(zip(used, devices.values(), strict=True)) if len(devices) == len(used) == 1 else devices


def _regions(ranges: HostEvents) -> Iterable[Region]:
    matches = [_SPAN.fullmatch(name) for name in ranges.names]
    for name, start, end, thread in zip(ranges.name, ranges.start_ns, ranges.end_ns, ranges.thread, strict=True):
        match = matches[name]
        if match:
            index = None if match["index"] is None else int(match["index"])
            yield Region(name=match["name"], index=index, start_ns=start, end_ns=end, thread=thread)
