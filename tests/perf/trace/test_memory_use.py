"""How much memory the joining needs at its peak: what the rule allows for each device event, its launch call included."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from strobe.perf.trace import Trace
from strobe.perf.trace.join import join
from strobe.perf.trace.tables import DeviceTable, EventKind, HostTable, LaunchTable, OperatorSizes, Threads


def _filled(count: int, nodes: int, spread: int) -> tuple[DeviceTable, LaunchTable]:
    """Kernels in bad order, launched singly or `nodes` at a time; `spread` of them start together."""
    rng = np.random.default_rng(1)
    order = rng.permutation(count)
    devices, launches = DeviceTable(linked=False), LaunchTable()
    for i in range(7):
        devices.works.id_of(EventKind(f"k{i}", 0, i % 2, 7, f"grid {i}"))
    launches.calls.id_of(("cudaLaunchKernel", 1, 1))
    for part in np.array_split(order, 50):
        devices.work.extend(part % 7)
        devices.start.extend(7_900_000_000_000_000 + part // spread * 1009)
        devices.duration.extend(part % 100)
        devices.correlation.extend(part // nodes)
        firsts = part[part % nodes == 0]
        launches.call.extend(firsts * 0)
        launches.start.extend(7_900_000_000_000_000 + firsts * 1000)
        launches.duration.extend(firsts % 50)
        launches.correlation.extend(firsts // nodes)
    return devices, launches


def _peak(count: int, nodes: int, spread: int) -> tuple[int, Trace]:
    tracemalloc.start()
    devices, launches = _filled(count, nodes, spread)
    joined, _, _ = join(Path("t.json"), devices, launches, OperatorSizes(), Threads([HostTable(), launches]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak, joined


@pytest.mark.parametrize(("nodes", "spread"), [(1, 1), (1, 4), (2, 1), (30, 1)])
def test_memory_grows_by_at_most_64_bytes_per_device_event(nodes: int, spread: int) -> None:
    few, many = 200_000, 500_000
    (small, _), (large, joined) = _peak(few, nodes, spread), _peak(many, nodes, spread)
    assert large - small <= 64 * (many - few)
    assert (len(joined.device_events), len(joined.device_events.hosts)) == (many, -(-many // nodes))
    assert joined.device_events[many - 1].host is not None


def test_numbers_of_64_bits_take_their_room_and_are_kept() -> None:
    devices, launches = _filled(1000, 1, 1)
    devices.duration.release()
    devices.duration.extend(np.arange(1000) + 2**40)
    launches.correlation.release()
    joined, _, _ = join(Path("t.json"), devices, launches, OperatorSizes(), Threads([launches]))
    assert {event.end_ns - event.start_ns for event in joined.device_events} == set(range(2**40, 2**40 + 1000))
