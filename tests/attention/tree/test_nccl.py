"""The same on two GPUs over NCCL; the twins over gloo are in `test_layouts.py` and `test_faults.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tree_work as work
from strobe.attention.tree import KVShards, Mask
from tree_cases import Case, check, check_gradients
from tree_ranks import Processes

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")]

UNEVEN = KVShards.contiguous([100, 63])
EMPTY = KVShards.contiguous([0, 131])
STRATEGIES = ("auto", "allgather", "alltoall", "allreduce3", "ring", "ulysses")
SLACK = 8.0
ANSWER_S = 30.0
"""What a test waits for ranks at most."""


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    with Processes(2, nccl="queued") as processes:
        yield processes


@pytest.fixture
def pair() -> Iterator[Processes]:
    """Ranks that a test may break; they have met."""
    with Processes(2, nccl="blocking") as processes:
        assert processes.run(work.patient) == [1.0, 1.0]
        yield processes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_rank_has_the_whole(two: Processes, strategy: str, dtype: torch.dtype) -> None:
    for shards in (UNEVEN, EMPTY):
        for q_lengths, dim in (((1,), 64), ((63,), 128)):
            case = Case(shards=shards, strategy=strategy, dtype=dtype, dim=dim, dim_v=dim, heads=8, q_lengths=q_lengths)
            check(case, two.run(work.attend, case), SLACK)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_spread_queries_under_a_mask(two: Processes, strategy: str) -> None:
    case = Case(
        shards=KVShards.interleaved(90, 2, run=7, replicated=2, owner=1),
        strategy=strategy,
        q_placement="sequence",
        out_placement="sequence",
        q_lengths=(20, 11),
        mask=Mask(causal=True, window=30, sinks=2, q_start=59),
        dim=64,
        dim_v=32,
    )
    check(case, two.run(work.attend, case), SLACK)


def test_gradients(two: Processes) -> None:
    case = Case(shards=KVShards.contiguous([9, 4]), strategy="allgather")
    check_gradients(case, two.run(work.differentiate, case))


def test_links_are_the_same_on_all_ranks(two: Processes) -> None:
    links = two.run(work.plan_with_links)
    assert links[0] == links[1] and "measured: nccl, 2 ranks, cuda" in links[0][1]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_replayed_graph_gives_what_a_call_gives(two: Processes, strategy: str) -> None:
    case = Case(shards=UNEVEN, strategy=strategy, dtype=torch.bfloat16, dim=64, dim_v=64, heads=8, q_lengths=(1,))
    for told in two.run(work.replay, case):
        for replayed, eager in told:
            assert torch.equal(replayed, eager) and eager.isfinite().all() and eager.abs().max() > 0


def test_a_graph_may_take_another_way_than_the_calls_before_it() -> None:
    """Where a host is slow at exchanges `auto` gathers, but exchanges in a graph, which nothing was warmed up for."""
    with Processes(2, nccl="queued") as queued:
        for chosen, alike in queued.run(work.capture_another):
            assert chosen == [*["allgather"] * 3, "alltoall"] and alike


@pytest.mark.parametrize(("strategy", "hang_s"), [("allgather", 0.0), ("allreduce3", 10 * ANSWER_S)])
def test_a_rank_that_goes_in_the_middle_of_a_call(pair: Processes, strategy: str, hang_s: float) -> None:
    pair.start(work.exit_in_call, 1, strategy, hang_s)
    told = pair.outcomes([0], ANSWER_S)[0]
    assert told.kind == "CollectiveError" and told.blamed == (1,), told
    for word in ("rank 1 ", "q [1, 1, 2, 8]", strategy):
        assert word in told.error, told.error


def test_a_rank_that_disagrees(pair: Processes) -> None:
    pair.start(work.small, {1: {"options": {"softmax_scale": 0.5}}})
    for told in pair.outcomes(within=ANSWER_S):
        assert told.kind == "CollectiveError" and "disagree" in told.error and "scale 0.5" in told.error, told


def test_a_replayed_graph_that_waits_ends_the_process(tmp_path: Path) -> None:
    with Processes(2, nccl="queued") as queued:
        queued.start(work.graph_that_waits, str(tmp_path / "error.json"), 1)
        assert queued.outcomes([0], ANSWER_S)[0].ended
    said = json.loads((tmp_path / "error.json").read_text())["message"]["message"]
    assert "of rank 0 of 2 (a replayed graph): rank 1 did not answer within 1.5 s" in said, said


def test_a_call_that_waits_ends_the_process(tmp_path: Path) -> None:
    with Processes(2, nccl="queued") as queued:
        queued.run(work.patient)
        queued.start(work.report_to, str(tmp_path / "error.json"))
        queued.outcomes()
        queued.start(work.exit_in_call, 1, "allgather", 10 * ANSWER_S)
        assert queued.outcomes([0], ANSWER_S)[0].ended
    said = json.loads((tmp_path / "error.json").read_text())["message"]["message"]
    for word in ("allgather", "q [1, 1, 2, 8]", "rank 1 did not answer within 1.5 s"):
        assert word in said, said
