from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from stand_ins import stands_in_for
from strobe.cache.kv import CacheStep
from strobe.core.costs import (
    TRANSFORMERS,
    WAN_1_3B,
    WAN_14B,
    WAN_VAE,
    PassShape,
    TransformerShape,
    VideoDecoderShape,
    total,
    transformer_pass,
    vae_decode,
)
from strobe.core.errors import ShapeError
from strobe.core.shapes import LatentShape, VaeStride
from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.layers import KeyValues, RoundedKeys

ATTENTION = ("attention_kernel", "cross_attention_kernel")


def teraflops(shape: TransformerShape, q_frames: int, kv_frames: int, size: tuple[int, int] = (480, 832)) -> tuple[float, float]:
    """Of one pass: in all, and of attention."""
    tokens = shape.tokens_per_frame(*size)
    parts = transformer_pass(shape, PassShape(q_tokens=q_frames * tokens, kv_tokens=kv_frames * tokens))
    return total(parts).flops / 1e12, sum(part.total.flops for part in parts if part.name in ATTENTION) / 1e12


@pytest.mark.parametrize(
    ("window", "whole", "attention"),
    [(3, 16.2, 4.5), (6, 20.2, 8.5), (9, 24.3, 12.6), (12, 28.3, 16.6), (15, 32.3, 20.6), (21, 40.4, 28.7)],
)
def test_a_pass_of_wan_costs_what_the_cost_model_says(window: int, whole: float, attention: float) -> None:
    """Figures of the cost model at 480x832, worked out there by hand, in TFLOP with one decimal."""
    assert [round(value, 1) for value in teraflops(WAN_1_3B, 3, window)] == [whole, attention]


def test_other_sizes_and_models() -> None:
    assert [round(value, 1) for value in teraflops(WAN_1_3B, 3, 12, (320, 576))] == [9.0, 3.6]
    assert round(teraflops(WAN_1_3B, 12, 12)[0]) == 113  # a prompt switch: the whole window at once
    assert [round(value, 1) for value in teraflops(WAN_14B, 3, 6)] == [149.7, 37.8]
    assert list(TRANSFORMERS) == ["wan-1.3b", "wan-14b"]


def test_the_layers_of_a_pass_are_the_formula() -> None:
    tokens, keys, d, f = 700, 2100, WAN_1_3B.dim, WAN_1_3B.ffn_dim
    parts = transformer_pass(WAN_1_3B, PassShape(q_tokens=tokens, kv_tokens=keys, batch=2))
    layers = [part for part in parts if part.name not in ("patch_embedding", "head")]
    per_layer = 8 * tokens * d * d + 4 * tokens * d * d + 4 * tokens * d * f + 4 * tokens * keys * d + 4 * tokens * 512 * d
    assert total(layers).flops == 2 * WAN_1_3B.num_layers * per_layer


def test_the_preset_is_the_models_own_configuration() -> None:
    config = WanConfig()
    own = (config.num_layers, config.dim, config.ffn_dim, config.num_heads, config.text_len, config.latent_channels, config.patch)
    shape = WAN_1_3B
    assert own == (
        shape.num_layers, shape.dim, shape.ffn_dim, shape.num_heads, shape.text_tokens, shape.latent_channels, shape.patch
    )  # fmt: skip
    assert shape.head_dim == config.head_dim


@pytest.mark.parametrize("commit", [False, True])
def test_a_pass_is_what_torch_counts_in_our_transformer(commit: bool) -> None:
    """Every matrix product of a pass over its own tokens, counted by torch while it runs."""
    config = WanConfig(dim=24, ffn_dim=40, freq_dim=8, text_dim=10, text_len=5, latent_channels=3, num_heads=2, num_layers=3)
    dit = CausalWan(config).eval()
    latents = torch.zeros(2, 3, 3, 4, 6)
    grid = dit.grid(latents)
    text, modulation, rope = dit.text_kv(torch.zeros(2, 5, 10)), dit.modulation(torch.zeros(1, 1)), dit.rope((0, 1, 2), grid)

    @stands_in_for(CacheStep)
    class Own:
        reach = None

        def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> KeyValues | RoundedKeys:
            return k, v

    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        (dit.commit if commit else dit)(latents, modulation, text, rope, Own())
    shape = TransformerShape(
        name="small",
        num_layers=3,
        dim=24,
        ffn_dim=40,
        num_heads=2,
        text_tokens=5,
        latent_channels=3,
        patch=config.patch,
        stride=VaeStride(),
        frame_block=3,
        source="",
    )
    one = PassShape(q_tokens=grid.num_tokens, kv_tokens=grid.num_tokens, batch=2, last_layer_kv_only=commit)
    counts = dict(counter.get_flop_counts()["Global"])
    counted = sum(count for operator, count in counts.items() if "attention" not in str(operator))
    parts = transformer_pass(shape, one)
    assert sum(part.total.flops for part in parts if part.name not in ATTENTION) == counted
    calls = {part.name: part.calls for part in parts}
    assert calls["attention_kernel"] == calls["cross_attention_kernel"] == 3 - commit and calls["kv_write"] == 3


def test_a_frame_size_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match="not a positive multiple of 8"):
        WAN_1_3B.tokens_per_frame(481, 832)


def test_a_sparse_pass_counts_pairs() -> None:
    whole = PassShape(q_tokens=64, kv_tokens=128)
    half = PassShape(q_tokens=64, kv_tokens=128, pairs=64 * 64 * WAN_1_3B.num_heads)
    saved = total(transformer_pass(WAN_1_3B, whole)).flops - total(transformer_pass(WAN_1_3B, half)).flops
    assert saved == WAN_1_3B.num_layers * 4 * 64 * 64 * WAN_1_3B.dim


def latent(frames: int = 1) -> LatentShape:
    return LatentShape(frames=frames, channels=16, height=60, width=104)


def test_the_wan_decoder_costs_what_is_published() -> None:
    """13.55 TFLOP a latent frame at 480x832, 4.35 the first, 40.65 a frame block of three."""
    found = [vae_decode(WAN_VAE, latent(), dtype="bf16"), vae_decode(WAN_VAE, latent(), dtype="bf16", first=True)]
    found.append(vae_decode(WAN_VAE, latent(3), dtype="bf16"))
    assert [round(cost.flops / 1e12, 2) for cost in found] == [13.55, 4.35, 40.65]


def test_a_decoder_is_what_torch_counts() -> None:
    """A decoder of two levels, layer by layer, against the same layers run by torch."""
    shape = VideoDecoderShape(width=4, latent_channels=3, multipliers=(1, 2), residual_blocks=1, doubles_time=(True,), source="")

    def block(given: int, out: int) -> list[nn.Module]:
        layers: list[nn.Module] = [nn.Conv3d(given, out, 3, padding=1), nn.Conv3d(out, out, 3, padding=1)]
        return [*layers, nn.Conv3d(given, out, 1)] if given != out else layers

    deep = [
        nn.Conv3d(3, 3, 1),
        nn.Conv3d(3, 8, 3, padding=1),
        *block(8, 8),
        *block(8, 8),
        nn.Conv3d(8, 24, 1),
        nn.Conv3d(8, 8, 1),
    ]
    deep += [*block(8, 8), *block(8, 8), nn.Conv3d(8, 16, (3, 1, 1), padding=(1, 0, 0))]
    late = [*block(4, 4), *block(4, 4), nn.Conv3d(4, 3, 3, padding=1)]
    with FlopCounterMode(display=False) as counter:
        for layer in deep:
            layer(torch.zeros(1, layer.in_channels, 1, 2, 3))  # type: ignore[arg-type]
        nn.Conv3d(8, 4, (1, 3, 3), padding=(0, 1, 1))(torch.zeros(1, 8, 2, 4, 6))
        for layer in late:
            layer(torch.zeros(1, layer.in_channels, 2, 4, 6))  # type: ignore[arg-type]
        q = torch.zeros(1, 6, 8)
        (q @ q.transpose(1, 2)) @ q
    cost = vae_decode(shape, LatentShape(frames=1, channels=3, height=2, width=3), dtype="float32")
    assert cost.flops == counter.get_total_flops()
