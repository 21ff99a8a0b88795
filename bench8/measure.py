"""Times of calls on a GPU, replayed from CUDA graphs of ten, and what its clock and power were meanwhile."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable

import torch

CALLS = 10
"""Calls in a graph."""
ROUNDS = 21


class Replay:
    """Ten calls in a CUDA graph; on a CPU the call itself, once."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call, self.graph = call, None
        call()
        if not torch.cuda.is_available():
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(CALLS):
                call()

    def begin(self) -> Callable[[], float]:
        """Start a replay; what is returned waits for it and gives microseconds a call."""
        if self.graph is None:
            start = time.perf_counter()
            self.call()
            took = (time.perf_counter() - start) * 1e6
            return lambda: took
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        self.graph.replay()
        after.record()

        def taken() -> float:
            after.synchronize()
            return before.elapsed_time(after) * 1e3 / CALLS

        return taken


def spread(times: list[float]) -> dict[str, float]:
    """Median, least and most, in microseconds."""
    return {"median": round(statistics.median(times), 1), "min": round(min(times), 1), "max": round(max(times), 1)}


def quick(replay: Replay) -> float:
    """Least of three replays, microseconds a call."""
    return min(replay.begin()() for _ in range(3))


def cold(replays: dict[str, Replay], rounds: int, rest_s: float = 0.03) -> dict[str, dict[str, float]]:
    """Interleaved, each after a rest."""
    times: dict[str, list[float]] = {name: [] for name in replays}
    for turn in range(rounds):
        names = list(replays)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            time.sleep(rest_s)
            times[name].append(replays[name].begin()())
    return {name: spread(each) for name, each in times.items()}


def mixed(replays: dict[str, Replay], rounds: int, load_s: float) -> dict[str, dict[str, float]]:
    """Interleaved without a rest, after `load_s` of the same."""
    end = time.perf_counter() + load_s
    while time.perf_counter() < end:
        for replay in replays.values():
            taken = replay.begin()
        taken()
    begun: dict[str, list[Callable[[], float]]] = {name: [] for name in replays}
    for turn in range(rounds):
        names = list(replays)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begun[name].append(replays[name].begin())
    return {name: spread([taken() for taken in each]) for name, each in begun.items()}


def alone(replay: Replay, rounds: int, load_s: float) -> dict[str, object]:
    """The last replays of `load_s` of nothing else: what it takes where the power cap sets the clock; with clock and power."""
    end, watch, waiting = time.perf_counter() + load_s, None, []
    while time.perf_counter() < end:
        waiting.append(replay.begin())
        if len(waiting) > 4:  # a few ahead, so that the GPU never waits
            waiting.pop(0)()
        if watch is None and time.perf_counter() > end - load_s / 2:
            watch = _watch()
    begun = [*waiting, *(replay.begin() for _ in range(rounds))]
    times = [taken() for taken in begun][-rounds:]
    seen = (watch.communicate()[0] if watch else "").strip().splitlines()
    return {**spread(times), "clock, power, reasons": seen[0] if seen else "unknown"}


def _watch() -> subprocess.Popen[str] | None:
    fields = "clocks.sm,power.draw,clocks_event_reasons.active"
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return None
