"""One tree-attention call, checked once at the api and then handed inward."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

import torch
from torch import Tensor

from strobe.attention.tree.placement import Mask
from strobe.core.errors import ShapeError, unknown_choice

Placement = Literal["replicated", "sequence", "heads"]
"""Where rows are: all of them on every rank; a run of rows with all heads; all rows of a share of the heads."""

Strategy = Literal["allgather", "alltoall", "allreduce3", "ring", "ulysses"]

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)

MOVES_KEYS = frozenset({"ring", "ulysses"})
"""Strategies that send keys and values, and so must know everybody's lengths."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeSpec:
    """The arguments of a call that all ranks must agree on.

    Args:
        batch: B.
        q_len: queries of all ranks together.
        num_heads, num_kv_heads: of all ranks together; `num_heads` is a multiple of `num_kv_heads`.
        head_dim, head_dim_v: of the keys and of the values.
        dtype, device_type: of q, k and v.
        softmax_scale: factor of the scores.
        mask: by global position.
        q_placement, kv_placement, out_placement: where queries, keys and results are.
        strategy: how the parts meet; `auto` until it is chosen.
        rows: `[start, stop)` of the queries of each rank where they are spread.
        needs_grad: a gradient may be asked for.
        symmetric_kv_len: rows of every rank's buffer where they must be equal, because no shards were given; else None.
    """

    batch: int
    q_len: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    dtype: torch.dtype
    device_type: str
    softmax_scale: float
    mask: Mask
    q_placement: Placement
    kv_placement: Placement
    out_placement: Placement
    strategy: Strategy | Literal["auto"] = "auto"
    rows: tuple[tuple[int, int], ...]
    needs_grad: bool = False
    symmetric_kv_len: int | None = None

    def describe(self, strategy: str) -> str:
        """Describe the call in one line for errors: the requested strategy, the global shapes."""
        mask = (
            "".join(f" {field.name}={getattr(self.mask, field.name)}" for field in fields(self.mask)) if self.mask.hides else ""
        )
        return (
            f"{strategy} q [{self.batch}, {self.q_len}, {self.num_heads}, {self.head_dim}] {self.q_placement}, "
            f"kv heads {self.num_kv_heads}, head_dim_v {self.head_dim_v} {self.kv_placement}, out {self.out_placement}, "
            f"{str(self.dtype).removeprefix('torch.')}, scale {self.softmax_scale:g}{mask}"
            + (", with gradient" if self.needs_grad else "")
            + (
                f", {self.symmetric_kv_len} keys on every rank because no shards are given"
                if self.symmetric_kv_len is not None
                else ""
            )
        )


def check_choice(what: str, given: str, allowed: tuple[str, ...]) -> None:
    """Refuse a word that is not among the allowed ones."""
    if not isinstance(given, str) or given not in allowed:
        raise unknown_choice(what, str(given), allowed)


DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def check_tensors(q: Tensor, k: Tensor | None, v: Tensor | None, layout: str = "[B, S, H, D]") -> None:
    """Check q, k and v as far as possible on this rank alone.

    Args:
        layout: what their dimensions are, in words; batch first and channels last.

    Raises:
        ShapeError: names the argument, what was given and what is allowed.
    """
    if (k is None) != (v is None):
        raise ShapeError(f"{'v' if k is not None else 'k'}: got None, expected a tensor, or None for both on a rank without keys")
    named = [("q", q)] if k is None or v is None else [("q", q), ("k", k), ("v", v)]
    for name, tensor in named:
        if not isinstance(tensor, Tensor):
            raise ShapeError(f"{name}: got {type(tensor).__name__}, expected a tensor {layout}")
        if tensor.dim() != 4 or tensor.layout != torch.strided:
            lying = "" if tensor.layout == torch.strided else f" and {str(tensor.layout).removeprefix('torch.')}"
            raise ShapeError(f"{name}: got shape {tuple(tensor.shape)}{lying}, expected {layout}")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise ShapeError(f"{name}: got {tensor.dtype} on {tensor.device}, expected {q.dtype} on {q.device} like q")
    if q.dtype not in DTYPES:
        raise ShapeError(f"q: got {q.dtype}, expected float64, float32, bfloat16 or float16")
    if k is None or v is None:
        return
    if k.shape[:3] != v.shape[:3]:
        raise ShapeError(f"v: got shape {tuple(v.shape)}, expected {tuple(k.shape[:3])} and any head_dim_v, like k {layout}")
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ShapeError(f"k: got shape {tuple(k.shape)}, expected batch {q.shape[0]} and head_dim {q.shape[3]} like q")
    if v.shape[3] == 0 or q.shape[3] == 0:
        raise ShapeError(f"q and v: got head_dim {q.shape[3]} and head_dim_v {v.shape[3]}, expected at least 1")


def check_heads(num_heads: int, num_kv_heads: int, layout: str = "[B, S, H, D]") -> None:
    """Check that the query heads are a multiple of the key heads.

    Raises:
        ShapeError: the heads of the queries are no multiple of those of the keys.
    """
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ShapeError(f"k: got {num_kv_heads} heads, expected a divisor of q's {num_heads}; the layout is {layout}")
