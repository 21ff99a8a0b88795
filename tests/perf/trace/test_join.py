"""Device events and their launch calls against a plain second calculation, and how much memory joining them needs at its peak."""

from __future__ import annotations

import re
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layouts import compact, shuffled, write
from strobe.perf.trace import Trace, columns, read_trace
from strobe.perf.trace.join import join
from strobe.perf.trace.tables import DeviceTable, EventKind, HostTable, InputTable, LaunchTable, threads_of
from synthetic import event, kernel


class Call(NamedTuple):
    """A launch call as the file has it, in microseconds."""

    correlation: int
    start: int
    length: int
    name: str
    tid: int


class Ran(NamedTuple):
    """A kernel as the file has it."""

    start: int
    length: int
    correlation: int
    name: str
    stream: int


def _trace(folder: Path, calls: Sequence[Call], ran: Sequence[Ran], meta: dict[str, Any] | None = None) -> Trace:
    events = [
        event("cuda_runtime", one.name, str(one.start), str(one.length), correlation=one.correlation) | {"tid": one.tid}
        for one in calls
    ]
    events += [kernel(one.name, str(one.start), str(one.length), one.correlation, stream=one.stream) for one in ran]
    return read_trace(write(folder / "t.json", compact(events, meta or {})))


def _said(trace: Trace) -> list[tuple[Any, ...]]:
    """The device events with their calls, in microseconds."""
    found: list[tuple[Any, ...]] = []
    for one in trace.device_events:
        host = one.host and (
            one.host.name, one.host.start_ns // 1000, one.host.end_ns // 1000, trace.threads[one.host.thread]
        )  # fmt: skip
        found.append((one.name, one.stream, one.start_ns // 1000, one.end_ns // 1000, one.ordinal, host))
    return found


def _expected(calls: Sequence[Call], ran: Sequence[Ran]) -> tuple[list[tuple[Any, ...]], dict[str, tuple[int, int]]]:
    outermost: dict[int, Call] = {}
    for call in sorted(calls, key=lambda one: (one.start, -one.length, one.name, one.tid)):
        outermost.setdefault(call.correlation, call)
    seen, found = Counter[int](), []
    for one in sorted(ran, key=lambda one: (one.start, -one.length, one.name, one.stream, one.correlation)):
        call = outermost.get(one.correlation)
        host = call and (call.name, call.start, call.start + call.length, f"4/{call.tid}")
        ordinal = seen[one.correlation] if call else 0
        found.append((one.name, one.stream, one.start, one.start + one.length, ordinal, host))
        seen[one.correlation] += 1
    launched: dict[str, tuple[int, int]] = {}
    for call in outermost.values():
        n, bad = launched.get(call.name, (0, 0))
        launched[call.name] = n + 1, bad + (call.correlation not in seen)
    tells = re.compile("launch|memcpy|memset", re.IGNORECASE)
    return found, {name: both for name, both in launched.items() if both[1] < both[0] or tells.search(name)}


NAMES = ("cudaLaunchKernel", "cuLaunchKernelEx", "hipMemsetAsync", "cudaFree", "allocate")
CALLS = st.builds(Call, st.integers(1, 6), st.integers(0, 4), st.integers(0, 3), st.sampled_from(NAMES), st.integers(1, 2))
RAN = st.builds(Ran, st.integers(0, 4), st.integers(0, 2), st.integers(1, 8), st.sampled_from("ab"), st.integers(1, 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("join")


def _as_written(columns: tuple[Any, ...], *_: object) -> tuple[np.ndarray, tuple[str, ...], bool]:
    """Events at random overlap and repeat; what becomes of such is test_damage's."""
    return np.ones(len(columns[0]), np.bool_), (), False


@given(calls=st.lists(CALLS, max_size=14), ran=st.lists(RAN, max_size=24), block=st.sampled_from([1, 3, 8, 1 << 15]))
def test_events_get_the_calls_and_ordinals_of_a_plain_calculation(
    calls: list[Call], ran: list[Ran], block: int, folder: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "BLOCK", block)
        patch.setattr("strobe.perf.trace.join.mend", _as_written)
        trace = _trace(folder, calls, ran)
    found, launched = _expected(calls, ran)
    assert _said(trace) == found
    if ran or not calls:
        assert trace.launched == launched


@pytest.mark.parametrize("seed", range(6))
def test_the_order_of_the_file_decides_no_tie(seed: int, folder: Path) -> None:
    """Kernels and calls that start and end together, told apart by correlation, name, stream and thread alone."""
    ran = [Ran(5, 2, number % 4 + 1, "ba"[number % 2], number // 4) for number in range(16)]
    calls = [Call(number % 4 + 1, 1, 1, NAMES[number // 4], 9 - number) for number in range(8)]
    one = _trace(folder, calls, ran)
    other = _trace(folder, shuffled(calls, seed), shuffled(ran, seed))  # type: ignore[arg-type]
    assert other.device_events == one.device_events and other.launched == one.launched
    assert _said(one) == _expected(calls, ran)[0]


@pytest.mark.parametrize(
    ("name", "speaks"),
    [
        ("cudaLaunchKernel", True), ("hipExtModuleLaunchKernel", True), ("cudaGraphLaunch", True), ("cudaMemcpyAsync", True),
        ("hipMemsetAsync", True), ("my_launcher", True), ("cuMemcpyHtoDAsync_v2", True), ("cudaFree", False),
        ("cudaMalloc", False), ("urEnqueueUSMFill", False), ("cuModuleLoadData", False),
    ],
)  # fmt: skip
def test_unanswered_calls_count_if_their_name_speaks_of_work_or_one_was_answered(name: str, speaks: bool, folder: Path) -> None:
    other = Call(1, 1, 1, "answered", 1)
    never = _trace(folder, [other, Call(2, 3, 1, name, 1), Call(3, 5, 1, name, 1)], [Ran(9, 1, 1, "k", 7)])
    assert never.launched == {"answered": (1, 0)} | ({name: (2, 2)} if speaks else {})
    once = _trace(folder, [other, Call(2, 3, 1, name, 1), Call(3, 5, 1, name, 1)], [Ran(9, 1, 1, "k", 7), Ran(9, 1, 3, "k", 7)])
    assert once.launched == {"answered": (1, 0), name: (2, 1)}


@pytest.mark.parametrize("nodes", [3, 100, 300, 40_000])
def test_a_graph_may_have_more_nodes_than_a_block_or_a_short_number(nodes: int) -> None:
    """Nodes of two graphs in turn, so that both lie in every block."""
    devices, launches = DeviceTable(linked=False), LaunchTable()
    devices.works[EventKind("k", 0, 0, 7, "")] = 0
    launches.calls["cudaGraphLaunch", 1, 1] = 0
    number = np.arange(2 * nodes)
    for column, values in (
        (devices.work, number * 0), (devices.start, number), (devices.duration, number * 0 + 1),
        (devices.correlation, number % 2 + 1), (launches.call, [0, 0]), (launches.start, [0, 0]), (launches.duration, [1, 2]),
        (launches.correlation, [1, 2]),
    ):  # fmt: skip
        column.extend(values)
    joined, _, _ = join(Path("t.json"), devices, launches, InputTable(), threads_of([launches]))
    assert (np.asarray(joined.device_events.ordinal) == number // 2).all()
    assert [joined.device_events[row].host.end_ns for row in (0, 1, 2 * nodes - 2)] == [1, 2, 1]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("listed", "used", "numbers"),
    [
        ([0], [2, 2], [2]),
        ([0], [2, None], [2]),  # an event without a device is on none
        ([5], [None], [5]),
        ([0], [2, 3], [0]),
        ([0, 1], [2, 2], [0, 1]),
        ([0, 1], [1, 1], [0, 1]),
        ([], [2], []),
    ],
)
def test_only_an_only_device_gets_the_number_of_its_events(
    listed: list[int], used: list[int | None], numbers: list[int], folder: Path
) -> None:
    events = [kernel("k", str(5 * at), "1", at + 1, device=device) for at, device in enumerate(used)]
    for one in events:
        one["pid"] = one["args"]["device"] if one["args"]["device"] is not None else "spans"
    meta = {"deviceProperties": [{"id": number, "name": f"gpu {number}"} for number in listed]}
    found = read_trace(write(folder / "t.json", compact(events, meta))).devices
    assert found == {index: f"gpu {number}" for index, number in zip(numbers, listed, strict=True)}


def _filled(count: int, nodes: int, spread: int) -> tuple[DeviceTable, LaunchTable]:
    """Kernels in bad order, launched singly or `nodes` at a time; `spread` of them start together."""
    rng = np.random.default_rng(1)
    order = rng.permutation(count)
    devices, launches = DeviceTable(linked=False), LaunchTable()
    for i in range(7):
        devices.works[EventKind(f"k{i}", 0, i % 2, 7, f"grid {i}")] = i
    launches.calls["cudaLaunchKernel", 1, 1] = 0
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
    joined, _, _ = join(Path("t.json"), devices, launches, InputTable(), threads_of([HostTable(), launches]))
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
    joined, _, _ = join(Path("t.json"), devices, launches, InputTable(), threads_of([launches]))
    assert {event.end_ns - event.start_ns for event in joined.device_events} == set(range(2**40, 2**40 + 1000))
