"""Tables of host events while a trace is read, in the order of the file."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from itertools import compress
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from strobe.perf.trace.columns import GrowingColumn, Interned
from strobe.perf.trace.digits import LIMIT, Flags, Integers, column_ns
from strobe.perf.trace.events import OF_KERNEL, OperatorInputs
from strobe.perf.trace.schema import UNREADABLE, CommArgs, Number

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
        self.calls: Interned[Call] = Interned()
        self.call, self.start, self.duration = GrowingColumn(), GrowingColumn("q"), GrowingColumn()

    def add(self, times: Times) -> None:
        """Keep events."""
        if self._least_ns:
            some = times.duration >= self._least_ns
            events = list(compress(times.events, some.tolist()))
            times = times._replace(events=events, start=times.start[some], duration=times.duration[some])
        self.call.extend(self.calls.ids_of([(event.name, event.pid, event.tid) for event in times.events]))
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
        """Keep calls."""
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


class Threads:
    """The host threads of some tables.

    `texts` are their names, `pid/tid`, sorted; `number` says which of them a call was on.
    """

    def __init__(self, tables: Iterable[HostTable]) -> None:
        found = {
            call[1:]: "/".join("" if part is None else str(part) for part in call[1:])
            for table in tables
            for call in table.calls.values()
        }
        self.texts = tuple(sorted(set(found.values())))
        self._place = {text: number for number, text in enumerate(self.texts)}
        self._text = found

    def number(self, call: Call) -> int:
        """Return the position of a call's thread among `texts`."""
        return self._place[self._text[call[1:]]]


class InputTable:
    """Distinct inputs of operators, numbered as they come.

    Args:
        priced: operators whose numbers and flags are kept, besides sizes and types.
        typed: keep the sizes and types of all others too, and not their sizes as text alone.
    """

    def __init__(self, priced: Container[str], *, typed: bool) -> None:
        self.distinct: Interned[OperatorInputs] = Interned()
        self._priced, self._typed = priced, typed
        self._known: dict[tuple[str | bytes, ...], int] = {}

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
            known = self._known[key] = self.distinct.id_of(found) if found.text else NOTHING
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


class OperatorSizes(InputTable):
    """The inputs of host operators: 8 bytes for each operator that has sizes; each distinct thing is stored once."""

    def __init__(self) -> None:
        super().__init__(COSTED, typed=False)
        self.operator, self.text = GrowingColumn(), GrowingColumn()

    def add(self, events: Sequence[Any]) -> None:
        """Keep the sizes of operators."""
        numbers = [(operator_of(event.args), self.number_of(event)) for event in events if event.args is not None]
        kept = [pair for pair in numbers if min(pair) >= 0]
        self.operator.extend([operator for operator, _ in kept])
        self.text.extend([text for _, text in kept])


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
