"""Stand-ins for missing weights: transformer and text encoder of the right sizes, for measuring. Frames mean nothing."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from strobe.core.errors import ConfigError
from strobe.models.checkpoint import on_meta
from strobe.models.wan.config import WanConfig
from strobe.models.wan.dit import CausalWan

POOL = 1 << 22
"""Random numbers drawn; larger tensors repeat them from another place on."""


def empty_transformer(config: WanConfig) -> CausalWan:
    """Build a transformer on the meta device: it has sizes and no numbers."""
    with on_meta():
        return CausalWan(config)


def random_transformer(config: WanConfig) -> CausalWan:
    """Draw a transformer on the CPU, bfloat16, always the same: matrices of variance 1 / inputs, norms 1, biases 0.

    Numbers are drawn once and repeated, so that billions of them take seconds.
    """
    pool = torch.randn(POOL, generator=torch.Generator().manual_seed(0)).repeat(2)
    dit = empty_transformer(config)
    tensors = {name: _tensor(name, tensor, pool) for name, tensor in dit.state_dict().items()}
    dit.load_state_dict(tensors, strict=True, assign=True)
    return dit.requires_grad_(False).eval()


def _tensor(name: str, like: Tensor, pool: Tensor) -> Tensor:
    dtype = torch.bfloat16
    if name.endswith(".bias"):
        return torch.zeros(like.shape, dtype=dtype)
    if like.dim() == 1:
        return torch.ones(like.shape, dtype=dtype)
    inputs = like.shape[-1] if name.endswith("modulation") else like[0].numel()
    first = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little") % POOL
    source = (pool[first : first + min(POOL, like.numel())] / math.sqrt(inputs)).to(dtype)
    flat = torch.empty(like.numel(), dtype=dtype)
    for piece in flat.split(len(source)):
        piece.copy_(source[: len(piece)])
    return flat.view(like.shape)


class PromptNoise:
    """A text encoder without language: a prompt becomes noise of its own, a row for each word and one for its end.

    Args:
        config: length and width of a text.
    """

    def __init__(self, config: WanConfig) -> None:
        self.length, self.dim = config.text_len, config.text_dim

    def check(self, prompts: Sequence[str]) -> None:
        """Check prompts.

        Raises:
            ConfigError: one is empty.
        """
        if not all(prompt.split() for prompt in prompts):
            raise ConfigError("the prompt is empty; say what to show")

    def ready(self, prompts: Sequence[str]) -> bool:
        """Return True: drawing noise takes no time."""
        return True

    def place(self, device: torch.device) -> None:
        """Do nothing: the noise stays on the CPU."""

    def encode(self, prompts: Sequence[str]) -> Tensor:
        """Encode prompts to text `[B, length, dim]`; padding rows are zeros. Raises: see `check`."""
        self.check(prompts)
        out = torch.zeros(len(prompts), self.length, self.dim)
        for row, prompt in zip(out, prompts, strict=True):
            rows = min(self.length, len(prompt.split()) + 1)
            key = int.from_bytes(hashlib.blake2b(prompt.encode(), digest_size=8).digest(), "little", signed=True)
            row[:rows] = 0.1 * torch.randn(rows, self.dim, generator=torch.Generator().manual_seed(key))
        return out
