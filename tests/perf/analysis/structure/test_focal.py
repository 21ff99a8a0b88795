"""Focal kernels of a trace, and what they prove about a timer."""

from __future__ import annotations

import pytest

from made_traces import trace_of
from strobe.core.errors import ConfigError, DataError
from strobe.perf.analysis.structure.sections import device_spans, focal_kernels, kernel_constraints, trace_evidence
from strobe.perf.trace import DeviceEvent, HostEvent, Trace

FLASH = "_ZN5flash16flash_fwd_kernelEv"  # flash::flash_fwd_kernel()


def trace(*kernels: tuple[str, int, int, int], ranges: tuple[tuple[str, int, int], ...] = ()) -> Trace:
    """Kernels as (name, start, duration, device), each launched 10 ns before it starts; ranges as (name, start, end)."""
    rows = [
        DeviceEvent(name, "kernel", start, start + length, device, 7, 0, HostEvent("cudaLaunchKernel", start - 10, start - 5, 0))
        for name, start, length, device in kernels
    ]
    return trace_of(rows, [HostEvent(name, start, end, 0) for name, start, end in ranges])


def test_each_device_has_its_own_figures() -> None:
    found = focal_kernels(
        trace(
            ("attn_a", 100, 30, 0), ("gemm", 200, 500, 0), ("attn_b", 300, 10, 1), ("attn_a", 800, 20, 0), ("attn_c", 900, 20, 0)
        ),
        "attn",
    )
    assert [(each.device, each.names, each.num_same, each.window_ns) for each in found] == [
        (0, ("attn_a", "attn_c"), 2, 820),
        (1, ("attn_b",), 1, 10),
    ]
    calls = found[0].calls
    assert (calls.n, calls.sum_ns, calls.min_ns, calls.p50_ns, calls.max_ns) == (3, 70, 20, 20, 30)


def test_names_are_searched_mangled_and_demangled_and_case_matters() -> None:
    one = trace((FLASH, 100, 30, 0))
    assert len(focal_kernels(one, "16flash")) == 1
    assert focal_kernels(one, "Flash_fwd") == () and focal_kernels(trace(), "attn") == ()
    with pytest.raises(ConfigError, match="not a regular expression"):
        focal_kernels(one, "(")


def test_kernels_bound_a_call_from_both_sides() -> None:
    found = focal_kernels(trace(("attn", 100, 30, 0), ("attn", 500, 20, 0), ("attn", 1000, 25, 0)), "attn")
    floor, ceiling = kernel_constraints(found)
    assert (floor.rule, floor.bound_ns, floor.what) == ("at_least", 20, "the 20.0 ns kernel inside it (attn, shortest of 3)")
    assert (ceiling.rule, ceiling.bound_ns, ceiling.calls) == ("at_most", 925, 2)
    assert [each.rule for each in kernel_constraints(focal_kernels(trace(("attn", 100, 30, 0)), "attn"))] == ["at_least"]
    assert kernel_constraints(()) == ()


def test_a_range_takes_the_device_time_of_what_it_launched() -> None:
    one = trace(
        ("attn", 100, 30, 0), ("gather", 160, 40, 0), ("gemm", 300, 500, 0), ("attn", 1000, 25, 0),
        ranges=(("attention#0", 80, 155), ("mlp", 280, 295), ("attention#1", 980, 995), ("attention#2", 996, 999)),
    )  # fmt: skip
    assert device_spans(one, "attention") == (100, 25)
    bounds, span = trace_evidence([one], timed="attention")
    assert [(each.rule, each.bound_ns) for each in bounds] == [("at_least", 25)] and span == (25, "the range attention")


def test_evidence_that_is_not_there_is_an_error() -> None:
    with pytest.raises(DataError, match="no device event of t.json"):
        trace_evidence([trace(("attn", 100, 30, 0))], focal="flash")
    with pytest.raises(DataError, match="no range of t.json"):
        trace_evidence([trace(("attn", 100, 30, 0))], timed="attention")
    assert trace_evidence([]) == ((), None)
