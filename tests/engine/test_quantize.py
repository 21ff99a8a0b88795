"""Which layers become eight bits wide, what a LoRA does to them, and what a stream of the bundled model loses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from strobe.engine.quantize import LINEARS, quantize_linears, requantize_linears
from torch import Tensor, nn

from strobe.core.errors import ConfigError
from strobe.core.tolerances import tolerance
from strobe.engine.config import EngineConfig, Knobs, replace_knobs
from strobe.engine.load import load
from strobe.engine.model import Model
from strobe.engine.presets import preset
from strobe.engine.resolve import ResolvedConfig, resolve
from strobe.engine.session import Session
from strobe.engine.transformer import Transformer, copied
from strobe.models.lora import Lora, LoraPair, attach
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.linears import EightBitLinear
from strobe.quality.fidelity import decibels, squared_error

CPU = torch.device("cpu")
NAMES = [f"blocks.{layer}.{name}" for layer in range(2) for name in LINEARS]


def resolved(model: Model, **options: Any) -> ResolvedConfig:
    return resolve(EngineConfig(**({"linear_format": "fp8", "simulate": True} | options)), model.defaults, CPU)


def lora(model: Model, seed: int = 0) -> Lora:
    generator, pairs = torch.Generator().manual_seed(seed), {}
    for name, layer in model.dit.named_modules():
        if isinstance(layer, nn.Linear) and name.startswith("blocks."):
            down, up = (torch.randn(*shape, generator=generator) for shape in ((3, layer.in_features), (layer.out_features, 3)))
            pairs[name] = LoraPair(down=0.1 * down, up=0.1 * up, scale=0.5)
    return Lora(name=f"lora {seed}", weights_hash=str(seed) * 64, pairs=pairs)


def weights(dit: CausalWan) -> dict[str, Tensor]:
    """Weights as they act, by name of the module; parts of others too."""
    layers = {name: layer for name, layer in dit.named_modules() if isinstance(layer, EightBitLinear | nn.Linear)}
    return {
        name: (layer.dequantized() if isinstance(layer, EightBitLinear) else layer.weight.detach()).clone()
        for name, layer in layers.items()
    }


@pytest.mark.parametrize("linear_format", ["fp8", "int8"])
@pytest.mark.parametrize("fused", [True, False])
def test_what_runs_in_every_pass_is_quantised_and_the_rest_stays(tiny: Model, fused: bool, linear_format: Any) -> None:
    dit = copied(tiny.dit, CPU, torch.bfloat16)
    if fused:
        dit.fuse_qkv()
    before = weights(dit)
    quantize_linears(dit, resolved(tiny, linear_format=linear_format))
    after = weights(dit)
    assert after.keys() == before.keys()
    parts = (
        {f"blocks.{layer}.self_attn.{name}" for layer in range(2) for name in (*"qkv", "fused", "fused_kv")} if fused else set()
    )
    for name, layer in dit.named_modules():
        expected = name in NAMES or name in parts
        assert isinstance(layer, EightBitLinear) == expected
        if name in before:
            assert torch.equal(after[name], before[name]) != expected
            assert (after[name] - before[name]).norm() <= 0.04 * before[name].norm()
    for name in NAMES:
        layer = dit.get_submodule(name)
        assert isinstance(layer, EightBitLinear)
        error = (after[name].double() - before[name].double()).norm() / before[name].double().norm()
        assert 1e-3 < error < 0.04 and layer.num_bytes == before[name].numel() + 4 * len(before[name])


def test_layers_may_stay_native(tiny: Model) -> None:
    dit = copied(tiny.dit, CPU, torch.float32)
    dit.fuse_qkv()
    quantize_linears(dit, resolved(tiny), native_layers=(-1,))
    assert any(isinstance(layer, EightBitLinear) for layer in dit.layers[0].modules())
    assert not any(isinstance(layer, EightBitLinear) for layer in dit.layers[1].modules())
    with pytest.raises(ConfigError, match=r"0\.\.1"):
        quantize_linears(dit, resolved(tiny), native_layers=(2,))
    with pytest.raises(ConfigError, match="Fp8Linear"):
        quantize_linears(dit, resolved(tiny))
    untouched = copied(tiny.dit, CPU, torch.float32)
    quantize_linears(untouched, resolved(tiny, linear_format="native"))
    assert not any(isinstance(layer, EightBitLinear) for layer in untouched.modules())


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("linear_format", ["fp8", "int8"])
def test_a_swapped_lora_is_as_if_it_had_been_there(tiny: Model, linear_format: Any, dtype: Any, fused: bool) -> None:
    config = resolved(tiny, linear_format=linear_format, dtype=dtype, knobs=replace_knobs(Knobs(), fused_qkv=fused))
    opened, swapped, plain = (Transformer(tiny.dit, config, 4, given) for given in ([lora(tiny, 1)], [lora(tiny)], []))
    addresses = {name: tensor.data_ptr() for name, tensor in swapped.dit.state_dict().items()}
    without = weights(plain.dit)
    for given, expected in (([lora(tiny, 1)], weights(opened.dit)), ([], without)):
        swapped.use_loras(given)
        found = weights(swapped.dit)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert (not given) == all(torch.equal(found[name], without[name]) for name in expected)
    assert addresses == {name: tensor.data_ptr() for name, tensor in swapped.dit.state_dict().items()}


def test_layers_that_stayed_native_take_a_lora_too(tiny: Model) -> None:
    dit = copied(tiny.dit, CPU, torch.float32)
    dit.fuse_qkv()
    quantize_linears(dit, resolved(tiny), native_layers=(0,))
    requantize_linears(dit, tiny.dit, [lora(tiny).at(0.5)])
    name = "blocks.0.self_attn.k"
    expected = lora(tiny).pairs[name].merged(tiny.dit.get_submodule(name).weight, 0.5)
    torch.testing.assert_close(weights(dit)[name], expected, rtol=0, atol=tolerance("rounding", "float32"))
    torch.testing.assert_close(
        weights(dit)["blocks.0.self_attn.fused"][48:96], expected, rtol=0, atol=tolerance("rounding", "float32")
    )
    other = name.replace("0", "1")
    expected = lora(tiny).pairs[other].merged(tiny.dit.get_submodule(other).weight, 0.5)
    assert (weights(dit)[other] - expected).norm() <= 0.04 * expected.norm()


@pytest.mark.parametrize("linear_format", ["fp8", "int8"])
def test_a_lora_beside_eight_bit_weights_is_refused(tiny: Model, linear_format: Any) -> None:
    config = resolved(tiny, linear_format=linear_format, knobs=replace_knobs(Knobs(), merge_lora=False))
    with pytest.raises(ConfigError, match="merge_lora"):
        Transformer(tiny.dit, config, 4, [lora(tiny)])
    without = Transformer(tiny.dit, config, 4)
    before = weights(without.dit)
    with pytest.raises(ConfigError, match="merge_lora"):
        without.use_loras([lora(tiny)])
    assert all(torch.equal(weights(without.dit)[name], before[name]) for name in before)
    dit = copied(tiny.dit, CPU, torch.float32)
    attach(dit, [lora(tiny)], tiny.dit)
    with pytest.raises(ConfigError, match="LoraLinear"):
        quantize_linears(dit, config)


@pytest.mark.parametrize("formats", [{"kv_format": "int8"}, {"kv_format": "fp8"}, {"attention_format": "int8"}])
def test_replay_fork_and_resume_are_bit_equal(make: Callable[..., Session], tiny: Model, tmp_path: Path, formats: Any) -> None:
    config = EngineConfig(window=6, sink=1, linear_format="fp8", simulate=True, **formats)
    session = make(preset=config)
    [*session.stream(3)]
    snapshot, fork = session.snapshot(), session.fork()
    snapshot.save(tmp_path / "state")
    played = []
    for each in (session, fork, Session.resume(tmp_path / "state", model=tiny, device="cpu")):
        each.prompt("blue square")  # derives the window again
        played.append(torch.cat([block.latents for block in each.stream(3)], dim=1))
    assert torch.equal(played[0], played[1]) and torch.equal(played[0], played[2])


@pytest.fixture(scope="module")
def clip() -> Callable[..., Tensor]:
    """Frames of the bundled model under a configuration: `clip(**fields)`."""
    model = load()

    def play(**fields: Any) -> Tensor:
        config = replace(preset("quality"), window=6, timesteps=(1000, 500), **fields)
        session = Session("a red circle moving right", model=model, preset=config, device="cpu", seed=1)
        return torch.cat([block.frames for block in session.stream(3)])  # the sink has moved by then

    return play


@pytest.fixture(scope="module")
def reference(clip: Callable[..., Tensor]) -> Tensor:
    return clip()


@pytest.mark.parametrize(
    ("fields", "least", "most"),
    [
        ({"linear_format": "fp8", "simulate": True}, 33, 55),
        ({"linear_format": "int8"}, 48, 80),
        ({"kv_format": "int8"}, 46, 80),
        ({"kv_format": "fp8"}, 36, 65),
        ({"attention_format": "int8"}, 36, 65),
    ],
    ids=["fp8", "int8", "kv int8", "kv fp8", "attention int8"],
)
def test_quality_of_the_bundled_model(
    clip: Callable[..., Tensor], reference: Tensor, fields: dict[str, Any], least: float, most: float
) -> None:
    """PSNR in dB against the same noise in float32; the upper bound says that something was quantised."""
    found = decibels(squared_error(clip(**fields), reference).mean()).item()
    assert least <= found <= most
