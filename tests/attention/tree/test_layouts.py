"""Any layout of keys on any number of ranks gives attention over the whole: every rank compared against float64.

In threads, and in processes that send over gloo, which does not look at strides where a group of threads does.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import random_layouts
import tree_work as work
from strobe.attention.tree import KVShards, Mask, tree_attention
from strobe.attention.tree import comm as group
from tree_cases import TREE, Case, attend, check, check_alike, check_gradients, differentiate
from tree_draws import draw_case
from tree_ranks import Processes, Runner


@given(random=st.randoms())
def test_any_layout_is_the_whole(ranks: Runner, random: Random) -> None:
    case = draw_case(random, range(1, 7))
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
    case = Case(
        shards=KVShards.even(64, 2),
        heads=4,
        kv_heads=kv_heads,
        dim=16,
        dim_v=16,
        q_lengths=(8,),
        mask=Mask(causal=True, q_start=56),
    )
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
