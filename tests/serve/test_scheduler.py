"""The scheduler of streams, by thousands of simulated arrivals."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulate import Arrival, simulate
from strobe.serve.scheduler import ENOUGH, FULL, Demand, StreamCost, admit, choose, learn

GIB = 2**30
COSTS = {
    "balanced": StreamCost(block_s=0.238, longest_s=0.41, content_s=0.75, stream_bytes=7 * GIB),
    "turbo": StreamCost(block_s=0.155, longest_s=0.265, content_s=0.75, stream_bytes=6 * GIB),
    "ultra": StreamCost(block_s=0.086, longest_s=0.138, content_s=0.75, stream_bytes=4 * GIB),
}

demands = st.builds(
    Demand,
    stream=st.sampled_from("abcdef"),
    ahead_s=st.floats(0, 5),
    target_s=st.floats(0.1, 3),
    running=st.booleans(),
    opened_s=st.floats(0, 100),
)


@given(st.lists(demands, max_size=6, unique_by=lambda demand: demand.stream))
def test_whoever_runs_dry_first_is_next_and_order_does_not_matter(asked: list[Demand]) -> None:
    chosen = choose(asked)
    wanting = {demand.stream: demand for demand in asked if demand.running and demand.ahead_s < demand.target_s}
    assert (chosen is None) == (not wanting)
    if chosen is not None:
        assert wanting[chosen].ahead_s == min(demand.ahead_s for demand in wanting.values())
        assert {choose(list(order)) for order in list(permutations(asked))[:24]} == {chosen}


def test_a_stream_that_is_paused_or_ahead_is_not_made() -> None:
    ahead = Demand(stream="a", ahead_s=2.0, target_s=1.0)
    paused = Demand(stream="b", ahead_s=0.0, target_s=1.0, running=False)
    assert choose([ahead, paused]) is None
    assert choose([ahead, paused, Demand(stream="c", ahead_s=0.9, target_s=1.0)]) == "c"


def test_the_one_too_many_is_told_what_would_fit() -> None:
    three = [COSTS["balanced"]] * 3
    answer = admit("balanced", three, COSTS, free_bytes=100 * GIB, start_buffer_s=0.5, most=100)
    assert not answer.admitted and answer.reason_kind == "time"
    assert answer.fits == tuple(
        name for name in COSTS if admit(name, three, COSTS, free_bytes=100 * GIB, start_buffer_s=0.5, most=100).admitted
    )
    memory = admit("ultra", [], COSTS, free_bytes=3 * GIB, start_buffer_s=0.5, most=100)
    assert memory.reason_kind == "memory" and "4.0 GiB" in memory.reason and not memory.fits
    assert admit("ultra", [COSTS["ultra"]], COSTS, free_bytes=100 * GIB, start_buffer_s=0.5, most=1).reason_kind == "streams"


@given(
    st.lists(st.floats(0.01, 3), max_size=3 * ENOUGH), st.lists(st.floats(0.01, 3), max_size=4), st.sampled_from(sorted(COSTS))
)
def test_a_cost_is_learned_from_streams_that_run(steady: list[float], switched: list[float], preset: str) -> None:
    predicted = COSTS[preset]
    found = learn(predicted, steady, switched)
    assert (found.content_s, found.stream_bytes) == (predicted.content_s, predicted.stream_bytes)
    expected = sorted(steady) if len(steady) >= ENOUGH else [predicted.block_s]
    middle = (expected[(len(expected) - 1) // 2] + expected[len(expected) // 2]) / 2
    assert found.block_s == pytest.approx(middle)
    if switched:
        assert found.longest_s == max(found.block_s, *switched)
    else:
        assert found.longest_s / found.block_s == pytest.approx(predicted.longest_s / predicted.block_s)


def test_a_device_that_is_slower_than_predicted_lets_fewer_streams_in() -> None:
    slow = {**COSTS, "turbo": learn(COSTS["turbo"], [0.4] * ENOUGH, [])}
    room = {"free_bytes": 100 * GIB, "start_buffer_s": 0.5, "most": 100}
    assert admit("turbo", [COSTS["turbo"]], COSTS, **room).admitted
    assert not admit("turbo", [slow["turbo"]], slow, **room).admitted


def test_alone_a_stream_is_let_in_however_slow() -> None:
    slow = {"slow": StreamCost(block_s=2.0, longest_s=3.0, content_s=0.75, stream_bytes=1)}
    assert admit("slow", [], slow, free_bytes=10, start_buffer_s=0.5, most=2).admitted
    assert not admit("slow", [slow["slow"]], slow, free_bytes=10, start_buffer_s=0.5, most=2).admitted


@pytest.mark.parametrize("seed", range(20))
def test_streams_that_were_admitted_never_stall(seed: int) -> None:
    """150 Poisson arrivals each, with switches at any time: no frame block is late, whatever the mix."""
    draw = random.Random(seed)
    at, arrivals = 0.0, []
    for _ in range(150):
        at += draw.expovariate(1 / 6)
        watches = draw.uniform(3, 60)
        switches = tuple(draw.uniform(0, watches) for _ in range(draw.randrange(3)))
        arrivals.append(Arrival(at_s=at, preset=draw.choice(list(COSTS)), watches_s=watches, switches_s=switches[:1]))
    outcomes = simulate(arrivals, COSTS, memory_bytes=120 * GIB, start_buffer_s=1.0)
    admitted = [outcome for outcome in outcomes if outcome.admitted]
    assert len(admitted) > 30 and any(not outcome.admitted for outcome in outcomes)
    assert sum(outcome.late for outcome in admitted) == 0, "a frame block came after its viewer had run dry"
    assert max(outcome.most_ahead_s for outcome in admitted) <= 1.0 + 2 * 0.75


@settings(max_examples=30, deadline=None)
@given(st.floats(0.05, 0.7), st.integers(1, 8))
def test_steady_streams_within_the_bound_make_every_deadline(block_s: float, number: int) -> None:
    """Liu and Layland's bound, with whole frame blocks: as many as are admitted play for two minutes without one late block."""
    cost = {"p": StreamCost(block_s=block_s, longest_s=block_s, content_s=0.75, stream_bytes=1)}
    arrivals = [Arrival(at_s=0.01 * index, preset="p", watches_s=120) for index in range(number)]
    outcomes = simulate(arrivals, cost, memory_bytes=100, start_buffer_s=1.0)
    admitted = [outcome for outcome in outcomes if outcome.admitted]
    assert admitted and sum(cost["p"].share for _ in admitted) <= max(FULL, cost["p"].share)
    if len(admitted) > 1 or cost["p"].share < FULL:
        assert all(outcome.late <= 1 for outcome in admitted), outcomes  # while the others fill their buffers
