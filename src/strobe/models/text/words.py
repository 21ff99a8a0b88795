"""A word-level text encoder, small enough to be trained with the transformer it conditions."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from strobe.core.errors import ConfigError, nearest


class WordEncoder(nn.Module):
    """Words to embeddings, then one self-attention layer over the prompt.

    Args:
        vocabulary: the words it knows; index 0 of the embedding is padding.
        dim: width of a text token.
        length: text tokens of a prompt, padding included.
    """

    def __init__(self, vocabulary: Sequence[str], *, dim: int = 64, length: int = 24, num_heads: int = 4) -> None:
        super().__init__()
        self.vocabulary = tuple(vocabulary)
        self.length = length
        self.num_heads = num_heads
        self.index = {word: number for number, word in enumerate(self.vocabulary, start=1)}
        self.words = nn.Embedding(len(self.vocabulary) + 1, dim, _weight=_drawn(len(self.vocabulary) + 1, dim, 1.0))
        self.places = nn.Parameter(_drawn(length, dim, 0.02))
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.final = nn.LayerNorm(dim)

    def tokenize(self, prompt: str) -> list[int]:
        """Convert the words of a prompt to numbers.

        Raises:
            ConfigError: a word is unknown (lists those that are not), or the prompt is empty or too long.
        """
        words = re.findall(r"[\w'-]+", prompt.lower())
        for word in words:
            if word not in self.index:
                hint, allowed = nearest(word, self.vocabulary), ", ".join(self.vocabulary)
                raise ConfigError(f"unknown word {word!r} in prompt {prompt!r}{hint}; allowed: {allowed}")
        if not 0 < len(words) <= self.length:
            raise ConfigError(f"prompt {prompt!r} has {len(words)} words; allowed: 1 to {self.length}")
        return [self.index[word] for word in words]

    def forward(self, tokens: Tensor) -> Tensor:
        """Encode token numbers `[B, length]`, 0 = padding, to `[B, length, dim]`; padding rows are zeros."""
        real = tokens != 0
        x: Tensor = self.words(tokens) + self.places
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None, :])
        x = self.final(x + self.out(attended.transpose(1, 2).flatten(2)))
        return x * real.unsqueeze(-1)

    def batch(self, prompts: Sequence[str]) -> Tensor:
        """Tokenise prompts to a padded int64 tensor `[B, length]` on the encoder's device."""
        rows = [self.tokenize(prompt) for prompt in prompts]
        padded = [row + [0] * (self.length - len(row)) for row in rows]
        return torch.tensor(padded, dtype=torch.int64, device=self.places.device)

    def check(self, prompts: Sequence[str]) -> None:
        """Check prompts before a stream depends on them. Raises: see `tokenize`."""
        self.batch(prompts)

    def ready(self, prompts: Sequence[str]) -> bool:
        """Return True: the encoder is one small layer."""
        return True

    def place(self, device: torch.device) -> None:
        """Do nothing: the encoder stays where its weights are."""

    def encode(self, prompts: Sequence[str]) -> Tensor:
        """Encode prompts to text `[B, length, dim]`."""
        out: Tensor = self(self.batch(prompts))
        return out


def _drawn(rows: int, dim: int, deviation: float) -> Tensor:
    """Draw normal numbers; on the meta device nothing is drawn, for that imports sympy, which takes seconds."""
    empty = torch.empty(rows, dim)
    return empty if empty.is_meta else torch.randn(rows, dim) * deviation
