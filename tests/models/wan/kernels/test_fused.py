"""Passes with the fused kernels against plain ones: rings that fill and turn, commits, rewrites, tiles, FP8 layers."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from strobe.attention.sparse.coarse import pool
from strobe.attention.sparse.layout import tile_layout
from strobe.cache.kv import CacheShape, CacheStep, HistoryTiles, RingCache
from strobe.cache.policy import RingPolicy
from strobe.core.errors import ImplUnavailableError
from strobe.core.tolerances import tolerance
from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.layers import RoundedKeys, rotate_temporal
from strobe.models.wan.linears import Fp8Linear

ELEMENT = tolerance("element", "float32")

TINY = WanConfig(dim=48, ffn_dim=64, freq_dim=16, text_dim=12, text_len=5, latent_channels=4, num_heads=2, num_layers=3)
TOKENS = 6  # of a frame


@pytest.fixture(scope="module")
def dit() -> CausalWan:
    torch.manual_seed(12)
    model = CausalWan(TINY).requires_grad_(False)
    for parameter in model.parameters():
        parameter.copy_(parameter * 1.5 if parameter.dim() > 1 else parameter + 0.2 * torch.randn_like(parameter))
    return model


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


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
    shape = CacheShape(num_layers=len(dit.layers), batch=2, tokens_per_frame=TOKENS, num_heads=2, head_dim=24)
    return RingCache(
        shape,
        RingPolicy(window=8, sink=3),
        device=torch.device("cpu"),
        dtype=dit.dtype,
        positions="rebased",
        rotate=partial(rotate_temporal, dit.config),
        tiles=tiles if tiled else None,
    )


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
    conditions = dit.modulation(torch.tensor([[400.0]])), dit.text_kv(draw(0, 2, 5, 12)), dit.rope((4, 5, 6), dit.grid(x))
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
    conditions = dit.modulation(torch.tensor([[400.0]])), dit.text_kv(draw(0, 2, 5, 12)), dit.rope((4, 5, 6), dit.grid(x))
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
    conditions = dit.modulation(torch.tensor([[400.0]])), dit.text_kv(draw(0, 2, 5, 12))
    rope = dit.rope((4, 5, 6), dit.grid(x))
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
    conditions = dit.modulation(torch.tensor([[400.0]])), dit.text_kv(draw(0, 2, 5, 12)), dit.rope((4, 5, 6), dit.grid(x))
    native, plain, found = dit(x, *conditions), eight(x, *conditions), fused(x, *conditions)
    assert (plain - native).abs().max() > 1e-3
    assert (found - plain).square().mean() < 0.05 * (plain - native).square().mean()


def test_the_kernels_of_triton_need_a_gpu(dit: CausalWan) -> None:
    with pytest.raises(ImplUnavailableError, match="impl 'triton' cannot run"):
        copy.deepcopy(dit).use_kernels()
