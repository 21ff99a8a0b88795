"""Any layout of keys on any number of ranks gives attention over the whole: every rank compared against float64.

In threads, and in processes that send over gloo, which does not look at strides where a group of threads does.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounter

import random_layouts
import strobe
import tree_work as work
from strobe.attention.tree import CollectiveError, KVShards, Mask, legal_grid, tree_attention
from strobe.attention.tree import comm as group
from strobe.attention.tree.impl.reference import reference
from strobe.core.tolerances import tolerance
from tree_cases import TREE, Case, attend, check, check_alike, check_gradients, differentiate
from tree_draws import draw_case
from tree_ranks import Processes, Runner


@given(random=st.randoms())
def test_any_layout_is_the_whole(ranks: Runner, random: Random) -> None:
    compare(ranks, draw_case(random, range(1, 7)))


def compare(ranks: Runner, case: Case) -> None:
    found = ranks(case.num_ranks, lambda rank: attend(rank, case))
    check(case, found)
    check_alike(case, found)
    if case.dtype.itemsize >= 4:
        check_gradients(case, ranks(case.num_ranks, lambda rank: differentiate(rank, case)))


@pytest.fixture(scope="module")
def groups() -> Iterator[dict[int, Processes]]:
    with Processes(2) as two, Processes(3) as three, Processes(4) as four:
        yield {2: two, 3: three, 4: four}


@given(random=st.randoms())
def test_any_layout_over_gloo_is_the_whole(groups: dict[int, Processes], random: Random) -> None:
    random_layouts.compare(groups, draw_case(random, range(2, 5)))


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("strategy", [*TREE, "ring", "ulysses"])
def test_the_last_of_many_positions_over_gloo(groups: dict[int, Processes], strategy: str, kv_heads: int) -> None:
    """Only some ranks have keys that a causal mask cuts, and so another kernel, whose results lie otherwise in memory."""
    mask = Mask(causal=True, q_start=56)
    case = Case(shards=KVShards.even(64, 2), kv_heads=kv_heads, dim=16, dim_v=16, q_lengths=(8,), mask=mask)
    random_layouts.compare(groups, replace(case, strategy=strategy))
    random_layouts.compare(groups, replace(case, strategy=strategy, memory=("heads", "strided")))


def test_a_group_is_forgotten_with_its_last_user(ranks: Runner) -> None:
    one = torch.ones(1, 1, 1, 1)
    ranks(3, lambda rank: tree_attention(one, one, one))
    gc.collect()
    assert not [comm for comm in group._COMMS.values() if comm.size == 3]


def test_a_message_lies_in_one_piece(groups: dict[int, Processes]) -> None:
    """Ranks whose strides differ add what belongs together; no tensor with gaps or another order comes to `torch.distributed`."""
    found = groups[3].run(work.reduce_strided)
    wanted = sum(torch.arange(24.0).view(2, 3, 4) * 10**rank for rank in range(3))
    assert all(torch.equal(total, wanted) and refused == "a message must lie in one piece" for total, refused in found)


CALLS = (
    ("sequence", "replicated", "replicated", Mask()),
    ("sequence", "sequence", "sequence", Mask(causal=True, q_start=9)),
    ("sequence", "replicated", "heads", Mask(causal=True, window=5, sinks=2, q_start=11)),
    ("heads", "heads", "sequence", Mask()),  # a cache that stays where it is: rows by tree rank, heads by column
    ("heads", "sequence", "heads", Mask(causal=True, q_start=9)),
)


@pytest.mark.parametrize(("tree", "columns"), [(2, 2), (3, 2), (1, 3)])
@pytest.mark.parametrize("call", CALLS)
def test_a_mesh_of_tree_and_heads(ranks: Runner, tree: int, columns: int, call: tuple[str, str, str, Mask]) -> None:
    kv_placement, q_placement, out_placement, mask = call
    number = tree * columns
    buffers = number if kv_placement == "sequence" else tree
    case = Case(
        shards=KVShards.contiguous([(5 * rank + 3) % 7 for rank in range(buffers)], replicated=2, owner=buffers - 1),
        heads=12,
        kv_heads=6,
        q_lengths=(2,) * number if q_placement == "sequence" else (5,),
        mask=mask,
        dtype=torch.float64,
        q_placement=q_placement,
        out_placement=out_placement,
        columns=columns,
        kv_placement=kv_placement,
    )
    for strategy in ("allgather", "alltoall", "allreduce3", "ring"):
        compare(ranks, replace(case, strategy=strategy))


@pytest.mark.parametrize("strategy", ["allgather", "alltoall"])
def test_a_cache_that_stays_where_it_is_needs_no_shards(ranks: Runner, strategy: str) -> None:
    case = Case(shards=KVShards.contiguous([6, 6]), kv_heads=4, q_lengths=(5,), dtype=torch.float64, q_placement="heads")
    compare(ranks, replace(case, strategy=strategy, columns=2, kv_placement="heads", tells_shards=False))


def test_the_grid_with_the_most_columns() -> None:
    assert [legal_grid(heads, number) for heads, number in ((12, 8), (40, 6), (1, 4), (8, 8))] == [(2, 4), (3, 2), (4, 1), (1, 8)]


def test_parts_of_different_lengths_under_a_mask_need_shards(ranks: Runner) -> None:
    def work(rank: int) -> None:
        keys = torch.zeros(1, (32, 16)[rank], 2, 16)
        with pytest.raises(CollectiveError, match="q_start=28, 16 keys on every rank because no shards are given"):
            tree_attention(torch.zeros(1, 4, 2, 16), keys, keys, causal=True)

    ranks(2, work)


def around(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return strobe.tree_attention(q * 2, k, v).out * 2


def test_autocast_changes_nothing(ranks: Runner) -> None:
    case = Case(shards=KVShards.even(64, 2), kv_heads=2, dim=16, dim_v=16, q_lengths=(8,), mask=Mask(causal=True, q_start=56))

    def within(rank: int) -> tuple[strobe.AttentionOutput, list[Tensor]]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return attend(rank, case), differentiate(rank, case)

    found, gradients = zip(*ranks(2, within), strict=True)
    check(case, list(found))
    check_gradients(case, list(gradients))


def test_a_compiled_function_may_call_it(ranks: Runner) -> None:
    generator = torch.Generator().manual_seed(0)
    q, keys, values = (torch.randn(1, rows, 4, 16, generator=generator) for rows in (8, 48, 48))
    torch._dynamo.reset()
    counter = CompileCounter()

    def work(rank: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mine = slice(0, 32) if rank == 0 else slice(32, 48)
        given = q.clone().requires_grad_(), keys[:, mine], values[:, mine]
        plain, found = around(*given), torch.compile(around, backend=counter)(*given)
        gradients = [torch.autograd.grad(out.square().sum(), given[0])[0] for out in (plain, found)]
        return plain, found, *gradients

    for plain, found, gradient, compiled_gradient in ranks(2, work):
        assert torch.equal(plain, found) and torch.equal(gradient, compiled_gradient)
    assert counter.frame_count == 2  # before and after the call


def test_one_graph_is_refused_with_the_reason(ranks: Runner) -> None:
    torch._dynamo.reset()
    given = torch.ones(1, 4, 2, 16), torch.ones(1, 8, 2, 16), torch.ones(1, 8, 2, 16)
    compiled = torch.compile(around, backend="eager", fullgraph=True)
    with pytest.raises(Unsupported, match="tree attention waits for other processes"):
        ranks(1, lambda rank: compiled(*given))


ROUNDING = tolerance("rounding", "float32")

EMPTY = KVShards.contiguous([9, 0, 4, 0])


@pytest.fixture(scope="module")
def four() -> Iterator[Processes]:
    with Processes(4) as processes:
        yield processes


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


def test_a_cache_that_grows(four: Processes) -> None:
    found = four.run(work.decode, 9)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 9, heads, 8, generator=generator, dtype=torch.float64) for heads in (4, 2, 2))
    whole = reference(q, [k], [v], KVShards.contiguous([9]), Mask(causal=True))
    for step in range(9):
        for of_rank in found:
            torch.testing.assert_close(of_rank[step].out, whole.out[:, step : step + 1], atol=ROUNDING, rtol=ROUNDING)


def test_what_is_refused_leaves_nothing_under_way(four: Processes) -> None:
    said = "strategy 'ulysses': q and k are placed by heads already; use a mesh of (tree, heads)"
    assert set(four.run(work.refused)) == {f"{said}, then 1.0"}


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
