"""Any layout of keys on any number of ranks gives attention over the whole: every rank compared, in threads, against float64."""

from __future__ import annotations

import gc
from itertools import accumulate

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from strobe.attention.tree import KVShards, Mask, Segment, tree_attention
from strobe.attention.tree.comm import group
from strobe.attention.tree.impl.reference import reference
from strobe.attention.types import AttentionOutput
from tree_cases import ROUNDING, TREE, Case, check
from tree_ranks import Runner


@st.composite
def shardings(draw: st.DrawFn) -> KVShards:
    num_ranks = draw(st.integers(1, 6))
    replicated, owner = draw(st.sampled_from([0, 0, 3])), draw(st.integers(0, num_ranks - 1))
    kind = draw(st.sampled_from(["contiguous", "interleaved", "even", "gaps"]))
    lengths = draw(st.lists(st.sampled_from([0, 0, 1, 2, 7, 13]), min_size=num_ranks, max_size=num_ranks))
    if kind == "contiguous":
        return KVShards.contiguous(lengths, replicated=replicated, owner=owner)
    if kind == "interleaved":
        return KVShards.interleaved(sum(lengths), num_ranks, run=draw(st.integers(1, 4)), replicated=replicated, owner=owner)
    if kind == "even":
        return KVShards.even(sum(lengths), num_ranks)
    starts = accumulate((length + 2 for length in lengths), initial=5)  # two positions forgotten between the ranks
    return KVShards(
        ranks=tuple(
            (Segment(start=0, length=5, owned=rank == owner), Segment(start=start, length=length))
            for rank, (start, length) in enumerate(zip(starts, lengths, strict=False))
        )
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shards = draw(shardings())
    num_ranks, kv_heads = len(shards.ranks), draw(st.sampled_from([1, 2, 3]))
    out_placement = draw(st.sampled_from(["replicated", "replicated", "sequence", "heads"]))
    may_spread = out_placement != "heads" or kv_heads % num_ranks == 0
    q_placement = draw(st.sampled_from(["replicated", "replicated", "sequence"]))
    number = num_ranks if q_placement == "sequence" else 1
    q_lengths = tuple(draw(st.lists(st.sampled_from([1, 1, 2, 5, 0]), min_size=number, max_size=number)))
    mask = Mask()
    if draw(st.booleans()):
        window = draw(st.sampled_from([None, 1, 4, 9]))
        start = max(0, shards.end - sum(q_lengths)) if draw(st.booleans()) else draw(st.integers(0, 40))
        mask = Mask(
            causal=window is None or draw(st.booleans()),
            window=window,
            sinks=0 if window is None else draw(st.integers(0, 4)),
            q_start=start,
        )
    return Case(
        shards=shards,
        heads=kv_heads * draw(st.sampled_from([1, 2, 4])),
        kv_heads=kv_heads,
        dim=draw(st.sampled_from([1, 8, 17])),
        dim_v=draw(st.sampled_from([1, 8, 9])),
        dtype=draw(st.sampled_from(list(ROUNDING))),
        q_lengths=q_lengths,
        scale=draw(st.sampled_from([0.1, 1.0, 30.0])),
        mask=mask,
        strategy=draw(st.sampled_from([*TREE, "ring", *(["ulysses"] if may_spread else [])])),
        q_placement=q_placement,
        out_placement=out_placement,
        spare=draw(st.sampled_from([0, 2])),
    )


@given(case=cases())
def test_any_layout_is_the_whole(ranks: Runner, case: Case) -> None:
    q, ks, vs = case.draw()

    def work(rank: int) -> AttentionOutput:
        return tree_attention(case.of_rank(rank, q, case.q_placement), ks[rank], vs[rank], **case.arguments())

    found = ranks(case.num_ranks, work)
    check(case, found)
    if case.out_placement == "replicated" and case.strategy in ("allgather", "alltoall", "ring", "ulysses"):
        for state in found[1:]:
            assert torch.equal(state.out, found[0].out) and torch.equal(state.lse, found[0].lse)
    if case.dtype == torch.float64:
        compare_gradients(ranks, case)


def compare_gradients(ranks: Runner, case: Case) -> None:
    """Of out and through the lse, for every rank's q, k and v."""
    q, ks, vs = case.draw()
    generator = torch.Generator().manual_seed(1)
    d_out = torch.randn(2, case.q_len, case.heads, case.dim_v, generator=generator, dtype=torch.float64)
    d_lse = torch.randn(2, case.q_len, case.heads, generator=generator)

    def work(rank: int) -> tuple[Tensor, ...]:
        mine = [case.of_rank(rank, q, case.q_placement).clone(), ks[rank].clone(), vs[rank].clone()]
        state = tree_attention(*(each.requires_grad_() for each in mine), **case.arguments())
        wanted = [case.of_rank(rank, each, case.out_placement) for each in (d_out, d_lse)]
        return torch.autograd.grad([state.out, state.lse], mine, [wanted[0], wanted[1].transpose(1, 2)])

    found = ranks(case.num_ranks, work)
    inputs = [each.clone().requires_grad_() for each in (q, *ks, *vs)]
    whole = reference(inputs[0], inputs[1 : 1 + len(ks)], inputs[1 + len(ks) :], case.shards, case.mask)
    assert whole.lse is not None
    seen = whole.lse.isfinite()
    lse = whole.lse.masked_fill(~seen, 0)
    outputs = [(whole.out, d_out), *([(lse, d_lse.transpose(1, 2))] if lse.requires_grad else [])]  # a constant without a key
    exact = torch.autograd.grad(
        [each[0] for each in outputs], inputs, [each[1] for each in outputs], allow_unused=True, materialize_grads=True
    )
    largest_lse = 1 + (whole.lse[seen].abs().max().item() if seen.any() else 0.0)
    for rank, gradients in enumerate(found):
        theirs = (case.of_rank(rank, exact[0], case.q_placement), exact[1 + rank], exact[1 + len(ks) + rank])
        for name, mine, wanted in zip("qkv", gradients, theirs, strict=True):
            atol = 2.0**-16 * largest_lse * (1 + (wanted.abs().max().item() if wanted.numel() else 0.0))
            where = f"d{name}, rank {rank}, {case}"
            torch.testing.assert_close(mine, wanted, atol=atol, rtol=0, msg=where)


def test_a_group_is_forgotten_with_its_last_user(ranks: Runner) -> None:
    one = torch.ones(1, 1, 1, 1)
    ranks(3, lambda rank: tree_attention(one, one, one))
    gc.collect()
    assert not [comm for comm in group._COMMS.values() if comm.size == 3]
