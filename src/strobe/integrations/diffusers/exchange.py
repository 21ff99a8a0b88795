"""The Ulysses exchange of context parallelism: each process trades a share of the tokens for a share of the heads, and back.

Source: DeepSpeed Ulysses, arXiv 2309.14509.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as collectives

from strobe.core.errors import ConfigError


class HeadExchange:
    """Exchange between `[B, S of this process, H, D]` and `[B, S, H / P, D]` over a group of P processes.

    Args:
        group: the processes among which the tokens are split, in their order.
        num_tokens: of all processes together; the first `num_tokens % P` hold one more, as `Tensor.tensor_split` gives them.
        num_heads: of the model.

    Raises:
        ConfigError: the heads cannot be divided among the processes.
    """

    def __init__(self, group: Any, num_tokens: int, num_heads: int) -> None:
        self.group, self.size = group, dist.get_world_size(group)
        if num_heads % self.size:
            raise ConfigError(f"context parallelism: {num_heads} heads cannot be divided among {self.size} processes; use fewer")
        fewest, more = divmod(num_tokens, self.size)
        self.tokens = [fewest + (rank < more) for rank in range(self.size)]
        self.here = self.tokens[dist.get_rank(group)]

    def scatter_heads(self, tensor: Tensor) -> Tensor:
        """Exchange this process's tokens, all heads, for all tokens of this process's heads."""
        rows = tensor.unflatten(2, (self.size, -1)).permute(2, 1, 0, 3, 4).flatten(0, 1)  # [P * S_here, B, H / P, D]
        return self._trade(rows, self.tokens, [self.here] * self.size).transpose(0, 1).contiguous()

    def gather_heads(self, tensor: Tensor) -> Tensor:
        """Exchange all tokens of this process's heads for this process's tokens, all heads."""
        rows = self._trade(tensor.transpose(0, 1), [self.here] * self.size, self.tokens)  # [P * S_here, B, H / P, D]
        joined: Tensor = rows.unflatten(0, (self.size, self.here)).permute(2, 1, 0, 3, 4).flatten(2, 3)
        return joined

    def _trade(self, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        graded = torch.is_grad_enabled() and rows.requires_grad
        trade = collectives.all_to_all_single_autograd if graded else collectives.all_to_all_single
        found: Any = trade(rows.contiguous(), received, sent, self.group)
        arrived: Tensor = found.wait() if isinstance(found, collectives.AsyncCollectiveTensor) else found
        return arrived
