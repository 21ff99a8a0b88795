"""Export of every event behind a trace report, exact, as a compressed CSV beside the page."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from strobe.core.files import writing_whole
from strobe.perf.analysis.device.device_work import all_events, windowed_events
from strobe.perf.analysis.device.intervals import Ints
from strobe.perf.analysis.window import Window
from strobe.perf.report.trace_study import TraceStudy
from strobe.perf.trace import Trace
from strobe.perf.trace.events import DEVICE_KINDS

try:
    from isal import igzip  # a few times as fast
except ImportError:
    igzip = None  # type: ignore[assignment]

COLUMNS: Final = (
    "trace", "kind", "name", "start_ns", "end_ns", "device", "stream", "shape", "module",
    "call", "call_start_ns", "call_end_ns", "thread", "ordinal",
)  # fmt: skip
_CHUNK: Final = 4_000
_Gzip: Final[Any] = gzip.GzipFile if igzip is None else igzip.IGzipFile


def write_events(study: TraceStudy, path: Path) -> int:
    """Write the device events of the chosen windows, uncut; of a trace without any, its operators.

    Times are integer nanoseconds since the epoch, or the trace's own times if it has no base. `call` is the launch call, empty if
    it lies before the recorded window. Equal studies give equal bytes.

    Returns:
        how many events were written.
    """
    num_rows = 0
    with writing_whole(path) as file, _Gzip(filename="", fileobj=file, mode="wb", compresslevel=1, mtime=0) as packed:
        packed.write(",".join(COLUMNS).encode() + b"\n")
        for trace, label, window in zip(study.traces, study.labels, study.windows, strict=True):
            found = _device_rows if len(trace.device_events) else _operator_rows
            rows = found(trace, _field(label), window)
            while chunk := list(islice(rows, _CHUNK)):  # always as many, for the packed bytes depend on it
                packed.write("".join(chunk).encode("utf-8", "replace"))
                num_rows += len(chunk)
    return num_rows


def _field(text: str) -> str:
    """Return a text as one CSV field, quoted if necessary."""
    return '"' + text.replace('"', '""') + '"' if any(sign in text for sign in ',"\r\n') else text


def _device_rows(trace: Trace, head: str, window: Window | None) -> Iterator[str]:
    """Yield rows of device events, each beginning with `head`."""
    events, base = trace.device_events, trace.base_ns
    shapes = [_field(text) for text in events.shapes]
    fronts = [f"{head},{kind},{_field(name)}" for name in events.names for kind in DEVICE_KINDS]
    call = _Calls(trace)
    parts = (part.work for part in windowed_events(all_events(trace), window))
    for work in (one.at(slice(at, min(at + _CHUNK, len(one)))) for one in parts for at in range(0, len(one), _CHUNK)):
        modules = [""] * len(work)
        if trace.module_paths:
            modules = [_field(trace.module_paths.get(number, "")) for number in work.position.tolist()]
        front = work.name.astype(np.int64) * len(DEVICE_KINDS) + work.kind
        columns = (front, work.device, work.stream, work.shape, work.ordinal)
        times = _later(work.start, base), _later(work.end, base)
        rows = zip(modules, call.fields(work.host), *times, *(column.tolist() for column in columns), strict=True)
        yield from [
            f"{fronts[front]},{start},{end},{device},{stream},{shapes[shape]},{module},{host},{ordinal}\n"
            for module, host, start, end, front, device, stream, shape, ordinal in rows
        ]


def _later(times: Ints, base_ns: int) -> list[int]:
    """Return the times plus the base of their trace; the sums may exceed 64 bits."""
    if len(times) and base_ns + int(times.max()) < 1 << 63:
        later: list[int] = (times + base_ns).tolist()
        return later
    return [base_ns + time for time in times.tolist()]


class _Calls:
    """CSV fields of launch calls."""

    def __init__(self, trace: Trace) -> None:
        hosts = trace.device_events.hosts
        self._base = trace.base_ns
        self._names = [_field(name) for name in hosts.names]
        self._threads = [_field(thread) for thread in trace.threads]
        self._columns = [np.asarray(column) for column in (hosts.name, hosts.start_ns, hosts.end_ns, hosts.thread)]

    def fields(self, calls: NDArray[np.int32]) -> list[str]:
        """Return the fields of the calls; a negative call is unknown and has empty fields."""
        known, names, threads = calls >= 0, self._names, self._threads
        name, start, end, thread = (column[calls[known]] for column in self._columns)
        rows = zip(name.tolist(), _later(start, self._base), _later(end, self._base), thread.tolist(), strict=True)
        found = [f"{names[name]},{start},{end},{threads[thread]}" for name, start, end, thread in rows]
        if len(found) == len(calls):
            return found
        each = iter(found)
        return [next(each) if one else ",,," for one in known.tolist()]


def _operator_rows(trace: Trace, head: str, window: Window | None) -> Iterator[str]:
    """Yield rows of operators, each beginning with `head`."""
    ops, base = trace.ops, trace.base_ns
    names, threads = [_field(name) for name in ops.names], [_field(thread) for thread in trace.threads]
    return (
        f"{head},operator,{names[name]},{base + start},{base + end},,,,,,,,{threads[thread]},\n"
        for name, start, end, thread in zip(ops.name, ops.start_ns, ops.end_ns, ops.thread, strict=True)
        if window is None or (start < window.end_ns and (end > window.start_ns or start == end >= window.start_ns))
    )
