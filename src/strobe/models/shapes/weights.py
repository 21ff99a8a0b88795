"""The bundled weights: one safetensors file, read strictly.

Matrices and convolutions are int8 with a scale for each output, everything else is float16; see `packed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save as serialised
from torch import Tensor, nn

from strobe.core.errors import WeightsError
from strobe.core.files import write_whole
from strobe.eightbit.impl.reference import rounded, scales
from strobe.eightbit.types import Quantized
from strobe.models.checkpoint import key_differences, on_meta, read_tensors
from strobe.models.shapes.config import VAE, WAN
from strobe.models.shapes.grammar import VOCABULARY, parse, read_words
from strobe.models.text.words import WordEncoder
from strobe.models.vae.tiny import TinyVAE
from strobe.models.wan.dit import CausalWan

FOLDER = Path(__file__).parent / "bundle"
"""Where the weights that ship with the package lie, with their model card and training log."""

FILE = "shapes.safetensors"
_SCALE: Final = ".scale"
"""What follows a tensor's name in that of its scales."""


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


def _has_scales(name: str, tensor: Tensor) -> bool:
    return name.endswith(".weight") and tensor.dim() >= 2 and name != "text.words.weight"


def packed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the model's tensors to those of the file.

    A `weight` of two dimensions or more is int8 beside its scales, bfloat16 `[rows]`; everything else, and the table of words, is
    float16. Scales are rounded before numbers are divided by them, so what was unpacked is packed to the same bits.
    """
    stored = {}
    for name, tensor in tensors.items():
        if _has_scales(name, tensor):
            rows = tensor.flatten(1)
            scale = scales(rows.abs().amax(dim=1), torch.int8).bfloat16()
            stored[name] = rounded(rows, scale[:, None].float(), torch.int8).view(tensor.shape)
            stored[name + _SCALE] = scale
        else:
            stored[name] = tensor.half().contiguous()
    return stored


def unpacked(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the tensors of the file to those of the model, float32: numbers in int8 times the scale of their row."""
    tensors = {}
    for name, tensor in stored.items():
        if tensor.dtype == torch.int8:
            rows = Quantized(values=tensor.flatten(1), scale=stored[name + _SCALE][:, None].float())
            tensors[name] = rows.dequantized(torch.float32).view(tensor.shape)
        elif not name.endswith(_SCALE):
            tensors[name] = tensor.float()
    return tensors


def _layout(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return shapes and types of what `packed` makes of the model's tensors, on the meta device."""
    layout = {}
    for name, tensor in tensors.items():
        in_rows = _has_scales(name, tensor)
        layout[name] = torch.empty(tensor.shape, dtype=torch.int8 if in_rows else torch.float16, device="meta")
        if in_rows:
            layout[name + _SCALE] = torch.empty(len(tensor), dtype=torch.bfloat16, device="meta")
    return layout


def save(parts: Parts, folder: Path) -> Path:
    """Write the parts to `folder/shapes.safetensors`; see `packed`."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = packed({name: tensor.detach().cpu() for name, tensor in _together(parts).state_dict().items()})
    path = folder / FILE
    return write_whole(path, serialised(tensors, {"format": "strobe-shapes 2"}))  # one entry: several are written in any order


def load(folder: Path = FOLDER) -> Parts:
    """Read the parts, float32, on the CPU, ready for inference.

    Raises:
        WeightsError: the file is missing, damaged, or holds other tensors than this model's.
    """
    path = folder / FILE
    if not path.is_file():
        raise WeightsError(f"{folder} holds no {FILE}; give a folder with that file, or leave the model out")
    with on_meta():
        stored, parts = read_tensors(path), build()
    expected = _layout(_together(parts).state_dict())
    differs = key_differences(expected, stored)
    if not differs:
        differs = ", ".join(f"{name} is {each.dtype}" for name, each in stored.items() if each.dtype != expected[name].dtype)
    if differs:
        raise WeightsError(
            f"{path} is not a checkpoint of the bundled model: {differs}; give a folder with weights trained like it"
        )
    _together(parts).load_state_dict(unpacked(stored), assign=True)
    for part in parts:
        part.eval().requires_grad_(False)
    return parts
