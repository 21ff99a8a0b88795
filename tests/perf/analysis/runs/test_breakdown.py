"""Pieces of a frame block from regions and correlation, and of graphs from the order of their kernels; lengths are known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_traces import device_events, trace_of
from passes import LAYER, LAYERS, STEPS, Recorder, kernels_of, stream
from strobe.perf.analysis.runs.breakdown import (
    REGIONS,
    REST,
    Amount,
    KernelProfile,
    Operation,
    Whole,
    breakdown,
    layers_of,
    place_of,
    region_kernels,
)
from strobe.perf.analysis.runs.timeline import UNMATCHED, Label, Partition, RegionCall, Tile, passes_of
from strobe.perf.trace import HostEvent, Region

SIDES = ("denoise_step", "commit")


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


def test_a_graph_of_other_kernels_is_not_attributed() -> None:
    trace = stream(Recorder(), graphs=True)
    events = [event._replace(name=f"{event.name}_other") if event.name != "flash" else event for event in trace.device_events]
    found = breakdown(replace(trace, device_events=device_events(events)), passes_of(stream(Recorder())))
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
    ops = [HostEvent("aten::mm", 210, 260, 0), HostEvent("aten::copy_", 270, 290, 0), HostEvent("aten::mm", 520, 700, 0)]
    found = breakdown(trace_of(ops=ops, regions=regions))
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


def operation(name: str, kind: str, inside: str, calls: int, *times_ns: int) -> Operation:
    return Operation(name=name, what="", kind=kind, inside=inside, calls=calls, times_ns=times_ns)


STEP = Whole(
    name="denoise_step",
    times_ns=(1000, 1001),
    operations=(
        operation("kernel", "attention kernels", "attention", 3, 100, 101),  # 301.5
        operation("qkv", "projections", "attention", 3, 10),  # 30
        operation("cross", "attention kernels", "cross_attention", 3, 20),  # 60
        operation("up", "feed-forward", "ffn", 3, 30, 31, 32),  # 93
        operation("head", "edges", REST, 1, 7),
        operation("never", "copies", "", 0, 99),
    ),
)
DECODE = Whole(name="vae_decode", times_ns=(50,), operations=(operation("vae_enter", "decoder", "", 3, 10),))
PROFILE = KernelProfile(
    step=STEP,
    fine_ns=(1100, 1101, 1104),
    regions_ns={"attention": (500, 501, 505), "cross_attention": (100, 100, 100), "ffn": (200, 201, 202)},
    decode=DECODE,
)


def test_the_regions_by_hand() -> None:
    lines = {name: times for name, *times in PROFILE.by_region()}
    assert lines["attention"] == [Fraction(663, 2), 502]
    assert lines[REST] == [7, Fraction(3305, 3) - 502 - 100 - 201]
    assert [in_situ for isolated, in_situ in lines.values() if isolated is None] == [Fraction(2001, 2) - Fraction(3305, 3)]


TIMES = st.lists(st.integers(1, 10**9), min_size=1, max_size=7).map(tuple)


@given(TIMES, TIMES, st.lists(st.tuples(st.sampled_from([*REGIONS, REST]), st.integers(0, 40), TIMES), max_size=9))
def test_both_accounts_close(
    plain: tuple[int, ...], fine: tuple[int, ...], parts: list[tuple[str, int, tuple[int, ...]]]
) -> None:
    operations = tuple(
        operation(str(n), f"kind {n % 3}", inside, calls, *times) for n, (inside, calls, times) in enumerate(parts)
    )
    step = Whole(name="denoise_step", times_ns=plain, operations=operations)
    regions = {name: tuple(ns // 4 for ns in fine) for name in REGIONS}
    found = KernelProfile(step=step, fine_ns=fine, regions_ns=regions, decode=DECODE)
    mean = Fraction(sum(plain), len(plain))
    assert sum((ns for _, ns in step.by_kind()), Fraction(0)) + step.difference_ns == mean
    lines = found.by_region()
    assert sum(in_situ for *_, in_situ in lines) == mean
    assert sum(isolated or 0 for _, isolated, _ in lines) == step.isolated_ns


def _partition(calls: list[RegionCall]) -> Partition:
    total = sum(call.exclusive_ns for call in calls)
    tile = Tile(index=0, start_ns=0, end_ns=total, owned={Label((), "op"): total})
    return Partition(device="cpu", tiles=(tile,), calls=tuple(calls), overlap=())


def test_rows_by_span_and_name_in_order_of_exclusive_time() -> None:
    ffn, attention = Label(("denoise_step", "ffn"), "op"), Label(("commit", "attention"), "op")
    calls = [
        RegionCall("mm", ffn, 10, 4), RegionCall("mm", ffn, 30, 30), RegionCall("mm", ffn, 20, 20), RegionCall("mm", ffn, 0, 0),
        RegionCall("mm", attention, 7, 7), RegionCall("linear", ffn, 100, 55),
    ]  # fmt: skip
    table = region_kernels(_partition(calls))
    assert [(region, row.kernel, row.exclusive_ns) for region, row in table] == [
        ("ffn", "linear", 55), ("ffn", "mm", 54), ("attention", "mm", 7),
    ]  # fmt: skip
    mm = table[1][1]
    assert (mm.calls, mm.sum_ns, mm.min_ns, mm.p50_ns, mm.mean_ns, mm.max_ns, mm.p99_ns) == (4, 60, 0, 10, 15.0, 30, None)
