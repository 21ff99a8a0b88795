"""Window: a stretch of a device's time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The time `[start_ns, end_ns)` of a device, or of the host in a trace without device events, in the trace's own nanoseconds.

    `label` says how it was chosen.
    """

    start_ns: int
    end_ns: int
    label: str
