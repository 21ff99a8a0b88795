"""The weights that every checkpoint here is made of."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

DATA = Path(__file__).parents[3] / "data" / "causal_wan_tiny.safetensors"


@pytest.fixture(scope="session")
def original() -> dict[str, Tensor]:
    """The golden's weights: names and values of the official implementation."""
    return {name.removeprefix("model."): tensor for name, tensor in load_file(DATA).items() if name.startswith("model.")}
