"""The loop against numbers of the official implementation: random weights, rolling window, prompt switches.

`tests/data/causal_wan_tiny.safetensors` holds a tiny causal Wan as run by the official code in float32: weights, inputs and x0 of
seven frame blocks, also with a prompt switch before frame block 2 or 5 (nothing evicted yet, or evicting), sink kept or renewed.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from strobe.cache.kv import CacheShape, RingCache
from strobe.cache.rolling import RollingCache
from strobe.core.shapes import VaeStride
from strobe.engine.config import EngineConfig, Knobs, ModelDefaults, replace_knobs, resolve
from strobe.engine.denoise import commit, denoise
from strobe.engine.noise import BlockNoise
from strobe.engine.transformer import Transformer
from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan

DATA = Path(__file__).parents[1] / "data" / "causal_wan_tiny.safetensors"
WAN = WanConfig(dim=48, ffn_dim=128, freq_dim=32, text_dim=24, text_len=12, num_heads=2, num_layers=2, latent_channels=16)
DEFAULTS = ModelDefaults(
    frame_size=(32, 64), fps=16, stride=VaeStride(), frame_block=3, timesteps=(1000.0, 750.0, 500.0, 250.0), shift=5.0
)
OFF = Knobs(**{each.name: False for each in fields(Knobs)})


@cache
def golden() -> dict[str, Tensor]:
    return load_file(DATA)


@cache
def official_dit() -> CausalWan:
    dit = CausalWan(WAN)
    weights = {name.removeprefix("model."): tensor for name, tensor in golden().items() if name.startswith("model.")}
    dit.load_state_dict(weights, strict=True)
    return dit


@torch.inference_mode()
def run(config: EngineConfig, switch: int | None) -> Tensor:
    """x0 [1, 21, 16, 4, 8] of seven frame blocks with the golden's noise, the prompt switched before frame block `switch`."""
    data, resolved = golden(), resolve(config, DEFAULTS, torch.device("cpu"))
    dit = Transformer(official_dit(), resolved, 3 * 8)
    kind = RingCache if resolved.knobs.ring_cache else RollingCache
    shape = CacheShape(num_layers=2, batch=1, tokens_per_frame=8, num_heads=2, head_dim=24)
    kv = kind(shape, resolved.policy, device=resolved.device, dtype=resolved.dtype)
    text, blocks = dit.read(data["text"]), []
    for index in range(7):
        if index == switch:
            text = dit.read(data["text_after_switch"])
            history = torch.cat(blocks, dim=1)[:, -resolved.policy.window :]
            dit.write(history, text, kv.rewrite(keep_sink=resolved.keep_sink))
        step = kv.at(3 * index, 3)
        noise = BlockNoise(initial=data["noise"][:, 3 * index : 3 * index + 3], renoise=tuple(data["renoise"][index]))
        blocks.append(denoise(dit, noise, text, step, resolved.schedule))
        commit(dit, blocks[-1], text, step)
    return torch.cat(blocks, dim=1)


@pytest.mark.parametrize("knobs", [Knobs(), OFF, replace_knobs(OFF, ring_cache=True)], ids=["all", "none", "ring"])
@pytest.mark.parametrize(
    ("switch", "keep_sink", "name"),
    [
        (None, True, "x0"),
        (2, True, "x0_switch2_gs1"),
        (2, False, "x0_switch2_gs0"),
        (5, True, "x0_switch5_gs1"),
        (5, False, "x0_switch5_gs0"),
    ],
)
def test_x0_of_the_official_code(switch: int | None, keep_sink: bool, name: str, knobs: Knobs) -> None:
    config = EngineConfig(window=12, sink=3, positions="absolute", keep_sink=keep_sink, dtype="float32", knobs=knobs)
    torch.testing.assert_close(run(config, switch), golden()[name], rtol=0, atol=1e-5)


def test_the_schedule_is_the_golden_one() -> None:
    resolved = resolve(EngineConfig(), DEFAULTS, torch.device("cpu"))
    torch.testing.assert_close(torch.tensor(resolved.schedule.warped), golden()["timesteps"].float())
