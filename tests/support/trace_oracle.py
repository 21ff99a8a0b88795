"""A second trace reader, slow and simple: the standard library's JSON, times as exact decimals, no code shared.

It holds a whole file and answers questions about it one event at a time, so that it is easy to see that it is right.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

DEVICE = {
    "kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset", "mtia_ccp_events": "kernel",
    "Kernel": "kernel", "Memcpy": "memcpy", "Memset": "memset",
}  # fmt: skip
HOST_CALLS = ("cuda_runtime", "cuda_driver", "Runtime", "mtia_runtime", "xpu_runtime")


def load(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Read the events and the metadata of a file; numbers with a point stay text."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        found = json.load(file, parse_float=str)
    if isinstance(found, list):
        return found, {}
    return found.pop("traceEvents"), found


def ns(microseconds: str | int) -> int:
    """Convert microseconds to nanoseconds, and assert that nothing is below one."""
    exact = Fraction(Decimal(microseconds)) * 1000
    assert exact.denominator == 1, microseconds
    return exact.numerator


def span(event: dict[str, Any]) -> tuple[int, int]:
    """Return start and end of an event, ns."""
    start = ns(event["ts"])
    return start, start + ns(event["dur"])


def union(intervals: Iterable[tuple[int, int]]) -> int:
    """Compute the length covered by at least one interval, counted edge by edge."""
    edges = sorted([(start, 1) for start, _ in intervals] + [(end, -1) for _, end in intervals])
    covered = depth = 0
    for (at, step), (after, _) in pairwise(edges):
        depth += step
        covered += (after - at) if depth else 0
    return covered


class Facts:
    """Facts of a trace, counted from its events."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.num_events = len(events)
        self.complete = [event for event in events if event["ph"] == "X"]
        self.device = [(event, *span(event)) for event in self.complete if event.get("cat") in DEVICE]
        self.calls: dict[int, dict[str, Any]] = {}
        for event in self.complete:
            if event.get("cat") in HOST_CALLS and "correlation" in event.get("args", {}):
                number = event["args"]["correlation"]
                known = self.calls.get(number)
                if known is None or ns(event["ts"]) < ns(known["ts"]):
                    self.calls[number] = event

    def kind(self, event: dict[str, Any]) -> str:
        kind = DEVICE[event["cat"]]
        return "comm" if kind == "kernel" and "nccl" in event["name"].lower() else kind

    def sums(self) -> dict[str, tuple[int, int]]:
        """Return count and total nanoseconds of each kind."""
        found: dict[str, list[int]] = defaultdict(list)
        for event, start, end in self.device:
            found[self.kind(event)].append(end - start)
        return {kind: (len(durations), sum(durations)) for kind, durations in found.items()}

    def names(self) -> dict[tuple[str, str], tuple[int, int, int, int]]:
        """Return count, sum, shortest and longest of each kernel, ns."""
        found: dict[tuple[str, str], list[int]] = defaultdict(list)
        for event, start, end in self.device:
            found[self.kind(event), event["name"]].append(end - start)
        return {key: (len(durations), sum(durations), min(durations), max(durations)) for key, durations in found.items()}

    def busy(self) -> dict[int, int]:
        """Return the time with at least one event, by device, ns."""
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for event, start, end in self.device:
            found[event["args"]["device"]].append((start, end))
        return {device: union(intervals) for device, intervals in found.items()}

    def host(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Return the call that launched a device event."""
        return self.calls.get(event.get("args", {}).get("correlation"))

    def unlinked(self) -> int:
        return sum(self.host(event) is None for event, _, _ in self.device)

    def delays(self) -> list[tuple[int, int]]:
        """List the delays from start and end of the launch call to the start of the device event, sorted."""
        hosts = [(self.host(event), start) for event, start, _ in self.device]
        return sorted((start - span(host)[0], start - span(host)[1]) for host, start in hosts if host)

    def launched(self) -> Counter[tuple[str, bool]]:
        """Count the launching calls by name, and by whether a device event answers."""
        answered = {event.get("args", {}).get("correlation") for event, _, _ in self.device}
        counts: Counter[tuple[str, bool]] = Counter()
        for number, call in self.calls.items():
            if number in answered or any(word in call["name"].lower() for word in ("launch", "memcpy", "memset")):
                counts[call["name"], number in answered] += 1
        return counts

    def spans(self, category: str, prefix: str = "") -> list[tuple[str, int, int, str]]:
        """List host events of a category with a name prefix, which is removed: name, start, end, thread."""
        return sorted(
            (event["name"][len(prefix) :], *span(event), f"{event['pid']}/{event['tid']}")
            for event in self.complete
            if event.get("cat") == category and event["name"].startswith(prefix)
        )

    def overhead(self) -> int:
        return union([span(event) for event in self.complete if event.get("cat") == "overhead"])
