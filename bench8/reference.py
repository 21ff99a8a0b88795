"""Attention in eight bits in plain PyTorch: the specification of the kernels. Tensors are [S, H, D] here; sums are in float64.

Keys lose one constant vector per head and values one constant per channel: softmax does not see the first, and the second is
added back to the output, exactly, because the weights of a row sum to one. Any constants are right; the mean makes the numbers
small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Format = Literal["bf16", "fp16", "fp8", "int8"]
LIMIT = {"fp8": 448.0, "int8": 127.0}
LOG2E = 1.4426950408889634
FP8_P = 256.0
"""What the largest weight of a row is in FP8: small ones stay above its smallest normal number down to 2^-14."""
_NEVER = -1e30


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What is rounded, and how.

    Args:
        qk: format of queries and keys.
        p, v: formats of weights and values.
        block: keys of a block: those that a scale of keys, a local maximum and a short sum belong to.
        q_scale, k_scale: one scale per "token", "block" (of queries: 64) or "head".
        smooth_k, smooth_v: take the mean away first.
        own_sum: weights are normed by the sum of the rounded ones.
        rotated: queries and keys are turned by a Hadamard matrix first, which spreads channels that are larger than others.
        local: in int8, weights relative to the maximum of their block, not of the row.
    """

    qk: Format = "int8"
    p: Format = "fp8"
    v: Format = "fp8"
    block: int = 128
    k_scale: Literal["token", "block", "head"] = "block"
    q_scale: Literal["token", "block"] = "token"
    rotated: bool = True
    smooth_k: bool = True
    smooth_v: bool = True
    own_sum: bool = True
    local: bool = True


class Prepared(NamedTuple):
    """Rounded numbers and what undoes it: ``q = q_values * q_scale`` and so on; all float64."""

    q: Tensor
    k: Tensor
    v: Tensor
    q_scale: Tensor
    k_scale: Tensor
    v_scale: Tensor
    v_mean: Tensor


def rounded(x: Tensor, to: Format) -> Tensor:
    """Round to a format, to the nearest, ties to even; what is beyond it takes its largest number."""
    if to == "int8":
        return x.round().clamp(-127, 127)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}[to]
    x = x.clamp(-448, 448) if to == "fp8" else x
    return x.float().to(dtype).to(x.dtype)


def prepare(q: Tensor, k: Tensor, v: Tensor, recipe: Recipe) -> Prepared:
    """Round q, k and v `[S, H, D]`."""
    q, k, v = (x.double() for x in (q, k, v))
    zero = k.new_zeros(1, *k.shape[1:])
    k = k - (k.mean(0, keepdim=True) if recipe.smooth_k else zero)
    if recipe.rotated:
        q, k = (x @ hadamard(x.shape[-1]).to(x) for x in (q, k))
    v_mean = v.mean(0, keepdim=True) if recipe.smooth_v and recipe.v in LIMIT else zero
    v = v - v_mean
    q_scale, k_scale, v_scale = (
        q.new_ones(q.shape[0], q.shape[1], 1),
        k.new_ones(k.shape[0], k.shape[1], 1),
        torch.ones_like(zero),
    )
    if recipe.qk in LIMIT:
        limit = LIMIT[recipe.qk]
        q_scale = _largest(q, {"token": 1, "block": 64}[recipe.q_scale]) / limit
        k_scale = _largest(k, {"token": 1, "block": recipe.block, "head": k.shape[0]}[recipe.k_scale]) / limit
    if recipe.v in LIMIT:
        v_scale = v.abs().amax(0, keepdim=True).clamp_min(1e-12) / LIMIT[recipe.v]
    q, k = rounded(q / q_scale, recipe.qk), rounded(k / k_scale, recipe.qk)
    return Prepared(q, k, rounded(v / v_scale, recipe.v), q_scale, k_scale, v_scale, v_mean)


def hadamard(size: int) -> Tensor:
    """Return the orthogonal Hadamard matrix of a power of two, by Sylvester."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix / size**0.5


def _largest(x: Tensor, rows: int) -> Tensor:
    """Largest magnitude of each head in groups of rows `[S, H, 1]`."""
    parts = [part.amax(0, keepdim=True).expand_as(part) for part in x.abs().amax(-1, keepdim=True).split(rows)]
    return torch.cat(parts).clamp_min(1e-12)


def attend(given: Prepared, recipe: Recipe, softmax_scale: float) -> tuple[Tensor, Tensor]:
    """Attend block by block as the kernels do; return out `[S, H, D]` and lse `[H, S]`, natural log."""
    q = (given.q * given.q_scale).transpose(0, 1) * (softmax_scale * LOG2E)  # [H, S_q, D]
    heads, rows, dim = q.shape
    most, total = q.new_full((heads, rows, 1), _NEVER), q.new_zeros(heads, rows, 1)
    exact, acc = total.clone(), q.new_zeros(heads, rows, dim)
    for k, k_scale, v in zip(*(x.split(recipe.block) for x in (given.k, given.k_scale, given.v)), strict=True):
        s = q @ (k * k_scale).permute(1, 2, 0)
        local = s.amax(-1, keepdim=True)
        now = torch.maximum(most, local)
        base = local if recipe.p == "int8" and recipe.local else now
        size = {"int8": 127.0, "fp8": FP8_P}.get(recipe.p, 1.0)
        weight = (s - base).exp2()
        p = rounded(weight * size, recipe.p) / size
        fade, join = (most - now).exp2(), (base - now).exp2()
        acc = acc * fade + (p @ v.transpose(0, 1)) * join
        total = total * fade + (p if recipe.own_sum else weight).sum(-1, keepdim=True) * join
        exact = exact * fade + weight.sum(-1, keepdim=True) * join
        most = now
    out = acc / total * given.v_scale.transpose(0, 1) + given.v_mean.transpose(0, 1)
    return out.transpose(0, 1), ((most + exact.log2()) / LOG2E)[..., 0]


def exact(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float) -> tuple[Tensor, Tensor]:
    """Attention in float64 `[S, H, D]`; return out and lse `[H, S]`."""
    s = torch.einsum("qhd,khd->hqk", q.double(), k.double()) * softmax_scale
    lse = s.logsumexp(-1)
    return torch.einsum("hqk,khd->qhd", (s - lse[..., None]).exp(), v.double()), lse


def error(out: Tensor, expected: Tensor) -> float:
    """Return ``||out - expected|| / ||expected||``."""
    return ((out.double() - expected.double()).norm() / expected.double().norm()).item()
