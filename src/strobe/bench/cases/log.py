"""Clips and configurations of `strobe log`: each preset or optimisation as a cell against the base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from strobe.bench.cases.ablate.cells import AblationCell, one_at_a_time, one_in
from strobe.bench.cases.ablate.factors import Factor, Setup
from strobe.bench.cases.stream import Script
from strobe.core.errors import ConfigError
from strobe.engine.config import ModelDefaults, lacking
from strobe.engine.presets import PRESETS
from strobe.engine.prompts import Switch


@dataclass(frozen=True, kw_only=True, slots=True)
class Length:
    """Length of a clip of the log: latent frames without a switch, then prompt switches, two frame blocks each.

    Raises:
        ConfigError: fewer than one latent frame, or fewer than no switches.
    """

    latents: int
    switches: int

    def __post_init__(self) -> None:
        if self.latents < 1 or self.switches < 0:
            raise ConfigError(f"a clip has 1 latent frame or more and 0 switches or more; got {self.latents} and {self.switches}")


QUICK: Final = Length(latents=100, switches=10)
FULL: Final = Length(latents=1000, switches=50)
"""Full length: four clips hold the 459 samples that a p99 of the steady state needs."""


def script(length: Length, prompts: Sequence[str], defaults: ModelDefaults, seed: int) -> Script:
    """Build the clip: steady frame blocks under the first prompt, then the other prompts, one every second frame block.

    Raises:
        ConfigError: switches are wanted and there is no second prompt.
    """
    first, *later = prompts
    if length.switches and not later:
        raise ConfigError("a prompt switch needs a second prompt; give --then, or --switches 0")
    steady = -(-length.latents // defaults.frame_block)
    turns = (*later, first)
    switches = tuple(Switch(frame_block=steady + 2 * i, prompt=turns[i % len(turns)]) for i in range(length.switches))
    return Script(prompt=first, switches=switches, num_blocks=steady + 2 * length.switches, seed=seed)


def log_cells(
    base: Setup, presets: Sequence[str], defaults: ModelDefaults, device: torch.device, *, knobs: bool
) -> list[AblationCell]:
    """Return a cell for every preset but the base's own and, if asked for, for every optimisation alone on the base.

    Where no preset is named, those that the device lacks nothing for.

    Raises:
        ConfigError: a preset that there is not, or nothing to measure.
        ImplUnavailableError: a preset that cannot run on the device.
    """
    named = (
        tuple(presets)
        if presets or knobs
        else tuple(name for name, make in PRESETS.items() if not lacking(replace(make(), simulate=base.config.simulate), device))
    )
    factor = Factor(name="preset", values=named)
    found = [
        *one_at_a_time(base, [factor] if named else [], defaults, device),
        *(one_in(base, defaults, device) if knobs else ()),
    ]
    if not found:
        raise ConfigError(f"nothing to measure against {base.config.name}; name other presets, or give --knobs")
    return found
