"""Cases of one call on some ranks, with NaN in rows that a rank does not own, and the check of every rank's share in float64.

`attend` and `differentiate` run on every rank: in threads of the test's process and, through `tree_work`, in other processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from strobe.attention.tree import KVShards, Mask, tree_attention
from strobe.attention.tree.impl.reference import reference
from strobe.attention.tree.placement import split
from strobe.attention.types import AttentionOutput

TREE = ("auto", "allgather", "alltoall", "allreduce3")
ROUNDING = {torch.float64: 0.0, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}
HALF_LSE = 2.0**-13
"""torch's CPU kernel for 16 bits approximates exp to about this."""

Memory = Literal["rows", "heads", "strided"]
"""How the numbers of `[B, S, H, D]` lie: in that order; in that of `[B, H, S, D]`; every second one of a wider tensor."""
PATIENT_S = 300.0
"""Timeout of a call that all ranks make; only a failure lasts as long."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call on some ranks; the layouts in `memory` are assigned to ranks in turn.

    Args:
        columns: the ranks are a mesh of so many columns, each of which has a share of the heads.
        kv_placement: `heads`: every row of the mesh has one buffer, and each of its ranks the heads of its column.
        tells_shards: False: the call is not told the layout of the keys.
    """

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
    memory: tuple[Memory, ...] = ("rows",)
    seed: int = 0
    columns: int = 1
    kv_placement: str = "sequence"
    tells_shards: bool = True

    @property
    def num_ranks(self) -> int:
        return len(self.shards.ranks) * (self.columns if self.kv_placement == "heads" else 1)

    @property
    def q_len(self) -> int:
        return sum(self.q_lengths)

    @property
    def rows(self) -> list[tuple[int, int]]:
        if self.q_placement != "sequence":
            return list(split(self.q_len, self.num_ranks))
        stops = list(accumulate(self.q_lengths, initial=0))
        return list(pairwise(stops))

    def draw(self) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Draw the whole q, and every rank's k and v: NaN where the rank does not own the row."""
        generator = torch.Generator().manual_seed(self.q_len + 7 * self.shards.num_keys + 1000 * self.seed)

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

    def of(self, rank: int, device: str | torch.device = "cpu") -> list[Tensor]:
        """Return q, k and v of a rank, in its memory layout."""
        q, ks, vs = self.draw()
        memory = self.memory[rank % len(self.memory)]
        own = self.of_rank(rank, q, self.q_placement), *(self.buffer(rank, each) for each in (ks, vs))
        return [laid_out(each.to(device), memory) for each in own]

    def d_outputs(self) -> tuple[Tensor, Tensor]:
        """Draw gradients of the whole out and of its lse, `[B, S, H, Dv]` and `[B, S, H]`."""
        generator = torch.Generator().manual_seed(1 + self.seed)
        d_out = torch.randn(2, self.q_len, self.heads, self.dim_v, generator=generator, dtype=torch.float64)
        return d_out.to(self.dtype), torch.randn(2, self.q_len, self.heads, generator=generator)

    def arguments(self) -> dict[str, Any]:
        mesh: dict[str, Any] = {}
        if self.columns > 1:
            size = (self.num_ranks // self.columns, self.columns)
            mesh["mesh"] = init_device_mesh("cpu", size, mesh_dim_names=("tree", "heads"))
        return {
            "shards": self.shards if self.tells_shards else None,
            "strategy": self.strategy,
            "q_placement": self.q_placement,
            "out_placement": self.out_placement,
            "q_lengths": self.q_lengths if self.q_placement == "sequence" else None,
            "causal": self.mask.causal,
            "window": self.mask.window,
            "sinks": self.mask.sinks,
            "q_start": self.mask.q_start if self.mask.hides else None,
            "return_lse": True,
            "kv_placement": self.kv_placement,
            **mesh,
        }

    def of_rank(self, rank: int, whole: Tensor, placement: str) -> Tensor:
        """Return a rank's share of `[B, S, H, ...]`: its rows, or the heads of its column."""
        if placement == "replicated":
            return whole
        if placement == "sequence":
            return whole[:, slice(*self.rows[rank])]
        return whole.tensor_split(self.columns, dim=2)[rank % self.columns]

    def buffer(self, rank: int, buffers: Sequence[Tensor]) -> Tensor:
        """Return what a rank has of the keys or values, or of their gradients."""
        heads = self.kv_placement == "heads"
        return self.of_rank(rank, buffers[rank // self.columns if heads else rank], "heads" if heads else "replicated")

    def result(self, rank: int, whole: Tensor) -> Tensor:
        """Return a rank's share of the result: with heads, those of its column shared out among the rows of the mesh."""
        mine = self.of_rank(rank, whole, self.out_placement)
        if self.out_placement != "heads":
            return mine
        return mine[:, :, slice(*split(mine.shape[2], self.num_ranks // self.columns)[rank // self.columns])]


def laid_out(tensor: Tensor, memory: Memory) -> Tensor:
    """Copy a tensor to another memory layout."""
    if memory == "heads":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    return tensor.repeat_interleave(2, dim=-1)[..., ::2] if memory == "strided" else tensor


def attend(rank: int, case: Case, device: str | torch.device = "cpu") -> AttentionOutput:
    """Call tree attention on all ranks."""
    found = tree_attention(*case.of(rank, device), timeout=PATIENT_S, **case.arguments())
    return AttentionOutput(out=found.out.cpu(), lse=found.lse.cpu())


def differentiate(rank: int, case: Case, device: str | torch.device = "cpu") -> list[Tensor]:
    """Compute gradients of this rank's q, k and v, through the result and its lse."""
    memory = case.memory[rank % len(case.memory)]
    leaves = [each.detach().requires_grad_() for each in case.of(rank, device)]
    state = tree_attention(leaves[0], leaves[1], leaves[2], timeout=PATIENT_S, **case.arguments())
    d_out, d_lse = (case.result(rank, each).to(device) for each in case.d_outputs())
    found = torch.autograd.grad([state.out, state.lse], leaves, [laid_out(d_out, memory), d_lse.transpose(1, 2)])
    return [each.cpu() for each in found]


def check(case: Case, found: list[AttentionOutput], slack: float = 1.0) -> tuple[float, float]:
    """Check every rank's share against float64; the allowed rounding of a weight grows with its lse.

    `slack` is for the fused kernels of a GPU, which sum in another order and take powers of 2. Returns the largest error of an
    output, as a share of what is allowed for it and as it is.
    """
    q, ks, vs = case.draw()
    exact = reference(q.double(), [k.double() for k in ks], [v.double() for v in vs], case.shards, case.mask)
    largest_lse = exact.lse[exact.lse.isfinite()].abs().max().item() if exact.lse.isfinite().any() else 0.0
    largest_v = max((v.nan_to_num().abs().max().item() for v in vs if v.numel()), default=0.0)
    lse_error = slack * 8 * 2.0**-24 * max(1.0, largest_lse)
    tolerance = (lse_error + slack * 4 * ROUNDING[case.dtype]) * max(largest_v, 1e-30)
    worst = 0.0
    for rank, state in enumerate(found):
        assert state.lse is not None and state.out.dtype == case.dtype and state.lse.dtype == torch.float32
        out, lse = (case.result(rank, each) for each in (exact.out, exact.lse.transpose(1, 2)))
        torch.testing.assert_close(
            state.out.double(), out, atol=tolerance, rtol=4 * ROUNDING[case.dtype], msg=f"rank {rank}, {case}"
        )
        atol = lse_error + (HALF_LSE if case.dtype.itemsize == 2 else 0.0)
        torch.testing.assert_close(state.lse.transpose(1, 2), lse, atol=atol, rtol=0, msg=f"rank {rank}, {case}")
        worst = max([worst, *(state.out.double() - out).abs().flatten().tolist()])
    return worst / tolerance, worst


def check_gradients(case: Case, found: list[list[Tensor]]) -> None:
    """Check the gradients of every rank's q, k and v against float64."""
    q, ks, vs = case.draw()
    inputs = [each.double().requires_grad_() for each in (q, *ks, *vs)]
    whole = reference(inputs[0], inputs[1 : 1 + len(ks)], inputs[1 + len(ks) :], case.shards, case.mask)
    seen = whole.lse.isfinite()
    lse, (d_out, d_lse) = whole.lse.masked_fill(~seen, 0), case.d_outputs()
    outputs = [(whole.out, d_out.double())]
    if lse.requires_grad:  # a constant without a key
        outputs.append((lse, d_lse.transpose(1, 2)))
    exact = torch.autograd.grad(
        [each[0] for each in outputs], inputs, [each[1] for each in outputs], allow_unused=True, materialize_grads=True
    )
    largest_lse = 1 + (whole.lse[seen].abs().max().item() if seen.any() else 0.0)
    for rank, gradients in enumerate(found):
        of_keys = (case.buffer(rank, each) for each in (exact[1 : 1 + len(ks)], exact[1 + len(ks) :]))
        theirs = (case.of_rank(rank, exact[0], case.q_placement), *of_keys)
        for name, mine, wanted in zip("qkv", gradients, theirs, strict=True):
            atol = 2.0**-16 * largest_lse * (1 + (wanted.abs().max().item() if wanted.numel() else 0.0))
            assert mine.dtype == case.dtype
            torch.testing.assert_close(mine.double(), wanted, atol=atol, rtol=0, msg=f"d{name}, rank {rank}, {case}")


def check_alike(case: Case, found: list[AttentionOutput]) -> None:
    """Check that a replicated result has the same bits on every rank, except where an all-reduce sums."""
    if case.out_placement == "replicated" and case.strategy in ("allgather", "alltoall", "ring", "ulysses"):
        for state in found[1:]:
            assert torch.equal(state.out, found[0].out) and torch.equal(state.lse, found[0].lse), str(case)
