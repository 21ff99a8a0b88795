"""What must hold of the trace reader whatever is in a file: of `make fuzz`, and of the tests' random examples."""

from __future__ import annotations

import gzip
from pathlib import Path

from layouts import LAYOUTS
from strobe.core.errors import DataError
from strobe.perf.trace import Trace, read_trace
from synthetic import META, sample


def check(data: bytes, folder: Path, ways: tuple[str, ...] = ("shapes", "details")) -> None:
    """Read `data` as a trace, and again in other ways; what is wrong with the result is an assertion."""
    path = folder / "t.json"
    path.write_bytes(data)
    trace = read(path)
    if trace is None:
        return
    device, hosts = trace.device_events, trace.device_events.hosts
    assert trace.counts.events >= len(trace.ops) + len(device)
    for events in (trace.ops, trace.ranges, trace.modules, hosts, device):
        assert list(events.start_ns) == sorted(events.start_ns)
        assert all(start <= end for start, end in zip(events.start_ns, events.end_ns, strict=True))
        assert not len(events) or max(events.name) < len(events.names)
    assert all(-2 <= host < len(hosts) for host in device.host)
    assert sorted(trace.threads) == list(trace.threads)
    if "shapes" in ways:
        without = read(path, ops=False, shapes=True)
        assert without is not None
        assert calls(without) == calls(trace)
    if "details" not in ways:
        return
    detailed = read(path, ops=False, details=True)
    assert detailed is not None and detailed.details is not None
    assert calls(detailed) == calls(trace) and operators(detailed) == operators(trace)
    of_ops, facts = len(detailed.ops), detailed.details
    assert len(facts.given) == len(facts.sequence) == len(facts.backward) == of_ops
    assert len(facts.of_event) == len(device) and all(-1 <= place < of_ops for place in facts.of_event)
    assert all(-1 <= place < len(facts.inputs) for place in facts.given)


def calls(trace: Trace) -> list[tuple[str | int, ...]]:
    """List the device events with the calls that launched them."""
    found = []
    for event in trace.device_events:
        host = event.host
        found.append((*event[:1], *event[2:5], f"{host.name} {host.start_ns} {trace.threads[host.thread]}" if host else ""))
    return found


def operators(trace: Trace) -> list[tuple[str | int, ...]]:
    """List the operators with their threads; a reading with details may know more threads, and so number them otherwise."""
    return [(op.name, op.start_ns, op.end_ns, trace.threads[op.thread]) for op in trace.ops]


def read(path: Path, ops: bool = True, shapes: bool = False, details: bool = False) -> Trace | None:
    """Read a trace; return None if it is refused."""
    try:
        return read_trace(path, ops=ops, shapes=shapes, details=details)
    except DataError:
        return None


def seeds() -> list[bytes]:
    """Return traces to start from."""
    texts = [layout(sample(6), META).encode() for layout in LAYOUTS]
    return [*texts, *map(gzip.compress, texts)]
