"""The kernels: the reference against float64, Triton against the reference, and what compilers see of them."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forked import in_triton, needs_triton
from strobe.attention.sparse.coarse import pool
from strobe.attention.sparse.layout import tile_layout
from strobe.cache.kv import CacheShape, CacheStep, HistoryTiles, RingCache
from strobe.cache.policy import RingPolicy
from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.core.tolerances import tolerance
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.kernels import api
from strobe.models.wan.kernels.custom_ops import OPERATORS
from strobe.models.wan.layers import RoundedKeys, rotate_temporal
from strobe.models.wan.linears import Fp8Linear

ROUNDING = tolerance("rounding", "float32")

SCRIPT = Path(__file__).with_name("kernels_on_cpu.py")
HEADS, WIDTH, TOKENS = 3, 20, 6
DIM = HEADS * WIDTH


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rope(seed: int = 9) -> Tensor:
    angles = 5 * draw(seed, TOKENS, WIDTH // 2)
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def turn(*, with_q: bool = True, dtype: torch.dtype = torch.float32) -> api.Turn:
    return api.Turn(
        weight_q=draw(1, DIM, dtype=dtype) if with_q else None, weight_k=draw(2, DIM, dtype=dtype), rope=rope(), eps=1e-5
    )


def cache(dtype: torch.dtype = torch.float32, rows: int = 9) -> api.CacheRows:
    """Room for two samples, full of NaN; token 2 is not written."""
    keys, values = (torch.full((2, rows, HEADS, WIDTH), float("nan"), dtype=dtype) for _ in range(2))
    return api.CacheRows(keys=keys, values=values, rows=torch.tensor([4, 0, -1, 8, 5, 1]))


def text(rows: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values, and how many of the rows are distinct."""
    q, k, v = (draw(seed, 2, number, HEADS, WIDTH) for seed, number in ((6, TOKENS), (7, rows), (8, rows)))
    return q, k, v, torch.tensor([rows, 2], dtype=torch.int32)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("tokens", [1, 63])
def test_the_last_distinct_row_stands_for_all_behind_it(tokens: int, dtype: torch.dtype, limit: float) -> None:
    """Against torch's attention in float64 over rows written out, each sample with a number of its own."""
    q, k, v = (draw(seed, 3, number, HEADS, WIDTH, dtype=dtype) for seed, number in ((1, tokens), (2, 9), (3, 9)))
    counts = torch.tensor([[1, 1, 7, 0, 0, 0, 0, 0, 0], [1] * 9, [9, 0, 0, 0, 0, 0, 0, 0, 0]])
    found = api.text_attention(q, k, v, torch.tensor([3, 9, 1], dtype=torch.int32), impl="reference")
    assert found.dtype == dtype and found.shape == q.shape
    for sample in range(3):
        rows = torch.arange(9).repeat_interleave(counts[sample])
        wide = (each[sample].transpose(0, 1).double() for each in (q, k[:, rows], v[:, rows]))
        expected = F.scaled_dot_product_attention(*wide).transpose(0, 1)
        torch.testing.assert_close(found[sample].double(), expected, atol=3 * limit, rtol=limit)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@needs_triton
def test_triton_equals_the_reference(device: str) -> None:
    in_triton(SCRIPT, device)


def test_operators_keep_what_they_declare() -> None:
    x, table, kept = draw(1, 2, TOKENS, DIM), draw(2, 1, 2, DIM), cache()
    packed, (q, k), stored = draw(3, 2, TOKENS, 3 * DIM), (draw(4, DIM), draw(5, DIM)), (kept.keys, kept.values, kept.rows)
    unasked = packed[..., DIM:].contiguous(), None, k, rope()
    arguments: dict[str, tuple[Any, ...]] = {
        "rms_norm": (x, q, 1e-5),
        "norm": (x, None, None, table, table, True, 1e-5, False),
        "norm+sum": (x, x + 1, table, table, table, False, 1e-5, False),
        "norm+fp8": (x, x + 1, None, table, table, True, 1e-5, True),
        "turn": (packed, q, k, rope(), HEADS, 1e-5),
        "turn+kv": (*unasked, HEADS, 1e-5),
        "turn_and_write": (packed, q, k, rope(), *stored, 1e-5),
        "turn_and_write+kv": (*unasked, *stored, 1e-5),
        "gelu_quantize": (x,),
        "text_attention": text(),
        "turn_keys": (kept.keys[None, :, :5], rope()[0], kept.values[None, :, :5]),
    }
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    for case, given in arguments.items():
        torch.library.opcheck(OPERATORS[case.partition("+")[0]], (*given, "reference"), test_utils=tests)


def test_a_whole_graph_writes_the_cache() -> None:
    packed, whole, eager, how = draw(3, 2, TOKENS, 3 * DIM), cache(), cache(), turn()

    def call(packed: Tensor, kept: api.CacheRows) -> Tensor:
        q = api.qk_norm_rope_write(packed * 2, how, kept, impl="reference")
        after = api.Affine(shift=packed[:1, :1, :DIM], scale=packed[:1, :1, DIM : 2 * DIM])
        total, normed = api.add_gated_norm(q.flatten(2), q.flatten(2) * 2, None, after, 1e-5, impl="reference")
        return total + normed + kept.keys[:, :6].flatten(2).nan_to_num()

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(packed, whole), call(packed, eager), atol=ROUNDING, rtol=ROUNDING)
    assert torch.equal(whole.keys.nan_to_num(7), eager.keys.nan_to_num(7)) and whole.keys.isfinite().any()


def test_there_are_no_gradients_and_no_other_impls() -> None:
    x = draw(1, 2, TOKENS, DIM)
    with pytest.raises(ConfigError, match="no gradients"):
        api.rms_norm(x.requires_grad_(), draw(1, DIM), 1e-5, impl="reference")
    with pytest.raises(ConfigError, match="unknown impl of the kernels 'tritn'"):
        api.check_impl("tritn", torch.device("cpu"))
    with pytest.raises(ImplUnavailableError, match="would run here: reference"):
        api.check_impl("triton", torch.device("cpu"))


ELEMENT = tolerance("element", "float32")


FRAME_TOKENS = 6  # of a frame


def ring(dit: CausalWan, *, tiled: bool = False) -> RingCache:
    layout = tile_layout((1, 2, 3), (1, 2, 2), 64)
    tiles = HistoryTiles(
        grid=(2, 3),
        rows=layout.rows(),
        sizes=layout.sizes(),
        block=64,
        whole=layout.whole,
        staged=3,
        sparsity=0.5,
        pool=partial(pool, sizes=layout.sizes(), block=64),
    )
    shape = CacheShape(num_layers=len(dit.layers), batch=2, tokens_per_frame=FRAME_TOKENS, num_heads=2, head_dim=24)
    return RingCache(
        shape,
        RingPolicy(window=8, sink=3),
        device=torch.device("cpu"),
        dtype=dit.dtype,
        positions="rebased",
        rotate=partial(rotate_temporal, dit.config),
        tiles=tiles if tiled else None,
    )


def conditions_of(dit: CausalWan, x: Tensor) -> tuple[Any, Any, Any]:
    return dit.modulation(torch.tensor([[400.0]])), dit.text_kv(draw(0, 2, 5, 12)), dit.rope((4, 5, 6), dit.grid(x))


def with_kernels(dit: CausalWan, *, fuse: bool = True) -> CausalWan:
    other = copy.deepcopy(dit)
    if fuse:
        other.fuse_qkv()
    other.use_kernels("reference")
    return other


def stream(dit: CausalWan, cache: RingCache, *, blocks: int = 5, frames: int = 1) -> list[Tensor]:
    """A denoise pass and a commit pass per frame block, then a rewrite of the window that leaves the sink alone."""
    text, flows = dit.text_kv(draw(0, 2, 5, 12)), []
    noisy, clean = (dit.modulation(torch.full((1, frames), t)) for t in (600.0, 0.0))
    for block in range(blocks):
        x, step = draw(block + 1, 2, 3, 4, 4, 6), cache.at(3 * block, 3)
        rope = dit.rope(step.positions, dit.grid(x))
        flows.append(dit(x, noisy, text, rope, step))
        dit.commit(0.5 * x, clean, text, rope, cache.at(3 * block, 3))
    x, step = draw(99, 2, 8, 4, 4, 6), cache.rewrite(keep_sink=True)
    clean = dit.modulation(torch.zeros(1, 1 if frames == 1 else 8))
    flows.append(dit(x, clean, text, dit.rope(step.positions, dit.grid(x)), step))
    return flows


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("tiled", [True, False])
def test_a_stream_with_kernels_is_the_plain_stream(dit: CausalWan, tiled: bool, fuse: bool, frames: int) -> None:
    fused, plain_cache, fused_cache = with_kernels(dit, fuse=fuse), ring(dit, tiled=tiled), ring(dit, tiled=tiled)
    pairs = zip(stream(dit, plain_cache, frames=frames), stream(fused, fused_cache, frames=frames), strict=True)
    for plain, other in pairs:
        torch.testing.assert_close(other, plain, rtol=0, atol=ELEMENT)
    torch.testing.assert_close(fused_cache.keys, plain_cache.keys, rtol=0, atol=ELEMENT)
    torch.testing.assert_close(fused_cache.values, plain_cache.values, rtol=0, atol=ELEMENT)


def test_a_pass_without_a_cache_and_one_with_a_mask(dit: CausalWan) -> None:
    fused, x = with_kernels(dit), draw(1, 2, 3, 4, 4, 6)
    conditions = conditions_of(dit, x)
    torch.testing.assert_close(fused(x, *conditions), dit(x, *conditions), rtol=0, atol=ELEMENT)
    mask = torch.ones(18, 18, dtype=torch.bool).tril()
    torch.testing.assert_close(fused(x, *conditions, None, mask), dit(x, *conditions, None, mask), rtol=0, atol=ELEMENT)


def test_a_step_that_is_no_plain_ring_writes_itself(dit: CausalWan) -> None:
    """What only knows `write` and `reach` gets keys and values as the plain pass gives them."""
    seen: list[tuple[Tensor, Tensor]] = []

    class Step(CacheStep):
        reach = None

        def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor] | RoundedKeys:
            seen.append((k.clone(), v.clone()))
            return torch.cat((k, 2 * k), 1), torch.cat((v, -v), 1)

    x, fused = draw(1, 2, 3, 4, 4, 6), with_kernels(dit)
    conditions = conditions_of(dit, x)
    torch.testing.assert_close(fused(x, *conditions, Step()), dit(x, *conditions, Step()), rtol=0, atol=ELEMENT)
    fused.commit(x, *conditions, Step())
    dit.commit(x, *conditions, Step())
    assert len(seen) == 12
    for found, expected in zip((*seen[:3], *seen[6:9]), (*seen[3:6], *seen[9:]), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=ELEMENT)


def test_bfloat16_is_as_near_to_float32_as_the_plain_pass(dit: CausalWan) -> None:
    narrow = copy.deepcopy(dit).bfloat16()
    exact = stream(dit, ring(dit))
    plain, fused = (stream(each, ring(each)) for each in (narrow, with_kernels(narrow)))
    for want, found, other in zip(exact, fused, plain, strict=True):
        error, theirs = ((each.float() - want).square().mean().sqrt() for each in (found, other))
        assert error < 1.25 * theirs


def test_complex_rotations_are_taken_as_they_come(dit: CausalWan) -> None:
    x, fused = draw(1, 2, 3, 4, 4, 6), with_kernels(dit)
    *conditions, rope = conditions_of(dit, x)
    assert rope.dtype == torch.complex64
    expected = fused(x, *conditions, rope)
    for form in (rope.to(torch.complex128), torch.view_as_real(rope)):
        torch.testing.assert_close(fused(x, *conditions, form), expected, rtol=0, atol=ELEMENT)


@pytest.mark.parametrize("fuse", [True, False])
def test_fp8_layers_get_what_they_would_have_made_themselves(dit: CausalWan, fuse: bool) -> None:
    """Layers in FP8, first and last ones native: the kernels quantise as the layers do."""
    eight = copy.deepcopy(dit)
    if fuse:
        eight.fuse_qkv()
    layer = eight.layers[1]
    homes = (layer.self_attn, "fused fused_kv" if fuse else "q k v"), (layer.cross_attn, "q o"), (layer.ffn, "0 2")
    for home, names in homes:
        for name in names.split():
            linear = home.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            home.set_submodule(name, Fp8Linear.from_linear(linear, simulate=True))
    fused = copy.deepcopy(eight)
    fused.use_kernels("reference")
    x = draw(1, 2, 3, 4, 4, 6)
    conditions = conditions_of(dit, x)
    native, plain, found = dit(x, *conditions), eight(x, *conditions), fused(x, *conditions)
    assert (plain - native).abs().max() > 1e-3
    assert (found - plain).square().mean() < 0.05 * (plain - native).square().mean()


def test_the_kernels_of_triton_need_a_gpu(dit: CausalWan) -> None:
    with pytest.raises(ImplUnavailableError, match="impl 'triton' cannot run"):
        copy.deepcopy(dit).use_kernels()
