"""Tables of device events while a trace is read: kernels, copies, memsets and collectives."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from strobe.perf.trace.columns import GrowingColumn, Interned
from strobe.perf.trace.digits import Integers
from strobe.perf.trace.events import DEVICE_KINDS, CollectiveKind
from strobe.perf.trace.schema import CommArgs, DeviceArgs, Group
from strobe.perf.trace.tables import NOTHING, Times, integer, integers, operator_of, sizes_text

_COMMUNICATION: Final = re.compile(
    r"nccl|rccl|^hccl::|cross_device_reduce|(?:one|two)_?shot_all_?reduce|multimem_all_?(?:reduce|gather)", re.IGNORECASE
)
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_MAX_DEVICE: Final = (1 << 15) - 1
_MAX_STREAM: Final = (1 << 31) - 1
_KINDS: Final = {Group.KERNEL: "kernel", Group.MEMCPY: "memcpy", Group.MEMSET: "memset"}
_NO_ARGS: Final = DeviceArgs()
_COMMUNICATES: Final = 1


class Collectives:
    """Descriptions of collectives by communication kernels and their operators; each distinct one is stored once."""

    def __init__(self) -> None:
        self.said: Interned[CollectiveKind] = Interned()
        self.event, self.text, self.sequence, self.operator = (
            GrowingColumn(),
            GrowingColumn(),
            GrowingColumn("q"),
            GrowingColumn("q"),
        )
        self.of_operator: dict[int, tuple[int, int]] = {}

    def add(self, event: int, args: CommArgs) -> None:
        """Keep what the device event with this number says."""
        text, sequence = self._read(args)
        self.event.extend([event])
        self.text.extend([text])
        self.sequence.extend([sequence])
        self.operator.extend([operator_of(args)])

    def add_operator(self, args: CommArgs) -> None:
        """Keep what a host operator says of the collective that it starts."""
        if (number := operator_of(args)) >= 0:
            self.of_operator[number] = self._read(args)

    def _read(self, args: CommArgs) -> tuple[int, int]:
        """Number of what is said, or -1, and number in the sequence, or -1."""
        texts = (args.collective, args.group, args.ranks, args.dtype)
        name, group, listed, dtype = ("" if text is None else str(text) for text in texts)
        ranks = tuple(map(int, _NUMBER.findall(listed)))
        said = CollectiveKind(name, group, ranks, integer(args.in_elements), integer(args.out_elements), dtype)
        return (self.said.id_of(said) if name else NOTHING), integer(args.sequence)


class EventKind(NamedTuple):
    """Properties shared by device events of one kind."""

    name: str
    kind: int
    device: int
    stream: int
    shape: str


class DeviceTable:
    """Device events: 20 bytes each, 4 more with the operator they belong to; more for collectives and module paths.

    Args:
        linked: keep the number of each event's operator.
    """

    def __init__(self, linked: bool) -> None:
        self.works: Interned[EventKind] = Interned()
        self.work, self.start, self.duration, self.correlation = (
            GrowingColumn(),
            GrowingColumn("q"),
            GrowingColumn(),
            GrowingColumn(),
        )
        self.operator = GrowingColumn()
        self.collectives = Collectives()
        self.paths: Interned[str] = Interned()
        self.path_event, self.path = GrowingColumn(), GrowingColumn()
        self._linked = linked
        self._known: dict[Group, dict[tuple[Hashable, ...], int]] = {group: {} for group in _KINDS}
        self._odd_streams: Interned[int] = Interned()

    def __len__(self) -> int:
        return len(self.work)

    def add(self, group: Group, times: Times) -> None:
        """Keep events of one group."""
        first, all_args = len(self.work), [event.args or _NO_ARGS for event in times.events]
        works = self._works(group, times.events, all_args)
        for row in np.flatnonzero(works & _COMMUNICATES).tolist():
            self.collectives.add(first + row, all_args[row])
        paths = [args.module_path or args.mark or args.label or args.annotation for args in all_args]
        if paths.count(None) < len(paths):
            with_path = [row for row, path in enumerate(paths) if path is not None]
            self.path.extend([self.paths.id_of(str(paths[row])) for row in with_path])
            self.path_event.extend([first + row for row in with_path])
        self.work.extend(works >> 1)
        self.start.extend(times.start)
        self.duration.extend(times.duration)
        correlation = integers([args.correlation for args in all_args])
        correlation[correlation == 0] = NOTHING  # what a profiler writes that has none
        self.correlation.extend(correlation)
        if self._linked:
            self.operator.extend([operator_of(args) for args in all_args])

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
            stream = NOTHING - 1 - self._odd_streams.id_of(stream)
        kind = DEVICE_KINDS.index("comm" if communicates else _KINDS[group])
        return 2 * self.works.id_of(EventKind(event.name, kind, device, stream, _launch_shape(args))) + communicates


def _launch_shape(args: DeviceArgs) -> str:
    """Grid and block, or the size of a copy."""
    grid, block = (sizes_text(bytes(part), outer=False) for part in (args.grid, args.block))
    if grid:
        return f"grid {grid} block {block}" if block else f"grid {grid}"
    size = integer(args.bytes)
    return f"{size} B" if size >= 0 else ""
