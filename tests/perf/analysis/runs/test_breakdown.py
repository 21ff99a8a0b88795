"""Pieces of a frame block from regions and correlation, and of graphs from the order of their kernels; lengths are known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

import pytest

from passes import LAYER, LAYERS, STEP_NS, STEPS, Recorder, kernels_of, stream
from strobe.core.errors import DataError
from strobe.perf.analysis.runs.breakdown import Amount, breakdown, layers_of, place_of
from strobe.perf.analysis.runs.timeline import UNMATCHED, passes_of
from strobe.perf.trace import DeviceEvents, HostEvent, HostEvents, Region, Trace

SIDES = ("denoise_step", "commit")
PLACES = [(section, piece) for section, piece, _, _ in LAYER]


def expected_busy(blocks: int, scale: int = 1) -> Counter[tuple[str, tuple[str, ...], int]]:
    """By stage, path and layer, from the table of kernels alone."""
    found: Counter[tuple[str, tuple[str, ...], int]] = Counter()
    for stage, times in (("denoise_step", STEPS), ("commit", 1)):
        for layer in range(LAYERS):
            for section, piece, _, length in kernels_of(layer):
                path = (section, piece) if piece else (section,)
                found[stage, path, layer] += times * blocks * length * scale
    return found


@pytest.mark.parametrize("blocks", [1, 3])
def test_kernels_belong_to_the_piece_that_launched_them(blocks: int) -> None:
    found = breakdown(stream(Recorder(), blocks=blocks))
    assert (found.device, found.blocks, found.replays) == ("cuda:0", blocks, None)
    own = {(p.stage, p.path, p.layer): a.busy_ns for p, a in found.amounts.items() if p.layer is not None and a.busy_ns}
    assert own == dict(expected_busy(blocks))
    assert sum(amount.total_ns for amount in found.amounts.values()) == found.total_ns
    assert found.stages == {"denoise_step": STEPS * blocks, "commit": blocks}
    assert found.of(("commit",), ()).calls == blocks
    assert layers_of(found) == list(range(LAYERS))


def test_calls_and_kernels_are_counted() -> None:
    found = breakdown(stream(Recorder(), blocks=2))
    kernel = found.of(("denoise_step",), ("attention", "attention_kernel"))
    assert (kernel.calls, kernel.events) == (2 * STEPS * LAYERS, 2 * STEPS * LAYERS)
    section = found.of(None, ("attention",), deep=True)
    assert (section.calls, section.events) == (2 * (STEPS + 1) * LAYERS, 3 * 2 * (STEPS + 1) * LAYERS)
    first = found.of(("commit",), ("ffn",), deep=True, layers=range(1))
    later = found.of(("commit",), ("ffn",), deep=True, layers=range(1, LAYERS))
    assert (first.busy_ns, later.busy_ns) == (2 * 2 * 130, 2 * (LAYERS - 1) * 130)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("layers", [None, range(1), range(1, LAYERS), range(LAYERS + 5)])
@pytest.mark.parametrize("stages", [None, ("denoise_step",), SIDES, ("commit", "commit"), ("vae_decode", "nothing"), ()])
def test_a_sum_is_that_of_the_amounts(stages: tuple[str, ...] | None, layers: range | None, deep: bool) -> None:
    found = breakdown(stream(Recorder(), blocks=2))
    paths = {place.path[:size] for place in found.amounts for size in range(len(place.path) + 1)}
    assert len(paths) > 5
    for path in (*paths, ("nothing",)):
        expected = Amount()
        for place, amount in found.amounts.items():
            inside = place.path[: len(path)] == path if deep else place.path == path
            there = inside and (stages is None or place.stage in stages) and (layers is None or place.layer in layers)
            if there:
                expected += amount if place.path == path else replace(amount, calls=0)
        assert found.of(stages, path, deep=deep, layers=layers) == expected


def test_gaps_lie_between_pieces() -> None:
    """The host is slow: before each kernel the device waits for it, but within no kernel."""
    to = Recorder(pause=500)
    trace = stream(to)
    found = breakdown(trace)
    events = sorted((event.start_ns, event.end_ns) for event in trace.device_events)
    waits = [after[0] - before[1] for before, after in pairwise(events)]
    assert all(wait > 0 for wait in waits)
    assert sum(gap.n for gap in found.gaps) == len(waits)
    assert sum(gap.sum_ns for gap in found.gaps) == sum(waits) == found.total_ns - sum(a.busy_ns for a in found.amounts.values())
    ends = {(gap.before.name, gap.after.name): gap for gap in found.gaps if gap.before.stage == gap.after.stage == "denoise_step"}
    inside = ends["attention / qkv_projection", "attention / attention_kernel"]
    assert inside.n == STEPS * LAYERS
    own = [event for event in trace.device_events if event.name == "flash"][: STEPS * LAYERS]
    previous = {event.end_ns for event in trace.device_events}
    assert inside.sum_ns == sum(event.start_ns - max(end for end in previous if end <= event.start_ns) for event in own)
    assert inside.max_ns <= inside.sum_ns and sum(inside.causes.values()) == inside.sum_ns and "host_late" in inside.causes


def test_a_graph_is_taken_apart_by_the_run_without_it() -> None:
    eager = stream(Recorder(pause=500), blocks=2)
    found = breakdown(stream(Recorder(scale=3), graphs=True, blocks=2), passes_of(eager))
    own = {(p.stage, p.path, p.layer): a.busy_ns for p, a in found.amounts.items() if p.layer is not None and a.busy_ns}
    assert own == dict(expected_busy(2, scale=3))
    assert found.replays is not None and found.replays.reason == ""
    launches, kernels = 2 * (STEPS + 1), 2 * (STEPS + 1) * LAYERS * len(LAYER)
    assert (found.replays.launches, found.replays.attributed) == (launches, launches)
    assert (found.replays.kernels, found.replays.matched) == (kernels, kernels)
    assert found.of(("denoise_step",), ("attention", "attention_kernel")).calls == 2 * STEPS * LAYERS
    assert found.of(None, ("conditions",)).calls == 2 * (STEPS + 1)  # entered with the graph too, and once
    mix = found.of(("denoise_step",), ())
    assert (mix.busy_ns, mix.calls) == (2 * STEPS * 8 * 3, 2 * STEPS)


def test_branches_of_a_graph_run_in_orders_of_their_own() -> None:
    """Of each layer two kernels change places, and the one that is late lies on a stream that no other layer has."""
    trace, branch = stream(Recorder(), graphs=True), count(100)
    events = list(trace.device_events)
    for place, (late, early) in enumerate(pairwise(events)):
        if late.host is not None and early.host == late.host and early.name == "flash":
            turn = late.start_ns + early.end_ns - early.start_ns
            first = early._replace(start_ns=late.start_ns, end_ns=turn, ordinal=late.ordinal)
            second = late._replace(start_ns=turn, end_ns=early.end_ns, ordinal=early.ordinal, stream=next(branch))
            events[place : place + 2] = first, second
    assert next(branch) == 100 + (STEPS + 1) * LAYERS
    found = breakdown(replace(trace, device_events=DeviceEvents.from_rows(events)), passes_of(stream(Recorder())))
    own = {(p.stage, p.path, p.layer): a.busy_ns for p, a in found.amounts.items() if p.layer is not None and a.busy_ns}
    assert own == dict(expected_busy(1))
    assert found.replays is not None and found.replays.matched == found.replays.kernels


def test_a_graph_alone_is_one_piece() -> None:
    found = breakdown(stream(Recorder(), graphs=True))
    assert found.replays is not None and (found.replays.attributed, found.replays.matched) == (0, 0)
    assert "launched kernel by kernel" in found.replays.reason and not layers_of(found)
    assert found.of(("commit",), ()).busy_ns == STEP_NS


def test_a_graph_of_other_kernels_is_not_attributed() -> None:
    trace = stream(Recorder(), graphs=True)
    events = [event._replace(name=f"{event.name}_other") if event.name != "flash" else event for event in trace.device_events]
    found = breakdown(replace(trace, device_events=DeviceEvents.from_rows(events)), passes_of(stream(Recorder())))
    assert found.replays is not None and found.replays.attributed == 0
    assert "20 % of their kernels" in found.replays.reason and not layers_of(found)


def test_a_kernel_that_only_the_graph_has_is_in_no_piece() -> None:
    found = breakdown(stream(Recorder(), graphs=True, extra=[("memset_kernel", 5)]), passes_of(stream(Recorder())))
    assert found.replays is not None and found.replays.kernels - found.replays.matched == STEPS + 1
    assert found.of(("denoise_step",), (UNMATCHED,)).busy_ns == STEPS * 5
    own = {(p.stage, p.path, p.layer): a.busy_ns for p, a in found.amounts.items() if p.layer is not None and a.busy_ns}
    assert own == dict(expected_busy(1))


def test_on_a_cpu_time_belongs_to_what_is_open() -> None:
    def region(name: str, start: int, end: int, index: int | None = None) -> Region:
        return Region(name=name, index=index, start_ns=start, end_ns=end, thread=0)

    regions = (
        region("frame_block", 0, 1000, 0),
        region("denoise_step", 100, 900, 0),
        region("dit_forward", 150, 850),
        region("attention", 200, 400),
        region("kv_write", 250, 300),
        region("attention", 500, 800),
    )
    ops = HostEvents.from_rows(
        [HostEvent("aten::mm", 210, 260, 0), HostEvent("aten::copy_", 270, 290, 0), HostEvent("aten::mm", 520, 700, 0)]
    )
    trace = Trace(path=Path("t"), threads=("1/1",), ops=ops, regions=regions, device_events=DeviceEvents.from_rows([]))
    found = breakdown(trace)
    write = found.of(("denoise_step",), ("attention", "kv_write"))
    assert (write.calls, write.busy_ns, write.idle_ns, write.sum_ns) == (1, 10 + 20, 20, 30)
    whole = found.of(("denoise_step",), ("attention",), deep=True)
    assert (whole.calls, whole.total_ns, whole.busy_ns) == (2, 500, 50 + 20 + 180)
    assert [found.of(None, ("attention",), deep=True, layers=range(n, n + 1)).total_ns for n in range(2)] == [200, 300]
    assert found.total_ns == 1000 == sum(amount.total_ns for amount in found.amounts.values())


def test_places() -> None:
    assert place_of(()).stage == "frame_block" and place_of(("outside spans",)).stage == "outside spans"
    found = place_of(("commit", "dit_forward", "layer 12", "attention", "kv_write"))
    assert (found.stage, found.path, found.layer, found.name) == ("commit", ("attention", "kv_write"), 12, "attention / kv_write")
    assert Amount(calls=1, busy_ns=2) + Amount(idle_ns=3) == Amount(calls=1, busy_ns=2, idle_ns=3)


def test_a_trace_without_frame_blocks_is_refused() -> None:
    with pytest.raises(DataError, match="frame_block"):
        breakdown(Trace(path=Path("t"), threads=(), ops=HostEvents.empty(), regions=(), device_events=DeviceEvents.from_rows([])))
