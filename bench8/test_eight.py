# ruff: noqa: D103, E402 -- tests; the interpreter is mended before the kernels are imported
"""The kernels in Triton's interpreter against the plain reference, at odd sizes: `TRITON_INTERPRET=1 pytest bench8`."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_converted = interpreter._convert_float


def _to_fp8(x, given, wanted, mode):  # the interpreter's own cuts off, and loses a carry
    if wanted != tl.float8e4nv or given != tl.float32:
        return _converted(x, given, wanted, mode)
    values = torch.from_numpy(np.ascontiguousarray(x)).view(torch.float32)
    return values.to(torch.float8_e4m3fn).view(torch.uint8).numpy()


interpreter._convert_float = _to_fp8

from call import LIMIT, Call, Config, Cut, constants, cut, empty_cache, round_queries, store
from inputs import Shape, real_like
from kernels import ORDER
from reference import Prepared, Recipe, attend, error, exact, hadamard

SCALE = 64**-0.5


def _given(pv: str, height: int = 7, width: int = 19, frames: int = 2):
    shape = Shape(frames=frames, own=1, height=height, width=width, heads=2, dim=64)
    q, k, v = (x[0].half() for x in real_like(shape))  # the interpreter multiplies no bfloat16
    held = constants(k, v, pv)
    cache = empty_cache(k.shape[0], 2, 64, pv, k)
    edges = (0, 3, k.shape[0] // 2 + 1, k.shape[0])
    for start, end in pairwise(edges):
        store(k[start:end].contiguous(), v[start:end].contiguous(), start, held, cache, pv)
    return q, k, v, held, cache, round_queries(q, SCALE, held)


def _prepared(held, cache, queries, pv: str, num_kv: int) -> Prepared:
    """The rounded numbers of the kernels, as the reference takes them."""
    q = queries.q.double().transpose(0, 1)
    if pv == "bf16":
        v = cache.v.double().transpose(0, 1)
    else:
        order = torch.tensor([32 * group + key for group in range(cache.v.shape[2] // 32) for key in ORDER])
        v = torch.empty(cache.v.shape, dtype=torch.float64)
        v[..., order] = cache.v.double()
        v = v.permute(2, 0, 1)[:num_kv]
    ones = torch.ones(num_kv, 2, 1, dtype=torch.float64)
    scale = queries.scale.double().T[..., None] / (1.4426950408889634 * SCALE)
    return Prepared(q, cache.k.double().transpose(0, 1), v, scale, ones, held.v_scale.double()[None], held.v_mean.double()[None])


@pytest.mark.parametrize("pv", ["int8", "fp8", "bf16"])
def test_rounding(pv: str) -> None:
    _, k, v, held, cache, queries = _given(pv)
    given = _prepared(held, cache, queries, pv, k.shape[0])
    q, k, v = (x.double() for x in _given(pv)[:3])
    turn = hadamard(64)
    turned = k @ turn - held.k_mean.double() / 8
    assert (given.k * held.k_scale.double()[:, None] / 8 - turned).abs().max() <= held.k_scale.max() / 8 * 0.5001
    step = (q @ turn).abs().amax(-1, keepdim=True) / 127
    found = given.q * given.q_scale / held.k_scale.double()[:, None] * 8
    assert ((found - q @ turn).abs() <= step * 0.5001).all()
    smooth = (v - given.v_mean) / given.v_scale
    limit = {"int8": 0.5001, "fp8": 16.0, "bf16": 0.0}[pv]
    assert (given.v - smooth).abs().max() <= limit
    assert given.v.abs().max() <= LIMIT[pv] or pv == "bf16"


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("config", [
    Config(gluon=False, pv="int8", rows=64, keys=64, warps=4),
    Config(gluon=False, pv="int8", rows=32, keys=128, warps=4),
    Config(gluon=False, pv="fp8", rows=64, keys=64, warps=4),
    Config(gluon=False, pv="fp8", rows=64, keys=64, warps=4, two_level=False),
    Config(gluon=False, pv="bf16", rows=64, keys=64, warps=4),
], ids=lambda config: f"{config.name} {config.tile}")  # fmt: skip
def test_attention(config: Config, parts: int) -> None:
    q, k, v, held, cache, queries = _given(config.pv)
    tiles = -(-q.shape[0] // config.rows) * 2
    call = Call(queries, cache, held, config, Cut(tiles, 1) if parts == 1 else Cut(1, parts))
    call.launch()
    recipe = Recipe(p=config.pv, v=config.pv, block=config.keys, own_sum=False)
    given = _prepared(held, cache, queries, config.pv, k.shape[0])
    out, lse = attend(given, recipe, SCALE)
    if parts > 1:  # all but the first tile: weights in FP8 are rounded relative to the maximum of their part
        merged, merged_lse = _in_parts(given, recipe, parts)
        later = torch.ones(2, q.shape[0], dtype=torch.bool)
        later[0, : config.rows] = False  # tile 0 is the first head's
        out = torch.where(later.T[..., None], merged, out)
        lse = torch.where(later, merged_lse, lse)
    assert error(call.out, out) < 0.001  # the result is rounded to float16, and a rounded weight may fall the other way
    torch.testing.assert_close(call.lse.double(), lse, atol=1e-4, rtol=1e-5)
    expected, expected_lse = exact(q, k, v, SCALE)
    assert error(call.out, expected) < 0.02
    shift = torch.einsum("qhd,hd->hq", q.double(), (held.k_mean.double() / 8) @ hadamard(64)) * SCALE  # what smoothing took away
    assert (call.lse.double() + shift - expected_lse).square().mean().sqrt() < 0.02


def _in_parts(given: Prepared, recipe: Recipe, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = -(-given.k.shape[0] // recipe.block)
    edges = [blocks * part // parts * recipe.block for part in range(parts + 1)]
    found = []
    for begin, end in pairwise(edges):
        k, v, scale = given.k[begin:end], given.v[begin:end], given.k_scale[begin:end]
        found.append(attend(given._replace(k=k, v=v, k_scale=scale), recipe, SCALE))
    lse = torch.stack([each for _, each in found]).logsumexp(0)
    return sum(out * (each - lse).exp().T[..., None] for out, each in found), lse


def test_one_block_and_a_tail() -> None:
    for height, width in ((2, 2), (8, 8), (5, 13)):
        q, k, v, held, cache, queries = _given("int8", height, width, 1)
        call = Call(queries, cache, held, Config(gluon=False, pv="int8", rows=64, keys=64, warps=4))
        call.launch()
        assert error(call.out, exact(q, k, v, SCALE)[0]) < 0.02


def test_queries_of_zero_see_all_keys_alike() -> None:
    q, _, v, held, cache, _ = _given("int8", 5, 13)
    call = Call(
        round_queries(torch.zeros_like(q), SCALE, held), cache, held, Config(gluon=False, pv="int8", rows=64, keys=64, warps=4)
    )
    call.launch()
    assert error(call.out, v.double().mean(0, keepdim=True).expand_as(call.out)) < 0.02


def test_cut() -> None:
    assert cut(444, 132, 147).first == 396
    assert cut(396, 132, 147) == Cut(396, 1)
    assert cut(10, 132, 147).first == 0
