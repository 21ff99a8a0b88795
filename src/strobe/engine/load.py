"""Models by name or folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from strobe.core.errors import ConfigError, nearest
from strobe.engine.config import ModelDefaults
from strobe.models.shapes import config as shapes
from strobe.models.shapes import weights
from strobe.models.text.words import WordEncoder
from strobe.models.vae.tiny import TinyVAE
from strobe.models.wan.dit import CausalWan

MODELS = ("shapes",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """Everything that turns a prompt into frames.

    Args:
        name: "shapes", or the folder it was read from.
        weights_hash: sha256 over name and content of the weight file, hexadecimal.
        dit, text, vae: the parts, float32 on the CPU. A session copies what it changes.
        defaults: what the model was trained for.
    """

    name: str
    weights_hash: str
    dit: CausalWan
    text: WordEncoder
    vae: TinyVAE
    defaults: ModelDefaults


def shapes_defaults() -> ModelDefaults:
    """What the bundled model was trained for, without reading its weights."""
    return ModelDefaults(
        frame_size=shapes.FRAME_SIZE,
        fps=shapes.FPS,
        stride=shapes.VAE.stride,
        frame_block=shapes.FRAME_BLOCK,
        timesteps=shapes.TIMESTEPS,
        shift=shapes.SHIFT,
    )


def load(name: str | Path = "shapes") -> Model:
    """Load a model: "shapes" (bundled) or a folder with weights as `strobe train-shapes` writes them.

    Raises:
        ConfigError: no model and no folder of that name.
        WeightsError: a weight file is missing, damaged or of another model.
    """
    if name != "shapes" and not Path(name).is_dir():
        allowed = f"give a folder or one of: {', '.join(MODELS)}"
        raise ConfigError(f"no model or folder {str(name)!r}{nearest(str(name), MODELS)}; {allowed}")
    folder = weights.FOLDER if name == "shapes" else Path(name)
    dit, text, vae = weights.load(folder)
    return Model(name=str(name), weights_hash=_hash(folder), dit=dit, text=text, vae=vae, defaults=shapes_defaults())


def _hash(folder: Path) -> str:
    path = folder / weights.FILE  # alone: a training folder also holds checkpoints
    return hashlib.sha256(path.name.encode() + path.read_bytes()).hexdigest()
