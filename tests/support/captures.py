"""Our own captures of an H200, as read by the second reader (`trace_oracle`)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import trace_oracle as oracle

H200 = Path(__file__).parents[1] / "data" / "h200"
Span = tuple[int, int]


class Raw:
    """A capture's device events in order of start, each with its launch call, as the second reader reads them."""

    def __init__(self, name: str) -> None:
        events, self.meta = oracle.load(H200 / f"{name}.json.gz")
        self.facts = oracle.Facts(events)
        self.device = sorted(self.facts.device, key=lambda row: row[1])

    def host(self, event: dict[str, Any]) -> Span:
        call = self.facts.host(event)
        assert call is not None
        return oracle.span(call)

    def named(self, text: str) -> list[Span]:
        return [(start, end) for event, start, end in self.device if event["name"] == text]

    def launched_by(self, name: str) -> list[int]:
        """Count the device events of each launch call of a name."""
        numbers = [number for number, call in self.facts.calls.items() if call["name"] == name]
        counts = Counter(event["args"]["correlation"] for event, _, _ in self.device)
        return [counts[number] for number in numbers]

    def idle(self, until: int | None = None) -> dict[str, int]:
        """Sum idle time by the class of the event that ends each gap, as the manual defines the classes, up to a given start."""
        found = {"host_late": 0, "launch_latency": 0, "queued": 0}
        seen: set[int] = set()
        end = self.device[0][1]
        for event, start, stop in self.device:
            number = event["args"]["correlation"]
            called = self.host(event)[0]
            if start > end and (number in seen or called < end):
                found["queued"] += start - end
            elif start > end:
                found["host_late"] += called - end
                found["launch_latency"] += start - called
            seen.add(number)
            end = max(end, stop)
            if start == until:
                break
        return found
