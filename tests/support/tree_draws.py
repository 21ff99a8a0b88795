"""Random calls on random layouts: evenly from a seed, and for property tests from a source that makes a failing call smaller."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from random import Random

from strobe.attention.tree import KVShards, Mask, Segment
from tree_cases import ROUNDING, TREE, Case, Memory

MEMORIES: tuple[tuple[Memory, ...], ...] = (("rows",), ("heads",), ("rows", "heads"), ("heads", "strided", "rows"))


def draw_case(random: Random, numbers: Sequence[int]) -> Case:
    """Draw a call on a number of ranks from `numbers`."""
    shards = _shards(random, random.choice(numbers))
    num_ranks, kv_heads = len(shards.ranks), random.choice([1, 2, 3])
    out_placement = random.choice(["replicated", "replicated", "sequence", "heads"])
    may_spread = out_placement != "heads" or kv_heads % num_ranks == 0
    q_placement = random.choice(["replicated", "replicated", "sequence"])
    q_lengths = tuple(random.choice([0, 1, 1, 2, 5, 8, 13]) for _ in range(num_ranks if q_placement == "sequence" else 1))
    return Case(
        shards=shards,
        heads=kv_heads * random.choice([1, 1, 2, 4]),
        kv_heads=kv_heads,
        dim=random.choice([1, 8, 17]),
        dim_v=random.choice([1, 8, 9]),
        dtype=random.choice(list(ROUNDING)),
        q_lengths=q_lengths,
        scale=random.choice([0.1, 1.0, 30.0]),
        mask=_mask(random, shards.end, sum(q_lengths)),
        strategy=random.choice([*TREE, "ring", *(["ulysses"] if may_spread else [])]),
        q_placement=q_placement,
        out_placement=out_placement,
        spare=random.choice([0, 2]),
        memory=random.choice(MEMORIES),
        seed=random.randrange(2**16),
    )


def _shards(random: Random, num_ranks: int) -> KVShards:
    replicated, owner = random.choice([0, 0, 3]), random.randrange(num_ranks)
    kind = random.choice(["contiguous", "interleaved", "even", "gaps"])
    lengths = [random.choice([0, 0, 1, 2, 7, 13, 32]) for _ in range(num_ranks)]
    if kind == "contiguous":
        return KVShards.contiguous(lengths, replicated=replicated, owner=owner)
    if kind == "interleaved":
        return KVShards.interleaved(sum(lengths), num_ranks, run=random.randint(1, 4), replicated=replicated, owner=owner)
    if kind == "even":
        return KVShards.even(sum(lengths), num_ranks)
    starts = accumulate((length + 2 for length in lengths), initial=5)  # two positions forgotten between the ranks
    return KVShards(
        ranks=tuple(
            (Segment(start=0, length=5, owned=rank == owner), Segment(start=start, length=length))
            for rank, (start, length) in enumerate(zip(starts, lengths, strict=False))
        )
    )


def _mask(random: Random, end: int, q_len: int) -> Mask:
    if random.choice([True, False]):
        return Mask()
    window = random.choice([None, 1, 4, 9])
    return Mask(
        causal=window is None or random.choice([True, False]),
        window=window,
        sinks=0 if window is None else random.randint(0, 4),
        q_start=max(0, end - q_len) if random.choice([True, False]) else random.randint(0, 40),
    )
