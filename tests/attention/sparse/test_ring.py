"""Video-sparse attention over a sequence that lies on several ranks: every rank has what one device has."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import random_layouts
import ring_cases as cases
import strobe
from forked import needs_triton
from ring_cases import RingCase
from strobe.core.errors import ConfigError
from strobe.core.tolerances import tolerance
from tree_ranks import Outcome, Processes

PLAIN = RingCase(grid=(8, 8, 9), shards=(7, 5), topk=4)
"""Twelve tiles, those at the edge one token wide."""


@pytest.fixture(scope="module")
def groups() -> Iterator[dict[int, Processes]]:
    with Processes(2) as two, Processes(3) as three:
        yield {2: two, 3: three}


@given(random=st.randoms())
def test_any_layout_is_one_device(groups: dict[int, Processes], random: Random) -> None:
    random_layouts.compare(groups, cases.draw_ring_case(random, range(2, 4)))


def test_shards_are_as_even_as_can_be_where_none_are_given(groups: dict[int, Processes]) -> None:
    case = replace(PLAIN, shards=(4, 4, 4))
    cases.check_ring(case, groups[3].run(without_shards, case))


def without_shards(rank: int, case: RingCase) -> cases.Found:
    return cases.run(case, case.of(rank), group=dist.group.WORLD)


FUSED = RingCase(
    grid=(5, 8, 8), shards=(3, 5), heads=2, kv_heads=1, dim=32, topk=3, gate=True, rope=True, dtype=torch.float32, graded=False
)
"""What the kernels of a GPU take."""


@pytest.mark.rest
@needs_triton
@pytest.mark.parametrize(
    "case",
    [
        FUSED,
        replace(FUSED, shards=(8, 0), topk=(3, 2), rope=False, layout="tiled"),
        replace(FUSED, shards=(2, 6), topk=2, rope=False, impl="triton", graded=True),
    ],
    ids=["fused", "all on one rank", "gradients of the kernel, rows without a tile of a rank"],
)
def test_fused_stages_in_the_interpreter(case: RingCase) -> None:
    with Processes(2) as two:
        cases.check_ring(case, two.run(interpreted, case))


def interpreted(rank: int, case: RingCase) -> cases.Found:
    os.environ["TRITON_INTERPRET"] = "1"  # nothing has imported Triton yet
    found = cases.attend(rank, case)
    kernels = "impl.triton" if case.graded else "stages.impl.triton"  # the stages with gradients are PyTorch's
    assert f"strobe.attention.sparse.{kernels}" in sys.modules or not case.shards[rank]
    return found


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")
def test_two_gpus_have_what_one_has() -> None:
    case = RingCase(grid=(10, 24, 16), shards=(20, 52), dim=128, topk=9, gate=True, dtype=torch.bfloat16)
    with Processes(2, nccl="queued") as two:
        for each in (case, replace(case, graded=False, rope=True), replace(case, shards=(0, 72))):
            whole, _ = two.run(cases.on_gpu, each, True)
            cases.check_ring(each, two.run(cases.on_gpu, each, False), whole, tolerance("video of a GPU", "bfloat16"))


def test_a_rank_holds_its_share_of_the_keys_and_one_shard_more(groups: dict[int, Processes]) -> None:
    """No tensor of a call is as large as keys and values of all ranks, and what travels is one shard at a time."""
    case = RingCase(grid=(12, 12, 12), shards=(9, 9, 9), heads=2, kv_heads=2, dim=16, graded=False)
    share = 2 * 9 * 64 * 2 * 16  # keys and values of a rank
    assert all(largest == share for largest in groups[3].run(largest_message, case))


def largest_message(rank: int, case: RingCase) -> int:
    """Return the elements of the largest message of a call."""
    from strobe.attention.tree.comm import CollectiveCall

    sizes, exchange = [], CollectiveCall.exchange

    def watched(call: CollectiveCall, sends: list[torch.Tensor], *rest: object, **named: object) -> object:
        sizes.extend(each.numel() for each in sends)
        return exchange(call, sends, *rest, **named)  # type: ignore[arg-type]

    with patch.object(CollectiveCall, "exchange", watched):
        cases.attend(rank, case)
    return max(sizes)


def test_explain_says_what_a_rank_sends(groups: dict[int, Processes]) -> None:
    """One message of 7 coarse keys, and one of the keys and values of 7 tiles, in float64."""
    sent = (7 * 2 * 8 + 2 * 7 * 64 * 2 * 8) * 8 / 1e6
    for impl, note in groups[2].run(explained, PLAIN):
        assert impl == "cpu" and note.endswith(f"; a rank sends {sent:.1f} MB forward in 2 messages")


def explained(rank: int, case: RingCase) -> tuple[str, str]:
    mine = case.of(rank)
    options = {"grid": case.grid, "topk": case.topk, "group": dist.group.WORLD, "shards": case.shards}
    choice = strobe.explain(mine["q"], mine["k"], mine["v"], **options)
    return choice.impl.name, choice.note


def call(rank: int, case: RingCase, *, rows: int = 0, **options: object) -> None:
    """Call with this rank's share, less some rows."""
    q, k, v = (each[:, rows:] for name, each in case.of(rank).items() if name in ("q", "k", "v"))
    usual = {"grid": case.grid, "topk": case.topk, "group": dist.group.WORLD, "shards": case.shards}
    strobe.video_sparse_attention(q, k, v, **(usual | options))  # type: ignore[arg-type]


WRONG: list[tuple[dict[str, object], str]] = [
    ({"shards": (7, 6)}, "shards: got [7, 6], expected the tiles of each rank, 2 numbers with the sum 12, the tiles of grid (8,"),
    ({"shards": (13, -1)}, "shards: got int -1, expected a whole number of at least 0"),
    ({"shards": 3}, "shards: got int 3, expected a sequence of whole numbers, one for each rank"),
    ({"probe": 5}, "group: got kv_grid=None, kv_tile=None, probe=5, expected None, None and 0: queries and keys of all ranks"),
    (
        {"topk": None, "share": 0.5},
        "group: got share=0.5, pool_skipped=False, Estimator(parts=1), expected None, False and one part: one",
    ),
    ({"pool_skipped": True}, "group: got share=None, pool_skipped=True, Estimator(parts=1), expected None, False and one part"),
    (
        {"estimator": strobe.Estimator(parts=4)},
        "group: got share=None, pool_skipped=False, Estimator(parts=4), expected None, False and one part",
    ),
    ({"rows": 1}, "q: got 351 rows, expected 352 in raster order, those of tiles 0 to below 7; shards= says how many tiles"),
    ({"group": "all"}, "group: got 'all', expected a process group that this rank is in"),
    ({"topk": 13}, "topk: got 13, expected 1 to 12, the number of key tiles"),
]


def refused(rank: int, case: RingCase, given: dict[str, object]) -> str:
    try:
        call(rank, case, **given)  # type: ignore[arg-type]
    except strobe.StrobeError as error:
        return str(error)
    return "nothing"


@pytest.mark.few(3)
@pytest.mark.parametrize(("wrong", "said"), WRONG, ids=[next(iter(wrong)) + f" {n}" for n, (wrong, _) in enumerate(WRONG)])
def test_what_does_not_fit_is_refused_before_anything_is_sent(
    groups: dict[int, Processes], wrong: dict[str, object], said: str
) -> None:
    first, _ = groups[2].run(refused, PLAIN, wrong)
    assert first.startswith(said), first


def test_shards_need_a_group() -> None:
    q = torch.ones(1, 64, 1, 8)
    with pytest.raises(ConfigError, match=r"shards: got \(1,\) without group="):
        strobe.video_sparse_attention(q, q, q, grid=(4, 4, 4), topk=1, shards=(1,))


def disagreeing(rank: int, case: RingCase) -> None:
    call(rank, case, topk=2 + rank)


def gone(rank: int, case: RingCase) -> None:
    """Call once, so that the ranks know each other, and again without rank 1."""
    call(rank, case)
    if rank == 1:
        sys.exit(0)
    call(rank, case)


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (disagreeing, "disagrees on the arguments: rank 0 is in call 1: video_sparse_attention q [1, 576, 4, 8]"),
        (gone, "rank 1 closed the connection"),
    ],
)
def test_ranks_that_differ_are_named(work: Callable[..., None], said: str) -> None:
    with Processes(2) as two:
        two.start(work, PLAIN)
        found: list[Outcome] = [each for each in two.outcomes() if each.error]
    assert found and all(said in each.error and each.kind == "CollectiveError" for each in found), found
