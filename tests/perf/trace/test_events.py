"""The column stores give back the rows they were made of."""

from strobe.perf.trace import DeviceEvent, DeviceEvents, HostEvent, HostEvents, ReadCounts

_OPS = [
    HostEvent("aten::mm", 5, 9, 0),
    HostEvent("aten::add", 6, 6, 1),
    HostEvent("aten::mm", 7_900_000_000_000_123, 7_900_000_000_000_124, 0),
]


def test_host_events_round_trip() -> None:
    store = HostEvents.from_rows(_OPS)
    assert (list(store), len(store), store[2]) == (_OPS, 3, _OPS[2])
    assert store.names == ("aten::mm", "aten::add")


def test_device_events_round_trip_and_store_a_graph_launch_once() -> None:
    launch = HostEvent("cudaGraphLaunch", 1, 3, 0)
    rows = [DeviceEvent("k", "kernel", 4 + i, 5 + i, 1, 7, i, launch) for i in range(3)]
    rows.append(DeviceEvent("copy", "memcpy", 9, 9, 0, -1, 0, None))
    store = DeviceEvents.from_rows(rows)
    assert list(store) == rows
    assert list(store.hosts) == [launch]


def test_counts_are_clean_only_if_nothing_was_bad() -> None:
    assert ReadCounts(events=5).clean
    assert not any(ReadCounts(events=5, **bad).clean for bad in ({"lost": 1}, {"mended": 1}, {"truncated": True}))
