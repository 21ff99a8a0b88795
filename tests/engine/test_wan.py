"""Wan by name: random weights or a checkpoint, sizes, errors. Small sizes stand in for the released ones."""

from __future__ import annotations

import json
import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from strobe.bench.cases.stream import Script, StreamCase
from strobe.cache.policy import RingPolicy
from strobe.core.errors import ConfigError, ShapeError, WeightsError
from strobe.engine import load as loading
from strobe.engine.config import EngineConfig
from strobe.engine.family import Weights
from strobe.engine.load import load, wan_defaults
from strobe.engine.model import latent_shape
from strobe.engine.resolve import resolve
from strobe.engine.session import Session
from strobe.models.vae.taew import Taew
from strobe.models.vae.tiny import TinyVAE, TinyVAEConfig
from strobe.models.wan.config import SIZES, WanConfig
from strobe.models.wan.dit import CausalWan
from strobe.models.wan.random_init import PromptNoise, random_transformer
from strobe.models.wan.recipes import RECIPES

SMALL = WanConfig(dim=48, ffn_dim=64, freq_dim=16, text_dim=16, text_len=8, num_heads=2, num_layers=2)
SIZE = (32, 48)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """`wan-1.3b` is a small model with a small autoencoder and a text encoder that knows no language."""
    vae = TinyVAE(TinyVAEConfig(latent_channels=16, widths=(8, 8, 8), encoder_widths=(8, 8, 8)))
    monkeypatch.setitem(SIZES, "wan-1.3b", SMALL)
    monkeypatch.setattr(loading, "random_wan_vae", lambda config, seed: vae)
    monkeypatch.setattr(loading, "load_wan_vae", lambda path: vae)
    monkeypatch.setattr(loading, "text_encoder", lambda folder, given: PromptNoise(SMALL))
    monkeypatch.setattr(loading, "check_there", lambda folder, given, loras: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of the small model as the original is published."""
    torch.manual_seed(5)
    save_file(CausalWan(SMALL).state_dict(), tmp_path / "diffusion_pytorch_model.safetensors")
    named = ("dim", "ffn_dim", "freq_dim", "text_dim", "text_len", "num_heads", "num_layers")
    sizes = {"_class_name": "CausalWanModel", "in_dim": 16} | {name: getattr(SMALL, name) for name in named}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    return tmp_path


@pytest.mark.usefixtures("small")
class TestRandomWeights:
    def test_they_stream_and_say_so(self) -> None:
        model = load("wan-1.3b", Weights(random=True, frame_size=SIZE))
        assert model.name == "wan-1.3b, random weights" and model.random_weights
        with Session("a fox", model=model, device="cpu") as session:
            blocks = [*session.stream(5)]
        assert [tuple(block.frames.shape) for block in blocks[:2]] == [(9, *SIZE, 3), (12, *SIZE, 3)]
        assert all(block.latents.isfinite().all() and block.latents.std() < 10 for block in blocks)

    def test_the_tiny_autoencoder_can_be_had(self) -> None:
        model = load("wan-1.3b", Weights(random=True, vae="tiny", frame_size=SIZE))
        assert isinstance(model.vae, Taew) and model.name == "wan-1.3b, tiny VAE, random weights"
        with Session("a fox", model=model, device="cpu") as session:
            assert next(session.stream(1)).frames.shape == (9, *SIZE, 3)
        with pytest.raises(ConfigError, match="'tiny'; got 'huge'"):
            Weights(random=True, vae="huge")


@pytest.mark.usefixtures("small")
class TestCheckpoints:
    @pytest.mark.parametrize("by_name", [True, False])
    def test_the_weights_are_those_of_the_folder(self, folder: Path, by_name: bool) -> None:
        given = Weights(path=folder if by_name else None, frame_size=SIZE)
        model = load("wan-1.3b", given) if by_name else load(folder, given)
        torch.manual_seed(5)
        expected = CausalWan(SMALL).state_dict()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in model.dit.state_dict().items())
        assert model.name == ("wan-1.3b" if by_name else str(folder)) and not model.random_weights and not model.loras

    def test_text_encoder_and_autoencoder_may_lie_elsewhere(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Any] = []
        vae = TinyVAE(TinyVAEConfig(latent_channels=16, widths=(8, 8, 8), encoder_widths=(8, 8, 8)))
        monkeypatch.setattr(loading, "text_encoder", lambda where, given: asked.append((where, given.prompt_cache)))
        monkeypatch.setattr(loading, "load_wan_vae", lambda where: asked.append(where) or vae)
        monkeypatch.setattr(loading, "load_taew", lambda where: asked.append(where) or vae)
        release, cache, file = tmp_path / "release", tmp_path / "cache", folder / "diffusion_pytorch_model.safetensors"
        load("wan-1.3b", Weights(path=file))
        load("wan-1.3b", Weights(path=file, release=release, prompt_cache=cache))
        load("wan-1.3b", Weights(path=folder, release=release, vae="elsewhere/taew2_1.pth"))
        beside, apart, tiny = (folder, None), (release, cache), (release, None)
        assert asked == [folder, beside, release, apart, Path("elsewhere/taew2_1.pth"), tiny]

    def test_a_lora_beside_the_base_is_used(self, folder: Path, tmp_path: Path) -> None:
        plain = load("wan-1.3b", Weights(path=folder))
        down, up = torch.randn(2, 48), torch.randn(64, 2)
        pair = {"base_model.model.blocks.1.ffn.0.lora_A.weight": down, "base_model.model.blocks.1.ffn.0.lora_B.weight": up}
        torch.save({"generator_lora": pair}, folder / "lora.pt")
        model = load("wan-1.3b", Weights(path=folder))
        assert model.notes[1:] == ("LoRA lora.pt: scale 1: no alpha in the file, its header or beside it",)
        assert len(model.loras) == 1 and model.name == "wan-1.3b with lora.pt" and model.weights_hash != plain.weights_hash
        assert torch.equal(model.dit.state_dict()["blocks.1.ffn.0.weight"], plain.dit.state_dict()["blocks.1.ffn.0.weight"])
        script = Script(prompt="a fox", num_blocks=2)
        with closing(StreamCase(["quality"], script=script, model=model, device="cpu")) as case:
            assert case.notes == model.notes
            assert case.settings("quality").lora == "lora.pt: scale 1: no alpha in the file, its header or beside it"
        torch.save({"generator_lora": {name.replace("1.ffn", "7.ffn"): half for name, half in pair.items()}}, folder / "lora.pt")
        with pytest.raises(WeightsError, match=r"lora.pt does not fit this model"):
            load("wan-1.3b", Weights(path=folder))

    def test_a_recognised_checkpoint_brings_its_window_and_schedule(self, folder: Path, tmp_path: Path) -> None:
        named = {f"model.{name}": tensor for name, tensor in CausalWan(SMALL).state_dict().items()}
        torch.save({"generator": named, "generator_ema": named}, tmp_path / "any.pt")
        given = Weights(path=tmp_path / "any.pt", frame_size=SIZE)
        model = load("wan-1.3b", given)
        assert model.notes == (f"recipe {RECIPES['self-forcing']}: it holds generator_ema",)
        with Session("a fox", model=model, device="cpu") as session:
            assert (session.config.policy, session.config.positions) == (RingPolicy(window=21, sink=0), "absolute")
            assert len([*session.stream(9)]) == 9  # past the window
        with Session("a fox", model=model, preset="turbo", device="cpu") as session:
            assert session.config.policy == RingPolicy(window=8, sink=3)
        with Session("a fox", model=model, preset=EngineConfig(window=9), device="cpu") as session:
            assert session.config.policy == RingPolicy(window=9, sink=0)
        model = load("wan-1.3b", replace(given, recipe="causal-rcm"))
        with Session("a fox", model=model, device="cpu") as session:
            assert session.config.schedule.sigmas == tuple(timestep / 1000 for timestep in RECIPES["causal-rcm"].timesteps)
        with pytest.raises(ConfigError, match="did you mean 'longlive'"):
            load("wan-1.3b", Weights(random=True, recipe="longlife"))


@pytest.mark.usefixtures("small")
class TestWhatIsRefused:
    def test_no_weights(self) -> None:
        with pytest.raises(ConfigError, match="comes without weights: give --weights with their folder, or --random-weights"):
            load("wan-1.3b")

    def test_both(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match="not both"):
            Weights(path=folder, random=True)

    def test_weights_where_none_belong(self, folder: Path) -> None:
        for name in ("shapes", folder):
            with pytest.raises(ConfigError, match="one of: wan-1.3b, wan-14b"):
                load(name, Weights(path=folder))

    def test_a_size_is_checked_before_anything_is_read(self, tmp_path: Path) -> None:
        with pytest.raises(ShapeError, match="height must be a multiple of 16 and width of 16; the nearest is 256x384"):
            load("wan-1.3b", Weights(path=tmp_path / "nowhere", frame_size=(248, 384)))

    def test_the_checkpoint_of_another_model(self, folder: Path) -> None:
        with pytest.raises(
            WeightsError, match=r"is wan-1.3b \(2 layers, 48 wide\) by its config.json, not wan-14b .*; give --model wan-1.3b"
        ):
            load("wan-14b", Weights(path=folder))

    def test_an_empty_prompt(self) -> None:
        with pytest.raises(ConfigError, match="the prompt is empty"):
            PromptNoise(SMALL).check([" "])


@pytest.mark.parametrize(("size", "tokens"), [((480, 832), 30 * 52), ((320, 576), 20 * 36), ((704, 1280), 44 * 80)])
def test_every_size_is_derived(size: tuple[int, int], tokens: int) -> None:
    for config in (SIZES["wan-1.3b"], SIZES["wan-14b"]):
        defaults = wan_defaults(config, size)
        latents = latent_shape(defaults, config)
        assert (latents.frames, latents.channels, latents.height, latents.width) == (3, 16, size[0] // 8, size[1] // 8)
        assert latents.token_grid(config.patch).tokens_per_frame == tokens
        resolved = resolve(EngineConfig(), defaults, torch.device("cpu"))
        assert resolved.schedule.warped == (1000, 937.5, 833.3333129882812, 625)
    latents = latent_shape(wan_defaults(SIZES["wan-5b"], size), SIZES["wan-5b"])
    assert (latents.frames, latents.channels, latents.height, latents.width) == (8, 48, size[0] // 16, size[1] // 16)


def test_random_matrices_have_the_variance_of_one_over_their_inputs() -> None:
    dit = random_transformer(WanConfig(dim=256, ffn_dim=512, num_heads=2, num_layers=2, text_dim=128))
    for name, tensor in dit.state_dict().items():
        assert tensor.dtype == torch.bfloat16
        if tensor.dim() > 1 and not name.endswith("modulation"):
            assert tensor.float().std().item() * math.sqrt(tensor[0].numel()) == pytest.approx(1, abs=0.05)
    first, second = (dit.layers[index].self_attn.q.weight for index in range(2))
    assert not torch.equal(first, second)


@pytest.mark.usefixtures("small")
def test_an_autoencoder_of_other_latents_is_told_before_the_transformer_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = TinyVAE(TinyVAEConfig(latent_channels=8, widths=(8, 8, 8), encoder_widths=(8, 8, 8)))
    monkeypatch.setattr(loading, "load_wan_vae", lambda path: other)
    monkeypatch.setattr("strobe.models.checkpoint.load_file", lambda path: pytest.fail(f"{path} was read"))
    with pytest.raises(WeightsError, match="takes latents of 16 channels, and the autoencoder gives 8; give --vae"):
        load("wan-1.3b", Weights(path=folder, frame_size=SIZE))
