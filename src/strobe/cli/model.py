"""Flags of every verb that loads a model or traces. Their types are no strings: classes in other files inherit them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from strobe.cli.completion import ModelName, RecipeName
from strobe.core.errors import ConfigError
from strobe.core.settings import read_settings

if TYPE_CHECKING:
    import torch

    from strobe.engine.config import EngineConfig
    from strobe.engine.family import Weights
    from strobe.engine.model import Model


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Flags of the model: weights, text encoder, autoencoder, size, cache and schedule; each is described here for every verb.

    Args:
        model: shapes, wan-1.3b, wan-14b, wan-5b, a recipe such as krea, or a folder: of a `shapes.safetensors`, or a Wan
            checkpoint; hf:owner/name is one on the hub.
        weights: file or folder of a Wan model's weights; hf:owner/name@revision/inside fetches them from the Hugging Face hub.
        lora: a LoRA file for it, or FILE=STRENGTH; may be given several times. One beside LongLive's base is found and stays.
        random_weights: draw a Wan model's weights: to measure speed, for the frames mean nothing.
        vae: file of another autoencoder for a Wan model, such as taew2_1; with random weights, tiny.
        release: folder of Wan2.1 (of wan-5b: Wan2.2) as released, for umT5 and VAE, if they are not beside the weights.
        prompt_cache: folder that keeps the embeddings of prompts for the next time.
        size: frame height x width of a Wan model, such as 320x576; 480x832 by default, 704x1280 of wan-5b.
        recipe: how Wan weights are run: self-forcing, longlive, causal-rcm, causvid, krea, rolling-forcing, longlive-2 or
            causal-wan; by default as they say.
        window: latent frames attended, instead of the preset's or model's.
        sink: first latent frames that stay for good, instead of the preset's or model's.
        positions: absolute or rebased, instead of the model's.
        past_weight: what the past counts for, above 0 up to 1, instead of the model's; where it is recomputed (krea).
        timesteps: nominal ones such as 1000,500, instead of the preset's or model's.
        shift: of the schedule, instead of the model's.
        text_device: where a Wan model's text encoder runs; by default where frames are made if it fits there, else on the CPU.
        simulate: where a preset wants FP8 and the device has none: compute what FP8 would give, no faster; every record says so.
    """

    model: ModelName = "shapes"
    weights: Path | None = None
    lora: tuple[str, ...] = ()
    random_weights: bool = False
    vae: str | None = None
    release: Path | None = None
    prompt_cache: Path | None = None
    size: str | None = None
    recipe: RecipeName | None = None
    window: int | None = None
    sink: int | None = None
    positions: str | None = None
    past_weight: float | None = None
    timesteps: str | None = None
    shift: float | None = None
    text_device: str | None = None
    simulate: bool = False

    def config(self, name: str) -> "EngineConfig":
        """Return the configuration of a preset with the flags applied."""
        from strobe.engine.presets import preset

        said: dict[str, Any] = {
            "window": self.window,
            "sink": self.sink,
            "positions": self.positions,
            "past_weight": self.past_weight,
            "timesteps": parse_timesteps(self.timesteps),
            "shift": self.shift,
        }
        return replace(preset(name), simulate=self.simulate, **{key: value for key, value in said.items() if value is not None})

    def arguments(self) -> list[str]:
        """The flags as words of a command line, those that say something else than their default."""
        words: list[str] = []
        for each in fields(self):
            value, flag = getattr(self, each.name), f"--{each.name.replace('_', '-')}"
            if value == each.default:
                continue
            if isinstance(value, bool):
                words.append(flag)
            else:
                for one in value if isinstance(value, tuple) else (value,):
                    words += [flag, str(one)]
        return words

    def check(self) -> None:
        """Check that model and files of these names are there and go together, for verbs that load them later.

        Raises:
            ConfigError: there is no such model, it needs weights, or flags contradict each other.
            WeightsError: there is no such file or folder.
        """
        from strobe.core.errors import WeightsError
        from strobe.engine.family import Weights
        from strobe.engine.load import SHAPES, WAN, family_of
        from strobe.models.hub import is_address

        family = None if is_address(self.model) else family_of(self.model)
        named = [("--weights", self.weights), ("--release", self.release)]
        for flag, place in (*named, *(("--lora", parse_lora(text)[0]) for text in self.lora)):
            if place is not None and not is_address(place) and not place.exists():
                raise WeightsError(f"{flag} {place}: there is no file or folder of that name")
        given = self.given()
        weightless = family is WAN and self.model in WAN.models and given.path is None and not given.random
        if family is not None and (weightless or (family is SHAPES and given != Weights())):
            family.load(self.model, given)  # raises at once: the reason is told there alone

    def check_prompts(self, prompts: Iterable[str]) -> None:
        """Check prompts, and each part of those that are several, as far as that needs no weights."""
        from strobe.engine.family import Weights
        from strobe.engine.load import SHAPES, family_of
        from strobe.engine.prompts import read_weights
        from strobe.models.hub import is_address

        family = None if is_address(self.model) else family_of(self.model)
        foreign = family is SHAPES and self.given() != Weights()  # weights of another model were meant: that is told instead
        reads = None if family is None or foreign else family.reads
        for text, _ in (part for prompt in prompts for part in read_weights(prompt)):
            if reads is not None:
                reads(text)

    def given(self) -> "Weights":
        unused = {"--release": self.release, "--prompt-cache": self.prompt_cache} if self.random_weights else {}
        for flag, folder in unused.items():
            if folder is not None:
                raise ConfigError(f"{flag} {folder}: --random-weights has no text encoder that it is for; leave one of them out")
        from strobe.engine.family import Weights

        return Weights(
            path=self.weights,
            loras=tuple(parse_lora(text) for text in self.lora),
            random=self.random_weights,
            vae=self.vae,
            release=self.release,
            prompt_cache=self.prompt_cache,
            frame_size=parse_size(self.size),
            recipe=self.recipe,
            text_device=self.text_device,
        )

    def check_settings(self, config: "EngineConfig", device: "torch.device") -> None:
        """Check a configuration against a model whose settings its name or its recipe says, before gigabytes are drawn or read.

        Raises: as `strobe.engine.resolve.resolve`.
        """
        from strobe.engine.load import SHORT, WAN, model_parts, recipe_defaults
        from strobe.engine.resolve import resolve
        from strobe.models.wan.recipes import named_recipe

        if self.model in WAN.models and (self.random_weights or self.recipe or self.model in SHORT):
            defaults = model_parts(self.model, parse_size(self.size)).defaults
            if self.recipe is not None:
                defaults = recipe_defaults(named_recipe(self.recipe), defaults)
            resolve(config, defaults, device)

    def load(self) -> "Model":
        from strobe.engine.load import load

        return load(self.model, self.given())


def settings_notes(model: "Model", config: "EngineConfig") -> tuple[str, ...]:
    """Return the notes on a model, and what a preset or flags run it with in place of what its recipe says."""
    from strobe.engine.resolve import filled

    own, runs = model.defaults, filled(config, model.defaults)
    pairs = [(each.name, getattr(runs, each.name)) for each in fields(own)]
    others = [f"{name.replace('_', ' ')} {_plain(value)}" for name, value in pairs if value != getattr(own, name)]
    return (*model.notes, *([f"{config.name} runs it with {', '.join(others)} instead"] if model.notes and others else []))


def _plain(value: object) -> str:
    return ", ".join(f"{each:g}" for each in value) if isinstance(value, tuple) else str(value)


def at_least(least: int, **given: int | None) -> None:
    """Check counts given by flags, by the flags' names, before anything slow is loaded."""
    for name, count in given.items():
        if count is not None and count < least:
            raise ConfigError(f"--{name} {count}: give {least} or more")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TraceFlags:
    """Flags of the traced run, which is separate: nothing that is timed carries the profiler.

    Args:
        trace: take a trace at all; without it there is no account.
        regions: regions to mark, such as dit_forward attention; all by default, or STROBE_PROFILE_REGIONS.
        wait: frame blocks, or passes, before the profiler is switched on; by default it is where caches are full and no prompt
            switches, and a GPU's trace of passes is of a whole clip.
        warmup: frame blocks, or passes, under the profiler that are thrown away.
        active: frame blocks, or passes, that are recorded, as far as the clip has so many in a row.
    """

    trace: Annotated[bool, Parameter(negative="--no-trace")] = True
    regions: tuple[str, ...] = ()
    wait: int | None = None
    warmup: int = 1
    active: int = 3

    @property
    def chosen_regions(self) -> tuple[str, ...]:
        """The regions of the flag, else of the environment; empty: all."""
        return self.regions or read_settings().profile_regions

    def amounts(self) -> dict[str, Any]:
        """The fields of `ComparePlan` that they give."""
        at_least(1, active=self.active)
        at_least(0, wait=self.wait)
        placed = self.wait is not None and self.trace
        return {
            "traced_blocks": self.active if self.trace else 0,
            "traced_from": (self.wait or 0) + self.warmup if placed else None,
        }


def parse_lora(text: str) -> tuple[Path, float]:
    """Parse a LoRA file and its strength from `style.safetensors=0.8`, or the file alone at strength 1."""
    file, equals, number = text.rpartition("=")
    if not equals or Path(text).exists():
        return Path(text), 1.0
    try:
        strength = float(number)
    except ValueError:
        strength = math.nan
    if not math.isfinite(strength) or not file:
        raise ConfigError(f"--lora {text}: write the file, or the file and a strength such as style.safetensors=0.8")
    return Path(file), strength


def parse_timesteps(text: str | None) -> tuple[float, ...] | None:
    """Parse nominal timesteps such as `1000,500`."""
    if text is None:
        return None
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--timesteps {text}: write falling numbers with commas, such as 1000,750,500,250") from error


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Parse height and width of a size such as `320x576`."""
    if text is None:
        return None
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal()):
        raise ConfigError(f"--size {text}: write height x width in pixels, such as 480x832")
    return int(height), int(width)
