"""Streams of the tiny model whose past is another one than keys and values that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from strobe.core.tolerances import tolerance
from strobe.engine.model import Model
from strobe.engine.prompts import Switch
from strobe.engine.session import Session

SHAPE = (4, 4, 4)
FOUR = (1000.0, 750.0, 500.0, 250.0)
FIVE = (1000.0, 800.0, 600.0, 400.0, 200.0)
PASTS: Mapping[str, Mapping[str, Any]] = {
    "recomputed": {"window": 6, "sink": 1, "positions": "absolute", "past_weight": 0.3},
    "rolling": {"window": 24, "sink": 3, "timesteps": FIVE},
    "shots": {"window": 12, "sink": 3, "positions": "absolute", "sampler": "unipc", "timesteps": FOUR},
}
Cuts = Mapping[int, str]
"""Prompt of each frame block that begins a shot."""


def with_past(tiny: Model, past: str) -> Model:
    return replace(tiny, defaults=replace(tiny.defaults, past=past, **PASTS[past]))


def streamed(session: Session, number: int, cuts: Cuts | None = None) -> Tensor:
    switches = [Switch(frame_block=at, prompt=prompt, mode="shot") for at, prompt in (cuts or {}).items()]
    return torch.cat([block.latents for block in session.stream(number, switches=switches)], dim=1).double()


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance("recomputed past", "float32"))
