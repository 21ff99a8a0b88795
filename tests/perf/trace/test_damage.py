"""Damage of events is named before any figure: by event where it can be mended, and refused where it cannot."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import damaged
from layouts import compact, write
from strobe.core.errors import TraceFormatError
from strobe.perf.report.study import load_trace_study
from strobe.perf.report.trace_page.build import trace_banners
from strobe.perf.trace import Trace, read_trace
from synthetic import START, event, kernel, launch

EPOCH = 1_600_000_000_000_000
"""Microseconds: times of old traces count from 1970."""


def _read(tmp_path: Path, events: list[dict[str, Any]]) -> Trace:
    return read_trace(write(tmp_path / "t.json", compact(events, {})))


def _in_line(count: int, first: int = START, name: str = "gemm", **more: object) -> list[dict[str, Any]]:
    """Kernels of 80 µs, 100 µs apart, each launched 50 µs before."""
    calls = [launch(str(first + 100 * i - 50), "5", i + 1) for i in range(count)]
    return [*calls, *(kernel(name, str(first + 100 * i), "80", i + 1, **more) for i in range(count))]


def _ms(trace: Trace) -> tuple[float, float]:
    """Sum and span of the durations of all events."""
    events = trace.device_events
    total = sum(events.end_ns) - sum(events.start_ns)
    return total / 1e6, (max(events.end_ns) - min(events.start_ns)) / 1e6


def test_events_at_time_zero_are_left_out_and_named(tmp_path: Path) -> None:
    events = _in_line(32, EPOCH)
    for one in events[-20:-16]:
        one |= {"ts": "0", "dur": "0"}
    trace = _read(tmp_path, events)
    assert len(trace.device_events) == 28 and _ms(trace) == (2.24, 3.18)
    (said,) = trace.damage
    assert said.startswith(
        "4 events lie up to 18,519 days before their launch calls, and before all work of the host, left out: 4 gemm"
    )


def test_a_duration_over_later_events_of_its_stream_ends_at_the_next_one(tmp_path: Path) -> None:
    events = _in_line(20)
    events[20 + 5]["dur"] = "50000"
    trace = _read(tmp_path, events)
    (said,) = trace.damage
    assert (
        said
        == "1 gemm lasts 50 ms, 625 times its median, over 14 later events of its own stream: cut at the start of the next one"
    )
    assert _ms(trace) == (1.62, 1.98)


def test_a_last_event_that_lasts_much_longer_than_the_only_other_of_its_work_is_named(tmp_path: Path) -> None:
    rare = [launch(str(START + at), "5", 90 + at, "cudaLaunchKernel") for at in (10, 210)]
    rare += [kernel("rare", str(START + at + 5), dur, 90 + at, stream=20) for at, dur in ((10, "88"), (210, "8800"))]
    (said,) = _read(tmp_path, [*_in_line(20), *rare]).damage
    assert said == "1 rare lasts 8.8 ms, 100 times its median; no later event shows when it ended"
    rare[-1]["dur"] = "8799"
    assert _read(tmp_path, [*_in_line(20), *rare]).damage == ()


def test_an_event_over_those_of_another_stream_or_of_its_own_graph_is_none(tmp_path: Path) -> None:
    other = kernel("comm", str(START + 20), "1900", 99, stream=20)
    graph = [launch(str(START + 2000), "5", 200, "cudaGraphLaunch"), kernel("branch", str(START + 2100), "500", 200)]
    graph += [kernel("small", str(START + 2110 + 20 * i), "10", 200) for i in range(10)]
    assert _read(tmp_path, [*_in_line(20), other, *graph]).damage == ()


def test_events_written_twice_count_once(tmp_path: Path) -> None:
    once = [*_in_line(16), *(event("user_annotation", f"ProfilerStep#{i}", str(START + 400 * i), "390") for i in range(4))]
    trace = _read(tmp_path, [*once, *once])
    assert trace.damage == ("16 of 32 device events are exact duplicates of another and count once",)
    assert (trace.device_events, trace.ranges) == (_read(tmp_path, once).device_events, _read(tmp_path, once).ranges)


def test_two_processes_with_the_same_numbers_are_refused(tmp_path: Path) -> None:
    other = [one | {"pid": 5} if one["cat"] != "kernel" else one for one in _in_line(16, START + 7)]
    with pytest.raises(TraceFormatError, match=r"processes 4, 5 give 16 launch calls the same numbers.*a trace of its own"):
        _read(tmp_path, [*_in_line(16), *other])


def test_numbers_that_json_does_not_have_are_mended_and_what_is_lost_has_a_reason(tmp_path: Path) -> None:
    events = _in_line(16, occupancy=float("nan"), blocks=float("-inf"), note="NaN")
    events[-1]["ts"] = float("nan")
    events[-2]["name"] = ["gemm"]
    trace = _read(tmp_path, events)
    assert len(trace.device_events) == 14
    assert (trace.counts.mended, trace.counts.lost) == (15, 2)
    assert sum(trace.counts.reasons.values()) == 2


@pytest.mark.parametrize("early", [True, False])
def test_a_stray_event_does_not_stretch_the_window(early: bool, tmp_path: Path) -> None:
    at = START - 60_000 if early else START + 90_000
    stray = [launch(str(at - 20), "5", 500), kernel("stray", str(at), "4", 500)]
    trace = _read(tmp_path, [*stray, *_in_line(40)])
    assert len(trace.device_events) == 40 and _ms(trace) == (3.2, 3.98)
    (said,) = trace.damage
    assert said.startswith("1 event lies up to ") and said.endswith("in which all others of device 0 ran, left out: 1 stray")


def test_work_before_a_long_pause_is_no_stray(tmp_path: Path) -> None:
    trace = _read(tmp_path, [*_in_line(40), *_in_line(30, START + 900_000)])
    assert len(trace.device_events) == 70


def test_clocks_that_differ_are_named_and_nothing_is_left_out(tmp_path: Path) -> None:
    events = [one if one["cat"] != "kernel" else one | {"ts": str(int(one["ts"]) - 500)} for one in _in_line(16)]
    trace = _read(tmp_path, events)
    assert len(trace.device_events) == 16
    assert trace.damage == ("16 of 16 device events start before their launch calls: the clocks of host and device differ",)


# ----------------------------------------------------------------------------------------------------------------- the exam

_NAMES = ("Damaged", "Events lost", "Events mended", "Work of one stream overlaps", "The trace may not hold")
"""Titles of banners that say that something in the events is wrong."""


def _figures(trace: Trace) -> dict[str, float]:
    """Events, their span, busy time and the time of each kernel, by a plain calculation."""
    events, reached, busy = sorted(trace.device_events, key=lambda one: one.start_ns), 0, 0
    kernels = Counter[str]()
    for one in events:
        busy += max(0, one.end_ns - max(one.start_ns, reached))
        reached = max(reached, one.end_ns)
        kernels[one.name] += one.end_ns - one.start_ns
    return {"events": len(events), "span": reached - events[0].start_ns, "busy": busy, **kernels}


def _moved(before: dict[str, float], after: dict[str, float]) -> bool:
    return any(abs(after.get(name, 0) - value) > 0.01 * value for name, value in before.items())


@settings(max_examples=settings().max_examples // 5)
@given(seed=st.integers(0, 1 << 32), kind=st.sampled_from(sorted(damaged.DAMAGE)))
def test_no_damage_moves_a_figure_unnamed(seed: int, kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("exam", numbered=True)
    events = damaged.clean(rng)
    good = read_trace(write(folder / "good.json", compact(events, {})))
    assert good.damage == ()
    path = write(folder / "bad.json", compact(damaged.DAMAGE[kind](events, rng), {}))
    try:
        study = load_trace_study([path])
    except TraceFormatError:
        return
    if _moved(_figures(good), _figures(study.traces[0])):
        assert any(banner.title.startswith(_NAMES) for banner in trace_banners(study)), kind
