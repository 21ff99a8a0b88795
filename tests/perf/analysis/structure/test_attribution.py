from __future__ import annotations

import pytest

from made_traces import trace_of
from strobe.core.errors import ConfigError
from strobe.perf.analysis.operators import SORTS, attribute_modules, attribute_operators
from strobe.perf.trace.events import DeviceEvent, HostEvent, Trace

# linear [0, 100) calls addmm [10, 60), which launches twice; relu [100, 130) launches once; one kernel has no launch call.
OPS = (
    HostEvent("aten::linear", 0, 100, 0),
    HostEvent("aten::addmm", 10, 60, 0),
    HostEvent("aten::relu", 100, 130, 0),
    HostEvent("aten::linear", 200, 210, 1),
)
MODULES = (HostEvent("Block_0", 0, 140, 0), HostEvent("Linear_0", 0, 100, 0), HostEvent("Linear_1", 200, 212, 1))


def kernel(start: int, end: int, launched_at: int | None, thread: int = 0) -> DeviceEvent:
    host = None if launched_at is None else HostEvent("cudaLaunchKernel", launched_at, launched_at + 2, thread)
    return DeviceEvent("k", "kernel", start, end, 0, 7, 0, host)


def trace(*kernels: DeviceEvent) -> Trace:
    return trace_of(kernels, ops=OPS, modules=MODULES)


GPU = trace(kernel(20, 320, 15), kernel(320, 330, 50), kernel(330, 400, 110), kernel(0, 5, None), kernel(410, 411, 205, thread=1))


def test_device_work_belongs_to_the_innermost_operator_that_launched_it() -> None:
    found = {row.name: row for row in attribute_operators(GPU)}
    assert {name: row.device_ns for name, row in found.items()} == {"aten::addmm": 310, "aten::relu": 70, "aten::linear": 1}
    assert {name: row.calls for name, row in found.items()} == {"aten::addmm": 1, "aten::relu": 1, "aten::linear": 2}
    assert (found["aten::linear"].host_ns, found["aten::linear"].self_host_ns) == (110, 60)


def test_modules_have_what_no_inner_module_launched() -> None:
    found = {row.name: (row.device_ns, row.host_ns) for row in attribute_modules(GPU)}
    assert found == {"Linear_0": (310, 100), "Block_0": (70, 140), "Linear_1": (1, 12)}


@pytest.mark.parametrize(
    ("order", "first"),
    [("device", "aten::addmm"), ("self_host", "aten::linear"), ("host", "aten::linear"), ("calls", "aten::linear")],
)
def test_rows_are_in_the_order_asked_for(order: str, first: str) -> None:
    assert attribute_operators(GPU, order)[0].name == first
    assert {row.name for row in attribute_operators(GPU, order)} == {event.name for event in OPS}


def test_without_device_events_the_hosts_own_time_decides() -> None:
    assert [row.name for row in attribute_operators(trace(), "device")] == ["aten::linear", "aten::addmm", "aten::relu"]


def test_an_unknown_order_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown order 'memory'; allowed: device, self_host, host, calls"):
        attribute_operators(GPU, "memory")
    assert SORTS == ("device", "self_host", "host", "calls")
