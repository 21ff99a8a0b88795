"""Rows in eight bits, as `strobe.eightbit.rows` makes them and its impls fill them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Quantized(NamedTuple):
    """Numbers in eight bits with their scales. A named tuple, because compilers and graphs take those apart.

    Args:
        values: `[..., K]`, float8_e4m3fn or int8.
        scale: float32 `[..., 1]`, one per row.
    """

    values: Tensor
    scale: Tensor

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """Return ``values * scale``, computed in float32 and rounded to `dtype`."""
        return (self.values.float() * self.scale).to(dtype)

    @property
    def num_bytes(self) -> int:
        """Memory of values and scales, bytes."""
        return self.values.nbytes + self.scale.nbytes
