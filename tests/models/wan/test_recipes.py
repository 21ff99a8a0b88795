"""How released weights are to be run, told by the checkpoint."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from strobe.core.errors import ConfigError, WeightsError
from strobe.models.wan.config import SIZES, WanConfig
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.recipes import RECIPES, find_recipe
from strobe.models.wan.weights import open_checkpoint

SMALL = WanConfig(dim=24, ffn_dim=24, freq_dim=8, text_dim=8, text_len=4, num_heads=1, num_layers=2)
WRAPPED = "all its names begin with model., as a causal generator's"
LORA = {"generator_lora": {"base_model.model.blocks.0.ffn.0.lora_A.weight": torch.ones(1, 24)}}


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    return CausalWan(SMALL).state_dict()


def prefixed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"model.{name}": tensor.clone() for name, tensor in tensors.items()}


def found(path: Path, config: WanConfig = SMALL, lora: Path | None = None, named: str | None = None) -> tuple[str, str]:
    recipe, why = find_recipe(open_checkpoint(path, config), lora, named)
    return recipe.name, why


class TestToldByTheCheckpoint:
    def test_self_forcing(self, tensors: dict[str, Tensor], tmp_path: Path) -> None:
        torch.save({"generator": prefixed(tensors), "generator_ema": prefixed(tensors)}, tmp_path / "any.pt")
        assert found(tmp_path) == ("self-forcing", "it holds generator_ema")
        (tmp_path / "config.json").write_text(json.dumps({"_class_name": "WanModel"}))  # of the base it lies beside
        assert found(tmp_path)[0] == "self-forcing"

    def test_longlive_by_what_its_lora_holds(self, tensors: dict[str, Tensor], tmp_path: Path) -> None:
        torch.save({"generator": prefixed(tensors)}, tmp_path / "base.pt")
        torch.save(LORA, tmp_path / "lora.pt")
        save_file({"blocks.0.ffn.0.lora_A.weight": torch.ones(1, 24)}, tmp_path / "style.safetensors")
        file = tmp_path / "base.pt"
        assert found(file, lora=tmp_path / "lora.pt") == ("longlive", "it holds generator, and lora.pt beside it generator_lora")
        assert found(file, lora=tmp_path / "style.safetensors")[0] == found(file)[0] == "causal-wan"

    @pytest.mark.parametrize("name", ["CausalWanModel", "CausalWanTransformer3DModel"])
    def test_a_causal_class(self, tensors: dict[str, Tensor], tmp_path: Path, name: str) -> None:
        save_file(tensors, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps({"_class_name": name}))
        assert found(tmp_path) == ("causal-wan", f"its config.json says {name}")

    @pytest.mark.parametrize("before", ["", "model.diffusion_model."])  # the second: as ComfyUI writes any model
    @pytest.mark.parametrize("part", ["model", ""])
    def test_what_nothing_tells_from_wan_itself_is_asked_for(
        self, tensors: dict[str, Tensor], tmp_path: Path, before: str, part: str
    ) -> None:
        named = {before + name: tensor for name, tensor in tensors.items()}
        torch.save({part: named} if part else named, tmp_path / "model.pt")
        with pytest.raises(WeightsError, match="nothing says whether .* is causal: .* such as --recipe self-forcing, or"):
            found(tmp_path)
        assert found(tmp_path, named="causal-rcm") == ("causal-rcm", "as asked for")

    @pytest.mark.parametrize("name", ["WanModel", "WanTransformer3DModel"])
    @pytest.mark.parametrize(("channels", "example"), [(16, "self-forcing"), (48, "longlive-2")])
    def test_weights_that_are_not_causal_are_refused(self, tmp_path: Path, name: str, channels: int, example: str) -> None:
        config = replace(SMALL, latent_channels=channels)
        save_file(CausalWan(config).state_dict(), tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps({"_class_name": name}))
        told = (
            rf"recipe wan \(its config.json says {name}\).*not causal and not few-step; .* with --recipe {example}, at your own"
        )
        with pytest.raises(WeightsError, match=told):
            found(tmp_path, config)
        assert found(tmp_path, config, named=example) == (example, "as asked for")

    def test_krea_by_its_size_and_names(
        self, tensors: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save_file(prefixed(tensors), tmp_path / "any.safetensors")
        assert found(tmp_path) == ("causal-wan", WRAPPED)  # of another size
        monkeypatch.setitem(SIZES, "wan-14b", SMALL)
        assert found(tmp_path) == ("krea", f"14B, and {WRAPPED}")
        assert (RECIPES["krea"].past, RECIPES["krea"].window, RECIPES["krea"].timesteps[-1]) == ("recomputed", 6, 0)
        assert "past recomputed with weight 0.3, timesteps 1000, 750, 500, 250, 0, shift 5" in str(RECIPES["krea"])
        assert found(tmp_path, named="causal-wan")[0] == "causal-wan"
        (tmp_path / "config.json").write_text(json.dumps({"_class_name": "WanModel"}))  # of the base it lies beside
        assert found(tmp_path)[0] == "krea"
        other = {f"model.diffusion_model.{name}": tensor for name, tensor in tensors.items()}
        save_file(other, tmp_path / "any.safetensors")
        with pytest.raises(WeightsError, match="recipe wan"):
            found(tmp_path)

    def test_a_recipe_that_is_not_there(self, tensors: dict[str, Tensor], tmp_path: Path) -> None:
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(ConfigError, match="did you mean 'self-forcing'"):
            found(tmp_path, named="self_forcing")


class TestLongLive2:
    WIDE = replace(SMALL, latent_channels=48)

    @pytest.mark.parametrize("part", ["generator", "generator_ema", "model", ""])
    @pytest.mark.parametrize("config", ["", "WanModel"])  # of the base it lies beside
    def test_it_is_told_as_a_causal_generator(self, tmp_path: Path, part: str, config: str) -> None:
        tensors = prefixed(CausalWan(self.WIDE).state_dict())
        torch.save({part: tensors} if part else tensors, tmp_path / "model_bf16.pt")
        if config:
            (tmp_path / "config.json").write_text(json.dumps({"_class_name": config}))
        sign = f"it holds {part}" if part.startswith("gen") else WRAPPED
        assert found(tmp_path, self.WIDE) == ("longlive-2", f"its latents have 48 channels, and {sign}")
        assert found(tmp_path, self.WIDE, named="causal-wan")[0] == "causal-wan"

    def test_it_is_not_for_other_latents(self, tensors: dict[str, Tensor], tmp_path: Path) -> None:
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(WeightsError, match="longlive-2 is for latents of 48 channels, and .* has 16; leave --recipe out"):
            found(tmp_path, named="longlive-2")

    def test_what_it_is_run_with(self) -> None:
        found = str(RECIPES["longlive-2"])
        assert found.startswith("longlive-2 (window 32, sink 8, positions absolute")
        assert found.endswith("positions absolute, sinks of shots, timesteps 1000, 750, 500, 250, shift 5, sampler UniPC)")


@pytest.mark.parametrize("stated", [True, False])
def test_other_latents_are_told_before_any_tensor_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: bool) -> None:
    channels, words = 36, "image-to-video"
    config = replace(SMALL, latent_channels=channels)
    save_file(CausalWan(config).state_dict(), tmp_path / "model.safetensors")
    if stated:
        (tmp_path / "config.json").write_text(json.dumps({"num_heads": 1, "dim": 24, "in_dim": channels}))
    monkeypatch.setattr("strobe.models.checkpoint.load_file", lambda path: pytest.fail(f"{path} was read"))
    with pytest.raises(WeightsError, match=rf"takes {channels} channels, as .*{words}.*; give text-to-video weights"):
        open_checkpoint(tmp_path)


def test_recipes_say_what_was_published() -> None:
    assert (RECIPES["self-forcing"].window, RECIPES["self-forcing"].sink, RECIPES["longlive"].sink) == (21, 0, 3)
    sigmas = [timestep / 1000 for timestep in RECIPES["causal-rcm"].timesteps]
    angles = [math.pi / 2, 1.5, 1.4, 1.0]
    for sigma, angle in zip(sigmas, angles, strict=True):  # sigma : 1 - sigma as sin : cos
        assert math.isclose(sigma * math.cos(angle), (1 - sigma) * math.sin(angle), abs_tol=1e-7)
    assert str(RECIPES["longlive"]) == "longlive (window 12, sink 3, positions rebased, timesteps 1000, 750, 500, 250, shift 5)"
