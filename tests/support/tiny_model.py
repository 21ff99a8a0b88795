"""A model small enough to stream many frame blocks in a second. Random weights: values mean nothing, equality does.

`TINY` is its family: where a test adds it to `strobe.engine.load.OURS`, `--model tiny` takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from strobe.core.shapes import VaeStride
from strobe.engine.config import ModelDefaults
from strobe.engine.family import Family, Weights
from strobe.engine.model import Model
from strobe.engine.session import Session
from strobe.engine.stream import FrameBlock
from strobe.models.lora import Lora, LoraPair
from strobe.models.shapes.grammar import VOCABULARY
from strobe.models.text.words import WordEncoder
from strobe.models.vae.tiny import TinyVAE, TinyVAEConfig
from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan

Make = Callable[..., Session]
"""`make(prompt, **options of Session)` opens a session of the tiny model."""
FOUR = (1000.0, 750.0, 500.0, 250.0)
DEFAULTS = ModelDefaults(frame_size=(32, 32), fps=16, stride=VaeStride(time=4, space=8), frame_block=3, timesteps=FOUR, shift=5.0)


def tiny_model(
    words: Sequence[str] = ("red", "green", "blue", "circle", "square", "moving"), length: int = 6, heads: int = 2
) -> Model:
    torch.manual_seed(7)
    sizes = {"dim": 48, "ffn_dim": 64, "freq_dim": 16, "text_dim": 16, "text_len": length, "latent_channels": 4}
    wan = WanConfig(**sizes, num_heads=heads, num_layers=2)
    text = WordEncoder(words, dim=16, length=length)
    vae = TinyVAE(TinyVAEConfig(latent_channels=4, widths=(8, 8, 8), encoder_widths=(8, 8, 8)))
    dit = CausalWan(wan)
    with torch.no_grad():
        for parameter in (*dit.parameters(), *vae.parameters()):
            if parameter.dim() > 1:
                parameter.mul_(1.5)  # so that prompts, history and memories show in the result
    return Model(name="tiny", hashed=lambda: "0" * 64, dit=dit, text=text, vae=vae, defaults=DEFAULTS)


FIVE = (1000.0, 800.0, 600.0, 400.0, 200.0)
PASTS: Mapping[str, Mapping[str, Any]] = {
    "recomputed": {"window": 6, "sink": 1, "positions": "absolute", "past_weight": 0.3},
    "rolling": {"window": 24, "sink": 3, "timesteps": FIVE},
    "shots": {"window": 12, "sink": 3, "positions": "absolute", "sampler": "unipc", "timesteps": FOUR},
}


def with_past(model: Model, past: str) -> Model:
    return replace(model, defaults=replace(model.defaults, past=past, **PASTS.get(past, {})))


def well_read_model() -> Model:
    """The tiny model with every word of the bundled model's prompts, and frames large enough for sparse presets."""
    model = tiny_model(VOCABULARY, 24)
    return replace(model, defaults=replace(model.defaults, frame_size=(64, 128)))


def lora(model: Model, seed: int = 0) -> Lora:
    """A LoRA of all layers, which shows in every frame."""
    generator, pairs = torch.Generator().manual_seed(seed), {}
    for name, layer in model.dit.named_modules():
        if isinstance(layer, nn.Linear) and name.startswith("blocks."):
            down, up = (torch.randn(*shape, generator=generator) for shape in ((3, layer.in_features), (layer.out_features, 3)))
            pairs[name] = LoraPair(down=0.1 * down, up=0.1 * up, scale=0.5)
    return Lora(name=f"lora {seed}", weights_hash=str(seed) * 64, pairs=pairs)


def latents(blocks: Iterable[FrameBlock]) -> Tensor:
    """Clean latents of frame blocks in a row, [B, F, C, Y, X]."""
    return torch.cat([block.latents for block in blocks], dim=1)


def _read(name: str, given: object) -> Any:
    assert given in (Weights(), None)
    return well_read_model()


TINY = Family(models=("tiny",), load=_read, parts=_read)
