"""The cost model: bytes by hand, the fastest is taken, every refusal has its reason, bad arguments are named."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strobe.attention.tree import KVShards, Links, Rate, Segment, TreePlan, explain, plan, tree_attention
from strobe.attention.tree.placement import BufferRun, Mask, pieces
from strobe.attention.tree.plan import Bill, assumed_links, fit
from strobe.attention.tree.request import round_up
from strobe.attention.tree.spec import Placement
from strobe.compat import tree_attn_decode
from strobe.core.errors import ConfigError, ShapeError
from tree_ranks import Runner


def links(alpha_s: float, bytes_per_s: float, merge_bytes_per_s: float = 1e12) -> Links:
    rate, merge = Rate(alpha_s=alpha_s, bytes_per_s=bytes_per_s), Rate(alpha_s=0.0, bytes_per_s=merge_bytes_per_s)
    return Links(
        gather=rate, exchange=rate, reduce=rate, merge=merge, flops_per_s=1e14, memory_bytes_per_s=1e12, source="made up"
    )


def sent(found: TreePlan) -> dict[str, int]:
    return {each.strategy: each.sent_bytes for each in found.predictions}


def test_bytes_are_those_of_the_formulas() -> None:
    """4 ranks, bfloat16, 12 heads of 128: a row is 256 + 4 bytes."""
    rows, keys, num = 100 * 12, 50 * 12 * 2 * 128 * 2, 4
    found = sent(plan(q_len=100, lengths=[50] * num, num_heads=12, head_dim=128))
    assert found["allgather"] == (num - 1) * rows * 260
    assert found["alltoall"] == 2 * 3 / 4 * rows * 260
    assert found["allreduce3"] == 2 * 3 / 4 * rows * (4 * 128 + 8)
    assert found["ring"] == 3 * keys + 3 / 4 * rows * 260
    assert found["ulysses"] == 3 / 4 * keys + 3 * rows / 4 * 260
    shape: dict[str, Any] = {"q_len": 100, "num_heads": 12, "head_dim": 128}
    spread = sent(plan(lengths=[50] * num, **shape, q_placement="sequence", out_placement="sequence"))
    queries = rows * 128 * 2
    assert spread["alltoall"] == 3 / 4 * (queries + rows * 260)
    assert spread["ulysses"] == 3 / 4 * (keys + queries / num + rows / num * 260)
    assert spread["ring"] == 3 * keys
    on_grid = sent(plan(q_len=100, lengths=[50] * 2, num_heads=12, head_dim=128, num_head_ranks=4, kv_placement="heads"))
    assert on_grid["allgather"] == rows / 4 * 260 + 3 * rows / 4 * 260  # half the keys each, a quarter of the heads


def test_the_fastest_is_taken() -> None:
    few, many = {"q_len": 1, "lengths": [10_000] * 8}, {"q_len": 8192, "lengths": [1024] * 8}
    shape: dict[str, Any] = {"num_heads": 16, "head_dim": 128}
    slow = links(20e-6, 1e10)
    assert plan(**few, **shape, links=slow).strategy == "allgather"  # one latency
    assert plan(**many, **shape, links=slow, out_placement="sequence").strategy in ("alltoall", "ulysses")
    for each in (plan(**few, **shape, links=slow), plan(**many, **shape, links=slow)):
        times = [prediction.seconds for prediction in each.predictions]
        assert times == sorted(times) and each.predictions[0].strategy == each.strategy
        assert "runs: " + each.strategy in str(each) and "links: made up" in str(each)
    assert plan(**few, **shape, links=slow, strategy="allreduce3").strategy == "allreduce3"


def test_merges_and_copies_cost_time() -> None:
    """2 ranks, bfloat16, 12 heads of 128: a row is 260 bytes, a key with its value 12 * 512."""
    shape: dict[str, Any] = {"q_len": 1000, "lengths": [10_000] * 2, "num_heads": 12, "head_dim": 128}
    slow, fast = (
        {each.strategy: each.local_s for each in plan(**shape, links=links(1e-6, 1e12, rate)).predictions} for rate in (1e9, 1e15)
    )
    for strategy, parts in {"allgather": 2, "alltoall": 1.5, "allreduce3": 3, "ring": 2, "ulysses": 0}.items():
        assert slow[strategy] - fast[strategy] == pytest.approx(parts * 12_000 * 260 / 1e9, rel=1e-3), strategy
    keys = 10_000 * 12 * 512
    assert fast["ulysses"] - fast["allgather"] == pytest.approx(2 * 2.5 * keys / 1e12, rel=1e-3)
    assert fast["ring"] - fast["allgather"] == pytest.approx(2 * keys / 1e12, rel=1e-3)


def test_hops_hide_behind_attention() -> None:
    shape: dict[str, Any] = {"q_len": 4096, "lengths": [4096] * 4, "num_heads": 8, "head_dim": 64, "out_placement": "sequence"}
    by_name = {each.strategy: each for each in plan(**shape, q_placement="sequence", links=links(1e-6, 1e13)).predictions}
    ring = by_name["ring"]
    assert ring.hidden_s == pytest.approx(ring.comm_s) and ring.seconds == pytest.approx(ring.local_s)


FOUR_H200 = Links(
    gather=Rate(alpha_s=8.9e-6, bytes_per_s=246.5e9, host_s=301e-6),
    exchange=Rate(alpha_s=8.3e-6, bytes_per_s=228e9, host_s=220e-6),
    reduce=Rate(alpha_s=10.6e-6, bytes_per_s=277.1e9, host_s=109e-6),
    merge=Rate(alpha_s=5.7e-6, bytes_per_s=1.28e12, host_s=191e-6),
    flops_per_s=778e12,
    memory_bytes_per_s=402e9,
    launch_s=200e-6,
    source="four H200, as measure_links had them",
)
ON_ONE_MACHINE_US = {
    ("eager", 2, "replicated"): (1614, 2304, 2159, 2951, 2042),
    ("eager", 2, "sequence"): (2065, 2091, 2572, 2562, 2601),
    ("eager", 4, "replicated"): (2060, 2907, 2915, 5955, 2489),
    ("eager", 4, "sequence"): (2332, 2357, 3013, 5042, 3066),
    ("graph", 2, "replicated"): (550, 587, 695, 718, 809),
    ("graph", 2, "sequence"): (596, 563, 757, 658, 840),
    ("graph", 4, "replicated"): (457, 419, 539, 818, 512),
    ("graph", 4, "sequence"): (518, 392, 654, 761, 539),
}
"""Of allgather, alltoall, allreduce3, ring and ulysses, with those links: a host twice as slow as the first two."""


@pytest.mark.parametrize("machine", [FOUR_H200, assumed_links("nccl", 4)], ids=["measured", "assumed"])
@pytest.mark.parametrize("point", ON_ONE_MACHINE_US, ids=lambda point: f"{point[0]}-{point[1]}-{point[2]}")
def test_auto_takes_what_was_fastest_at_every_point(point: tuple[str, int, Placement], machine: Links) -> None:
    how, ranks, placement = point
    names = ("allgather", "alltoall", "allreduce3", "ring", "ulysses")
    measured = dict(zip(names, ON_ONE_MACHINE_US[point], strict=True))
    found = plan(
        q_len=4680,
        lengths=[18720 // ranks] * ranks,
        num_heads=12,
        head_dim=128,
        q_placement=placement,
        out_placement=placement,
        links=machine.in_a_graph() if how == "graph" else machine,
    )
    assert measured[found.strategy] <= 1.05 * min(measured.values()), str(found)
    assert all(each.host_s == 0 for each in found.predictions) == (how == "graph")
    assert ("in a CUDA graph" in str(found)) == (how == "graph")


def test_few_queries_on_gpus_cost_what_the_host_starts() -> None:
    found = plan(q_len=1, lengths=[16384] * 4, num_heads=16, head_dim=128, links=FOUR_H200)
    by_name = {each.strategy: each for each in found.predictions}
    assert found.strategy == "allgather" and by_name["allreduce3"].seconds > by_name["allgather"].seconds
    started_s = FOUR_H200.launch_s + FOUR_H200.gather.host_s + FOUR_H200.merge.host_s
    assert by_name["allgather"].seconds == pytest.approx(started_s, rel=0.02)
    assert by_name["allgather"].host_s > 0.5 * by_name["allgather"].seconds and " + host " in str(found)


def test_a_device_waits_for_its_host_and_a_message_for_neither() -> None:
    hop = Rate(alpha_s=4.0, bytes_per_s=math.inf, host_s=1.0)
    bill = Bill(replace(links(1.0, 1.0), exchange=hop))
    bill.run(2.0, 5.0)  # started at 2, done at 7
    there = bill.hop("keys", 1.0)  # beside what follows: 7 to 11
    bill.run(1.0, 3.0)  # the host is ahead: 7 to 10
    bill.arrive(there)
    assert bill.hidden_s == pytest.approx(3.0) and bill.busy_device_s == pytest.approx(11.0)
    bill.run(10.0, 1.0)  # the host is behind: started at 14
    assert bill.busy_device_s == pytest.approx(15.0) and bill.idle_s == pytest.approx(2.0 + 3.0)


@given(st.floats(1e-7, 1e-3), st.floats(1e6, 1e12))
def test_a_line_is_found_again(alpha_s: float, bytes_per_s: float) -> None:
    points = [(n, alpha_s + n / bytes_per_s) for n in (1e3, 1e4, 1e5, 1e6, 1e7)]
    found = fit(points)
    assert all(found.seconds(n) == pytest.approx(took, rel=1e-3) for n, took in [*points, (1e8, alpha_s + 1e8 / bytes_per_s)])


def test_times_that_lie_on_no_line_are_predicted_as_measured() -> None:
    """As two H100 exchange: large messages at 346 GB/s, those of a megabyte at a third of it."""
    points = [(1e3, 12e-6), (1e6, 20e-6), (32e6, 160e-6), (256e6, 740e-6)]
    found = fit(points)
    assert [found.seconds(n) for n, _ in points] == pytest.approx([took for _, took in points])
    assert found.seconds(144e6) == pytest.approx(450e-6) and found.seconds(10) == pytest.approx(12e-6, rel=0.01)
    assert found.seconds(512e6) == pytest.approx(2 * 740e-6, rel=0.02)
    times = [found.seconds(n) for n in range(1_000, 1_000_000_000, 7_654_321)]
    assert times == sorted(times)


def test_noise_gives_no_negative_cost() -> None:
    assert fit([(1e3, 2e-4), (1e6, 1e-4)]).bytes_per_s == float("inf")
    through = fit([(1e3, 1e-7), (1e6, 1e-3), (2e6, 4e-3)])
    assert through.alpha_s == 0 and through.bytes_per_s > 0


@given(st.integers(0, 40), st.integers(0, 12), st.integers(1, 6), st.booleans(), st.integers(1, 9) | st.none(), st.integers(0, 5))
def test_pieces_are_what_the_mask_shows(
    start: int, length: int, q_len: int, causal: bool, window: int | None, sinks: int
) -> None:
    mask = Mask(causal=causal, window=window, sinks=sinks, q_start=17)
    seen = {}
    for key in range(start, start + length):
        sees = [
            (not causal or key <= query) and (window is None or key < sinks or abs(query - key) < window)
            for query in range(17, 17 + q_len)
        ]
        seen[key] = "all" if all(sees) else "some" if any(sees) else None
    found = list(pieces((Segment(start=start, length=length),), mask, (0, q_len)))
    assert all(isinstance(each, BufferRun) and each.row == each.start - start for each in found)
    shown = {each.start + i: each.seen for each in found for i in range(each.length)}
    assert shown == {key: how for key, how in seen.items() if how}


def test_lengths_are_rounded_for_the_choice_alone() -> None:
    assert [round_up(n) for n in (0, 1, 7, 9, 1000, 1025)] == [0, 1, 7, 10, 1024, 1280]


ONE = torch.ones(1, 2, 4, 8)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"v": None}, ShapeError, "v: got None, expected a tensor"),
    ({"k": ONE[..., :4]}, ShapeError, r"k: got shape \(1, 2, 4, 4\)"),
    ({"k": ONE[:, :, :3], "v": ONE[:, :, :3]}, ShapeError, "k: got 3 heads, expected a divisor of q's 4"),
    ({"k": ONE.double()}, ShapeError, "k: got torch.float64 on cpu, expected torch.float32"),
    ({"strategy": "allgater"}, ConfigError, "did you mean 'allgather'"),
    ({"timeout": 0}, ConfigError, "timeout: got 0, expected more than 0"),
    ({"sinks": 2}, ConfigError, "sinks: got 2 without a window"),
    ({"q_lengths": [2]}, ConfigError, "q_lengths: only with"),
    ({"q_placement": "sequence", "q_lengths": [3]}, ShapeError, "q_lengths: got .3,., expec"),
    ({"shards": KVShards.contiguous([3])}, ShapeError, "k: got 2 rows, expected at least"),
    ({"shards": KVShards.contiguous([1, 1])}, ShapeError, "shards: got 2 entries, expec"),
    ({"k": None, "v": None}, ShapeError, "k and v: got None on every rank"),
    ({"timeout": math.inf}, ConfigError, "timeout: got float inf, expected a finite number"),
    ({"window": 0}, ConfigError, "window: got int 0, expected a whole number of at least 1"),
    ({"window": 3, "sinks": -1}, ConfigError, "sinks: got int -1, expected a whole number of at least 0"),
    ({"causal": "yes"}, ConfigError, "causal: got str 'yes', expected True or False"),
    ({"q_start": torch.ones(2, 3)}, ConfigError, "q_start: got Tensor tensor"),
    ({"shards": [2]}, ConfigError, r"shards: got list \[2\], expected strobe.attention.tree.KVShards, such as"),
    ({"links": {}}, ConfigError, "links: got dict {}, expected what measure_links"),
    ({"mesh": 5}, ConfigError, "mesh: got int, expected a DeviceMesh"),
    ({"strategy": None}, ConfigError, "unknown strategy 'None'; allowed: auto"),
    ({"softmax_scale": math.nan}, ConfigError, "softmax_scale: got float nan, expected a finite number"),
    ({"q_placement": "sequence", "q_lengths": 2}, ShapeError, "q_lengths: got int 2, expected a sequence of whole numbers"),
    ({"q": [1]}, ShapeError, r"q: got list, expected a tensor \[B, S, H, D\]"),
    ({"k": ONE.to_sparse()}, ShapeError, "k: got shape .1, 2, 4, 8. and sparse_coo"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG)
def test_what_does_not_fit_is_one_line(ranks: Runner, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    def work(rank: int) -> str:
        with pytest.raises(error, match=message) as found:
            tree_attention(**{"q": ONE, "k": ONE, "v": ONE} | arguments)
        return str(found.value)

    assert "\n" not in ranks(1, work)[0]


def test_compat_names_its_own_layout() -> None:
    with pytest.raises(ShapeError, match=r"v: got .*\(1, 2, 4, 8\), expected .*\(1, 2, 1\).*like k \[B, H, S, D\]"):
        tree_attn_decode(ONE, ONE[:, :, :1], ONE)
    with pytest.raises(ShapeError, match=r"k: got 3 heads, .*; the layout is \[B, H, S, D\]"):
        tree_attn_decode(ONE, ONE[:, :1].expand(1, 3, 4, 8), ONE[:, :1].expand(1, 3, 4, 8))


LAYOUTS: list[tuple[Callable[..., object], dict[str, Any], str]] = [
    (KVShards, {"ranks": 5}, "ranks: got int 5, expected for each rank a tuple of its segments"),
    (KVShards, {"ranks": ((1, 2),)}, "ranks: got int 1 for rank 0, expected Segment"),
    (KVShards, {"ranks": ((Segment(start=True, length=1),),)}, "expected a start and a length that are whole numbers"),
    (KVShards, {"ranks": ((Segment(start=0, length=-1),),)}, "rank 0 has Segment.*expected start and length of at least 0"),
    (
        KVShards,
        {"ranks": ((Segment(start=0, length=4),), (Segment(start=3, length=1),))},
        r"ranks 0 and 1 both own position 3; .* Segment\(owned=False\)",
    ),
    (KVShards.contiguous, {"lengths": 5}, "lengths: got int 5, expected a sequence of whole numbers"),
    (KVShards.contiguous, {"lengths": [2], "replicated": 1, "owner": 1}, "owner: got 1, expected a rank from 0 to 0"),
    (KVShards.even, {"num_keys": 5, "num_ranks": 0}, "num_ranks: got int 0, expected a whole number of at least 1"),
    (KVShards.interleaved, {"num_keys": -5, "num_ranks": 2}, "num_keys: got int -5"),
    (plan, {"q_len": 1, "lengths": [], "num_heads": 1, "head_dim": 8}, "lengths: got none"),
]


@pytest.mark.parametrize(("make", "arguments", "message"), LAYOUTS)
def test_what_is_no_layout_is_one_line(make: Callable[..., object], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message) as found:
        make(**arguments)
    assert "\n" not in str(found.value)


def test_lists_and_numbers_of_arrays_are_a_layout() -> None:
    segments, lengths = Segment(start=0, length=2), torch.tensor([2, 3])
    listed: Any = [[segments], []]
    assert KVShards(ranks=listed) == KVShards(ranks=((segments,), ()))
    assert KVShards.contiguous(lengths.tolist()) == KVShards.contiguous([*lengths])


def test_explain_is_what_runs(ranks: Runner) -> None:
    def work(rank: int) -> str:
        return str(explain(ONE, ONE, ONE))

    texts = ranks(2, work)
    assert texts[0] == texts[1] and texts[0].startswith("runs: allgather on 2 ranks, for auto q [1, 2, 4, 8]")
    assert "not ring: it sends keys, so all ranks must know all lengths; give shards=" in texts[0]


def test_without_a_group() -> None:
    with pytest.raises(ConfigError, match="not initialised; call torch.distributed.init_process_group first"):
        tree_attention(ONE, ONE, ONE)


@given(
    number=st.integers(0, 40), num_ranks=st.integers(1, 5), run=st.integers(1, 9), sink=st.sampled_from([0, 3]), data=st.data()
)
def test_interleaved_keys_have_one_owner_each(number: int, num_ranks: int, run: int, sink: int, data: st.DataObject) -> None:
    owner = data.draw(st.integers(0, num_ranks - 1))
    shards = KVShards.interleaved(number, num_ranks, run=run, replicated=sink, owner=owner)
    owned = [
        (position, rank)
        for rank, segments in enumerate(shards.ranks)
        for each in segments
        if each.owned
        for position in range(each.start, each.start + each.length)
    ]
    dealt = [(sink + key, key // run % num_ranks) for key in range(number)]
    assert sorted(owned) == sorted([(position, owner) for position in range(sink)] + dealt)
    assert shards.num_keys == shards.end == sink + number
