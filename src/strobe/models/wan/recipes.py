"""Recipes of released Wan weights: the window and schedule that each was trained for, recognised from the checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from strobe.cache.policy import Past
from strobe.core.errors import WeightsError, unknown_choice
from strobe.models.wan.config import SIZES, WIDE
from strobe.models.wan.flow import Sampler
from strobe.models.wan.weights.checkpoint import LORA, OpenCheckpoint, WeightSource, read_json, read_source

SELF_FORCING: Final = (1000.0, 750.0, 500.0, 250.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """The settings that the weights of one project need.

    Args:
        name: as `--recipe` takes it; `--model` takes it for its size and itself.
        size: name of the size that these weights have.
        needs: files to download, with their sizes.
        lacks: what it needs and this engine does not have; empty if nothing.
        window, sink: latent frames that are attended, and those of them that stay for good.
        positions: see `strobe.cache.kv.Positions`.
        past, past_weight, sampler: see `strobe.engine.config.ModelDefaults`.
        timesteps: nominal.
        shift: of the schedule.
        source: where that is published.
    """

    name: str
    size: str = "wan-1.3b"
    needs: str = ""
    lacks: str = ""
    window: int = 12
    sink: int = 3
    positions: Literal["absolute", "rebased"] = "rebased"
    past: Past = "kept"
    past_weight: float = 1.0
    sampler: Sampler = "renoise"
    timesteps: tuple[float, ...] = SELF_FORCING
    shift: float = 5.0
    source: str

    def __str__(self) -> str:
        steps = ", ".join(f"{timestep:g}" for timestep in self.timesteps)
        frames = f"window {self.window}, sink {self.sink}, positions {self.positions}"
        if self.past == "recomputed":
            frames += f", past recomputed with weight {self.past_weight:g}"
        if self.past == "shots":
            frames += ", sinks of shots"
        if self.past == "rolling":
            frames += f", {len(self.timesteps)} frame blocks in a pass"
        sampler = ", sampler UniPC" if self.sampler == "unipc" else ""
        return f"{self.name} ({frames}, timesteps {steps}, shift {self.shift:g}{sampler})"


RELEASE_1_3B: Final = "Wan2.1-T2V-1.3B for umT5 (about 11 GB) and the autoencoder"
"""What every family needs beside its transformer."""

CAUSAL_RCM: Final = (1000.0, *(round(1000 * math.sin(a) / (math.sin(a) + math.cos(a)), 4) for a in (1.5, 1.4, 1.0)))
"""Timesteps of angles of TrigFlow."""

RECIPES: Final[dict[str, Recipe]] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="self-forcing",
            needs=f"self_forcing_dmd.pt (1.3B twice), {RELEASE_1_3B}",
            window=21,
            sink=0,
            positions="absolute",
            source="Self-Forcing, configs/self_forcing_dmd.yaml",
        ),
        Recipe(
            name="longlive",
            needs=f"longlive_base.pt (1.3B), lora.pt (350 M), {RELEASE_1_3B}",
            source="LongLive 1, configs/longlive_inference.yaml and its model for endless streams",
        ),
        Recipe(
            name="causal-rcm",
            needs=f"a 1.3B transformer of Causal-rCM, {RELEASE_1_3B}",
            window=21,
            sink=0,
            positions="absolute",
            timesteps=CAUSAL_RCM,
            shift=1.0,
            source="rCM, README (angles pi/2, 1.5, 1.4, 1.0 of TrigFlow); its window is not said there",
        ),
        Recipe(
            name="causvid",
            needs=f"a 1.3B transformer of CausVid, {RELEASE_1_3B}",
            window=21,
            sink=0,
            positions="absolute",
            timesteps=(1000.0, 757.0, 522.0),
            shift=1.0,
            source="CausVid, configs/wan_causal_dmd.yaml (steps that are not warped)",
        ),
        Recipe(name="causal-wan", source="ours: frame blocks of three over a rolling window, as most of these projects have it"),
        Recipe(
            name="krea",
            size="wan-14b",
            needs=f"krea-realtime-video-14b.safetensors (28.6 GB), {RELEASE_1_3B}",
            window=6,
            sink=1,
            positions="absolute",
            past="recomputed",
            past_weight=0.3,
            timesteps=(*SELF_FORCING, 0.0),
            source="krea realtime-video, release_server.py at 54e011d (5 steps; 4 of it are 1000,666,333,0); the weight is the "
            "default of Scope at 0b33dbc, for the attention bias that krea describes and its server leaves out (1)",
        ),
        Recipe(
            name="rolling-forcing",
            needs=f"rolling_forcing_dmd.pt (1.3B), {RELEASE_1_3B}",
            window=24,
            past="rolling",
            timesteps=(1000.0, 800.0, 600.0, 400.0, 200.0),
            source="Rolling Forcing, configs/rolling_forcing_dmd.yaml and wan/modules/causal_model.py (24 latent frames kept)",
        ),
        Recipe(
            name="longlive-2",
            size="wan-5b",
            needs="LongLive-2.0-5B, model_bf16.pt (10.0 GB), Wan2.2-TI2V-5B for umT5 (about 11 GB) and Wan2.2_VAE.pth (2.8 GB)",
            window=32,
            sink=8,
            positions="absolute",
            past="shots",
            sampler="unipc",
            source="LongLive 2, configs/inference.yaml at 6b36d20; pipeline/causal_diffusion_inference.py as in "
            "yyang181/LongLive at 134b486 (UniPC of 4 steps, shift 5; 2 steps are 1000,500)",
        ),
        Recipe(
            name="wan",
            lacks="sampling of a whole clip at once: these weights are not causal and not few-step",
            source="Wan2.1 and Wan2.2, config.json",
        ),
    )
}
"""By name. A recipe with something lacking is refused; another one may be named for the same weights."""

NOT_CAUSAL: Final = ("WanModel", "WanTransformer3DModel")
CAUSAL: Final = ("CausalWanModel", "CausalWanTransformer3DModel")
"""Classes that a config.json names."""


def named_recipe(name: str) -> Recipe:
    """Return a recipe by name.

    Raises:
        ConfigError: there is none of that name; names the nearest.
    """
    if name not in RECIPES:
        raise unknown_choice("recipe", name, RECIPES)
    return RECIPES[name]


def find_recipe(opened: OpenCheckpoint, lora: Path | None, named: str | None) -> tuple[Recipe, str]:
    """Find the recipe of a checkpoint; no tensor is read.

    Args:
        opened: the checkpoint.
        lora: the LoRA beside it.
        named: name of a recipe; None: told by the checkpoint.

    Raises:
        ConfigError: there is no recipe of that name; names the nearest.
        WeightsError: the engine lacks what it needs, or nothing says that the weights are causal.
    """
    recipe, why = (named_recipe(named), "as asked for") if named is not None else _told(opened, lora)
    wide = opened.dit.config.latent_channels == WIDE
    if recipe.past == "shots" and not wide:
        raise WeightsError(
            f"the recipe {recipe.name} is for latents of {WIDE} channels, and {opened.source.where} has "
            f"{opened.dit.config.latent_channels}; leave --recipe out, or name another"
        )
    if recipe.lacks:
        raise WeightsError(
            f"{opened.source.where} is for the recipe {recipe.name} ({why}), and this engine lacks "
            f"{recipe.lacks}; give other weights, or run these in another way with --recipe "
            f"{'longlive-2' if wide else 'self-forcing'}, at your own risk"
        )
    return recipe, why


def _told(opened: OpenCheckpoint, lora: Path | None) -> tuple[Recipe, str]:
    source, config = opened.source, opened.dit.config
    path = source.files[0].parent / "config.json"
    stated = read_json(path).get("_class_name") if path.is_file() else None
    why = _causal(source, stated)
    if not why and stated in NOT_CAUSAL:
        return RECIPES["wan"], f"its config.json says {stated}"
    if not why:
        name = "longlive-2" if config.latent_channels == WIDE else "self-forcing"
        raise WeightsError(
            f"nothing says whether {source.where} is causal: Wan itself, which is not, has the same names and shapes; if these "
            f"weights are causal, name whose they are, such as --recipe {name}, or --recipe causal-wan"
        )
    if config.latent_channels == WIDE:
        return RECIPES["longlive-2"], f"its latents have {WIDE} channels, and {why}"
    if source.part == "generator_ema":
        return RECIPES["self-forcing"], why
    if source.part == "generator" and lora is not None and read_source((lora,)).part == LORA:
        return RECIPES["longlive"], f"{why}, and {lora.name} beside it {LORA}"
    if config == SIZES["wan-14b"] and not source.part and _is_wrapped(source):
        return RECIPES["krea"], f"14B, and {why}"
    return RECIPES["causal-wan"], why


def _causal(source: WeightSource, stated: Any) -> str:
    """Return the sign that weights are those of a causal generator, empty if there is none; shapes are no sign."""
    if source.part in ("generator", "generator_ema"):
        return f"it holds {source.part}"
    if _is_wrapped(source):
        return "all its names begin with model., as a causal generator's"
    return f"its config.json says {stated}" if stated in CAUSAL else ""


def _is_wrapped(source: WeightSource) -> bool:
    """Return whether all names are those of a generator of Self-Forcing's kind, which has its transformer as `model`."""
    return all(name.startswith("model.") and not name.startswith("model.diffusion_model.") for name in source.tensors)
