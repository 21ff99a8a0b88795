from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from strobe.bench.costs import decoder_stages, steady_pass, stream_costs, transformer_shape
from strobe.core.costs import total, transformer_pass
from strobe.engine.config import EngineConfig, Knobs, ResolvedConfig, resolve
from strobe.engine.load import Model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def config(tiny: Model) -> ResolvedConfig:
    return resolve(EngineConfig(name="full", window=12, sink=3), tiny.defaults, CPU)


def test_a_steady_pass_attends_a_full_window(tiny: Model, config: ResolvedConfig) -> None:
    """Frames of 32 x 32 pixels are latents of 4 x 4 and tokens of 2 x 2."""
    one = steady_pass(tiny, config)
    assert (one.q_tokens, one.kv_tokens, one.dtype, one.last_layer_kv_only) == (3 * 4, 12 * 4, "float32", False)
    assert steady_pass(tiny, config, commit=True).last_layer_kv_only
    whole = resolve(EngineConfig(knobs=Knobs(commit_kv_only=False)), tiny.defaults, CPU)
    assert not steady_pass(tiny, whole, commit=True).last_layer_kv_only


def test_every_stage_of_a_stream_has_its_cost(tiny: Model, config: ResolvedConfig) -> None:
    found = {cost.span: cost for cost in stream_costs(tiny, config)}
    assert list(found) == ["denoise_step", "commit", "attention_kernel", "vae_decode"]
    shape = transformer_shape(tiny)
    assert found["denoise_step"].flops == total(transformer_pass(shape, steady_pass(tiny, config))).flops
    assert found["commit"].flops < found["denoise_step"].flops
    assert found["attention_kernel"].flops == 4 * 12 * 48 * shape.dim


def test_the_decoder_is_what_torch_counts(tiny: Model) -> None:
    """Each module, with the FLOPs that torch counts while a frame block of three latents is decoded."""
    latents = torch.zeros(1, 3, 4, 4, 4)
    with FlopCounterMode(display=False) as counter:
        tiny.vae.decode_groups(latents)
    counted = {name.removeprefix("Decoder."): sum(flops.values()) for name, flops in counter.get_flop_counts().items()}
    for name, cost in decoder_stages(tiny, "float32"):
        assert cost.flops == counted[name], name
    assert sum(cost.flops for _, cost in decoder_stages(tiny, "float32")) == counter.get_total_flops()


def test_the_decoders_weights_are_all_read(tiny: Model) -> None:
    """Bytes written and read beyond the activations are the parameters, four bytes each."""
    stages = dict(decoder_stages(tiny, "float32"))
    leave = tiny.vae.decoder.leave
    activations = 3 * 16 * 16 * (leave.in_channels + leave.out_channels)
    parameters = sum(parameter.numel() for parameter in leave.parameters())
    assert stages["leave"].moved_bytes == 4 * (activations + parameters)
