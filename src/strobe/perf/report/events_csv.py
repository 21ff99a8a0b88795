"""Every event behind a trace report, exactly: a compressed CSV beside the page."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from strobe.perf.analysis.device.views import device_views
from strobe.perf.analysis.structure.window import Window
from strobe.perf.report.trace_page.study import TraceStudy
from strobe.perf.trace import HostEvents, Trace
from strobe.perf.trace.events import DEVICE_KINDS

COLUMNS: Final = (
    "trace", "kind", "name", "start_ns", "end_ns", "device", "stream", "shape", "module",
    "call", "call_start_ns", "call_end_ns", "thread", "ordinal",
)  # fmt: skip
_CHUNK: Final = 10_000


def write_events(study: TraceStudy, path: Path) -> int:
    """Write the device events of the chosen windows, whole; the operators of a trace without any.

    Times are integer nanoseconds since the epoch; in a trace without a base, its own. `call` is the launch call, empty where it
    lies before the recorded window. Equal studies give equal bytes.

    Returns:
        how many events were written.
    """
    num_rows = 0
    with path.open("wb") as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=1, mtime=0) as packed:
        packed.write(",".join(COLUMNS).encode() + b"\n")
        for trace, label, window in zip(study.traces, study.labels, study.windows, strict=True):
            rows = _device_rows(trace, window) if len(trace.device_events) else _operator_rows(trace)
            head = _field(label)
            while chunk := list(islice(rows, _CHUNK)):
                packed.write("".join(f"{head},{row}\n" for row in chunk).encode("utf-8", "replace"))
                num_rows += len(chunk)
    return num_rows


def _field(text: str) -> str:
    """A text as one field: quoted where it has to be."""
    return '"' + text.replace('"', '""') + '"' if any(sign in text for sign in ',"\r\n') else text


def _device_rows(trace: Trace, window: Window | None) -> Iterator[str]:
    events, base, positions = trace.device_events, trace.base_ns, range(len(trace.device_events))
    names, shapes = [_field(name) for name in events.names], [_field(shape) for shape in events.shapes]
    calls = [*_calls(events.hosts, [_field(thread) for thread in trace.threads], base), ",,,"]  # -1: not known
    modules = {position: _field(path) for position, path in trace.module_paths.items()}
    columns: Iterable[Iterable[int]] = (
        positions, events.kind, events.name, events.start_ns, events.end_ns, events.device, events.stream, events.shape,
        events.host, events.ordinal,
    )  # fmt: skip
    if window is not None:
        inside = [view.work.position[view.inside] for view in device_views(trace, window)]
        chosen = np.sort(np.concatenate(inside))
        columns = [np.asarray(column)[chosen].tolist() for column in columns]
    for position, kind, name, start, end, device, stream, shape, host, ordinal in zip(*columns, strict=True):
        yield (
            f"{DEVICE_KINDS[kind]},{names[name]},{base + start},{base + end},{device},{stream},{shapes[shape]},"
            f"{modules.get(position, '')},{calls[host]},{ordinal}"
        )


def _calls(hosts: HostEvents, threads: Sequence[str], base: int) -> list[str]:
    """The fields of each launch call."""
    names = [_field(name) for name in hosts.names]
    columns = zip(hosts.name, hosts.start_ns, hosts.end_ns, hosts.thread, strict=True)
    return [f"{names[name]},{base + start},{base + end},{threads[thread]}" for name, start, end, thread in columns]


def _operator_rows(trace: Trace) -> Iterator[str]:
    ops, base = trace.ops, trace.base_ns
    names, threads = [_field(name) for name in ops.names], [_field(thread) for thread in trace.threads]
    for name, start, end, thread in zip(ops.name, ops.start_ns, ops.end_ns, ops.thread, strict=True):
        yield f"operator,{names[name]},{base + start},{base + end},,,,,,,,{threads[thread]},"
