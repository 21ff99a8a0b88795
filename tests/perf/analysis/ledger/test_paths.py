"""Trees of device time by path, and two of them laid over each other."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from strobe.perf.analysis.ledger.cut import Cut, cut_trace
from strobe.perf.analysis.ledger.paths import Node, difference, path_times
from strobe.perf.trace import DeviceEvent, DeviceEvents, HostEvent, HostEvents, Trace


def make_trace(modules: bool) -> Trace:
    """Two layers of one kernel each, one kernel outside, one whose launch is not known; the last two overlap by 5."""
    scopes = [HostEvent("strobe::step#0", 0, 60, 0), HostEvent("Layer_0", 5, 20, 0), HostEvent("Layer_1", 30, 50, 0)]
    launches = {"a": 10, "b": 35, "c": 55, "d": 70}
    times = {"a": (100, 110), "b": (110, 130), "c": (130, 160), "d": (160, 170), "early": (165, 180)}
    device = [
        DeviceEvent(
            name, "kernel", *times[name], 0, 7, 0, HostEvent("launch", at, at + 1, 0) if (at := launches.get(name)) else None
        )
        for name in times
    ]
    rows = HostEvents.from_rows(scopes)
    return Trace(
        path=Path("t.json"),
        threads=("1/1",),
        ops=HostEvents.empty(),
        regions=(),
        ranges=HostEvents.from_rows(scopes[:1]) if modules else rows,
        modules=HostEvents.from_rows(scopes[1:]) if modules else HostEvents.empty(),
        device_events=DeviceEvents.from_rows(device),
        module_paths={3: "layers.7.mlp"},
    )


def test_paths_are_those_of_the_launch() -> None:
    trace = make_trace(modules=False)
    assert path_times(trace, cut_trace(trace, "t", Cut())) == {
        ("step", "Layer", "a"): 10, ("step", "Layer", "b"): 20, ("step", "c"): 30, ("layers", "7", "mlp", "d"): 10,
        ("early",): 10,
    }  # fmt: skip
    trace = make_trace(modules=True)
    assert path_times(trace, cut_trace(trace, "t", Cut())) == {
        ("Layer", "a"): 10, ("Layer", "b"): 20, ("c",): 30, ("layers", "7", "mlp", "d"): 10, ("early",): 10,
    }  # fmt: skip


_TREES = st.dictionaries(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple), st.integers(0, 1000), max_size=12)


@given(_TREES, _TREES, st.integers(1, 4), st.integers(1, 4))
def test_a_difference_adds_up(before: dict[tuple[str, ...], int], after: dict[tuple[str, ...], int], n: int, m: int) -> None:
    root = difference(before, n, after, m)
    assert root.baseline_ns == sum(round(ns / n) for ns in before.values())
    assert root.candidate_ns == sum(round(ns / m) for ns in after.values())
    own = {path: (round(before.get(path, 0) / n), round(after.get(path, 0) / m)) for path in before.keys() | after.keys()}

    def check(node: Node, path: tuple[str, ...]) -> None:
        below = [times for each, times in own.items() if each[: len(path)] == path]
        assert (node.baseline_ns, node.candidate_ns) == tuple(map(sum, zip(*below, strict=True))) if below else (0, 0)
        for child in node.children:
            check(child, (*path, child.name))

    check(root, ())
