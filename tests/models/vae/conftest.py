"""What diffusers' `AutoencoderKLWan` computes with small random weights, and the same weights in our module."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan
from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers
from safetensors.torch import save_file
from torch import Tensor

from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.vae.wan.config import WanVAEConfig
from strobe.models.vae.wan.weights import load_wan_vae

STATISTICS = {"mean": (0.0,) * 4, "std": (1.0,) * 4}
SIZES = {
    "wan2.1": WanVAEConfig(width=2, latent_channels=4, **STATISTICS),
    "wan2.2": WanVAEConfig(width=2, decoder_width=4, patch=2, latent_channels=4, residual=True, **STATISTICS),
}
"""The released models, but for widths and channels."""
NAMES = (
    *((r"mid_block\.resnets\.0", "middle.0"), (r"mid_block\.resnets\.1", "middle.2"), (r"mid_block\.attentions\.0", "middle.1")),
    *((r"^quant_conv", "conv1"), (r"post_quant_conv", "conv2"), ("conv_in", "conv1")),
    *(("norm_out", "head.0"), ("conv_out", "head.2")),
    *(("norm1", "residual.0"), (r"(?<=\d\.)conv1", "residual.2"), ("norm2", "residual.3"), (r"(?<=\d\.)conv2", "residual.6")),
    *(("conv_shortcut", "shortcut"), (r"down_blocks\.(\d+)\.downsampler", r"downsamples.\1.downsamples.2")),
    (r"up_blocks\.(\d+)\.upsampler\.", r"upsamples.\1.upsamples.3."),
)
"""What diffusers writes, and the original in its place. Source: the official `wan/modules/vae.py` and `vae2_2.py`."""


def original_name(name: str, *, residual: bool) -> str:
    """Name of a tensor in the original checkpoint, by its name in diffusers."""
    if residual:
        name = re.sub(r"(down|up)_blocks\.(\d+)\.resnets", r"\1samples.\2.\1samples", name)
    else:
        name = re.sub(r"up_blocks\.(\d+)\.upsamplers\.0", lambda found: f"upsamples.{4 * int(found[1]) + 3}", name)
        name = re.sub(r"up_blocks\.(\d+)\.resnets\.(\d+)", lambda at: f"upsamples.{4 * int(at[1]) + int(at[2])}", name)
        name = name.replace("down_blocks", "downsamples")
    for theirs, original in NAMES:
        name = re.sub(theirs, original, name)
    return name


@pytest.fixture(scope="session", params=SIZES)
def sizes(request: pytest.FixtureRequest) -> WanVAEConfig:
    return SIZES[request.param]


@pytest.fixture(scope="session")
def diffusers_vae(sizes: WanVAEConfig) -> Any:
    """Its model, with weights large enough for the past and the attention to matter."""
    pixels = 3 * sizes.patch**2
    own: dict[str, Any] = {"base_dim": sizes.width, "decoder_base_dim": sizes.decoder_width, "z_dim": sizes.latent_channels}
    own |= {"is_residual": sizes.residual, "patch_size": sizes.patch if sizes.residual else None}
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = AutoencoderKLWan(**own, in_channels=pixels, out_channels=pixels, latents_mean=[0.0] * 4, latents_std=[1.0] * 4)
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape)
            if name.endswith("gamma"):
                values = 1 + values / 4
            elif name.endswith("weight"):
                values = (0.4 if "decoder.conv_out" in name else 1.2) * values * parameter[0].numel() ** -0.5
            else:
                values = values / 8
            parameter.data.copy_(values)
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def weights(diffusers_vae: Any) -> dict[str, Tensor]:
    """The weights in the spelling of diffusers."""
    found: dict[str, Tensor] = diffusers_vae.state_dict()
    return found


@pytest.fixture(scope="session")
def original(weights: dict[str, Tensor], sizes: WanVAEConfig) -> dict[str, Tensor]:
    """The weights in the original spelling; diffusers converts that of Wan2.1 back, and knows none of Wan2.2."""
    found = {original_name(name, residual=sizes.residual): tensor for name, tensor in weights.items()}
    assert len(found) == len(weights)
    assert sizes.residual or convert_wan_vae_to_diffusers(dict(found)).keys() == weights.keys()
    return found


@pytest.fixture(scope="session")
def golden(diffusers_vae: Any, sizes: WanVAEConfig) -> dict[str, Tensor]:
    """Inputs and outputs of diffusers in float64, as we lay videos out: [B, F, C, Y, X], frames in [0, 1]."""
    diffusers_vae = copy.deepcopy(diffusers_vae).double()
    draws, side = torch.Generator().manual_seed(8), sizes.stride.space
    frames = torch.rand(1, 3, 13, 2 * side, 3 * side, generator=draws, dtype=torch.float64) * 2 - 1
    latents = torch.randn(1, 4, 4, 2, 3, generator=draws, dtype=torch.float64)
    found = {"frames": frames, "encoded": diffusers_vae.encode(frames).latent_dist.mode()}
    found |= {"latents": latents, "decoded": diffusers_vae.decode(latents).sample}
    video = {name: tensor.transpose(1, 2) for name, tensor in found.items()}
    return video | {name: (video[name] + 1) / 2 for name in ("frames", "decoded")}


@pytest.fixture(scope="session")
def vae(weights: dict[str, Tensor], sizes: WanVAEConfig, tmp_path_factory: pytest.TempPathFactory) -> WanVAE:
    path = tmp_path_factory.mktemp("vae") / "diffusion_pytorch_model.safetensors"
    save_file(weights, path)
    return load_wan_vae(path, sizes)


@pytest.fixture
def fresh(vae: WanVAE) -> WanVAE:
    """The same, for a test to change."""
    with torch.device("meta"):
        other = WanVAE(vae.config)
    other.load_state_dict(vae.state_dict(), assign=True)
    return other.requires_grad_(False)
