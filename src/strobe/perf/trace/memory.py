"""Memory over time from the allocations in a trace, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from strobe.perf.trace.digits import column_ns
from strobe.perf.trace.events import MemoryTrack
from strobe.perf.trace.schema import MEMORY_NAME, MemoryArgs
from strobe.perf.trace.tables import integer

MAX_STRETCHES: Final = 4096
_FIRST_STEP: Final = 10  # stretches of 1024 ns
_DEVICE_TYPES: Final = {0: "cpu", 1: "cuda", 6: "hip", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia", 20: "privateuse1"}


class MemoryTracks:
    """Largest memory values in each stretch of time. With too many stretches per device, stretches double in length.

    Stretches start at whole multiples of their length, so that the result does not depend on the order of the events.
    """

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self._stretches: dict[str, dict[int, tuple[int, int]]] = {}

    def add(self, events: Sequence[Any]) -> int:
        """Keep the values of allocations; return the number of those without a usable time."""
        events = [event for event in events if event.name == MEMORY_NAME and event.args is not None]
        times, bad = column_ns([event.ts for event in events])
        for event, time, is_bad in zip(events, times.tolist(), bad.tolist(), strict=True):
            if not is_bad and integer(event.args.allocated) >= 0:
                self._add(time, event.args)
        return int(bad.sum())

    def _add(self, time_ns: int, args: MemoryArgs) -> None:
        device = _device(args)
        track = self._stretches.setdefault(device, {})
        step = self._steps.setdefault(device, _FIRST_STEP)
        _raise(track, time_ns >> step, integer(args.allocated), max(0, integer(args.reserved)))
        while len(track) > MAX_STRETCHES:
            longer: dict[int, tuple[int, int]] = {}
            for stretch, values in track.items():
                _raise(longer, stretch >> 1, *values)
            track = self._stretches[device] = longer
            self._steps[device] += 1

    def tracks(self) -> tuple[MemoryTrack, ...]:
        """Return one track per device, by name."""
        return tuple(self._track(device, sorted(found.items())) for device, found in sorted(self._stretches.items()))

    def _track(self, device: str, found: list[tuple[int, tuple[int, int]]]) -> MemoryTrack:
        step = self._steps[device]
        return MemoryTrack(
            device=device,
            step_ns=1 << step,
            start_ns=tuple(stretch << step for stretch, _ in found),
            allocated_bytes=tuple(allocated for _, (allocated, _) in found),
            reserved_bytes=tuple(reserved for _, (_, reserved) in found),
        )


def _raise(track: dict[int, tuple[int, int]], stretch: int, allocated: int, reserved: int) -> None:
    known = track.get(stretch, (0, 0))
    track[stretch] = (max(known[0], allocated), max(known[1], reserved))


def _device(args: MemoryArgs) -> str:
    kind, index = integer(args.device_type), integer(args.device_id)
    name = _DEVICE_TYPES.get(kind, f"device{kind}" if kind >= 0 else "device")
    return name if kind == 0 or index < 0 else f"{name}:{index}"
