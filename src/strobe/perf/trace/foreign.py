"""Chrome traces of other profilers: their events, told apart by the names of processes and threads, as those of `torch.profiler`.

The profiler of JAX and XLA and that of Ascend give their events no category, or only some. Device work stands on threads that are
called after its streams, and what the host did on the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from strobe.perf.trace.schema import (
    Batch,
    Buffer,
    Decoder,
    DeviceArgs,
    Event,
    Group,
    LaunchArgs,
    NameOf,
    Number,
    event_of,
    names_of,
    shape_of,
)

_JAX_DEVICE: Final = re.compile(r"/device:(?P<kind>[A-Z]+):(?P<number>\d{1,4})")
_JAX_STREAM: Final = re.compile(r"Stream #(?P<number>\d{1,9})\b")
_XLA_OPS: Final = "XLA Ops"
_ASCEND_DEVICE: Final = "Ascend Hardware"
_ASCEND_WAITS: Final = re.compile(r"(?:EVENT|NOTIFY)_(?:WAIT|RECORD)\b|.*\bEvent Wait\b", re.IGNORECASE)
_DERIVED: Final = ("Overlap Analysis", "Communication", "HCCL", "AI Core Freq", "HBM")
_CALL: Final = re.compile(r"(?:cu|cuda|hip)[A-Z]\w*")
_STEP: Final = re.compile(r"ProfilerStep#\d+")
_COPY: Final = re.compile(r"memcpy", re.IGNORECASE)
_SET: Final = re.compile(r"memset", re.IGNORECASE)
_CANNOT: Final = {
    "JAX": "the profiler of JAX: launch calls, input sizes and memory are not in it, so launch delays and the reasons of idle "
    "time are not known; the rows that repeat device work by operator are left out",
    "Ascend": "the profiler of Ascend: waits for events and the rows on overlap and communication, which repeat device work, are "
    "left out; grids and memory are not in it",
}  # fmt: skip


class _Foreign(Event, gc=False):
    cat: Any = None
    args: Any = None


class ForeignDecoder(Decoder):
    """Decodes the events of another profiler.

    Args:
        names: of its processes and threads.
        wanted: the groups to build.
    """

    def __init__(self, names: Sequence[NameOf], wanted: Iterable[Group]) -> None:
        super().__init__(wanted)
        self._processes, self._threads = names_of(names)
        self.profiler = profiler_of(self._processes.values())
        self._streams: dict[tuple[Number, Number], tuple[int, Number] | None] = {}
        self._with_streams = {pid for (pid, _), name in self._threads.items() if _JAX_STREAM.match(name)}

    @property
    def cannot(self) -> str:
        """Return whose trace it is, and what that cannot say."""
        return _CANNOT[self.profiler]

    def decode(self, array: Buffer, batch: Batch) -> None:
        """Add the events of a list to `batch`.

        Raises:
            UNREADABLE: the text is no list of events; nothing was added.
        """
        events = _decode(array)
        batch.events += len(events)
        for event in events:
            if event.ph != "X":
                continue
            found = self._mapped(event)
            if found is None:
                batch.unused[event.cat if isinstance(event.cat, str) else ""] += 1
            elif found[0] in self._wanted:
                batch.of[found[0]].append(found[1])

    def _mapped(self, event: _Foreign) -> tuple[Group, Any] | None:
        """Return the group of an event and the event as the reader takes it; None for what is not used."""
        args = event.args if isinstance(event.args, dict) else {}
        key = event.pid, event.tid
        if key not in self._streams:
            self._streams[key] = self._stream_of(*key)
        if (place := self._streams[key]) is not None:
            if _ASCEND_WAITS.match(event.name) or _ASCEND_WAITS.match(str(args.get("Task Type", ""))):
                return None
            group = Group.MEMCPY if _COPY.match(event.name) else Group.MEMSET if _SET.match(event.name) else Group.KERNEL
            given = DeviceArgs(device=place[0], stream=place[1], correlation=_number(args), bytes=_count(args.get("bytes")))
            return group, event_of(group, **_as_written(event), args=given)
        process = self._processes.get(event.pid, "")
        if process.startswith("/device:") or process in (_ASCEND_DEVICE, *_DERIVED):
            return None
        if _STEP.fullmatch(event.name):
            return Group.RANGE, event
        if (step := args.get("step_num")) is not None:
            event.name = f"{event.name}#{step}"
            return Group.RANGE, event
        if process == "CANN" or _CALL.fullmatch(event.name):
            return Group.LAUNCH, event_of(Group.LAUNCH, **_as_written(event), args=LaunchArgs(correlation=_number(args)))
        kind = self._category(event.cat) if isinstance(event.cat, str) else Group.OP
        return (kind, msgspec.convert(_plain(event, args), shape_of(kind), strict=False)) if kind else None

    def _stream_of(self, pid: Number, tid: Number) -> tuple[int, Number] | None:
        """Return device and stream of a thread with device work."""
        process, thread = self._processes.get(pid, ""), self._threads.get((pid, tid), "")
        if device := _JAX_DEVICE.match(process):
            stream = _JAX_STREAM.match(thread)
            if stream or (pid not in self._with_streams and thread == _XLA_OPS):
                return int(device["number"]), int(stream["number"]) if stream else 0
            return None
        if process != _ASCEND_DEVICE:
            return None
        stream = re.search(r"\d{1,9}", thread)
        return 0, int(stream[0]) if stream else tid


def profiler_of(processes: Iterable[str]) -> str:
    """Return whose trace has processes of these names; empty for none that is known here."""
    names = list(processes)
    if any(_JAX_DEVICE.match(name) for name in names):
        return "JAX"
    return "Ascend" if _ASCEND_DEVICE in names else ""


def _number(args: Mapping[str, Any]) -> Number:
    found = args.get("correlation_id", args.get("connection_id", args.get("correlation")))
    return found if isinstance(found, int | str) else None


def _count(value: object) -> Number:
    return value if isinstance(value, int | str) else None


def _as_written(event: Event) -> dict[str, Any]:
    return {"ph": event.ph, "name": event.name, "ts": event.ts, "dur": event.dur, "pid": event.pid, "tid": event.tid}


def _plain(event: Event, args: Mapping[str, Any]) -> dict[str, Any]:
    raw = {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in args.items() if isinstance(value, list)}
    return {**_as_written(event), "args": {**args, **raw}}


_decode: Final = msgspec.json.Decoder(list[_Foreign]).decode
