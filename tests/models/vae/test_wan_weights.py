"""Both spellings of a checkpoint give the same model; anything but all and only its tensors is refused with a table."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import save_file
from torch import Tensor

from strobe.core.errors import WeightsError
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.vae.wan.config import WAN21_MEAN, WAN21_STD, WAN22, WAN22_MEAN, WAN22_STD, WanVAEConfig
from strobe.models.vae.wan.weights import FILES, key_names, load_wan_vae, random_wan_vae

Weights = dict[str, Tensor]


def released() -> Weights:
    """A checkpoint in the original spelling with the released model's names and 16 latent channels."""
    config = WanVAEConfig(width=2)
    names = key_names(config)[0]
    return {names[own]: tensor for own, tensor in random_wan_vae(config, 0).state_dict().items()}


def test_the_statistics_of_wan21_are_those_of_diffusers() -> None:
    theirs = inspect.signature(AutoencoderKLWan).parameters
    assert list(WAN21_MEAN) == theirs["latents_mean"].default and list(WAN21_STD) == theirs["latents_std"].default


def test_the_statistics_of_wan22_are_those_of_the_official_file() -> None:
    """Copied from `wan/modules/vae2_2.py`, compared number by number, and pinned then."""
    assert hashlib.sha256(repr((WAN22_MEAN, WAN22_STD)).encode()).hexdigest().startswith("d8fd23c5876ad333")


@pytest.mark.parametrize("name", ["Wan2.1_VAE.pth", "wan_2.1_vae.safetensors"])
def test_the_original_spelling(original: Weights, vae: WanVAE, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".pth":
        torch.save(original, path)
    else:
        save_file(original, path)
    found = load_wan_vae(path, vae.config)
    expected = vae.state_dict()
    assert found.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[own]) for own, tensor in found.state_dict().items())
    assert {tensor.dtype for tensor in found.state_dict().values()} == {torch.float32}
    assert not found.training and not any(parameter.requires_grad for parameter in found.parameters())


@pytest.mark.parametrize("place", FILES)
def test_a_folder(tmp_path: Path, place: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    weights = released()
    if path.suffix == ".pth":
        torch.save(weights, path)
    else:
        own_to_diffusers = key_names(WanVAEConfig(width=2))[1]
        own = {name: key for key, name in key_names(WanVAEConfig(width=2))[0].items()}
        save_file({own_to_diffusers[own[name]]: tensor for name, tensor in weights.items()}, path)
    found = load_wan_vae(tmp_path)
    assert torch.equal(found.decoder.enter.weight, weights["decoder.conv1.weight"])


@pytest.mark.parametrize("spelling", [0, 1], ids=["original", "diffusers"])
@pytest.mark.parametrize("config", [WanVAEConfig(width=2), WanVAEConfig(width=3), replace(WAN22, width=3, decoder_width=2)])
def test_the_sizes_are_those_of_the_file(tmp_path: Path, config: WanVAEConfig, spelling: int) -> None:
    names = key_names(config)[spelling]
    tensors = {names[own]: tensor for own, tensor in random_wan_vae(config, 0).state_dict().items()}
    torch.save(tensors, tmp_path / "Wan2.2_VAE.pth")
    assert load_wan_vae(tmp_path).config == config


def test_an_empty_folder_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"holds no Wan VAE; expected one of: Wan2.1_VAE.pth, Wan2.2_VAE.pth, vae/diffusion"):
        load_wan_vae(tmp_path)
    with pytest.raises(WeightsError, match=r"nothing.pth does not exist; give the weight file"):
        load_wan_vae(tmp_path / "nothing.pth")


def test_another_model_is_refused(tmp_path: Path) -> None:
    save_file({"blocks.0.self_attn.q.weight": torch.zeros(2, 2)}, tmp_path / "dit.safetensors")
    with pytest.raises(WeightsError, match="is no Wan VAE: it has neither encoder.conv1"):
        load_wan_vae(tmp_path / "dit.safetensors")
