"""What diffusers' `AutoencoderKLWan` computed, and the same weights in our module."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.vae.wan.config import WanVAEConfig
from strobe.models.vae.wan.weights import load_wan_vae

GOLDEN = Path(__file__).parents[2] / "data" / "wan_vae_tiny.safetensors"


@pytest.fixture(scope="session")
def file() -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors of the golden file, and the name of each weight in diffusers to that in the original checkpoint."""
    with safe_open(GOLDEN, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        return tensors, json.loads(file.metadata()["original"])


@pytest.fixture(scope="session")
def weights(file: tuple[dict[str, Tensor], dict[str, str]]) -> dict[str, Tensor]:
    """The weights in the spelling of diffusers."""
    return {name.removeprefix("weights."): tensor for name, tensor in file[0].items() if name.startswith("weights.")}


@pytest.fixture(scope="session")
def original(file: tuple[dict[str, Tensor], dict[str, str]], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights in the original spelling."""
    return {file[1][name]: tensor for name, tensor in weights.items()}


@pytest.fixture(scope="session")
def golden(file: tuple[dict[str, Tensor], dict[str, str]]) -> dict[str, Tensor]:
    """Inputs and outputs of diffusers as we lay videos out: [B, F, C, Y, X], frames in [0, 1]."""
    video = {name: file[0][name].float().transpose(1, 2) for name in ("frames", "encoded", "latents", "decoded")}
    return video | {name: (video[name] + 1) / 2 for name in ("frames", "decoded")}


@pytest.fixture(scope="session")
def vae(weights: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> WanVAE:
    path = tmp_path_factory.mktemp("vae") / "diffusion_pytorch_model.safetensors"
    save_file(weights, path)
    return load_wan_vae(path, WanVAEConfig(width=2, latent_channels=4, mean=(0.0,) * 4, std=(1.0,) * 4))


@pytest.fixture
def fresh(vae: WanVAE) -> WanVAE:
    """The same, for a test to change."""
    with torch.device("meta"):
        copy = WanVAE(vae.config)
    copy.load_state_dict(vae.state_dict(), assign=True)
    return copy.requires_grad_(False)
