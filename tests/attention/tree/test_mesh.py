"""On a 2-D mesh the second dimension spreads heads: results and gradients where each placement says, against float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from strobe.attention.tree import CollectiveError, KVShards, Mask, legal_grid, tree_attention
from strobe.attention.tree.impl.reference import reference
from strobe.attention.tree.placement import split
from strobe.core.tolerances import tolerance
from tree_cases import Case
from tree_ranks import Runner

ELEMENT = tolerance("element", "float32")


@dataclass(frozen=True, kw_only=True)
class OnMesh:
    """A case on `tree x columns` ranks."""

    case: Case
    tree: int
    columns: int
    kv_placement: str

    @property
    def number(self) -> int:
        return self.tree * self.columns

    def buffer(self, rank: int) -> int:
        return rank // self.columns if self.kv_placement == "heads" else rank

    def rows(self, tensor: Tensor, rank: int, placement: str) -> Tensor:
        """A rank's queries."""
        spread = self.case.q_placement == "sequence"
        rows = self.case.rows if spread else list(split(self.case.q_len, self.number))
        return tensor[:, slice(*rows[rank])] if placement == "sequence" else self.heads(tensor, rank, placement)

    def heads(self, tensor: Tensor, rank: int, placement: str) -> Tensor:
        """A column's heads."""
        number = tensor.shape[2] // self.columns
        start = rank % self.columns * number
        return tensor[:, :, start : start + number] if placement == "heads" else tensor

    def result(self, tensor: Tensor, rank: int) -> Tensor:
        """A rank's share of the result: with heads, those of its column shared out among the rows of the mesh."""
        placement = self.case.out_placement
        mine = self.rows(tensor, rank, placement)
        return mine[:, :, slice(*split(mine.shape[2], self.tree)[rank // self.columns])] if placement == "heads" else mine


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
    shards = KVShards.contiguous([(5 * rank + 3) % 7 for rank in range(buffers)], replicated=2, owner=buffers - 1)
    for strategy in ("allgather", "alltoall", "allreduce3", "ring"):
        case = Case(
            shards=shards,
            heads=12,
            kv_heads=6,
            q_lengths=(2,) * number if q_placement == "sequence" else (5,),
            mask=mask,
            dtype=torch.float64,
            strategy=strategy,
            q_placement=q_placement,
            out_placement=out_placement,
        )
        compare(ranks, OnMesh(case=case, tree=tree, columns=columns, kv_placement=kv_placement))


def compare(ranks: Runner, on: OnMesh) -> None:
    case, (q, ks, vs) = on.case, on.case.draw()
    whole = [each.clone().requires_grad_() for each in (q, *ks, *vs)]
    exact = reference(whole[0], whole[1 : 1 + len(ks)], whole[1 + len(ks) :], case.shards, case.mask).out
    d_out = torch.randn(exact.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    d_whole = torch.autograd.grad(exact, whole, d_out, allow_unused=True, materialize_grads=True)

    def work(rank: int) -> tuple[Tensor, ...]:
        keys = (on.heads(each[on.buffer(rank)], rank, on.kv_placement) for each in (ks, vs))
        mine = [each.clone().requires_grad_() for each in (on.rows(q, rank, case.q_placement), *keys)]
        mesh = init_device_mesh("cpu", (on.tree, on.columns), mesh_dim_names=("tree", "heads"))
        out = tree_attention(*mine, mesh=mesh, kv_placement=on.kv_placement, **case.arguments()).out
        return out.detach(), *torch.autograd.grad(out, mine, on.result(d_out, rank))

    for rank, found in enumerate(ranks(on.number, work)):
        of_buffer = (d_whole[1 + on.buffer(rank)], d_whole[1 + len(ks) + on.buffer(rank)])
        theirs = [
            on.result(exact.detach(), rank),
            on.rows(d_whole[0], rank, case.q_placement),
            *(on.heads(each, rank, on.kv_placement) for each in of_buffer),
        ]
        for name, mine, wanted in zip(("out", "dq", "dk", "dv"), found, theirs, strict=True):
            torch.testing.assert_close(
                mine, wanted, atol=ELEMENT, rtol=ELEMENT, msg=lambda m, n=name, r=rank: f"{n}, rank {r}: {m}"
            )


def test_the_grid_with_the_most_columns() -> None:
    assert [legal_grid(heads, number) for heads, number in ((12, 8), (40, 6), (1, 4), (8, 8))] == [(2, 4), (3, 2), (4, 1), (1, 8)]


def test_parts_of_different_lengths_under_a_mask_need_shards(ranks: Runner) -> None:
    def work(rank: int) -> None:
        keys = torch.zeros(1, (32, 16)[rank], 2, 16)
        with pytest.raises(CollectiveError, match="q_start=28, 16 keys on every rank because no shards are given"):
            tree_attention(torch.zeros(1, 4, 2, 16), keys, keys, causal=True)

    ranks(2, work)
