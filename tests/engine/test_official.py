"""A session against numbers of the official implementation: random weights, rolling window, prompt switches.

`tests/data/causal_wan_tiny.safetensors` holds a tiny causal Wan as run by the official code in float32: weights, inputs, the flow
of every denoise pass, x0 of seven frame blocks and the last layer's keys after each; x0 also with a prompt switch before frame
block 2 or 5 (nothing evicted yet, or evicting), sink kept or renewed. Here the whole engine runs, session to cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from strobe.core.shapes import VaeStride
from strobe.core.tolerances import tolerance
from strobe.engine.config import EngineConfig, Knobs, ModelDefaults, replace_knobs
from strobe.engine.denoise import BlockNoise
from strobe.engine.model import Model
from strobe.engine.prompts import Switch, TextEncoder
from strobe.engine.session import Session
from strobe.engine.transformer import Transformer
from strobe.models.vae.tiny import TinyVAE, TinyVAEConfig
from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan

DATA = Path(__file__).parents[1] / "data" / "causal_wan_tiny.safetensors"
WAN = WanConfig(dim=48, ffn_dim=128, freq_dim=32, text_dim=24, text_len=12, num_heads=2, num_layers=2, latent_channels=16)
DEFAULTS = ModelDefaults(
    frame_size=(32, 64), fps=16, stride=VaeStride(), frame_block=3, timesteps=(1000.0, 750.0, 500.0, 250.0), shift=5.0
)
OFF = Knobs(**{each.name: False for each in fields(Knobs)})
BLOCKS, TOKENS = 7, 8


@cache
def golden() -> dict[str, Tensor]:
    return load_file(DATA)


class GoldenText(TextEncoder):
    """A text encoder that knows two prompts: the names of two tensors of the golden."""

    def check(self, prompts: Sequence[str]) -> None:
        assert all(prompt in golden() for prompt in prompts)

    def encode(self, prompts: Sequence[str]) -> Tensor:
        return torch.cat([golden()[prompt] for prompt in prompts])

    def ready(self, prompts: Sequence[str]) -> bool:
        return True

    def place(self, device: torch.device) -> None:
        pass


@cache
def official() -> Model:
    dit = CausalWan(WAN)
    weights = {name.removeprefix("model."): tensor for name, tensor in golden().items() if name.startswith("model.")}
    dit.load_state_dict(weights, strict=True)
    vae = TinyVAE(TinyVAEConfig(latent_channels=16, widths=(4, 4, 4), encoder_widths=(4, 4, 4)))
    return Model(name="golden", weights_hash="0" * 64, dit=dit, text=GoldenText(), vae=vae, defaults=DEFAULTS)


@dataclass(kw_only=True)
class Recorded:
    """What a run left: x0 [1, 21, C, Y, X], all flows, and the last layer's keys after each frame block, in the order of time."""

    x0: Tensor
    flows: list[Tensor]
    keys: list[Tensor]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stream seven frame blocks with the golden's noise: `run(config, switch before frame block, samples)`."""
    data, flows = golden(), []
    plain = Transformer.flow

    def noise(_seed: int, samples: Sequence[int], index: int, num_steps: int, *_: Any) -> BlockNoise:
        drawn = data["noise"][:, 3 * index : 3 * index + 3], *data["renoise"][index]
        drawn = tuple(torch.cat([(-1) ** sample * tensor for sample in samples]) for tensor in drawn)
        assert num_steps == len(drawn)
        return BlockNoise(initial=drawn[0], renoise=drawn[1:])

    def flow(self: Transformer, *arguments: Any) -> Tensor:
        flows.append(plain(self, *arguments))
        return flows[-1]

    monkeypatch.setattr("strobe.engine.stream.draw_block", noise)
    monkeypatch.setattr(Transformer, "flow", flow)

    def play(config: EngineConfig, switch: int | None = None, samples: Sequence[int] = (0,)) -> Recorded:
        flows.clear()
        switches = [] if switch is None else [Switch(frame_block=switch, prompt="text_after_switch")]
        latents, keys = [], []
        with Session("text", preset=config, model=official(), device="cpu", samples=samples) as session:
            for block in session.stream(BLOCKS, switches=switches):
                latents.append(block.latents)
                keys.append(keys_in_time(session))
        return Recorded(x0=torch.cat(latents, dim=1), flows=list(flows), keys=keys)

    return play


def keys_in_time(session: Session) -> Tensor:
    """The last layer's keys of the frames kept, sink first, then the others in the order of time."""
    held: Any = session._stream._cache
    keys = held.keys[-1].unflatten(1, (-1, TOKENS))
    if session.config.knobs.ring_cache:
        kept = sorted(held.policy.frames(held.end))
        return torch.stack([keys[:, held.policy.slot(frame)] for frame in kept], dim=1)
    return keys[:, : held.policy.filled(held.end)].clone()


def config(**changes: Any) -> EngineConfig:
    return EngineConfig(**({"window": 12, "sink": 3, "positions": "absolute", "dtype": "float32"} | changes))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance("element", "float32"))


KNOBS = pytest.mark.parametrize("knobs", [Knobs(), OFF, replace_knobs(OFF, ring_cache=True)], ids=["all", "none", "ring"])


@KNOBS
def test_every_flow_and_key_of_the_official_code(run: Any, knobs: Knobs) -> None:
    found, data = run(config(knobs=knobs)), golden()
    close(torch.stack(found.flows), data["flows"])
    for keys, expected in zip(found.keys, data["last_layer_k_after_block"], strict=True):
        close(keys, expected.unflatten(1, (-1, TOKENS))[:, : keys.shape[1]])
    assert [keys.shape[1] for keys in found.keys] == [3, 6, 9, 12, 12, 12, 12]


@KNOBS
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
def test_x0_of_the_official_code(run: Any, switch: int | None, keep_sink: bool, name: str, knobs: Knobs) -> None:
    close(run(config(keep_sink=keep_sink, knobs=knobs), switch).x0, golden()[name])


def test_each_sample_of_a_batch_is_the_official_stream(run: Any) -> None:
    """Samples 0 and 2 get the golden's noise, sample 1 another."""
    found = run(config(), 5, samples=(0, 1, 2)).x0
    for sample in (0, 2):
        close(found[sample : sample + 1], golden()["x0_switch5_gs1"])
    assert (found[1] - found[0]).abs().max() > 0.1


def test_rebased_positions_are_the_official_ones_until_the_sink_moves(run: Any) -> None:
    x0 = run(config(positions="rebased")).x0
    close(x0[:, :12], golden()["x0"][:, :12])
    assert (x0[:, 12:] - golden()["x0"][:, 12:]).abs().max() > 1e-4


@pytest.mark.parametrize("changes", [{"window": 9}, {"sink": 0}, {"shift": 8.0}, {"keep_sink": False}])
def test_other_settings_give_other_numbers(run: Any, changes: dict[str, Any]) -> None:
    """The golden can tell them apart."""
    assert (run(config(**changes), 5).x0 - golden()["x0_switch5_gs1"]).abs().max() > 1e-4
