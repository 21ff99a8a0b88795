"""Cases of video-sparse attention over a sequence that lies on several ranks, and the check of every rank's share.

`attend` runs on every rank, in other processes. One device, the reference and the same inputs say what is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from random import Random
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from strobe.attention.sparse.coarse import Forced
from strobe.attention.sparse.layout import TileLayout, tile_layout
from strobe.attention.sparse.video import video_sparse_attention
from strobe.core.tolerances import tolerance


@dataclass(frozen=True, kw_only=True)
class RingCase:
    """One call on some ranks."""

    grid: tuple[int, int, int]
    shards: tuple[int, ...]
    tile: tuple[int, int, int] = (4, 4, 4)
    heads: int = 4
    kv_heads: int = 2
    dim: int = 8
    batch: int = 1
    dtype: torch.dtype = torch.float64
    topk: int | tuple[int, ...] = 2
    forced: Forced = Forced()  # noqa: RUF009
    gate: bool = False
    rope: bool = False
    layout: Literal["raster", "tiled"] = "raster"
    impl: str = "auto"
    graded: bool = True
    seed: int = 0

    @property
    def num_ranks(self) -> int:
        return len(self.shards)

    @property
    def tiles(self) -> TileLayout:
        return tile_layout(self.grid, self.tile)

    def tensors(self) -> dict[str, Tensor]:
        """Draw what all ranks have together: q, k, v, gate, cos and sin; and the gradients of out and lse."""
        generator = torch.Generator().manual_seed(self.seed)
        rows, heads = self.tiles.num_tokens, {"k": self.kv_heads, "v": self.kv_heads}
        drawn = {
            name: torch.randn(self.batch, rows, heads.get(name, self.heads), self.dim, generator=generator, dtype=torch.float64)
            for name in ("q", "k", "v", "gate", "d_out")
        }
        drawn["d_lse"] = torch.randn(self.batch, rows, self.heads, 1, generator=generator, dtype=torch.float64)
        if self.layout == "tiled":
            drawn = {name: self.tiles.to_tiles(each) for name, each in drawn.items()}
        angles = torch.rand(rows, self.dim // 2, generator=generator, dtype=torch.float64)
        drawn |= {"cos": angles.cos(), "sin": angles.sin()}
        return {name: each.to(torch.float32 if name == "d_lse" else self.dtype) for name, each in drawn.items()}

    def of(self, rank: int) -> dict[str, Tensor]:
        """Return this rank's share of `tensors`."""
        rows, drawn = self.rows(rank), self.tensors()
        angles = {name: drawn.pop(name)[rows] for name in ("cos", "sin") if self.rope}
        return {name: each[:, rows] for name, each in drawn.items() if name not in ("cos", "sin")} | angles

    def rows(self, rank: int) -> Tensor:
        """Return the rows of a rank among those of all."""
        start, stop = list(accumulate(self.shards, initial=0))[rank : rank + 2]
        block = self.tiles.block
        return self.tiles.tokens_of(start, stop) if self.layout == "raster" else torch.arange(start * block, stop * block)


class Found(NamedTuple):
    """The result of a call and the gradients of q, k, v and the gate."""

    out: Tensor
    lse: Tensor
    indices: Tensor
    counts: Tensor
    gradients: tuple[Tensor, ...]


def run(case: RingCase, given: dict[str, Tensor], **options: Any) -> Found:
    """Call with the tensors of a rank, or of one device, forward and back."""
    names = ("q", "k", "v", "gate") if case.gate else ("q", "k", "v")
    leaves = {name: given[name].clone().requires_grad_(case.graded) for name in names}
    found = video_sparse_attention(
        leaves["q"],
        leaves["k"],
        leaves["v"],
        grid=case.grid,
        tile=case.tile,
        topk=case.topk,
        gate=leaves.get("gate"),
        forced=case.forced,
        rope=(given["cos"], given["sin"]) if case.rope else None,
        q_layout=case.layout,
        kv_layout=case.layout,
        return_lse=True,
        **options,
    )
    gradients: tuple[Tensor, ...] = ()
    if case.graded:
        d_lse = given["d_lse"].squeeze(3).transpose(1, 2).where(found.lse.detach().isfinite(), 0)  # padding rows have none
        gradients = torch.autograd.grad((found.out, found.lse), tuple(leaves.values()), (given["d_out"], d_lse))
    chosen = found.selection
    return Found(found.out.detach(), found.lse.detach(), chosen.indices, chosen.counts, gradients)


def attend(rank: int, case: RingCase) -> Found:
    """Call with this rank's share."""
    return run(case, case.of(rank), impl=case.impl, group=dist.group.WORLD, shards=case.shards)


def on_gpu(rank: int, case: RingCase, alone: bool) -> Found:
    """Call on this rank's GPU with its share, or alone with everything."""
    given = {name: each.to("cuda") for name, each in (case.tensors() if alone else case.of(rank)).items()}
    found = run(case, given, **({} if alone else {"group": dist.group.WORLD, "shards": case.shards}))
    return Found(*(each.cpu() for each in found[:4]), tuple(each.cpu() for each in found.gradients))


def check_ring(
    case: RingCase, found: Sequence[Found], whole: Found | None = None, limit: float | None = None
) -> tuple[float, float]:
    """Check every rank's share; return the largest error of an output, as a share of what is allowed and as it is.

    Args:
        whole: what is right, by default what the reference says.
        limit: of an error beside the largest value, by default that of the dtype.
    """
    whole = run(case, case.tensors(), impl="reference") if whole is None else whole
    limit = tolerance("sparse element", case.dtype) if limit is None else limit
    firsts, worst = list(accumulate(case.shards, initial=0)), 0.0
    for rank, mine in enumerate(found):
        rows, where = case.rows(rank), f"rank {rank}, {case}"
        tiles = slice(firsts[rank], firsts[rank + 1])
        assert torch.equal(mine.counts, whole.counts[:, :, tiles]), where
        used = torch.arange(mine.indices.shape[3]) < mine.counts.unsqueeze(-1)  # the others may hold anything
        assert torch.equal(mine.indices[used], whole.indices[:, :, tiles][used]), where
        pairs = [(mine.out, whole.out), *zip(mine.gradients, whole.gradients, strict=True)]
        for number, (each, expected) in enumerate(pairs):
            name = ("out", "dq", "dk", "dv", "dgate")[number]
            atol = limit * max(1.0, expected.abs().max().item())
            torch.testing.assert_close(each, expected[:, rows], atol=atol, rtol=limit, msg=f"{name}, {where}".__add__)
            if number == 0 and rows.numel():
                worst = max(worst, (each.double() - expected[:, rows].double()).abs().max().item())
        lse_limit = max(1e-5, limit if case.dtype.itemsize == 2 else 0.0)
        torch.testing.assert_close(mine.lse, whole.lse[:, :, rows], atol=lse_limit, rtol=0, msg=f"lse, {where}".__add__)
    return worst / (limit * max(1.0, whole.out.abs().max().item())), worst


def draw_ring_case(random: Random, numbers: Sequence[int]) -> RingCase:
    """Draw a call on a number of ranks from `numbers`."""
    num_ranks, kv_heads = random.choice(numbers), random.choice([1, 2, 3])
    grid = random.randint(1, 9), random.randint(1, 9), random.randint(1, 9)
    tile = random.choice([(4, 4, 4), (2, 3, 5), (1, 2, 8), (2, 8, 8), (4, 2, 2)])
    tiles, heads = tile_layout(grid, tile).num_tiles, kv_heads * random.choice([1, 1, 2])
    cuts = [random.choice([0, tiles, random.randint(0, tiles), random.randint(0, tiles)]) for _ in range(num_ranks - 1)]
    bounds = [0, *sorted(cuts), tiles]
    forced = random.choice([Forced(), Forced(), Forced(own=True)])
    topk = random.randint(1, tiles)
    layout: Literal["raster", "tiled"] = random.choice(["raster", "raster", "tiled"])  # type: ignore[assignment]
    return RingCase(
        grid=grid,
        shards=tuple(stop - start for start, stop in pairwise(bounds)),
        tile=tile,
        heads=heads,
        kv_heads=kv_heads,
        dim=random.choice([2, 8, 16]),
        batch=random.choice([1, 1, 2]),
        dtype=random.choice([torch.float64, torch.float64, torch.float32, torch.bfloat16]),
        topk=tuple(random.randint(1, tiles) for _ in range(heads)) if random.choice([True, False, False]) else topk,
        forced=forced,
        gate=random.choice([True, False]),
        rope=layout == "raster" and random.choice([True, False]),
        layout=layout,
        impl=random.choice(["auto", "auto", "reference"]),
        graded=random.choice([True, True, False]),
        seed=random.randrange(2**16),
    )
