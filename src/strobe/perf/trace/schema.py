"""Schema of chrome trace events: the fields that matter, and decoders that skip everything else unread.

The category of an event decides its `Group`. The decoders know each category by its name and build nothing for an event that is
not wanted, which is most of them and most of the time. A category they do not know makes them fail; `learn` it and try again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import lru_cache, reduce
from itertools import compress
from operator import or_
from typing import Any, Final, cast

import msgspec

MEMORY_NAME: Final = "[memory]"
WINDOW_END_NAME: Final = "Record Window End"
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_MAX_CATEGORIES: Final = 200
_NONE: Final = msgspec.Raw(b"")

Number = int | float | str | None
Buffer = bytes | memoryview
NameOf = tuple[bool, Number, Number, str]
"""The name of a process (or else of a thread), with the numbers of both."""


class Group(StrEnum):
    """Groups of events that the reader tells apart."""

    KERNEL = "kernel"
    MEMCPY = "memcpy"
    MEMSET = "memset"
    LAUNCH = "launch"
    OP = "op"
    OLD_OP = "op, or a range: old traces do not tell them apart"
    RANGE = "range"
    FRAME = "frame"
    OVERHEAD = "overhead"
    MEMORY = "memory"
    WINDOW_END = "window end"


class LaunchArgs(msgspec.Struct, gc=False):
    """Arguments of a host call; `kernel` is what HIP's calls say they launch."""

    correlation: Number = None
    kernel: Any = None


class CommArgs(msgspec.Struct, gc=False):
    """Description of a collective, on its kernel or on its `record_param_comms` operator."""

    external: Number = msgspec.field(name="External id", default=None)
    external_old: Number = msgspec.field(name="external id", default=None)
    collective: Any = msgspec.field(name="Collective name", default=None)
    group: Any = msgspec.field(name="Process Group Name", default=None)
    ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    sequence: Any = msgspec.field(name="Seq", default=None)
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)
    dtype: Any = None


class DeviceArgs(CommArgs, gc=False):
    """Arguments of a device event; the last four are labels of a graph's kernel, by torch's tools of several versions."""

    device: Number = None
    stream: Number = None
    correlation: Number = None
    bytes: Number = None
    grid: msgspec.Raw = _NONE
    block: msgspec.Raw = _NONE
    module_path: Any = msgspec.field(name="module_fqn", default=None)
    mark: Any = msgspec.field(name="name", default=None)
    label: Any = msgspec.field(name="str", default=None)
    annotation: Any = None


class OpArgs(CommArgs, gc=False):
    """Arguments of a host operator."""

    sequence_number: Number = msgspec.field(name="Sequence number", default=None)
    forward_thread: Number = msgspec.field(name="Fwd thread id", default=None)
    sizes: msgspec.Raw = msgspec.field(name="Input Dims", default=_NONE)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NONE)
    values: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_NONE)


class MemoryArgs(msgspec.Struct, gc=False):
    """Arguments of an allocation or release."""

    device_type: Number = msgspec.field(name="Device Type", default=None)
    device_id: Number = msgspec.field(name="Device Id", default=None)
    allocated: Number = msgspec.field(name="Total Allocated", default=None)
    reserved: Number = msgspec.field(name="Total Reserved", default=None)


class Event(msgspec.Struct, gc=False):
    """One event as written. `ts` and `dur` keep their digits."""

    ph: str = ""
    name: str = ""
    ts: msgspec.Raw = _NONE
    dur: msgspec.Raw = _NONE
    pid: Number = None
    tid: Number = None


class AnyEvent(Event, gc=False):
    """One event of any category, with any arguments."""

    cat: Any = None
    args: Any = None


def _with(args: type[msgspec.Struct]) -> type[Event]:
    fields = [("args", args | None, None)]
    return cast("type[Event]", msgspec.defstruct(f"_{args.__name__}", fields, bases=(Event,), gc=False))


class _Stub(msgspec.Struct, gc=False):
    """Fields that decide the group of an event."""

    cat: Any = None
    ph: Any = None
    name: Any = None


_ARGUMENTS: Final[dict[type[msgspec.Struct], tuple[Group, ...]]] = {
    DeviceArgs: (Group.KERNEL, Group.MEMCPY, Group.MEMSET), LaunchArgs: (Group.LAUNCH,), OpArgs: (Group.OP, Group.OLD_OP),
    MemoryArgs: (Group.MEMORY,),
}  # fmt: skip
_SHAPES: Final[dict[Group, type[Event]]] = defaultdict(lambda: Event) | {
    group: shape for args, groups in _ARGUMENTS.items() for shape in (_with(args),) for group in groups
}
_GROUPS: Final = {
    "kernel": Group.KERNEL, "mtia_ccp_events": Group.KERNEL, "gpu_memcpy": Group.MEMCPY, "gpu_memset": Group.MEMSET,
    "cuda_runtime": Group.LAUNCH, "cuda_driver": Group.LAUNCH, "mtia_runtime": Group.LAUNCH, "hpu_op": Group.LAUNCH,
    "xpu_runtime": Group.LAUNCH, "runtime": Group.LAUNCH, "driver": Group.LAUNCH,
    "cpu_op": Group.OP, "user_annotation": Group.RANGE, "python_function": Group.FRAME, "overhead": Group.OVERHEAD,
    "cpu_instant_event": Group.MEMORY,
    "Kernel": Group.KERNEL, "Memcpy": Group.MEMCPY, "Memset": Group.MEMSET, "Runtime": Group.LAUNCH, "Operator": Group.OLD_OP,
}  # fmt: skip
_CALLS: Final = ("_runtime", "_driver")
_OTHERS: Final = (
    "ac2g", "fwdbwd", "async_cpu_to_gpu", "async_gpu", "gpu_user_annotation", "Trace", "cuda_sync", "cuda_event", "mtia_insight",
    "mtia_counters", "hardware_counters", "xpu_scope_profiler", "collective_comm", "cuda_profiler_range",
)  # fmt: skip
_NAMES: Final = ("process_name", "thread_name")
_WITH_TIME: Final = ("X", "B", "E", "b", "e")
_INSTANTS: Final = {MEMORY_NAME: Group.MEMORY, WINDOW_END_NAME: Group.WINDOW_END}


class Batch:
    """Decoded events.

    Args:
        events: how many there were, of every category.
        lost: how many wanted ones could not be read.
        mistyped: of these, those with a field of another type than it has.
        of: the wanted ones.
        names: of processes and threads.
        unused: how many there were of each category that is not known; of none, under the empty text.
    """

    def __init__(self) -> None:
        self.events = self.lost = self.mistyped = 0
        self.names: list[NameOf] = []
        self.unused: Counter[str] = Counter()
        self.of: dict[Group, list[Any]] = {group: [] for group in Group}


class Decoder:
    """Decodes events, and builds those of the wanted groups."""

    def __init__(self, wanted: Iterable[Group]) -> None:
        self._wanted = frozenset(wanted)
        self._categories = {category: self._wanted_group(category) for category in (*_GROUPS, *_OTHERS)}
        self._fast, self._group_of, self._unknown = _build(tuple(self._categories.items()))

    def decode(self, array: Buffer, batch: Batch) -> None:
        """Add the events of a list to `batch`. They hold views of it, so that it must not change as long as they are there.

        Raises:
            UNREADABLE: the text is no list of events; nothing was added.
        """
        try:
            events = self._fast(array)
        except UNREADABLE:
            self._decode_each(array, batch)
            return
        batch.events += len(events)
        keep = {kind: batch.of[group].append for kind, group in self._group_of.items()}
        for event in compress(events, map(keep.__contains__, map(type, events))):
            keep[type(event)](event)
        if self._unknown:
            for kind, count in Counter(map(type, events)).items():
                if kind in self._unknown:
                    batch.unused[self._unknown[kind]] += count

    def _decode_each(self, array: Buffer, batch: Batch) -> None:
        """Decode events one by one, slower: any category or none, and wrong types, which are counted."""
        stubs, raws = _decode_stubs(array), _decode_raws(array)
        batch.events += len(stubs)
        found: dict[Group, list[msgspec.Raw]] = {}
        named = list[msgspec.Raw]()
        for stub, raw in zip(stubs, raws, strict=True):
            group = self._group(stub)
            if group is not None:
                found.setdefault(group, []).append(raw)
            elif stub.ph == "M":
                if stub.name in _NAMES:
                    named.append(raw)
            elif stub.ph is not None and not (type(stub.cat) is str and _known(stub.cat)):
                batch.unused[stub.cat if type(stub.cat) is str else ""] += stub.ph in _WITH_TIME
        for group, kept in found.items():
            bad = _decode_all(group, kept, batch.of[group])
            batch.lost, batch.mistyped = batch.lost + bad, batch.mistyped + bad
        batch.names += _named(named)
        self._learn({stub.cat for stub in stubs if type(stub.cat) is str} - self._categories.keys())

    def _group(self, stub: _Stub) -> Group | None:
        if type(stub.cat) is str:
            return self._wanted_group(stub.cat)
        if stub.ph in ("i", "I") and type(stub.name) is str and (group := _INSTANTS.get(stub.name)) in self._wanted:
            return group
        return None

    def _wanted_group(self, category: str) -> Group | None:
        group = self._category(category)
        return group if group in self._wanted else None

    @staticmethod
    def _category(category: str) -> Group | None:
        return Group.LAUNCH if category.endswith(_CALLS) else _GROUPS.get(category)

    def _learn(self, categories: set[str]) -> None:
        new = sorted(categories)[: _MAX_CATEGORIES - len(self._categories)]
        if new:
            self._categories |= {category: self._wanted_group(category) for category in new}
            self._fast, self._group_of, self._unknown = _build(tuple(self._categories.items()))


def _decode_all(group: Group, raws: list[msgspec.Raw], into: list[Any]) -> int:
    """Append the decoded events; return the number of those that cannot be decoded."""
    try:
        into.extend(_decode_list[group](b"[" + b",".join(raws) + b"]"))
        return 0
    except UNREADABLE:
        lost = 0
    for raw in raws:
        try:
            into.append(_decode_one[group](raw))
        except UNREADABLE:
            lost += 1
    return lost


def _known(category: str) -> bool:
    return category in _GROUPS or category in _OTHERS or category.endswith(_CALLS)


def _named(raws: list[msgspec.Raw]) -> list[NameOf]:
    try:
        found = _decode_named(b"[" + b",".join(raws) + b"]")
    except UNREADABLE:
        return []
    told = [(one, one.args.get("name")) for one in found if isinstance(one.args, dict)]
    return [(one.name == _NAMES[0], one.pid, one.tid, name) for one, name in told if isinstance(name, str)]


def event_of(group: Group, **fields: Any) -> Any:
    """Return an event of a group."""
    return _SHAPES[group](**fields)


def shape_of(group: Group) -> type[Event]:
    """Return the type of the events of a group."""
    return _SHAPES[group]


def names_of(found: Iterable[NameOf]) -> tuple[dict[Number, str], dict[tuple[Number, Number], str]]:
    """Return the names of processes, and of threads by process and number."""
    processes = {pid: name for is_process, pid, _, name in found if is_process}
    return processes, {(pid, tid): name for is_process, pid, tid, name in found if not is_process}


@lru_cache(maxsize=8)
def _build(
    categories: tuple[tuple[str, Group | None], ...],
) -> tuple[Callable[[Buffer], list[Any]], dict[type, Group], dict[type, str]]:
    """Build a decoder that knows these categories; return the group of each type it builds, and what else it tells apart."""
    group_of: dict[type, Group] = {}
    unknown: dict[type, str] = {}
    kinds: list[Any] = []
    for number, (category, group) in enumerate(categories):
        base = msgspec.Struct if group is None else _SHAPES[group]
        kind = msgspec.defstruct(f"{base.__name__}{number}", [], bases=(base,), tag_field="cat", tag=category, gc=False)
        kinds.append(kind)
        if group is not None:
            group_of[kind] = group
        elif not _known(category):
            unknown[kind] = category
    return msgspec.json.Decoder(list[reduce(or_, kinds)]).decode, group_of, unknown  # type: ignore[misc]


_decode_stubs: Final = msgspec.json.Decoder(list[_Stub]).decode
_decode_named: Final = msgspec.json.Decoder(list[AnyEvent]).decode
_decode_raws: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_list: Final = {group: msgspec.json.Decoder(list[_SHAPES[group]]).decode for group in Group}  # type: ignore[valid-type]
_decode_one: Final = {group: msgspec.json.Decoder(_SHAPES[group]).decode for group in Group}
