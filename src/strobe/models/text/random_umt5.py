"""umT5 with random weights, of any size, to measure time and memory; its output has no meaning."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from strobe.core.errors import ConfigError
from strobe.models.text.umt5 import Umt5, Umt5Config, Umt5Files

POOL = 1 << 22
"""Random numbers drawn; larger tensors repeat them."""
PIECE = 4
"""Characters of a token, for want of a tokeniser."""


class RandomUmt5(Umt5):
    """An encoder without files: weights are drawn from a seed, a word has as many tokens as groups of characters.

    Args:
        config, dtype, device: see `Umt5`.
    """

    def __init__(
        self,
        config: Umt5Config | None = None,
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(Umt5Files(weights=(), tokenizer=Path()), config, dtype=dtype, device=device)

    @cached_property
    def identity(self) -> str:
        """Identity of the encoder: its sizes."""
        return f"random umt5 {self.config}"

    def _tokens(self, prompt: str) -> list[int]:
        pieces = [word[start : start + PIECE] for word in prompt.split() for start in range(0, len(word), PIECE)]
        if len(pieces) >= self.length:
            raise ConfigError(f"prompt {prompt[:60]!r}... has {len(pieces) + 1} tokens, {self.length} allowed; shorten it")
        digests = (hashlib.blake2b(piece.encode(), digest_size=8).digest() for piece in pieces)
        return [*(2 + int.from_bytes(digest, "little") % (self.config.vocabulary - 2) for digest in digests), 1]

    def _weights(self, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
        pool = torch.randn(POOL, generator=torch.Generator().manual_seed(0)).to(self.dtype)
        return {name: self._drawn(tensor, pool) for name, tensor in expected.items()}

    def _drawn(self, like: Tensor, pool: Tensor) -> Tensor:
        if like.dim() == 1:
            return torch.ones(like.shape, dtype=self.dtype)
        flat = torch.empty(like.numel(), dtype=self.dtype)
        scaled = pool * like.shape[1] ** -0.5
        for piece in flat.split(POOL):
            piece.copy_(scaled[: len(piece)])
        return flat.view(like.shape)
