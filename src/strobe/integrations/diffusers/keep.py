"""A share of attention weight to keep, and the number of key tiles that keeps it in every head and step: measured, in a file.

In the order in which the selection takes the key tiles of a query's tile, forced ones first, then by coarse score, the weights
that dense attention gives to the first `n` of them add up to a share `c(n)`. A head's number in a step is the smallest `n` whose
mean `c(n)` over queries and passes is the share to keep: every head keeps it by itself.
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
"""Different numbers of tiles at most: a kernel is told the largest of a call's heads, and keeps its settings by it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """The number of key tiles that keeps a share of the attention weight, by transformer, denoise step and layer.

    Args:
        keep: share that was asked for.
        kept: share that the numbers keep, mean over layers, heads and steps.
        worst: likewise of the head, layer and step that keeps least.
        models: hash of each transformer, by component; empty without a pipeline.
        grid: tokens in (time, height, width).
        tiles: key tiles that there are.
        steps: denoise steps of the calls that were measured.
        selected: key tiles of each head, by component, step from 0, and layer.
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
    selected: dict[str, dict[int, dict[str, tuple[int, ...]]]]

    @property
    def sparsity(self) -> float:
        """Share of the key tiles that is skipped, mean over heads, layers and steps: what keeping costs."""
        return fmean(map(self.sparsity_of, self.selected))

    def sparsity_of(self, component: str) -> float:
        """Return the share of the key tiles that is skipped in a transformer, mean likewise."""
        layers = (layer for step in self.selected[component].values() for layer in step.values())
        return 1 - fmean(number for heads in layers for number in heads) / self.tiles

    def __str__(self) -> str:
        return (
            f"keeps {self.kept:.1%} of the attention weight, {self.worst:.1%} in the worst head, and skips {self.sparsity:.1%} "
            f"of the key tiles; measured over {self.steps} steps of grid {self.grid}"
        )

    def check_model(self, models: Mapping[str, str], where: Path) -> None:
        """Raise ConfigError if it is not of these transformers."""
        for component, found in models.items():
            if self.models.get(component) != found:
                name, known = component or "the transformer", self.models.get(component, "none")
                raise ConfigError(
                    f"keep: {where} is of another model: {name} has hash {found}, it has {known}; calibrate this one"
                )


def tiles_that_keep(held: Tensor, keep: float, fewest: int) -> tuple[tuple[int, ...], Tensor]:
    """Return the smallest number of tiles whose share is `keep`, rounded up, for each head, and the share of each there.

    Args:
        held: of `share_held`, added up over passes; `[H, N_kv]`.
        fewest: tiles that are always selected.
    """
    shares = held / held[:, -1:]
    tiles = shares.shape[-1]
    step = ceil(tiles / _LEVELS)
    wanted = (1 + (shares.double() < keep).sum(dim=-1)).tolist()
    numbers = tuple(min(tiles, ceil(max(fewest, each) / step) * step) for each in wanted)
    return numbers, torch.stack([of_head[number - 1] for of_head, number in zip(shares, numbers, strict=True)])


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
    """Return the file of a calibration: beside the weights of the first transformer."""
    folder = loaded_from(component, transformer)
    if folder is None:
        raise ConfigError("keep: the model was not loaded from a folder; give the calibration a path: calibrate(..., file=)")
    return folder / f"strobe_keep_{keep:g}.json"


def write_calibration(found: Calibration, file: Path) -> None:
    """Write a calibration as JSON."""
    write_whole(file, msgspec.json.encode(found))


def read_calibration(file: Path, heads: Mapping[str, Mapping[str, int]]) -> Calibration:
    """Read a calibration, and check that it has a number for every head.

    Args:
        heads: how many each layer has, by component and layer.
    """
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Calibration)
    except FileNotFoundError as error:
        raise ConfigError(f"keep: {file} does not exist; calibrate(pipe, call, keep=...) makes it") from error
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"keep: {file} is no calibration ({error}); calibrate again") from error
    for component, layers in heads.items():
        steps = found.selected.get(component, {}).values()
        fits = all({layer: len(numbers) for layer, numbers in step.items()} == layers for step in steps)
        numbers = {number for step in steps for of_layer in step.values() for number in of_layer}
        if not steps or not fits or not 1 <= min(numbers) <= max(numbers) <= found.tiles:
            raise ConfigError(
                f"keep: {file} does not have 1 to {found.tiles} tiles for every head of "
                f"{component or 'the transformer'}; calibrate again"
            )
    return found
