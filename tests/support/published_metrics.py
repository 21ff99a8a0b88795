"""Pictures given by formulas, so that other implementations' values for them can be written down in tests."""

from __future__ import annotations

import torch
from torch import Tensor


def waves(height: int = 96, width: int = 120, frames: int = 1) -> Tensor:
    """Return smooth colours, float64 `[F, 3, Y, X]` in [0, 1]."""
    f, c, y, x = torch.meshgrid(
        *(torch.arange(count, dtype=torch.float64) for count in (frames, 3, height, width)), indexing="ij"
    )
    return 0.5 + 0.5 * torch.sin(0.11 * x + 0.07 * y * (1 + c) + 0.9 * c + 0.3 * f)


def disturbed(picture: Tensor, strength: float) -> Tensor:
    """Add a fine pattern to a picture."""
    f, c, y, x = torch.meshgrid(*(torch.arange(count, dtype=torch.float64) for count in picture.shape), indexing="ij")
    return (picture + strength * torch.sin(12.9898 * x + 78.233 * y + 3.1 * c + f)).clamp(0, 1)
