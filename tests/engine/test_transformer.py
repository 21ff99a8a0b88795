"""Linear layers in eight bits, and LoRAs merged into weights or beside them, while a stream runs."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from strobe.core.errors import ConfigError, SessionError, WeightsError
from strobe.core.shapes import LatentShape
from strobe.core.tolerances import tolerance
from strobe.engine.caches import new_cache
from strobe.engine.config import EngineConfig, Knobs, replace_knobs
from strobe.engine.model import Model
from strobe.engine.resolve import ResolvedConfig, idle_knobs, resolve
from strobe.engine.transformer import LINEARS, Transformer, band_rows, copied, quantize_linears, swap_in_bands
from strobe.models.lora import Lora, LoraPair, attach, merge
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.linears import EightBitLinear
from tiny_model import Make, latents, lora

CPU = torch.device("cpu")
NAMES = [f"blocks.{layer}.{name}" for layer in range(2) for name in LINEARS]


def resolved(model: Model, **options: Any) -> ResolvedConfig:
    return resolve(EngineConfig(**({"linear_format": "fp8", "simulate": True} | options)), model.defaults, CPU)


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
        assert 1e-3 < error < 0.04 and layer.values.shape == before[name].shape


def test_layers_are_quantised_once_and_only_if_asked(tiny: Model) -> None:
    dit = copied(tiny.dit, CPU, torch.float32)
    quantize_linears(dit, resolved(tiny, linear_format="native"))
    assert not any(isinstance(layer, EightBitLinear) for layer in dit.modules())
    quantize_linears(dit, resolved(tiny))
    with pytest.raises(ConfigError, match="Fp8Linear"):
        quantize_linears(dit, resolved(tiny))


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


@pytest.mark.parametrize("linear_format", ["fp8", "int8", "native"])
def test_a_lora_beside_weights_that_have_none_is_refused(tiny: Model, linear_format: Any) -> None:
    """In eight bits, or fused; what runs stays."""
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
    for_eight = resolved(tiny, linear_format="int8")
    with pytest.raises(ConfigError, match="LoraLinear"):
        quantize_linears(dit, for_eight)


STREAM = tolerance("latents", "float32")
BESIDE = replace_knobs(Knobs(), merge_lora=False, fused_qkv=False)


def merged(model: Model, *loras: tuple[int, float]) -> Model:
    """The model with LoRAs, by seed and strength, merged into its weights for good."""
    dit = deepcopy(model.dit)
    merge(dit, [lora(model, seed).at(strength) for seed, strength in loras], model.dit)
    return replace(model, dit=dit)


def test_without_a_lora_the_knob_is_said_to_be_off(make: Make, tiny: Model) -> None:
    for given in (False, True):
        model = replace(tiny, defaults=replace(tiny.defaults, lora=given))
        config = make(model=model).config
        reason = idle_knobs(config.asked, model.defaults, torch.device("cpu")).get("merge_lora")
        assert (config.knobs.merge_lora, reason) == (given, None if given else "no LoRA belongs to the model")


@pytest.mark.parametrize("knobs", [Knobs(), BESIDE], ids=["merged", "beside"])
@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_swapped_on_the_way(make: Make, tiny: Model, knobs: Knobs, strength: float) -> None:
    """Frames so far stay; from there it is a stream of the changed model that derives its window from the same latents."""
    session = make(preset=EngineConfig(window=8, keep_sink=False, knobs=knobs))
    session.use_lora(lora(tiny, 1))
    before = latents(session.stream(4))
    session.use_lora(lora(tiny), strength=strength)
    after = latents(session.stream(3))

    other = make(preset=EngineConfig(window=8, keep_sink=False, knobs=knobs), model=merged(tiny, (0, strength)))
    snapshot = session.snapshot()
    latents(other.stream(4))
    reached = other.snapshot()
    other.restore(replace(reached, state=replace(reached.state, history=before[:, -8:])))
    other.prompt("red circle")  # derives the window again
    torch.testing.assert_close(after, latents(other.stream(3)), rtol=0, atol=tolerance("stream", "float32"))
    assert snapshot.identity.weights_hash != other.snapshot().identity.weights_hash


def test_what_is_refused(make: Make, tiny: Model) -> None:
    session = make()
    expected = latents(make().stream(4))
    wrong = Lora(name="style", weights_hash="", pairs={"blocks.9.ffn.0": LoraPair(down=torch.zeros(1, 1), up=torch.zeros(1, 1))})
    first = latents(session.stream(2))
    with pytest.raises(WeightsError, match="style does not fit"):
        session.use_lora(wrong)
    assert torch.equal(torch.cat([first, latents(session.stream(2))], dim=1), expected)
    fork = session.fork()
    for each in (session, fork):
        with pytest.raises(SessionError, match="forks share their weights"):
            each.use_lora(lora(tiny))


def test_a_snapshot_belongs_to_its_lora(make: Make, tiny: Model) -> None:
    session = make()
    latents(session.stream(1))
    snapshots = [session.snapshot()]
    for strength in (1.0, 0.5):
        session.use_lora(lora(tiny), strength=strength)
        snapshots.append(session.snapshot())
        for before in snapshots[:-1]:
            with pytest.raises(SessionError, match="other weights"):
                session.restore(before)
    session.use_lora(lora(tiny), strength=1)  # an int is the same number
    session.restore(snapshots[1])
    session.use_lora(None)
    session.restore(snapshots[0])
    assert torch.equal(latents(session.stream(2)), latents(make().stream(3))[:, 3:])


@pytest.mark.parametrize("knobs", [Knobs(), BESIDE], ids=["merged", "beside"])
def test_those_of_the_model_stay_when_another_is_exchanged(make: Make, tiny: Model, knobs: Knobs) -> None:
    config = EngineConfig(knobs=knobs)
    session = make(preset=config, model=replace(tiny, loras=(lora(tiny, 1), lora(tiny, 2).at(0.5))))
    assert session.loras == session.model.loras
    for given, seeds in (
        (lora(tiny, 3), [(1, 1.0), (2, 0.5), (3, 1.0)]),
        (lora(tiny, 4).at(0.3), [(1, 1.0), (2, 0.5), (4, 0.3)]),
        ([lora(tiny, 2).at(0.0), lora(tiny, 3)], [(1, 1.0), (2, 0.0), (3, 1.0)]),
        (None, [(1, 1.0), (2, 0.5)]),
    ):
        session.use_lora(given)
        assert [(each.name, each.strength) for each in session.loras] == [(f"lora {seed}", number) for seed, number in seeds]
        start = session.snapshot()
        found = latents(session.stream(3))
        torch.testing.assert_close(found, latents(make(preset=config, model=merged(tiny, *seeds)).stream(3)), rtol=0, atol=STREAM)
        session.restore(start)
    assert session.snapshot().identity.weights_hash == tiny.weights_hash


def test_the_strength_of_a_call_multiplies(make: Make, tiny: Model) -> None:
    session = make()
    session.use_lora([lora(tiny, 1).at(0.5), lora(tiny, 2)], strength=0.5)
    assert [each.strength for each in session.loras] == [0.25, 0.5]
    with pytest.raises(ConfigError, match="lora 1 is given twice"):
        session.use_lora([lora(tiny, 1), lora(tiny, 1)])
    assert [each.strength for each in session.loras] == [0.25, 0.5]


@pytest.mark.parametrize("linear_format", ["native", "int8"])
def test_full_updates_reach_norms_biases_and_eight_bit_layers(make: Make, tiny: Model, linear_format: str) -> None:
    generator = torch.Generator().manual_seed(3)
    names = ("blocks.0.self_attn.q.weight", "blocks.0.self_attn.q.bias", "blocks.1.norm3.weight", "blocks.1.modulation")
    diffs = {name: 0.3 * torch.randn(tiny.dit.get_parameter(name).shape, generator=generator) for name in names}
    full = Lora(name="full", weights_hash="5" * 64, pairs={}, diffs=diffs)
    dit = deepcopy(tiny.dit)
    merge(dit, [full], tiny.dit)
    config = EngineConfig(linear_format=linear_format)  # type: ignore[arg-type]
    session, plain = make(preset=config), make(preset=config)
    session.use_lora(full)
    found = latents(session.stream(3))
    assert torch.equal(found, latents(make(preset=config, model=replace(tiny, dit=dit)).stream(3)))
    session.use_lora(None)
    session.restore(plain.snapshot())
    assert (
        torch.equal(latents(session.stream(3)), latents(plain.stream(3)))
        and (found - latents(make(preset=config).stream(3))).abs().max() > 0.1
    )


def test_tokens_in_bands_change_nothing_but_where_they_lie(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 128 tokens are patches of a frame; with all blocks attended a pass gives what it gives in raster order."""
    grid = torch.arange(30 * 52).view(1, 1, 1, 30, 52).repeat_interleave(2, 3).repeat_interleave(2, 4)
    bands = swap_in_bands(grid, band_rows(30), (2, 2))
    assert torch.equal(swap_in_bands(bands, 52, (2, 2)), grid)
    cells = bands[0, 0, 0, ::2, ::2].flatten()[:512].view(4, 128)  # the first blocks
    assert [int((each.amax(1) - each.amin(1)).max()) for each in (cells // 52, cells % 52)] == [9, 13]

    monkeypatch.setattr("strobe.cache.quantized.block_number", lambda *_: 10**6)
    large = replace(tiny, defaults=replace(tiny.defaults, frame_size=(192, 256)))
    made = []
    for sparsity in (0.0, 0.5):
        config = resolve(EngineConfig(attention_format="int8", sparsity=sparsity), large.defaults, CPU)
        transformer = Transformer(large.dit, config, 3 * 192)
        cache = new_cache(large.dit.config, LatentShape(frames=3, channels=4, height=24, width=32), config, 1)
        text = transformer.read(torch.ones(1, 6, 16))
        noise = torch.randn(1, 6, 4, 24, 32, generator=torch.Generator().manual_seed(2))
        transformer.write(noise[:, :3], text, cache.at(0, 3))
        made.append(transformer.flow(noise[:, 3:], 500.0, text, cache.at(3, 3)))
    assert (made[0] - made[1]).norm() < 0.01 * made[0].norm()
