"""Flags of every verb that loads a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import Parameter

from strobe.core.errors import ConfigError

if TYPE_CHECKING:
    from strobe.engine.config import EngineConfig
    from strobe.engine.load import Model


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Which model runs.

    Args:
        model: shapes, wan-1.3b, wan-14b, or a folder: of weights that `strobe train-shapes` wrote, or a Wan checkpoint.
        weights: file or folder of a Wan model's weights.
        lora: a LoRA file for it; one beside LongLive's base is found by itself.
        random_weights: draw a Wan model's weights: to measure speed, for the frames mean nothing.
        vae: file of another autoencoder for a Wan model, such as taew2_1; with random weights, tiny.
        release: folder of Wan2.1 as released, for umT5 and VAE, if they are not beside the weights.
        prompt_cache: folder that keeps the embeddings of prompts for the next time.
        size: frame height x width of a Wan model, such as 320x576; 480x832 by default.
        simulate: where a preset wants FP8 and the device has none: compute what FP8 would give, no faster; every record says so.
    """

    model: str = "shapes"
    weights: Path | None = None
    lora: Path | None = None
    random_weights: bool = False
    vae: str | None = None
    release: Path | None = None
    prompt_cache: Path | None = None
    size: str | None = None
    simulate: bool = False

    def config(self, name: str) -> EngineConfig:
        """The preset of that name as the flags want it."""
        from strobe.engine.presets import preset

        return replace(preset(name), simulate=self.simulate)

    def load(self) -> Model:
        """The model that was asked for."""
        unused = {"--release": self.release, "--prompt-cache": self.prompt_cache} if self.random_weights else {}
        for flag, folder in unused.items():
            if folder is not None:
                raise ConfigError(f"{flag} {folder}: --random-weights has no text encoder that it is for; leave one of them out")
        from strobe.engine.load import Weights, load

        given = Weights(
            path=self.weights,
            lora=self.lora,
            random=self.random_weights,
            vae=self.vae,
            release=self.release,
            prompt_cache=self.prompt_cache,
            frame_size=parse_size(self.size),
        )
        return load(self.model, given)


def at_least(least: int, **given: int | None) -> None:
    """Check counts that flags give, by the flags' names, before anything slow is loaded.

    Raises:
        ConfigError: one is below `least`.
    """
    for name, count in given.items():
        if count is not None and count < least:
            raise ConfigError(f"--{name} {count}: give {least} or more")


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Height and width of a size such as 320x576.

    Raises:
        ConfigError: it does not read like that.
    """
    if text is None:
        return None
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal()):
        raise ConfigError(f"--size {text}: write height x width in pixels, such as 480x832")
    return int(height), int(width)
