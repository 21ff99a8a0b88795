"""Traces of streams with known lengths: passes launched kernel by kernel, and the same passes as graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from made_traces import device_events
from strobe.perf.trace import DeviceEvent, HostEvent, HostEvents, Region, Trace

LAUNCH_NS = 10
STEPS, LAYERS = 2, 3
LAYER = (
    ("attention", "qkv_projection", "gemm_qkv", 40),
    ("attention", "attention_kernel", "flash", 100),
    ("attention", "", "add", 6),
    ("ffn", "ffn_up", "gemm_up", 70),
    ("ffn", "ffn_down", "gemm_down", 60),
)
"""Section, piece (empty: none), kernel, its length in the later layers; the first layer takes twice as long."""
STEP_NS = sum(length for *_, length in LAYER) * (LAYERS + 1)


@dataclass
class Recorder:
    """A clock of host and device: calls take `LAUNCH_NS` with `pause` between them; kernels start `delay` after their call."""

    pause: int = 20
    delay: int = 30
    scale: int = 1
    now: int = 1000
    free: int = 0
    regions: list[Region] = field(default_factory=list)
    events: list[DeviceEvent] = field(default_factory=list)

    def enter(self) -> int:
        self.now += 1
        return self.now

    def leave(self, name: str, start: int, index: int | None = None) -> None:
        self.now += 1
        self.regions.append(Region(name=name, index=index, start_ns=start, end_ns=self.now, thread=0))

    def launch(self, kernels: Sequence[tuple[str, int]], call: str = "cudaLaunchKernel") -> None:
        host = HostEvent(call, self.now, self.now + LAUNCH_NS, 0)
        self.now += LAUNCH_NS + self.pause
        for ordinal, (name, length) in enumerate(kernels):
            start = max(self.free, host.start_ns + self.delay)
            self.free = start + length * self.scale
            self.events.append(DeviceEvent(name, "kernel", start, self.free, 0, 7, ordinal, host))

    def trace(self) -> Trace:
        regions = sorted(self.regions, key=lambda region: (region.start_ns, -region.end_ns))
        return Trace(
            path=Path("t.json"), threads=("1/1",), ops=HostEvents.empty(), regions=tuple(regions),
            device_events=device_events(sorted(self.events, key=lambda event: event.start_ns)),
        )  # fmt: skip


def kernels_of(layer: int) -> list[tuple[str, str, str, int]]:
    return [(section, piece, kernel, length * (2 if layer == 0 else 1)) for section, piece, kernel, length in LAYER]


def _layers(to: Recorder) -> None:
    outer = to.enter()
    for layer in range(LAYERS):
        for section in ("attention", "ffn"):
            start = to.enter()
            for own, piece, kernel, length in kernels_of(layer):
                if own != section:
                    continue
                inner = to.enter()
                to.launch([(kernel, length)])
                if piece:
                    to.leave(piece, inner)
            to.leave(section, start)
    to.leave("dit_forward", outer)


def stream(to: Recorder, *, graphs: bool = False, blocks: int = 1, extra: Sequence[tuple[str, int]] = ()) -> Trace:
    """Frame blocks of `STEPS` denoise steps and a commit pass; before a pass region `conditions`, and a step ends with a kernel
    `mix`, both outside of the graph.

    Args:
        extra: kernels that a graph runs first and that no pass without graphs has.
    """
    whole = [(kernel, length) for layer in range(LAYERS) for _, _, kernel, length in kernels_of(layer)]
    for block in range(blocks):
        outer = to.enter()
        for name, index in (*(("denoise_step", step) for step in range(STEPS)), ("commit", None)):
            start = to.enter()
            to.leave("conditions", to.enter())
            if graphs:
                to.launch([*extra, *whole], "cudaGraphLaunch")
            else:
                _layers(to)
            if name == "denoise_step":
                to.launch([("mix", 8)])
            to.leave(name, start, index)
        to.leave("frame_block", outer, block)
    return to.trace()
