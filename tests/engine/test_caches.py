"""Caches as configurations ask for them, and streams that leave out some of their past."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from strobe.attention.sparse import history
from strobe.attention.sparse.layout import tile_layout
from strobe.core.errors import ConfigError
from strobe.core.shapes import TokenGrid
from strobe.core.tolerances import tolerance
from strobe.engine.caches import attended_keys, frame_tiles, new_cache
from strobe.engine.config import EngineConfig
from strobe.engine.memory import predict
from strobe.engine.model import Model, latent_shape
from strobe.engine.prompts import Switch
from strobe.engine.resolve import resolve
from strobe.engine.stream import FrameBlock
from strobe.models.wan.kernels import custom_ops
from strobe.models.wan.layers import WanLayer
from tiny_model import Make, latents


@pytest.mark.parametrize("kv_format", ["native", "int8"])
def test_with_fused_kernels_one_launch_turns_the_sink(tiny: Model, monkeypatch: pytest.MonkeyPatch, kv_format: Any) -> None:
    """Of all layers and samples, in eight bits of those that are turned at a time; the result is that of the plain path."""
    reference, calls = custom_ops.home("reference"), list[tuple[str, tuple[int, ...]]]()

    def home(impl: str) -> Any:  # the reference in the place of Triton
        def turn_keys(keys: Tensor, *rest: Tensor) -> None:
            calls.append((impl, tuple(keys.shape)))
            reference.turn_keys(keys, *rest)

        return SimpleNamespace(turn_keys=turn_keys)

    monkeypatch.setattr(custom_ops, "home", home)
    config = resolve(EngineConfig(window=6, sink=2, kv_format=kv_format), tiny.defaults, torch.device("cpu"))
    assert not config.knobs.fused_kernels
    shape = latent_shape(tiny.defaults, tiny.dit.config)
    states = []
    for fused in (False, True):
        knobs = replace(config.knobs, fused_kernels=fused)
        cache = new_cache(tiny.dit.config, shape, replace(config, knobs=knobs), batch=2)
        tokens = shape.token_grid(tiny.dit.config.patch).tokens_per_frame
        for block in range(4):
            step = cache.at(3 * block, 3)
            for layer in range(2):
                generator = torch.Generator().manual_seed(layer + 10 * step.positions[0])
                k, v = (torch.randn(2, len(step.positions) * tokens, 2, 24, generator=generator) for _ in "kv")
                step.write(layer, k, v)
        states.append(cache.snapshot())
        assert calls == ([("triton", (2, 2, 2 * tokens, 2, 24))] * 2 if fused else [])
    plain, fused_state = states
    assert torch.equal(plain.keys, fused_state.keys) and torch.equal(plain.sink_keys, fused_state.sink_keys)
    assert not torch.equal(plain.keys[:, :, : plain.sink_keys.shape[2]], plain.sink_keys)


CPU = torch.device("cpu")
BASE = EngineConfig(timesteps=(1000, 500), window=9, sink=2)
SWITCHES = [Switch(frame_block=3, prompt="blue square"), Switch(frame_block=6, prompt="green circle")]


@pytest.fixture
def wide(tiny: Model) -> Model:
    """Latent frames of 6 x 12 tokens: two tiles of 36."""
    return replace(tiny, defaults=replace(tiny.defaults, frame_size=(96, 192)))


@pytest.fixture
def film(make: Make, wide: Model) -> Callable[..., list[FrameBlock]]:
    def run(config: EngineConfig, num_blocks: int = 8, **options: Any) -> list[FrameBlock]:
        return list(make(preset=config, model=wide, **options).stream(num_blocks, switches=SWITCHES))

    return run


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(BASE, marks=pytest.mark.rest),
        replace(BASE, keep_sink=False),
        pytest.param(replace(BASE, positions="absolute"), marks=pytest.mark.rest),
        replace(BASE, sink=0, window=7),
        replace(BASE, window=5),  # nothing but the sink and the frame block: no history
        replace(BASE, first_block=1, sink=3),
    ],
    ids=["plain", "sink not kept", "absolute", "no sink", "no history", "first block of one"],
)
def test_a_share_too_small_to_skip_a_tile_changes_nothing(film: Callable[..., list[FrameBlock]], config: EngineConfig) -> None:
    dense, sparse = (latents(film(replace(config, sparsity=share), samples=(0, 1))) for share in (0.0, 0.01))
    torch.testing.assert_close(sparse, dense, rtol=0, atol=tolerance("stream", "float32"))


def test_each_query_tile_sees_the_tiles_of_its_budget(
    film: Callable[..., list[FrameBlock]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against attention under a mask over the keys of the whole window, built from the tiles' means."""
    checked = []
    attend = WanLayer.attend_kept

    def compared(layer: WanLayer, q: Tensor, new: Any, kept: Any, reach: Any, index: int) -> Tensor:
        out = attend(layer, q, new, kept, reach, index)
        if reach.num_tiles and not checked:
            checked.append((out, _masked(q, new, kept, reach)))
        return out

    monkeypatch.setattr(WanLayer, "attend_kept", compared)
    film(replace(BASE, sparsity=0.6))
    torch.testing.assert_close(*checked[0], rtol=0, atol=tolerance("element", "float32"))


def _masked(q: Tensor, new: tuple[Tensor, Tensor], kept: tuple[Tensor, Tensor], reach: Any) -> Tensor:
    tiles = frame_tiles(TokenGrid(frames=1, height=6, width=12))
    rows = tiles.rows()
    held = [slot for slot in range(reach.sizes.shape[0] // 2) if reach.sizes[2 * slot]]
    frames = [[each[:, reach.tiled_from + 128 * slot :][:, rows] for slot in held] for each in kept]  # raster, [B, 72, H, D]
    member = rows // 64  # tile of each token
    means = torch.stack([frame[:, member == tile].mean(dim=1) for frame in frames[0] for tile in (0, 1)], dim=1)
    q_tiles = tile_layout((q.shape[1] // 72, 6, 12), "auto", 64)
    of_query = q_tiles.rows() // 64
    assert reach.whole_rows == (2 + 3) * 72 and reach.covered == new[0].shape[1]
    whole = [torch.cat((each[:, : 2 * 72], own), dim=1) for each, own in zip(kept, new, strict=True)]  # the sink, its own frames
    mask = torch.ones(1, q.shape[2], q.shape[1], whole[0].shape[1] + 72 * len(held), dtype=torch.bool)
    topk = max(1, -(-4 * 2 * len(held) // 10))  # 40 % of the tiles
    for head in range(q.shape[2]):
        for tile in range(q_tiles.num_tiles):
            scores = means[0, :, head] @ q[0, of_query == tile, head].mean(dim=0)
            taken = scores.topk(topk).indices.tolist()
            seen = torch.cat([torch.tensor([2 * at + each in taken for each in (0, 1)])[member] for at in range(len(held))])
            mask[0, head, of_query == tile, whole[0].shape[1] :] = seen
    parts = [torch.cat([whole[i], *frames[i]], dim=1).transpose(1, 2) for i in (0, 1)]
    return F.scaled_dot_product_attention(q.transpose(1, 2), *parts, attn_mask=mask).transpose(1, 2)


@pytest.mark.parametrize("first_block", [1, 3, 5])
def test_what_is_seen_whole_is_one_call(make: Make, wide: Model, monkeypatch: pytest.MonkeyPatch, first_block: int) -> None:
    """Of every pass but a recache: the sink and its own frames lie side by side, while the sink fills too."""
    keys, dense = [], history.dense_attention
    monkeypatch.setattr(history, "dense_attention", lambda q, k, v, **how: keys.append(k.shape[1]) or dense(q, k, v, **how))
    session = make(preset=replace(BASE, sparsity=0.6, first_block=first_block), model=wide)
    list(session.stream(4))
    passes = 2 * 2 + 1  # two layers, two denoise steps; a commit stops before the last layer's attention
    frames = [(0, first_block), *((first_block + 3 * block, 3) for block in range(3))]
    assert keys == [72 * (min(2, first) + size) for first, size in frames for _ in range(passes)]


def test_a_frame_that_fills_no_tile_is_refused(make: Make, tiny: Model) -> None:
    with pytest.raises(
        ConfigError, match=r"leaves out whole blocks of 128 keys, and none of a window of 12 latent frames of 4 tokens"
    ):
        make(preset=EngineConfig(sparsity=0.5, attention_format="int8"))
    with pytest.raises(ConfigError, match="leaves out whole blocks"):  # before anything is made
        predict(tiny, resolve(EngineConfig(sparsity=0.5, attention_format="int8"), tiny.defaults, CPU))
    make(preset=EngineConfig(sparsity=0.5, attention_format="int8", window=6, sink=3)).close()  # it has no past
    with pytest.raises(ConfigError, match=r"2x2 tokens and fills less than half of a tile of 64; set sparsity to 0"):
        make(preset="sparse")


def test_keys_attended_of_the_full_size(wide: Model) -> None:
    """480 x 832: 1560 tokens in 26 tiles; of 6 frames of history 156 tiles, a fifth of which is 32."""
    grid = TokenGrid(frames=3, height=30, width=52)
    config = resolve(EngineConfig(sparsity=0.8), wide.defaults, CPU)
    assert frame_tiles(grid).num_tiles == 26 and attended_keys(grid, config) == 6 * 1560 + 32 * 60
    assert attended_keys(grid, resolve(EngineConfig(), wide.defaults, CPU)) == 12 * 1560
    eight = resolve(EngineConfig(sparsity=0.8, attention_format="int8"), wide.defaults, CPU)
    assert attended_keys(grid, eight) == (74 + 2 + 15) * 128  # blocks: 6 frames always, and of 73.1 a fifth
    assert attended_keys(grid, resolve(EngineConfig(sparsity=0.8, window=6), wide.defaults, CPU)) == 6 * 1560
