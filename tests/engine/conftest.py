"""A model small enough to stream many frame blocks in a second. Random weights: values mean nothing, equality does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from strobe.core.shapes import VaeStride
from strobe.engine.config import ModelDefaults
from strobe.engine.load import Model
from strobe.engine.session import Session
from strobe.models.text.words import WordEncoder
from strobe.models.vae.tiny import TinyVAE, TinyVAEConfig
from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan

DEFAULTS = ModelDefaults(
    frame_size=(32, 32),
    fps=16,
    stride=VaeStride(time=4, space=8),
    frame_block=3,
    timesteps=(1000.0, 750.0, 500.0, 250.0),
    shift=5.0,
)


@pytest.fixture(scope="session")
def tiny() -> Model:
    torch.manual_seed(7)
    wan = WanConfig(dim=48, ffn_dim=64, freq_dim=16, text_dim=16, text_len=6, latent_channels=4, num_heads=2, num_layers=2)
    text = WordEncoder(["red", "green", "blue", "circle", "square", "moving"], dim=16, length=6)
    vae = TinyVAE(TinyVAEConfig(latent_channels=4, widths=(8, 8, 8), encoder_widths=(8, 8, 8)))
    dit = CausalWan(wan)
    with torch.no_grad():
        for parameter in (*dit.parameters(), *vae.parameters()):
            if parameter.dim() > 1:
                parameter.mul_(1.5)  # so that prompts, history and memories show in the result
    return Model(name="tiny", weights_hash="0" * 64, dit=dit, text=text, vae=vae, defaults=DEFAULTS)


@pytest.fixture
def make(tiny: Model) -> Callable[..., Session]:
    """Open a session of the tiny model: `make(prompt, **options of Session)`."""

    def build(prompt: Any = "red circle", **options: Any) -> Session:
        return Session(prompt, **({"model": tiny, "device": "cpu"} | options))

    return build


@pytest.fixture(autouse=True)
def overlap_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode beside the commit pass on one core too, so that the worker is tested everywhere."""
    monkeypatch.setattr("strobe.engine.knob_states.OVERLAP_CORES", 1)
