"""A small causal Wan with random weights, of which equality alone means something, and the weights of the golden."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan

TINY = WanConfig(dim=48, ffn_dim=64, freq_dim=16, text_dim=12, text_len=5, latent_channels=4, num_heads=2, num_layers=3)


@pytest.fixture(scope="module")
def dit() -> CausalWan:
    torch.manual_seed(11)
    model = CausalWan(TINY).requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(1.5)  # so that history, prompts and timesteps show in the result
        else:
            parameter.add_(0.2 * torch.randn_like(parameter))  # norms and biases that are not the identity
    return model


DATA = Path(__file__).parents[2] / "data" / "causal_wan_tiny.safetensors"


@pytest.fixture(scope="session")
def original() -> dict[str, Tensor]:
    """The golden's weights: names and values of the official implementation, which every checkpoint here is made of."""
    return {name.removeprefix("model."): tensor for name, tensor in load_file(DATA).items() if name.startswith("model.")}
