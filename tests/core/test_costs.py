"""FLOPs and bytes of shapes against counts by hand and by torch, and peak rates of devices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from strobe.cache.kv import CacheStep
from strobe.core import costs
from strobe.core.costs import WAN_1_3B, AttentionShape, Cost, PassShape, TransformerShape, VideoDecoderShape
from strobe.core.errors import ConfigError, ShapeError
from strobe.core.shapes import LatentShape
from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.layers import RoundedKeys

ATTENTION = ("attention_kernel", "cross_attention_kernel")


def teraflops(shape: TransformerShape, q_frames: int, kv_frames: int, size: tuple[int, int] = (480, 832)) -> tuple[float, float]:
    """Of one pass: in all, and of attention."""
    tokens = shape.tokens_per_frame(*size)
    parts = costs.transformer_pass(shape, PassShape(q_tokens=q_frames * tokens, kv_tokens=kv_frames * tokens))
    return costs.total(parts).flops / 1e12, costs.total({name: parts[name] for name in ATTENTION}).flops / 1e12


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
    assert [round(value, 1) for value in teraflops(costs.WAN_14B, 3, 6)] == [149.7, 37.8]
    assert list(costs.TRANSFORMERS) == ["wan-1.3b", "wan-14b"]


def test_the_preset_is_the_models_own_configuration() -> None:
    config = WanConfig()
    for name in ("num_layers", "dim", "ffn_dim", "num_heads", "head_dim", "latent_channels", "patch"):
        assert getattr(WAN_1_3B, name) == getattr(config, name)
    assert WAN_1_3B.text_tokens == config.text_len


@pytest.mark.parametrize("commit", [False, True])
def test_a_pass_is_what_torch_counts_in_our_transformer(commit: bool) -> None:
    """Every matrix product of a pass over its own tokens, counted by torch while it runs."""
    config = WanConfig(dim=24, ffn_dim=40, freq_dim=8, text_dim=10, text_len=5, latent_channels=3, num_heads=2, num_layers=3)
    dit = CausalWan(config).eval()
    latents = torch.zeros(2, 3, 3, 4, 6)
    grid = dit.grid(latents)
    text, modulation, rope = dit.text_kv(torch.zeros(2, 5, 10)), dit.modulation(torch.zeros(1, 1)), dit.rope((0, 1, 2), grid)

    class Own(CacheStep):
        reach = None

        def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor] | RoundedKeys:
            return k, v

    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        (dit.commit if commit else dit)(latents, modulation, text, rope, Own())
    shape = replace(WAN_1_3B, num_layers=3, dim=24, ffn_dim=40, num_heads=2, text_tokens=5, latent_channels=3)
    one = PassShape(q_tokens=grid.num_tokens, kv_tokens=grid.num_tokens, batch=2, last_layer_kv_only=commit)
    counts = dict(counter.get_flop_counts()["Global"])
    counted = sum(count for operator, count in counts.items() if "attention" not in str(operator))
    parts = costs.transformer_pass(shape, one)
    calls = {name: number for name, (number, _) in parts.items()}
    assert calls["attention_kernel"] == calls["cross_attention_kernel"] == 3 - commit and calls["kv_write"] == 3
    assert costs.total({name: part for name, part in parts.items() if name not in ATTENTION}).flops == counted


def test_a_sparse_pass_counts_pairs() -> None:
    whole = PassShape(q_tokens=64, kv_tokens=128)
    half = PassShape(q_tokens=64, kv_tokens=128, pairs=64 * 64 * WAN_1_3B.num_heads)
    saved = costs.total(costs.transformer_pass(WAN_1_3B, whole)).flops - costs.total(costs.transformer_pass(WAN_1_3B, half)).flops
    assert saved == WAN_1_3B.num_layers * 4 * 64 * 64 * WAN_1_3B.dim


def test_the_wan_decoder_costs_what_is_published() -> None:
    """13.55 TFLOP a latent frame at 480x832, 40.65 a frame block of three. Source of the sizes: Wan2.1, wan/modules/vae.py."""
    levels = {"multipliers": (1, 2, 4, 4), "residual_blocks": 2, "doubles_time": (True, True, False)}
    wan = VideoDecoderShape(width=96, latent_channels=16, **levels)
    latents = [LatentShape(frames=frames, channels=16, height=60, width=104) for frames in (1, 3)]
    assert [round(costs.vae_decode(wan, each, dtype="bf16").flops / 1e12, 2) for each in latents] == [13.55, 40.65]


def test_a_decoder_is_what_torch_counts() -> None:
    """A decoder of two levels, layer by layer, against the same layers run by torch."""
    shape = VideoDecoderShape(width=4, latent_channels=3, multipliers=(1, 2), residual_blocks=1, doubles_time=(True,))

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
    cost = costs.vae_decode(shape, LatentShape(frames=1, channels=3, height=2, width=3), dtype="float32")
    assert cost.flops == counter.get_total_flops()


@given(*[st.integers(1, 9)] * 4)
def test_an_operation_is_what_torch_counts(a: int, b: int, c: int, d: int) -> None:
    """As FLOPs of the operators that really run; what goes in is read once, weights and bias too, and what comes out written."""
    left, right, cube = torch.ones(a, b, c), torch.ones(a, c, d), torch.ones(1, a, 2, c, c)
    layer, wide = nn.Linear(c, d), nn.Conv3d(a, b, 3, padding=1)
    q, k, v = (torch.ones(a, b, tokens, 4) for tokens in (c, d, d))
    shape = AttentionShape(batch=a, num_heads=b, q_tokens=c, kv_tokens=d, head_dim=4)
    for cost, run, inputs in (
        (costs.matmul(b, c, d, dtype="float32", batch=a), lambda: left @ right, (left, right)),
        (costs.linear(b, c, d, dtype="float32"), lambda: layer(left[0]), (left[0], *layer.parameters())),
        (costs.linear(b, c, d, dtype="float32", bias=False), lambda: left[0] @ layer.weight.T, (left[0], layer.weight)),
        (costs.conv(2 * c * c, a, b, taps=27, dtype="float32"), lambda: wide(cube), (cube, *wide.parameters())),
        (costs.attention(shape, dtype="float32"), lambda: (q @ k.transpose(-1, -2)) @ v, (q, k, v)),
    ):
        with FlopCounterMode(display=False) as counter:
            out = run()
        read = 4 * sum(each.numel() for each in inputs)
        assert cost == Cost(flops=counter.get_total_flops(), read_bytes=read, write_bytes=4 * out.numel())


def test_pairs_that_cannot_be_are_refused() -> None:
    shape = AttentionShape(num_heads=2, q_tokens=3, kv_tokens=5, head_dim=4)
    assert costs.attention(shape, dtype="bf16", pairs=7).flops == 4 * 4 * 7
    assert costs.attention(shape, dtype="bf16", pairs=30) == costs.attention(shape, dtype="bf16")
    for pairs in (-1, 31):
        with pytest.raises(ShapeError, match="a dense call of this shape has 30"):
            costs.attention(shape, dtype="bf16", pairs=pairs)


def test_elementwise_work_moves_bytes_and_has_no_matrix_flops() -> None:
    assert costs.elementwise(10, dtype="bf16", inputs=2) == Cost(read_bytes=40, write_bytes=20)
    assert costs.norm(3, 5, dtype="float32") == Cost(read_bytes=4 * (15 + 10), write_bytes=60)
    assert costs.kv_write(6, 2, 4, dtype="bf16") == Cost(read_bytes=2 * 2 * 48, write_bytes=2 * 2 * 48)
    assert costs.kv_read(6, 2, 4, dtype="bf16") == Cost(read_bytes=2 * 2 * 48)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 9))
def test_costs_add_and_multiply(flops: int, read: int, write: int, calls: int) -> None:
    cost = Cost(flops=flops, read_bytes=read, write_bytes=write)
    assert cost * calls == calls * cost == sum([cost] * calls, Cost())
    assert (cost * calls).moved_bytes == calls * (read + write)


@pytest.mark.parametrize(
    ("spelling", "dtype"),
    [
        ("torch.bfloat16", "bfloat16"), ("c10::BFloat16", "bfloat16"), ("c10::Half", "float16"), ("float", "float32"),
        ("TF32", "tfloat32"), ("double", "float64"), ("c10::Float8_e4m3fn", "float8"), ("fp8_e5m2", "float8"),
        ("signed char", "int8"), ("long int", None), ("", None), ("bf16x", None),
    ],
)  # fmt: skip
def test_dtypes_in_every_spelling(spelling: str, dtype: str | None) -> None:
    assert costs.parse_dtype(spelling) == dtype


@pytest.mark.parametrize("dtype", [name for name in costs.DTYPE_BYTES if hasattr(torch, name)])
def test_bytes_of_an_element_are_torchs(dtype: str) -> None:
    assert costs.element_bytes(dtype) == getattr(torch, dtype).itemsize


def test_what_has_no_cost_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown dtype 'bf61'; allowed: float64"):
        costs.matmul(1, 1, 1, dtype="bf61")
    with pytest.raises(ShapeError, match="m: got -1"):
        costs.matmul(-1, 1, 1, dtype="bf16")
    with pytest.raises(ShapeError, match="not a positive multiple of 8"):
        WAN_1_3B.tokens_per_frame(481, 832)


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("A100-SXM4-80GB", "A100 80GB SXM"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("", None),
        ("NVIDIA", None),
        ("NVIDIA H100", None),  # which of three?
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),  # a slice
        ("NVIDIA A100-PG509-200", None),
        ("NVIDIA L40", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("AMD Radeon Graphics", None),
        ("Intel(R) Xeon(R) Platinum 8480C", None),
    ],
)
def test_devices_are_found_by_the_name_they_report_and_not_guessed(reported: str, name: str | None) -> None:
    found = costs.device_peaks(reported)
    assert name is None if found is None else found.name == name


def test_no_name_means_two_devices() -> None:
    for device in costs.DEVICES:
        assert device.source
        assert all(costs.device_peaks(name) == device for name in (device.name, *device.reported_as))


def test_peaks_are_dense_and_per_dtype() -> None:
    h100 = costs.device_peaks("NVIDIA H100 80GB HBM3")
    assert h100.peak_flops_per_s("c10::BFloat16") == 989_400_000_000_000
    assert h100.peak_flops_per_s("fp8_e4m3") == 1_978_900_000_000_000
    assert h100.peak_flops_per_s("float32") == 66_900_000_000_000
    assert h100.peak_flops_per_s("float64") is None and h100.peak_flops_per_s("what") is None
    assert h100.bandwidth_bytes_per_s == 3_352_000_000_000
    a100 = costs.device_peaks("NVIDIA A100-SXM4-80GB")
    assert a100 is not None and a100.peak_flops_per_s("float8") is None
