"""Tables of host and device events, and of memory, while a trace is read, in the order of the file."""

from __future__ import annotations

import re
from array import array
from collections.abc import Container, Hashable, Iterable, Sequence
from functools import lru_cache
from itertools import compress
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from strobe.perf.trace.columns import LIMIT, Flags, GrowingColumn, Integers, column_ns, different
from strobe.perf.trace.events import DEVICE_KINDS, OF_KERNEL, CollectiveKind, MemoryTrack, OperatorInputs
from strobe.perf.trace.schema import MEMORY_NAME, UNREADABLE, CommArgs, DeviceArgs, Group, MemoryArgs, Number, OpArgs

NOTHING: Final = -1
COSTED: Final = frozenset(
    f"aten::{name}"
    for name in (
        "mm", "addmm", "bmm", "baddbmm",
        "_flash_attention_forward", "_efficient_attention_forward", "_scaled_dot_product_cudnn_attention",
    )
)  # fmt: skip
"""Operators whose FLOPs and bytes follow from their inputs."""
_LAUNCHES_NOTHING: Final = re.compile(
    r"(?=\w++\Z)(?!.*(?:Launch|Memcpy|Memset))(?:cuda|cu|hip|ze|ur)\w*?"
    r"(?:Get|Query|Synchronize|Event|IsCapturing|Peek|Occupancy|CallConfiguration|SetDevice)\w*"
)
_SPEAKS_OF_WORK: Final = re.compile(r"launch|memcpy|memset", re.IGNORECASE)
LONG_CALL_NS: Final = 20_000
_DIGITS: Final = re.compile(r"[0-9]{1,18}")


class Times(NamedTuple):
    """Events with their times; events without a usable time are left out."""

    events: Sequence[Any]
    start: Integers
    duration: Integers
    lost: int
    mended: int


def times_of(events: Sequence[Any]) -> Times:
    """Return the times of complete events: unreadable ones are dropped, negative durations become 0."""
    events = [event for event in events if event.ph == "X"]
    start, bad = column_ns([event.ts for event in events])
    duration, bad_duration = column_ns([event.dur for event in events])
    bad |= bad_duration
    if lost := int(bad.sum()):
        events = [event for event, is_bad in zip(events, bad.tolist(), strict=True) if not is_bad]
        start, duration = start[~bad], duration[~bad]
    negative: Flags = duration < 0
    duration[negative] = 0
    return Times(events, start, duration, lost, int(negative.sum()))


Call = tuple[str, Number, Number]
"""Key of the calls of one name on one host thread: name, process and thread as written."""


class HostTable:
    """Events of host threads: 16 bytes each.

    Args:
        least_ns: shorter ones are not kept.
    """

    def __init__(self, least_ns: int = 0) -> None:
        self._least_ns = least_ns
        self.calls: dict[Call, int] = {}
        self.call, self.start, self.duration = GrowingColumn(), GrowingColumn("q"), GrowingColumn()

    def add(self, times: Times) -> None:
        if self._least_ns:
            some = times.duration >= self._least_ns
            events = list(compress(times.events, some.tolist()))
            times = times._replace(events=events, start=times.start[some], duration=times.duration[some])
        calls = ((event.name, event.pid, event.tid) for event in times.events)
        self.call.extend([self.calls.setdefault(call, len(self.calls)) for call in calls])
        self.start.extend(times.start)
        self.duration.extend(times.duration)


class LaunchTable(HostTable):
    """Calls that may have launched device work: 20 bytes each.

    Args:
        kernels: a call is named with the kernel that it says it launches, behind `OF_KERNEL`.
    """

    def __init__(self, kernels: bool = False) -> None:
        super().__init__()
        self.correlation = GrowingColumn()
        self.kernels = kernels

    def worth(self, events: Sequence[Any]) -> list[Any]:
        """Return the calls to keep: with a correlation (0 is none) and a name not known to launch nothing."""
        named = [event for event in events if _may_launch(event.name) and event.args]
        return list(compress(named, (integers([event.args.correlation for event in named]) > 0).tolist()))

    def add(self, times: Times) -> None:
        for event in times.events if self.kernels else ():
            if type(event.args.kernel) is str:
                event.name = f"{event.name}{OF_KERNEL}{event.args.kernel}"
        super().add(times)
        self.correlation.extend(integers([event.args.correlation for event in times.events]))


def launches_nothing(events: Sequence[Any]) -> list[Any]:
    """Return the calls whose name speaks of no launch, copy or memset."""
    return [event for event in events if not _SPEAKS_OF_WORK.search(event.name)]


@lru_cache(maxsize=1 << 12)
def _may_launch(name: str) -> bool:
    return not _LAUNCHES_NOTHING.fullmatch(name)


Threads: TypeAlias = dict[tuple[Number, Number], str]
"""Names of host threads, `pid/tid`, by process and thread as written."""


def threads_of(tables: Iterable[HostTable]) -> Threads:
    """Return the host threads of some tables."""
    calls = (call for table in tables for call in table.calls)
    return {call[1:]: "/".join("" if part is None else str(part) for part in call[1:]) for call in calls}


class InputTable:
    """Distinct inputs of operators, numbered as they come, and those of some operators: 8 bytes for each.

    Args:
        priced: operators whose numbers and flags are kept, besides sizes and types.
        typed: keep the sizes and types of all others too, and not their sizes as text alone.
    """

    def __init__(self, priced: Container[str] = COSTED, *, typed: bool = False) -> None:
        self.distinct: dict[OperatorInputs, int] = {}
        self.operator, self.text = GrowingColumn(), GrowingColumn()
        self._priced, self._typed = priced, typed
        self._known: dict[tuple[str | bytes, ...], int] = {}

    def add(self, events: Sequence[Any]) -> None:
        """Keep the inputs of operators that have sizes."""
        numbers = [(operator_of(event.args), self.number_of(event)) for event in events if event.args is not None]
        kept = [pair for pair in numbers if min(pair) >= 0]
        self.operator.extend([operator for operator, _ in kept])
        self.text.extend([text for _, text in kept])

    def number_of(self, event: Any) -> int:
        """Return the number of an operator's inputs, or -1 where none were recorded."""
        if event.args is None or not (written := bytes(event.args.sizes)):
            return NOTHING
        priced = event.name in self._priced
        key: tuple[str | bytes, ...] = (written,)
        if priced or self._typed:
            key += (bytes(event.args.types),)
        if priced:
            key += (event.name, bytes(event.args.values))
        known = self._known.get(key)
        if known is None:
            found = self._inputs_of(event, priced)
            known = self._known[key] = self.distinct.setdefault(found, len(self.distinct)) if found.text else NOTHING
        return known

    def _inputs_of(self, event: Any, priced: bool) -> OperatorInputs:
        sizes = bytes(event.args.sizes)
        text = sizes_text(sizes)
        if not text or not (priced or self._typed):
            return OperatorInputs(text)
        types = texts_of(event.args.types)
        if not priced:
            return OperatorInputs(text, "", _shapes(sizes), types)
        return OperatorInputs(text, event.name, _shapes(sizes), types, texts_of(event.args.values))


def _shapes(sizes: bytes) -> tuple[tuple[int, ...], ...]:
    operands = [part if isinstance(part, list) else [] for part in msgspec.json.decode(sizes)]
    return tuple(tuple(part) if all(isinstance(size, int) for size in part) else () for part in operands)


def texts_of(written: msgspec.Raw) -> tuple[str, ...]:
    """Return the items of a list as texts; none if it is no list."""
    try:
        found = msgspec.json.decode(bytes(written)) if bytes(written) else ()
    except UNREADABLE:
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()


def integers(values: Sequence[float | str | None]) -> Integers:
    """Convert each value as `integer` does."""
    if set(map(type, values)) <= {int}:
        try:
            column = np.array(values, np.int64)
        except OverflowError:
            pass
        else:
            column[(column < 0) | (column >= LIMIT)] = NOTHING
            return column
    return np.array([integer(value) for value in values], np.int64)


def integer(value: float | str | None) -> int:
    """Parse a natural number below 2**62; -1 if it is none."""
    if isinstance(value, str):
        value = int(value) if _DIGITS.fullmatch(value) else NOTHING
    return value if isinstance(value, int) and 0 <= value < LIMIT else NOTHING


def operator_of(args: CommArgs) -> int:
    """Return the number of the host operator that an event belongs to, or -1."""
    return integer(args.external if args.external is not None else args.external_old)


def sizes_text(sizes: bytes, *, outer: bool = True) -> str:
    """Format sizes `[[1, 512], [], [[4, 1], [4, 8]]]` as `1x512, (4x1, 4x8)`; empty if they are no such list.

    Args:
        outer: the outermost list is one of operands, not of sizes.
    """
    try:
        value = msgspec.json.decode(sizes) if sizes else None
    except UNREADABLE:
        return ""
    if not isinstance(value, list):
        return ""
    return ", ".join(filter(None, map(_operand, value))) if outer else _operand(value)


def _operand(value: object) -> str:
    if not isinstance(value, list) or not value:
        return ""
    if all(isinstance(size, int) for size in value):
        return "x".join(map(str, value))
    inner = ", ".join(filter(None, map(_operand, value)))
    return f"({inner})" if inner else ""


_COMMUNICATION: Final = re.compile(
    r"nccl|rccl|^hccl::|cross_device_reduce|(?:one|two)_?shot_all_?reduce|multimem_all_?(?:reduce|gather)", re.IGNORECASE
)
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_MAX_DEVICE: Final = (1 << 15) - 1
_MAX_STREAM: Final = (1 << 31) - 1
_KINDS: Final = {Group.KERNEL: "kernel", Group.MEMCPY: "memcpy", Group.MEMSET: "memset"}
_NO_ARGS: Final = DeviceArgs()
_COMMUNICATES: Final = 1


class EventKind(NamedTuple):
    """Properties shared by device events of one kind."""

    name: str
    kind: int
    device: int
    stream: int
    shape: str


class DeviceTable:
    """Device events: 20 bytes each, 4 more with the operator they belong to (`linked`); more for collectives and module paths."""

    def __init__(self, linked: bool) -> None:
        self.works: dict[EventKind, int] = {}
        self.start = GrowingColumn("q")
        self.work, self.duration, self.correlation, self.operator = (GrowingColumn() for _ in range(4))
        self.paths: dict[int, str] = {}
        self._texts: dict[str, str] = {}
        self._linked = linked
        self._known: dict[Group, dict[tuple[Hashable, ...], int]] = {group: {} for group in _KINDS}
        self._odd_streams: dict[int, int] = {}
        self._kinds: dict[CollectiveKind, CollectiveKind] = {}
        self._of_event: dict[int, tuple[CollectiveKind | None, int, int]] = {}
        self._of_operator: dict[int, tuple[CollectiveKind | None, int]] = {}

    def add(self, group: Group, times: Times) -> None:
        """Keep events of one group."""
        first, all_args = len(self.work), [event.args or _NO_ARGS for event in times.events]
        works = self._works(group, times.events, all_args)
        for row in np.flatnonzero(works & _COMMUNICATES).tolist():
            self._of_event[first + row] = (*self._said(all_args[row]), operator_of(all_args[row]))
        paths = [args.module_path or args.mark or args.label or args.annotation for args in all_args]
        if paths.count(None) < len(paths):
            texts = {first + row: str(path) for row, path in enumerate(paths) if path is not None}
            self.paths |= {event: self._texts.setdefault(text, text) for event, text in texts.items()}
        self.work.extend(works >> 1)
        self.start.extend(times.start)
        self.duration.extend(times.duration)
        correlation = integers([args.correlation for args in all_args])
        correlation[correlation == 0] = NOTHING  # what a profiler writes that has none
        self.correlation.extend(correlation)
        if self._linked:
            self.operator.extend([operator_of(args) for args in all_args])

    def add_operator(self, args: CommArgs) -> None:
        """Keep what a host operator says of the collective that it starts."""
        if (number := operator_of(args)) >= 0:
            self._of_operator[number] = self._said(args)

    def _said(self, args: CommArgs) -> tuple[CollectiveKind | None, int]:
        """Return what is said of a collective, if anything, and its number in the sequence, or -1."""
        texts = (args.collective, args.group, args.ranks, args.dtype)
        name, group, listed, dtype = ("" if text is None else str(text) for text in texts)
        ranks = tuple(map(int, _NUMBER.findall(listed)))
        said = CollectiveKind(name, group, ranks, integer(args.in_elements), integer(args.out_elements), dtype)
        return (self._kinds.setdefault(said, said) if name else None), integer(args.sequence)

    def collectives(self) -> dict[int, tuple[CollectiveKind, int]]:
        """Return each collective and its number in the sequence; what a kernel does not say is its operator's word."""
        found = {}
        for event, (kind, sequence, operator) in self._of_event.items():
            other, other_sequence = self._of_operator.get(operator, (None, NOTHING))
            found[event] = (kind or other or CollectiveKind(), other_sequence if sequence < 0 else sequence)
        return found

    def _works(self, group: Group, events: Sequence[Any], all_args: Sequence[DeviceArgs]) -> Integers:
        """Return twice the number of each event's kind of work, and 1 more if it is communication."""
        known, found = self._known[group], list[int]()
        for event, args in zip(events, all_args, strict=True):
            key: tuple[Hashable, ...] = (
                event.name, args.device, args.stream, bytes(args.grid), bytes(args.block), args.bytes, args.collective is None,
            )  # fmt: skip
            if args.device is None or args.stream is None:
                key += (event.pid, event.tid)
            work = known.get(key)
            if work is None:
                work = known[key] = self._new(group, event, args)
            found.append(work)
        return np.array(found, np.int64)

    def _new(self, group: Group, event: Any, args: DeviceArgs) -> int:
        """Return twice the number of a kind of work seen for the first time, and 1 more if it is communication."""
        communicates = group is Group.KERNEL and (args.collective is not None or _COMMUNICATION.search(event.name) is not None)
        device, stream = (
            own if own >= 0 else other
            for own, other in ((integer(args.device), integer(event.pid)), (integer(args.stream), integer(event.tid)))
        )
        if device > _MAX_DEVICE:
            device = NOTHING
        if stream > _MAX_STREAM:  # keeps them apart
            stream = NOTHING - 1 - self._odd_streams.setdefault(stream, len(self._odd_streams))
        kind = DEVICE_KINDS.index("comm" if communicates else _KINDS[group])
        work = EventKind(event.name, kind, device, stream, _launch_shape(args))
        return 2 * self.works.setdefault(work, len(self.works)) + communicates


def _launch_shape(args: DeviceArgs) -> str:
    grid, block = (sizes_text(bytes(part), outer=False) for part in (args.grid, args.block))
    if grid:
        return f"grid {grid} block {block}" if block else f"grid {grid}"
    size = integer(args.bytes)
    return f"{size} B" if size >= 0 else ""


MAX_STRETCHES: Final = 4096
_FIRST_STEP: Final = 10  # stretches of 1024 ns
_DEVICE_TYPES: Final = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia", 20: "privateuse1"}


MemoryColumns: TypeAlias = "dict[str, tuple[array[int], ...]]"
"""Time, allocated and reserved memory at each allocation or release, by device: 24 bytes each."""


def add_memory(columns: MemoryColumns, events: Sequence[Any]) -> int:
    """Keep the values of allocations; return the number of those without a usable time."""
    events = [event for event in events if event.name == MEMORY_NAME and event.args is not None]
    times, bad = column_ns([event.ts for event in events])
    for event, time, is_bad in zip(events, times.tolist(), bad.tolist(), strict=True):
        values = time, integer(event.args.allocated), max(0, integer(event.args.reserved))
        if not is_bad and values[1] >= 0:
            own = columns.setdefault(_device(event.args), (array("q"), array("q"), array("q")))
            for column, value in zip(own, values, strict=True):
                column.append(value)
    return int(bad.sum())


def memory_track(device: str, time: Integers, allocated: Integers, reserved: Integers) -> MemoryTrack:
    """Return the largest values of each stretch of time.

    Stretches start at whole multiples of their length, a power of two with which there are not too many of them.
    """
    step, order = _FIRST_STEP, np.argsort(time, kind="stable")
    while len(stretches := different(time >> step)) > MAX_STRETCHES:
        step += 1
    firsts = np.searchsorted(time[order] >> step, stretches)
    return MemoryTrack(
        device=device,
        step_ns=1 << step,
        start_ns=tuple((stretches << step).tolist()),
        allocated_bytes=tuple(np.maximum.reduceat(allocated[order], firsts).tolist()),
        reserved_bytes=tuple(np.maximum.reduceat(reserved[order], firsts).tolist()),
    )


def _device(args: MemoryArgs) -> str:
    kind, index = integer(args.device_type), integer(args.device_id)
    name = _DEVICE_TYPES.get(kind, f"device{kind}" if kind >= 0 else "device")
    return name if kind == 0 or index < 0 else f"{name}:{index}"


_WAITS: Final = re.compile(r"(?=\w++\Z)(?:cuda|cu|hip|ze|ur)\w*Synchronize\w*")
_NO_INPUTS: Final = OpArgs()
PRICED: Final = frozenset(
    {
        *(
            f"aten::{name}"
            for name in (
                "_scaled_mm", "_flash_attention_forward", "_flash_attention_backward", "_efficient_attention_forward",
                "_efficient_attention_backward", "_cudnn_attention_forward", "_cudnn_attention_backward",
                "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward", "cudnn_convolution",
                "cudnn_convolution_transpose", "miopen_convolution", "miopen_convolution_transpose",
                "_conv_depthwise2d", "conv_depthwise3d",
            )
        ),
        "flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_backward",
        "strobe::block_sparse_forward", "strobe::block_sparse_backward",
    }
)  # fmt: skip
"""Operators whose cost depends on numbers and flags among their inputs, besides sizes and types."""


class OperatorTable(HostTable):
    """Operators: 32 bytes each; each distinct input is stored once."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = InputTable(PRICED, typed=True)
        self.number, self.given, self.sequence, self.backward = GrowingColumn(), GrowingColumn(), GrowingColumn(), GrowingColumn()

    def add(self, times: Times) -> None:
        super().add(times)
        args = [event.args or _NO_INPUTS for event in times.events]
        self.number.extend([operator_of(one) for one in args])
        self.given.extend([self.inputs.number_of(event) for event in times.events])
        self.sequence.extend(integers([one.sequence_number for one in args]))
        self.backward.extend([int(integer(one.forward_thread) > 0) for one in args])


def waiting(events: Sequence[Any]) -> list[Any]:
    """Return the calls of the host that wait for a device."""
    return [event for event in events if _WAITS.fullmatch(event.name)]
