"""Every event behind a trace report, exactly: a compressed CSV beside the page."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strobe.core.files import writing_whole
from strobe.perf.analysis.device.views import all_work, parts_of
from strobe.perf.analysis.structure.window import Window
from strobe.perf.report.trace_page.study import TraceStudy
from strobe.perf.trace import Trace
from strobe.perf.trace.events import DEVICE_KINDS

COLUMNS: Final = (
    "trace", "kind", "name", "start_ns", "end_ns", "device", "stream", "shape", "module",
    "call", "call_start_ns", "call_end_ns", "thread", "ordinal",
)  # fmt: skip
_CHUNK: Final = 4_000


def write_events(study: TraceStudy, path: Path) -> int:
    """Write the device events of the chosen windows, whole; the operators of a trace without any.

    Times are integer nanoseconds since the epoch; in a trace without a base, its own. `call` is the launch call, empty where it
    lies before the recorded window. Equal studies give equal bytes.

    Returns:
        how many events were written.
    """
    num_rows = 0
    with writing_whole(path) as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=1, mtime=0) as packed:
        packed.write(",".join(COLUMNS).encode() + b"\n")
        for trace, label, window in zip(study.traces, study.labels, study.windows, strict=True):
            rows = _device_rows(trace, window) if len(trace.device_events) else _operator_rows(trace, window)
            head = _field(label)
            while chunk := list(islice(rows, _CHUNK)):
                packed.write("".join(f"{head},{row}\n" for row in chunk).encode("utf-8", "replace"))
                num_rows += len(chunk)
    return num_rows


def _field(text: str) -> str:
    """A text as one field: quoted where it has to be."""
    return '"' + text.replace('"', '""') + '"' if any(sign in text for sign in ',"\r\n') else text


def _device_rows(trace: Trace, window: Window | None) -> Iterator[str]:
    names, shapes = ([_field(text) for text in texts] for texts in (trace.device_events.names, trace.device_events.shapes))
    call, base = _Calls(trace), trace.base_ns
    parts = (part.work for part in parts_of(all_work(trace), window))
    for work in (one.at(slice(at, min(at + _CHUNK, len(one)))) for one in parts for at in range(0, len(one), _CHUNK)):
        modules = [""] * len(work)
        if trace.module_paths:
            modules = [_field(trace.module_paths.get(number, "")) for number in work.position.tolist()]
        columns = (work.kind, work.name, work.start, work.end, work.device, work.stream, work.shape, work.ordinal)
        rows = zip(modules, call.fields(work.host), *(column.tolist() for column in columns), strict=True)
        yield from [
            f"{DEVICE_KINDS[kind]},{names[name]},{base + start},{base + end},{device},{stream},{shapes[shape]},{module},{host},"
            f"{ordinal}"
            for module, host, kind, name, start, end, device, stream, shape, ordinal in rows
        ]


class _Calls:
    """The fields of launch calls."""

    def __init__(self, trace: Trace) -> None:
        hosts = trace.device_events.hosts
        self._base = trace.base_ns
        self._names = [_field(name) for name in hosts.names]
        self._threads = [_field(thread) for thread in trace.threads]
        self._columns = [np.asarray(column) for column in (hosts.name, hosts.start_ns, hosts.end_ns, hosts.thread)]

    def fields(self, calls: NDArray[np.int32]) -> list[str]:
        """Of some calls; a negative one is not known."""
        known, base = calls >= 0, self._base
        rows = zip(*(column[calls[known]].tolist() for column in self._columns), strict=True)
        found = iter([
            f"{self._names[name]},{base + start},{base + end},{self._threads[thread]}" for name, start, end, thread in rows
        ])  # fmt: skip
        return [next(found) if one else ",,," for one in known.tolist()]


def _operator_rows(trace: Trace, window: Window | None) -> Iterator[str]:
    ops, base = trace.ops, trace.base_ns
    names, threads = [_field(name) for name in ops.names], [_field(thread) for thread in trace.threads]
    for name, start, end, thread in zip(ops.name, ops.start_ns, ops.end_ns, ops.thread, strict=True):
        if window is None or (start < window.end_ns and (end > window.start_ns or start == end >= window.start_ns)):
            yield f"operator,{names[name]},{base + start},{base + end},,,,,,,,{threads[thread]},"
