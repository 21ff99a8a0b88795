"""Keys and values of a prompt for the layers, with one row in place of all equal padding rows.

The rows behind a prompt are equal, so in every layer their keys and values are too, and attention over `c` rows of one logit `s`
is attention over one row of logit `s + log(c)`: `sum_j c_j exp(s_j) v_j / sum_j c_j exp(s_j)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TextKV:
    """Keys and values of one prompt for each layer.

    Args:
        layers: keys and values `[B, L, H, D]`.
        distinct: how many first rows differ from what is behind them, and one of that, int32 `[B]`: see `distinct_rows`.
    """

    layers: tuple[tuple[Tensor, Tensor], ...]
    distinct: Tensor

    @classmethod
    def made_of(cls, tensors: tuple[Tensor, ...]) -> TextKV:
        """Build it from `tensors`."""
        return cls(layers=tuple(zip(tensors[1::2], tensors[2::2], strict=True)), distinct=tensors[0])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Number of distinct rows, then keys and values of one layer after the other."""
        return self.distinct, *(each for pair in self.layers for each in pair)


def distinct_rows(text: Tensor) -> Tensor:
    """Count the rows of each sample up to the first of those that are equal to all behind them: int32 `[B]`.

    Worked out where the text is, so that no host waits for it. Zeros of either sign are equal: matrix products make the same of
    them. NaN equals nothing.

    Args:
        text: `[B, L, text_dim]`, padded.
    """
    length = text.shape[1]
    numbers = torch.arange(1, length + 1, device=text.device)
    behind = ((text != text[:, -1:]).any(-1) * numbers).amax(-1)  # rows up to the last that differs from the end
    return (behind + 1).clamp_(max=length).int()
