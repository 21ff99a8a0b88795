"""The record of a family of models, and the places of weights; the families are in `load`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from strobe.core.device import resolve_device
from strobe.core.errors import ConfigError, unknown_choice
from strobe.engine.config import DTYPES, DType
from strobe.engine.model import Model, ModelParts
from strobe.models.hub import RELEASE, TRANSFORMER, fetch, is_address

TINY: Final = "tiny"
"""Names the tiny autoencoder where weights are random."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Locations of the weights of a Wan model, and options of loading them. A file or folder may be on the hub:
    `hf:owner/name@revision/inside`, see `strobe.models.hub`.

    Args:
        path: checkpoint file or folder; None: there are none.
        loras: LoRA files with their strengths. One beside a base in the folder `path` comes first; named here too, it gets
            this strength.
        random: weights are drawn instead, and prompts become noise.
        vae: file of another autoencoder: taew2_1 or lighttaew2_1, by name, or a Wan VAE; with `random` "tiny". None: that of
            `release`.
        release: folder of Wan2.1 as released, for umT5 and VAE; None: the folder `path` has them too.
        prompt_cache: folder that keeps the embeddings of prompts; None: they are kept in memory alone.
        text_device: where the text encoder runs; None: where frames are made if it fits there, else on the CPU.
        text_dtype: of the text encoder, "bfloat16" or "float32".
        frame_size: height and width in pixels; None: the model's own.
        recipe: how to run the weights, by name (`strobe.models.wan.recipes`); None: as the checkpoint says.

    Raises:
        ConfigError: weights that are given and drawn.
    """

    path: Path | None = None
    loras: tuple[tuple[Path, float], ...] = ()
    random: bool = False
    vae: str | None = None
    release: Path | None = None
    prompt_cache: Path | None = None
    frame_size: tuple[int, int] | None = None
    recipe: str | None = None
    text_device: str | None = None
    text_dtype: DType = "bfloat16"

    def __post_init__(self) -> None:
        if self.text_dtype not in DTYPES:
            raise unknown_choice("dtype of the text encoder", self.text_dtype, DTYPES)
        if self.text_device is not None:
            resolve_device(self.text_device)
        if self.random and (self.path is not None or self.loras):
            raise ConfigError("give weights or ask for random ones, not both")
        if self.random and self.vae not in (None, TINY):
            raise ConfigError(f"with random weights the autoencoder is Wan's or {TINY!r}; got {self.vae!r}")


def fetched(given: Weights) -> tuple[Weights, tuple[str, ...]]:
    """Fetch what is on the hub.

    Returns:
        The weights with every file on the disk, and of each that was on the hub its address with the commit.

    Raises:
        as `strobe.models.hub.fetch`.
    """
    sources: list[str] = []

    def local(place: str | Path, *patterns: str, ignored: tuple[str, ...] = ()) -> Path:
        if not is_address(place):
            return Path(place)
        path, source = fetch(str(place), patterns, ignored)
        sources.append(source)
        return path

    release = None if given.release is None else local(given.release, *RELEASE)
    beside = RELEASE if release is None else ()
    path = None if given.path is None else local(given.path, *TRANSFORMER, *beside, ignored=() if beside else RELEASE)
    loras = tuple((local(lora, *TRANSFORMER), strength) for lora, strength in given.loras)
    vae = given.vae if given.vae is None or not is_address(given.vae) else str(local(given.vae, *TRANSFORMER))
    return replace(given, path=path, release=release, loras=loras, vae=vae), tuple(sources)


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """A kind of model.

    Args:
        models: names of its models, as `--model` takes them.
        load: a name of `models` or a folder of a checkpoint, and what was asked for, to a model.
        parts: sizes of one of `models` at a frame size (None: its own); nothing is read or allocated.
        reads: raises ConfigError for a prompt that its models refuse, before weights are read; None: only an encoder can tell.
    """

    models: tuple[str, ...]
    load: Callable[[str, Weights], Model]
    parts: Callable[[str, tuple[int, int] | None], ModelParts]
    reads: Callable[[str], object] | None = None
