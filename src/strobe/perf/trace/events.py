"""A profiler trace as frozen columns. Times are integer nanoseconds relative to `Trace.base_ns`."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Self

from strobe.perf.trace.columns import narrow

DEVICE_KINDS: Final = ("kernel", "comm", "memset", "memcpy")
NO_HOST: Final = -1
"""Value of `DeviceEvents.host` where the trace does not hold the launch call."""
NO_CORRELATION: Final = -2
"""Value of `DeviceEvents.host` where the event carries no correlation, so that its call cannot be found."""
OF_KERNEL: Final = "\x1f"
"""Separator between the name of a launch call and that of the kernel it says it launches."""


class HostEvent(NamedTuple):
    """An operator or a launch call on a host thread; `thread` counts into `Trace.threads`."""

    name: str
    start_ns: int
    end_ns: int
    thread: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """One of our spans: `strobe::frame_block#3` is `name="frame_block", index=3`."""

    name: str
    index: int | None
    start_ns: int
    end_ns: int
    thread: int


class DeviceEvent(NamedTuple):
    """Work on an accelerator.

    `kind` is one of `DEVICE_KINDS`. `host` is the call that launched it, found by correlation; `None` means that the trace does
    not hold it (unlinked): it lies before the recorded window, or the event carries no correlation. `ordinal` counts the events
    of one call in order of start: a graph launch has many. `device` and `stream` are the numbers in the trace; -1 where it has
    none; stream numbers beyond 32 bits become -2, -3, ... `shape` says what one call of that name was launched with, as text: the
    input sizes of its operator if they were recorded and asked for, else grid and block, or the bytes of a copy; empty where the
    trace says nothing.
    """

    name: str
    kind: str
    start_ns: int
    end_ns: int
    device: int
    stream: int
    ordinal: int
    host: HostEvent | None
    shape: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostEvents:
    """Column store of `HostEvent` rows, in order of start (an enclosing event before what it encloses)."""

    names: tuple[str, ...]
    name: array[int]
    start_ns: array[int]
    end_ns: array[int]
    thread: array[int]

    @classmethod
    def from_rows(cls, rows: Iterable[HostEvent]) -> Self:
        """Store rows that are already in order of start."""
        names, name, thread = dict[str, int](), list[int](), list[int]()
        start, end = array("q"), array("q")
        for row in rows:
            name.append(names.setdefault(row.name, len(names)))
            start.append(row.start_ns)
            end.append(row.end_ns)
            thread.append(row.thread)
        return cls(names=tuple(names), name=narrow(name), start_ns=start, end_ns=end, thread=narrow(thread))

    @classmethod
    def empty(cls) -> Self:
        return cls.from_rows(())

    def __len__(self) -> int:
        return len(self.start_ns)

    def __getitem__(self, position: int) -> HostEvent:
        return HostEvent(self.names[self.name[position]], self.start_ns[position], self.end_ns[position], self.thread[position])

    def __iter__(self) -> Iterator[HostEvent]:
        return map(self.__getitem__, range(len(self)))


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceEvents:
    """Column store of `DeviceEvent` rows, in order of start. The launch calls are stored once, in `hosts`.

    Times are 8 bytes, launch calls 4, every other column as few as hold its values: in a usual trace 27 bytes an event and 18 a
    launch call. `np.asarray(column)` views a column without a copy, in the type it has: widen it before calculating.
    """

    names: tuple[str, ...]
    shapes: tuple[str, ...]
    hosts: HostEvents
    name: array[int]
    kind: array[int]
    start_ns: array[int]
    end_ns: array[int]
    device: array[int]
    stream: array[int]
    ordinal: array[int]
    host: array[int]
    shape: array[int]

    def __len__(self) -> int:
        return len(self.start_ns)

    def __getitem__(self, position: int) -> DeviceEvent:
        host = self.host[position]
        return DeviceEvent(
            self.names[self.name[position]],
            DEVICE_KINDS[self.kind[position]],
            self.start_ns[position],
            self.end_ns[position],
            self.device[position],
            self.stream[position],
            self.ordinal[position],
            None if host < 0 else self.hosts[host],
            self.shapes[self.shape[position]],
        )

    def __iter__(self) -> Iterator[DeviceEvent]:
        return map(self.__getitem__, range(len(self)))


class CollectiveKind(NamedTuple):
    """What equal collectives share, as their communication kernels say it; -1 or empty where they give no value.

    Args:
        name: such as `allreduce`.
        group: the process group's name.
        ranks: its ranks, as far as the trace lists them.
    """

    name: str = ""
    group: str = ""
    ranks: tuple[int, ...] = ()
    in_elements: int = -1
    out_elements: int = -1
    dtype: str = ""


class OperatorInputs(NamedTuple):
    """Inputs of calls of one operator.

    Args:
        text: the sizes as text, such as `64x32, 32x16`; empty where none were recorded.
        name: of the operator, where its cost follows from the inputs; else empty.
        sizes: of each operand, empty for one that is no tensor.
        types: of each operand as written, such as `c10::BFloat16`.
        values: of each operand that is a number or a flag, as written; empty texts for the others. Kept with `name` only.
    """

    text: str
    name: str = ""
    sizes: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorFacts:
    """Inputs and autograd facts of the operators in `Trace.ops`; all columns but the last have one value per operator.

    Args:
        inputs: the distinct inputs.
        given: position among `inputs`, -1 without recorded inputs.
        sequence: number that autograd gave to a forward operator and to the backward node that answers it; -1 without one.
        backward: 1 for an operator that autograd ran on behalf of a forward one.
        of_event: by device event, the operator that the profiler says launched it; -1 where it names none that is in the trace.
    """

    inputs: tuple[OperatorInputs, ...]
    given: array[int]
    sequence: array[int]
    backward: array[int]
    of_event: array[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryTrack:
    """Memory of one device over time, thinned so that no peak is lost: the largest values in each stretch of time.

    Args:
        device: `cuda:0`, `cpu`.
        start_ns: start of each stretch in which something was recorded, ascending; all stretches are `step_ns` long.
        allocated_bytes: largest allocated memory in it.
        reserved_bytes: largest memory held by the allocator in it; 0 where not recorded.
    """

    device: str
    step_ns: int
    start_ns: tuple[int, ...]
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadCounts:
    """Counts of events read, lost and mended.

    Args:
        events: events read, of every category.
        lost: events that could not be read at all, and brackets that close the list of events before its end.
        trailing: of the lost events, those that stand behind the end of the JSON, as where two files were put into one.
        reasons: why events were lost, with their number; those behind the end have none.
        mended: events kept after something in them was replaced: a control character, bad UTF-8, a stray backslash, a negative
            duration (now 0); and parts of the metadata that are broken.
        unused: events of a category that is not read, by category; those without one under the empty text.
        truncated: the file ends before its JSON does, or its packed bytes are damaged.
    """

    events: int = 0
    lost: int = 0
    trailing: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    mended: int = 0
    unused: Mapping[str, int] = field(default_factory=dict)
    truncated: bool = False

    @property
    def clean(self) -> bool:
        return not (self.lost or self.mended or self.truncated)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """One trace file of one process.

    Args:
        path: where it was read from.
        label: what tables call it; empty until a report names it.
        base_ns: nanoseconds since the epoch that every time here is relative to (0 in old traces, whose times are absolute).
        rank: rank of the process, where the trace says it.
        world_size: processes of the job, where the trace says it.
        devices: by the number that device events carry, the product of each accelerator that the trace lists; empty without one.
        metadata: further top-level facts as text, such as versions and `with_stack`.
        counts: how the reading went.
        threads: `pid/tid` of each host thread, sorted; `thread` fields count into it.
        ops: operators of every host thread; empty unless they were asked for.
        regions: our spans, in order of start, an enclosing region before what it encloses.
        ranges: every `record_function` range of the host under its own name, ours and `ProfilerStep#N` too, and the calls of what
            `torch.compile` compiled (`Torch-Compiled Region: 0/0`), which are among the operators in the trace.
        modules: calls of `nn.Module`s (`nn.Module: Linear_3` in the trace is `Linear_3` here); empty without Python frames.
        device_events: kernels, communication, memsets and copies; empty for a CPU trace.
        module_paths: by position among the device events, the module path or label that a graph's kernel carries
            (`module_fqn`, or what `mark_kernels` was given).
        collectives: by position among the device events, what a communication kernel says of itself, and its number in its group,
            which is equal on all ranks that meet; -1 where the trace has none.
        operators: inputs of operators whose cost follows from them, with the sum of the durations of their device events, ns;
            empty unless shapes were asked for, and recorded.
        details: what `ops` say of themselves; `None` unless they were asked for.
        waits: calls that wait for a device (`cudaStreamSynchronize`), in order of start; empty unless details were asked for.
        long_calls: calls of the host that launch nothing and last 20 us or more (`cudaMalloc`, `cuModuleLoadData`, waits),
            in order of start.
        memory: one track per device whose allocations were recorded.
        overheads: when the profiler, or the loading of a kernel that it watches, held up the host, in order of start; their
            threads say nothing.
        launched: launch calls by name: how many there were, and how many of them no device event answers to. Calls whose name
            speaks of no launch, copy or memset are counted only where one of that name was answered.
        unanswered: the launch calls that no device event answers to, as while a graph is captured, with the calls that begin and
            end a capture, in order of start; one that says which kernel it launches has that behind its name and `OF_KERNEL`.
            Empty unless details were asked for.
        window_end_ns: end of the recorded window, where the trace says it.
        foreign: for a trace of another profiler than `torch.profiler`: whose it is, and what it cannot say.
        damage: what the trace says that cannot be, and what became of it: times that are wrong, events written twice.
    """

    path: Path
    label: str = ""
    base_ns: int = 0
    rank: int | None = None
    world_size: int | None = None
    devices: Mapping[int, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    counts: ReadCounts = ReadCounts()
    threads: tuple[str, ...]
    ops: HostEvents
    regions: tuple[Region, ...]
    ranges: HostEvents = field(default_factory=HostEvents.empty)
    modules: HostEvents = field(default_factory=HostEvents.empty)
    device_events: DeviceEvents
    module_paths: Mapping[int, str] = field(default_factory=dict)
    collectives: Mapping[int, tuple[CollectiveKind, int]] = field(default_factory=dict)
    operators: tuple[tuple[OperatorInputs, int], ...] = ()
    details: OperatorFacts | None = None
    waits: HostEvents = field(default_factory=HostEvents.empty)
    long_calls: HostEvents = field(default_factory=HostEvents.empty)
    memory: tuple[MemoryTrack, ...] = ()
    overheads: HostEvents = field(default_factory=HostEvents.empty)
    launched: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    unanswered: HostEvents = field(default_factory=HostEvents.empty)
    window_end_ns: int | None = None
    foreign: str = ""
    damage: tuple[str, ...] = ()
