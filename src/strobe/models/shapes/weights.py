"""The bundled weights: one safetensors file, float16, read strictly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save as serialised
from torch import nn

from strobe.core.errors import WeightsError
from strobe.core.files import write_whole
from strobe.models.checkpoint import compare_keys, read_tensors
from strobe.models.shapes.config import VAE, WAN
from strobe.models.shapes.grammar import VOCABULARY, parse, read_words
from strobe.models.text.words import WordEncoder
from strobe.models.vae.tiny import TinyVAE
from strobe.models.wan.dit import CausalWan

FOLDER = Path(__file__).parent / "bundle"
"""Where the weights that ship with the package lie, with their model card and training log."""

FILE = "shapes.safetensors"


class SceneEncoder(WordEncoder):
    """The text encoder of the bundled model. It was trained with whole scenes, so it refuses prompts that describe none."""

    def tokenize(self, prompt: str) -> list[int]:
        """Convert the words of a prompt to numbers, but for those of what every picture shows. Raises: see `read_words`."""
        return super().tokenize(" ".join(read_words(prompt)))

    def check(self, prompts: Sequence[str]) -> None:
        """Check prompts before a stream depends on them.

        Raises:
            ConfigError: a word is unknown, a prompt is empty or too long, or lacks a colour, a shape or a direction, or gives two
                where one is allowed; says which, with a prompt that would do.
        """
        super().check(prompts)
        for prompt in prompts:
            parse(prompt)


Parts = tuple[CausalWan, SceneEncoder, TinyVAE]


def build() -> Parts:
    """Build untrained transformer, text encoder and autoencoder of the bundled model's sizes."""
    return CausalWan(WAN), SceneEncoder(VOCABULARY, dim=WAN.text_dim, length=WAN.text_len), TinyVAE(VAE)


def _together(parts: Parts) -> nn.ModuleDict:
    return nn.ModuleDict(dict(zip(("dit", "text", "vae"), parts, strict=True)))


def save(parts: Parts, folder: Path) -> Path:
    """Write the parts to `folder/shapes.safetensors` in float16."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().to("cpu", torch.float16).contiguous() for name, t in _together(parts).state_dict().items()}
    path = folder / FILE
    return write_whole(path, serialised(tensors, {"format": "strobe-shapes 1"}))  # one entry: several are written in any order


def load(folder: Path = FOLDER) -> Parts:
    """Read the parts, float32, on the CPU, ready for inference.

    Raises:
        WeightsError: the file is missing, damaged, or holds other tensors than this model's.
    """
    path = folder / FILE
    if not path.is_file():
        raise WeightsError(f"{folder} holds no {FILE}; give a folder with that file, or leave the model out")
    tensors, parts = read_tensors(path), build()
    table = compare_keys(_together(parts).state_dict(), tensors)
    if table:
        raise WeightsError(
            f"{path} is not a checkpoint of the bundled model: {table}; give a folder with weights trained like it"
        )
    _together(parts).load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    for part in parts:
        part.eval().requires_grad_(False)
    return parts
