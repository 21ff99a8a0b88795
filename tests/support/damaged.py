"""Clean synthetic traces, and damage of each kind that profilers do to them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from synthetic import START, event, kernel, launch

Events = list[dict[str, Any]]
Damage = Callable[[Events, np.random.Generator], Events]
STREAMS = (7, 20)


def _us(time_ns: int) -> str:
    return f"{START + time_ns // 1000}.{time_ns % 1000:03d}"


def clean(rng: np.random.Generator) -> Events:
    """Return steps of kernels of five names on two streams, each launched in time and run in order, and some graph launches."""
    events, host, free, number = Events(), 5_000, dict.fromkeys(STREAMS, 0), 1
    usual = rng.integers(3_000, 90_000, 5)
    for step in range(int(rng.integers(3, 6))):
        begin = host
        for _ in range(int(rng.integers(8, 16))):
            nodes = 1 if rng.random() < 0.9 else int(rng.integers(2, 6))
            call = "cudaLaunchKernel" if nodes == 1 else "cudaGraphLaunch"
            took = int(rng.integers(3_000, 9_000))
            events.append(launch(_us(host), f"{took // 1000}.{took % 1000:03d}", number, call))
            stream = STREAMS[int(rng.random() < 0.2)]
            start = max(host + int(rng.integers(4_000, 9_000)), free[stream])
            for _ in range(nodes):
                name = int(rng.integers(5))
                long = int(usual[name] * rng.uniform(0.9, 1.1))
                dur = f"{long // 1000}.{long % 1000:03d}"
                events.append(
                    kernel(f"kernel_{name}", _us(start), dur, number, stream=stream, grid=[8, name + 1, 1]) | {"tid": stream}
                )
                start += long + int(rng.integers(200, 2_000))
            free[stream], number, host = start, number + 1, host + took + int(rng.integers(1_000, 30_000))
        events.append(event("user_annotation", f"ProfilerStep#{step}", _us(begin), str((host - begin) // 1000)))
    return events


def _some(events: Events, rng: np.random.Generator, most: int) -> Events:
    kernels = [one for one in events if one["cat"] == "kernel"]
    return [kernels[place] for place in rng.choice(len(kernels), int(rng.integers(1, most + 1)), replace=False)]


def zeroed(events: Events, rng: np.random.Generator) -> Events:
    """Set the times of a few kernels to zero, and often their durations."""
    for one in _some(events, rng, 4):
        one |= {"ts": "0"} | ({"dur": "0"} if rng.random() < 0.7 else {})
    return events


def far(events: Events, rng: np.random.Generator) -> Events:
    """Move a kernel away from its launch, by a quarter of the trace up to a million times as much."""
    kernels = [float(one["ts"]) - START for one in events if one["cat"] == "kernel"]
    (one,) = _some(events, rng, 1)
    away = (max(kernels) - min(kernels)) * 10 ** rng.uniform(-0.6, 6) * rng.choice((-1, 1))
    return [other if other is not one else one | {"ts": f"{float(one['ts']) + away:.3f}"} for other in events]


def long(events: Events, rng: np.random.Generator) -> Events:
    """Let a kernel last ten to a hundred thousand times as long."""
    (one,) = _some(events, rng, 1)
    one["dur"] = f"{float(one['dur']) * 10 ** rng.uniform(1, 5):.3f}"
    return events


def doubled(events: Events, rng: np.random.Generator) -> Events:
    """Write every event twice, or some of the kernels."""
    again = copy.deepcopy(events if rng.random() < 0.5 else _some(events, rng, 20))
    return [*events, *again] if rng.random() < 0.5 else [*again, *events]


def merged(events: Events, rng: np.random.Generator) -> Events:
    """Put the trace of a second process into the file, which counts its launches alike."""
    other = copy.deepcopy(events)
    late = int(rng.integers(1, 400_000))
    device = int(rng.random() < 0.3)
    for one in other:
        one["ts"] = f"{float(one['ts']) + late / 1000:.3f}"
        if one["cat"] == "kernel":
            one |= {"pid": device, "args": one["args"] | {"device": device}}
        else:
            one["pid"] = 5
    return [*events, *other]


def no_number(events: Events, rng: np.random.Generator) -> Events:
    """Write NaN or an infinity into some events, into what describes them or into their times."""
    for one in _some(events, rng, 8):
        value = float(rng.choice((np.nan, np.inf, -np.inf)))
        if rng.random() < 0.7:
            one["args"] = one["args"] | {"est. achieved occupancy %": value}
        else:
            one[str(rng.choice(("ts", "dur")))] = value
    return events


def negative(events: Events, rng: np.random.Generator) -> Events:
    """Let durations be negative."""
    for one in _some(events, rng, 4):
        one["dur"] = f"-{one['dur']}"
    return events


DAMAGE: dict[str, Damage] = {
    damage.__name__: damage for damage in (zeroed, far, long, doubled, merged, no_number, negative)
}  # fmt: skip
