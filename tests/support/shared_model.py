"""A model with six heads and fifteen tokens a latent frame, and one rank's result of a stream of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from strobe.engine.config import EngineConfig
from strobe.engine.model import Model
from strobe.engine.parallel import DeviceGroup
from strobe.engine.prompts import Switch
from strobe.engine.session import Session
from tiny_model import tiny_model

SWITCHES = [Switch(frame_block=3, prompt="blue square")]
SHORT_S = 3.0
"""Timeout of what is to fail."""


def six_heads() -> Model:
    """Build the model with random weights, the same in every process."""
    model = tiny_model(("red", "green", "blue", "circle", "square"), heads=6)
    return replace(model, defaults=replace(model.defaults, frame_size=(48, 80), timesteps=(1000.0, 500.0)))


@dataclass(frozen=True, kw_only=True)
class Told:
    """The result of a stream on one rank."""

    latents: Tensor
    frames: Tensor
    prompts: list[str]
    cached: int


def poison(session: Session) -> int:
    """Fill this process's keys and values with NaN before anything is written; return their number."""
    cache = getattr(session._stream._cache, "_cache", session._stream._cache)
    for tensor in (cache.keys, cache.values):
        tensor.fill_(float("nan"))
    return cache.keys.numel() + cache.values.numel()


def tell(session: Session, num_blocks: int, switches: list[Switch]) -> Told:
    """Stream from an empty cache, and return the result."""
    cached = poison(session)
    blocks = list(session.stream(num_blocks, switches=switches))
    return Told(
        latents=torch.cat([block.latents for block in blocks], dim=1),
        frames=torch.cat([block.samples for block in blocks], dim=1),
        prompts=[block.prompt for block in blocks],
        cached=cached,
    )


def stream(model: Model, config: EngineConfig, devices: DeviceGroup | str, num_blocks: int = 5) -> Told:
    """Stream five frame blocks: the window fills, rolls, is recomputed under another prompt, and rolls on."""
    with Session("red circle", preset=config, model=model, seed=3, samples=(0, 4), device=devices) as session:
        return tell(session, num_blocks, SWITCHES)


BUNDLED = EngineConfig(window=7, sink=2, timesteps=(1000.0, 250.0), dtype="float32")
"""In bfloat16, which a GPU would take by itself, sums in another order differ by what rounding is: no gate for the messages."""


def bundled(devices: DeviceGroup | str) -> Told:
    """Stream the bundled model, with a window that rolls in the third frame block."""
    with Session("a red circle moving left", preset=BUNDLED, seed=3, device=devices) as session:
        return tell(session, 4, [Switch(frame_block=3, prompt="a blue square moving up")])
