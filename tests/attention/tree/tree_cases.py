"""One call on some ranks, drawn with NaN wherever a rank owns nothing, and the check of every rank's share against float64."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from strobe.attention.tree import KVShards, Mask
from strobe.attention.tree.impl.reference import reference
from strobe.attention.tree.placement import split
from strobe.attention.types import AttentionOutput

TREE = ("auto", "allgather", "alltoall", "allreduce2", "allreduce3")
ROUNDING = {torch.float64: 0.0, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}
HALF_LSE = 2.0**-13
"""torch's CPU kernel for 16 bits approximates exp to about this."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call on some ranks."""

    shards: KVShards
    heads: int = 4
    kv_heads: int = 2
    dim: int = 8
    dim_v: int = 8
    dtype: torch.dtype = torch.float32
    q_lengths: tuple[int, ...] = (3,)
    scale: float = 1.0
    mask: Mask = Mask()  # noqa: RUF009
    strategy: str = "auto"
    q_placement: str = "replicated"
    out_placement: str = "replicated"
    spare: int = 0

    @property
    def num_ranks(self) -> int:
        return len(self.shards.ranks)

    @property
    def q_len(self) -> int:
        return sum(self.q_lengths)

    @property
    def rows(self) -> list[tuple[int, int]]:
        if self.q_placement == "replicated":
            return list(split(self.q_len, self.num_ranks))
        stops = list(accumulate(self.q_lengths, initial=0))
        return list(pairwise(stops))

    def draw(self) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """q whole, and every rank's k and v: NaN wherever the rank does not own the row."""
        generator = torch.Generator().manual_seed(self.q_len + 7 * self.shards.num_keys)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        q = (normal(2, self.q_len, self.heads, self.dim) * self.scale).to(self.dtype)
        buffers: tuple[list[Tensor], list[Tensor]] = ([], [])
        for segments in self.shards.ranks:
            owned = torch.tensor([segment.owned for segment in segments for _ in range(segment.length)] + [False] * self.spare)
            for buffer, dim in zip(buffers, (self.dim, self.dim_v), strict=True):
                drawn = normal(2, len(owned), self.kv_heads, dim)
                buffer.append(drawn.masked_fill(~owned.bool()[:, None, None], float("nan")).to(self.dtype))
        return q, *buffers

    def arguments(self) -> dict[str, Any]:
        return {
            "shards": self.shards,
            "strategy": self.strategy,
            "q_placement": self.q_placement,
            "out_placement": self.out_placement,
            "q_lengths": self.q_lengths if self.q_placement == "sequence" else None,
            "causal": self.mask.causal,
            "window": self.mask.window,
            "sinks": self.mask.sinks,
            "q_start": self.mask.q_start if self.mask.hides else None,
            "return_lse": True,
        }

    def of_rank(self, rank: int, whole: Tensor, placement: str) -> Tensor:
        """A rank's share of `[B, S, H, ...]`."""
        if placement == "replicated":
            return whole
        dim, (start, stop) = (1, self.rows[rank]) if placement == "sequence" else (2, split(self.heads, self.num_ranks)[rank])
        return whole.narrow(dim, start, stop - start)


def check(case: Case, found: list[AttentionOutput], slack: float = 1.0) -> None:
    """Every rank's share against float64. The rounding of a weight is that of its lse, and so grows with it.

    `slack` is for the fused kernels of a GPU, which sum in another order and take powers of 2.
    """
    q, ks, vs = case.draw()
    exact = reference(q.double(), [k.double() for k in ks], [v.double() for v in vs], case.shards, case.mask)
    assert exact.lse is not None
    largest_lse = exact.lse[exact.lse.isfinite()].abs().max().item() if exact.lse.isfinite().any() else 0.0
    largest_v = max((v.nan_to_num().abs().max().item() for v in vs if v.numel()), default=0.0)
    lse_error = slack * 8 * 2.0**-24 * max(1.0, largest_lse)
    tolerance = (lse_error + slack * 4 * ROUNDING[case.dtype]) * max(largest_v, 1e-30)
    for rank, state in enumerate(found):
        assert state.lse is not None and state.out.dtype == case.dtype and state.lse.dtype == torch.float32
        out, lse = (case.of_rank(rank, each, case.out_placement) for each in (exact.out, exact.lse.transpose(1, 2)))
        torch.testing.assert_close(
            state.out.double(), out, atol=tolerance, rtol=4 * ROUNDING[case.dtype], msg=f"rank {rank}, {case}"
        )
        atol = lse_error + (HALF_LSE if case.dtype.itemsize == 2 else 0.0)
        torch.testing.assert_close(state.lse.transpose(1, 2), lse, atol=atol, rtol=0, msg=f"rank {rank}, {case}")
