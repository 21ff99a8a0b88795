"""Reference for contestants: chosen queries against all keys, head by head, in a wide dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from strobe.attention.sparse.selection import BlockSelection
from strobe.bench.attention.contestant import Contestant, Found
from strobe.bench.attention.inputs import Inputs

BACKWARD: Final = 3.0
"""Tolerance of gradients / tolerance of outputs: gradients are rounded about twice as often, after the output's rounding."""
SIMILAR: Final = 0.98
"""Least cosine similarity of an operator whose own selection is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """Distance of computed values from expected ones.

    Args:
        cosine: similarity, all values as one vector.
        l1: sum of absolute differences / sum of absolute expected values.
        rmse: root of the mean squared difference.
        relative: `rmse` / root mean square of the expected values.
    """

    cosine: float
    l1: float
    rmse: float
    relative: float


def precision(found: Tensor, expected: Tensor) -> Precision:
    """Compare two tensors of one shape, in float64; values that are not finite give infinities and a cosine of 0."""
    found, expected = found.double(), expected.double()
    difference = found - expected
    rmse = difference.square().mean().sqrt()
    scale = expected.square().mean().sqrt()
    cosine = (found * expected).sum() / (found.square().sum().sqrt() * expected.square().sum().sqrt())
    values = (cosine, difference.abs().sum() / expected.abs().sum(), rmse, rmse / scale)
    numbers = [float(value) for value in values]
    if not all(abs(number) < float("inf") for number in numbers):
        inf = float("inf")
        return Precision(cosine=0.0, l1=inf, rmse=inf, relative=inf)
    return Precision(cosine=numbers[0], l1=numbers[1], rmse=numbers[2], relative=numbers[3])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Expected:
    """Expected results of the checked queries.

    Args:
        out: `[B, R, H, D]`, on the selection.
        lse: `[B, H, R]`, on the selection.
        dense: `[B, R, H, D]`: full attention of the same queries and keys, without a coarse part.
        dense_lse: `[B, H, R]`, of the same.
        gradients: gradients of q, k, v `[B, S, H, D]` if only the checked rows have an upstream gradient; empty if not requested.
    """

    out: Tensor
    lse: Tensor
    dense: Tensor
    dense_lse: Tensor
    gradients: tuple[Tensor, ...]

    @property
    def recall(self) -> float:
        """Share of full attention's mass on the selected keys, mean over checked queries and heads."""
        return float(torch.exp(self.lse - self.dense_lse).mean())


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of the oracle: float64 for float32 tensors, else float32."""
    return torch.float64 if dtype == torch.float32 else torch.float32


def expect(inputs: Inputs, contestant: Contestant, found: Found, *, gradients: bool = False) -> Expected:
    """Compute the expected result of a contestant, on the selection that it made or was given."""
    selection = None if contestant.kind == "dense" else found.selection or inputs.selection
    wide = wide_dtype(inputs.q.dtype)
    heads: list[tuple[Tensor, ...]] = []
    for sample in range(inputs.q.shape[0]):
        for head in range(inputs.q.shape[2]):
            q, k, v, gate, upstream = (
                tensor[sample, :, head].to(wide) for tensor in (inputs.q, inputs.k, inputs.v, inputs.gate, inputs.upstream)
            )
            leaves = tuple(tensor.requires_grad_(gradients) for tensor in (q, k, v))
            with torch.set_grad_enabled(gradients):
                seen = None if selection is None else _seen(inputs, selection, sample, head)
                own = leaves if contestant.kind != "raster" else (_turned(q, inputs), _turned(k, inputs), v)
                parts = _head(inputs, (*own, gate), seen, contestant)
            given = torch.autograd.grad(parts[0], leaves, upstream[inputs.checked]) if gradients else ()
            heads.append((*(part.detach() for part in parts), *given))
    shape = inputs.q.shape[0], inputs.q.shape[2]
    stacked = [torch.stack(parts).unflatten(0, shape) for parts in zip(*heads, strict=True)]  # [B, H, ...]
    out, lse, dense, dense_lse, *grads = stacked
    rows = (tensor.transpose(1, 2) for tensor in (out, dense, *grads))
    out, dense, *turned = rows
    return Expected(out=out, lse=lse, dense=dense, dense_lse=dense_lse, gradients=tuple(turned))


def _seen(inputs: Inputs, selection: BlockSelection, sample: int, head: int) -> Tensor:
    """Return a mask of the keys that each checked query attends to, boolean `[R, S]`."""
    tiles = inputs.tile_of[inputs.checked]
    chosen, counts = selection.indices[sample, head, tiles].long(), selection.counts[sample, head, tiles]
    used = torch.arange(chosen.shape[1], device=chosen.device) < counts[:, None]
    by_tile = torch.zeros(len(tiles), inputs.tiles.num_tiles + 1, dtype=torch.bool, device=chosen.device)
    by_tile.scatter_(1, torch.where(used, chosen, inputs.tiles.num_tiles), True)
    return by_tile[:, inputs.tile_of]


def _turned(x: Tensor, inputs: Inputs) -> Tensor:
    """Rotate `[S, D]` by pairs of channels (2i, 2i + 1)."""
    cos, sin = inputs.cos.to(x.dtype), inputs.sin.to(x.dtype)
    real, imaginary = x[:, 0::2], x[:, 1::2]
    return torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1).flatten(1)


def _head(
    inputs: Inputs, tensors: tuple[Tensor, ...], seen: Tensor | None, contestant: Contestant
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute one head: out `[R, D]`, lse `[R]`, and both without a selection."""
    q, k, v, gate = tensors
    rows, scale = inputs.checked, inputs.q.shape[-1] ** -0.5
    scores = q[rows] @ k.T * scale  # [R, S]
    dense, dense_lse = torch.softmax(scores, dim=-1) @ v, torch.logsumexp(scores, dim=-1)
    if seen is None:
        return dense, dense_lse, dense, dense_lse
    kept = scores.masked_fill(~seen, float("-inf"))
    out, lse = torch.softmax(kept, dim=-1) @ v, torch.logsumexp(kept, dim=-1)
    if contestant.coarse:
        queries, keys, values = (_tile_means(tensor, inputs) for tensor in (q, k, v))
        coarse = torch.softmax(queries[inputs.tile_of[rows]] @ keys.T * scale, dim=-1) @ values
        out = out + (coarse * gate[rows] if len(contestant.leaves) > 3 else coarse)
    return out, lse, dense, dense_lse


def _tile_means(x: Tensor, inputs: Inputs) -> Tensor:
    total = x.new_zeros(inputs.tiles.num_tiles, x.shape[1]).index_add(0, inputs.tile_of, x)
    return total / inputs.tiles.sizes(x.device)[:, None]
