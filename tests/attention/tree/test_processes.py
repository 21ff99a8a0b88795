"""The same in real processes over gloo: every strategy, groups, meshes, decode loops, a group made anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tree_work as work
from strobe.attention.tree import KVShards, Mask
from strobe.attention.tree.impl.reference import reference
from strobe.core.tolerances import tolerance
from tree_cases import Case, check
from tree_ranks import Processes

ROUNDING = tolerance("rounding", "float32")

EMPTY = KVShards.contiguous([9, 0, 4, 0])
SINK = KVShards.contiguous([1, 5, 0, 7], replicated=3, owner=2)


@pytest.fixture(scope="module")
def four() -> Iterator[Processes]:
    with Processes(4) as processes:
        yield processes


def test_every_rank_has_the_whole_of_many_keys(four: Processes) -> None:
    case = Case(shards=KVShards.contiguous([100, 63, 1, 2000]), q_lengths=(1,), heads=8, kv_heads=2, dim=64, dim_v=64)
    check(case, four.run(work.attend, case))


@pytest.mark.parametrize("strategy", ["allgather", "allreduce3", "ring", "ulysses"])
def test_a_double_backward_is_refused(four: Processes, strategy: str) -> None:
    case = Case(shards=KVShards.even(21, 4), kv_heads=4, strategy=strategy, q_placement="sequence", q_lengths=(1, 2, 3, 1))
    refused = "double backward of 'tree_attention' cannot run: its gradients have no gradients of their own; would run here: "
    refused += "PyTorch's own operations over the keys of all ranks"
    assert four.run(work.penalise, case) == [[refused] * 4] * 4


def test_groups_other_than_all_ranks(four: Processes) -> None:
    case = Case(shards=KVShards.contiguous([3, 8]), strategy="alltoall")
    found = four.run(work.attend_in_groups, case)
    assert found[0] is None and found[2] is None
    check(case, [found[1], found[3]])


def test_a_rank_without_keys_gives_none(four: Processes) -> None:
    for strategy in ("auto", "allreduce3"):
        case = Case(shards=EMPTY, dtype=torch.bfloat16, dim_v=7, strategy=strategy)
        check(case, four.run(work.attend_without_keys, case))


def test_a_mesh(four: Processes) -> None:
    case = Case(shards=SINK, heads=6, kv_heads=2, mask=Mask(causal=True, q_start=6), strategy="alltoall")
    check(case, four.run(work.attend_on_mesh, case))


def test_a_cache_that_grows(four: Processes) -> None:
    found = four.run(work.decode, 9)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 9, heads, 8, generator=generator, dtype=torch.float64) for heads in (4, 2, 2))
    whole = reference(q, [k], [v], KVShards.contiguous([9]), Mask(causal=True))
    for step in range(9):
        for of_rank in found:
            torch.testing.assert_close(of_rank[step].out, whole.out[:, step : step + 1], atol=ROUNDING, rtol=ROUNDING)


def test_what_is_refused_leaves_nothing_under_way(four: Processes) -> None:
    assert set(four.run(work.refused)) == {"strategy 'symmetric': symmetric memory needs CUDA devices, then 1.0"}


def test_gpu_messages_of_different_sizes_are_refused_on_gloo(four: Processes) -> None:
    refused = four.run(work.exchange_of_cuda_tensors)
    assert all("the group sends CUDA tensors by gloo" in each and '"cpu:gloo,cuda:nccl"' in each for each in refused)


def test_links_are_the_same_on_all_ranks(four: Processes) -> None:
    links = four.run(work.plan_with_links)
    assert all(each == links[0] for each in links)
    assert links[0][0].exchange.bytes_per_s > 0 and links[0][0].flops_per_s > 0
    assert "measured: gloo, 4 ranks, cpu" in links[0][1] and "runs: " in links[0][1]


def test_a_group_made_anew(tmp_path: Path) -> None:
    case = Case(shards=KVShards.contiguous([5, 2]), strategy="allreduce3")
    with Processes(2) as two:
        check(case, two.run(work.again, f"file://{tmp_path}/again", case)[::-1])
