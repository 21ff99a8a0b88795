"""A share of attention weight to keep, and the number of key tiles that keeps it in every layer and step: measured, in a file.

In the order in which the selection takes the key tiles of a query's tile, forced ones first, then by coarse score, the weights
that dense attention gives to the first `n` of them add up to a share `c(n)`. A layer's number in a step is the smallest `n` whose
mean `c(n)` over heads, queries and passes is the share to keep.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import msgspec
import torch
from torch import Tensor, nn

from strobe.attention.sparse.coarse import Forced
from strobe.core.errors import ConfigError
from strobe.core.files import write_whole
from strobe.integrations.diffusers.families import Layer
from strobe.integrations.diffusers.forward import Triple
from strobe.integrations.diffusers.gates import loaded_from

_LEVELS: Final = 64
"""Different numbers of tiles at most: calls of one number share a plan, a prepared call and a kernel's settings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """The number of key tiles that keeps a share of the attention weight, by transformer, denoise step and layer.

    One number for all heads of a layer: calls with a number for each head are not prepared, and the fastest kernels want one.

    Args:
        keep: share that was asked for.
        kept: share that the numbers keep, mean over layers, heads and steps.
        worst: likewise of the head, layer and step that keeps least.
        models: hash of each transformer, by component; empty without a pipeline.
        grid: tokens in (time, height, width).
        tile: tokens of a tile.
        forced: key tiles that are always selected.
        tiles: key tiles that there are.
        steps: denoise steps of the calls that were measured.
        selected: key tiles by component, step from 0, and layer.
    """

    keep: float
    kept: float
    worst: float
    models: dict[str, str]
    grid: Triple
    tile: Triple
    forced: Forced
    tiles: int
    steps: int
    selected: dict[str, dict[int, dict[str, int]]]

    @property
    def sparsity(self) -> float:
        """Share of the key tiles that is skipped, mean over layers and steps: what keeping costs."""
        return fmean(
            share for component in self.selected for step in self.sparsities(component).values() for share in step.values()
        )

    def sparsities(self, component: str) -> dict[int, dict[str, float]]:
        """Return the share of the key tiles that is skipped, by step and layer of a transformer."""
        steps = self.selected[component].items()
        return {step: {layer: 1 - number / self.tiles for layer, number in layers.items()} for step, layers in steps}

    def __str__(self) -> str:
        return (
            f"keeps {self.kept:.1%} of the attention weight, {self.worst:.1%} in the worst head, and skips {self.sparsity:.1%} "
            f"of the key tiles; measured over {self.steps} steps of grid {self.grid}"
        )

    def check_grid(self, grid: Triple) -> None:
        """Raise ConfigError if a forward pass has another size."""
        if grid != self.grid:
            raise ConfigError(
                f"keep: calibrated for {self.grid} tokens in (time, height, width), this call has {grid}; calibrate at this size"
            )

    def check_model(self, models: Mapping[str, str], where: Path) -> None:
        """Raise ConfigError if it is not of these transformers."""
        for component, found in models.items():
            if self.models.get(component) != found:
                name, known = component or "the transformer", self.models.get(component, "none")
                raise ConfigError(
                    f"keep: {where} is of another model: {name} has hash {found}, it has {known}; calibrate this one"
                )


def tiles_that_keep(held: Tensor, keep: float, fewest: int) -> tuple[int, Tensor]:
    """Return the smallest number of tiles whose mean share over heads is `keep`, rounded up, and the share of each head there.

    Args:
        held: of `share_held`, added up over passes; `[H, N_kv]`.
        fewest: tiles that are always selected.
    """
    shares = held / held[:, -1:]
    step = ceil(shares.shape[-1] / _LEVELS)
    reached = shares.mean(dim=0, dtype=torch.float64) < keep
    number = min(shares.shape[-1], ceil(max(fewest, int(reached.sum()) + 1) / step) * step)
    return number, shares[:, number - 1]


def model_hash(transformer: nn.Module, layers: tuple[Layer, ...]) -> str:
    """Hash the configuration of a transformer, and its layers' biases and norms in bfloat16, which no quantiser changes.

    Raises:
        ConfigError: the weights are not here.
    """
    config: Any = transformer.config
    known = {name: value for name, value in dict(config).items() if not name.startswith("_")}
    found = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode())
    for layer in layers:
        for value in (each.detach() for each in layer.block.parameters() if each.dim() == 1):
            if value.is_meta:
                raise ConfigError("keep: the weights are offloaded one by one; call it before enable_sequential_cpu_offload")
            found.update(value.to("cpu", torch.bfloat16).view(torch.int16).numpy().tobytes())
    return found.hexdigest()[:16]


def place_of(keep: float, component: str, transformer: nn.Module) -> Path:
    """Return the file of a calibration: beside the weights of the first transformer.

    Raises:
        ConfigError: it was not loaded from a folder.
    """
    folder = loaded_from(component, transformer)
    if folder is None:
        raise ConfigError("keep: the model was not loaded from a folder; give the calibration a path: calibrate(..., file=)")
    return folder / f"strobe_keep_{keep:g}.json"


def write_calibration(found: Calibration, file: Path) -> None:
    """Write a calibration as JSON."""
    write_whole(file, msgspec.json.format(msgspec.json.encode(found)))


def read_calibration(file: Path, names: Mapping[str, tuple[str, ...]]) -> Calibration:
    """Read a calibration, and check that it has a number for every layer.

    Args:
        names: of the layers, by component.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Calibration)
    except FileNotFoundError as error:
        raise ConfigError(f"keep: {file} does not exist; calibrate(pipe, call, keep=...) makes it") from error
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"keep: {file} is no calibration ({error}); calibrate again") from error
    for component, layers in names.items():
        steps = found.selected.get(component, {}).values()
        if not steps or not all(
            set(step) == set(layers) and 1 <= min(step.values()) <= max(step.values()) <= found.tiles for step in steps
        ):
            raise ConfigError(
                f"keep: {file} does not have 1 to {found.tiles} tiles for every layer of {component}; calibrate again"
            )
    return found
