"""The protocol of text encoders, and the encoder of a Wan model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from strobe.engine.config import DTYPES
from strobe.models.text.cache import PromptCache, PromptEncoder
from strobe.models.text.memory import PromptMemory
from strobe.models.text.random_umt5 import RandomUmt5
from strobe.models.text.umt5 import Umt5, Umt5Config, Umt5Files, check_installed
from strobe.models.wan.config import WanConfig
from strobe.models.wan.random_init import PromptNoise

if TYPE_CHECKING:
    from strobe.engine.weights import Weights


class TextEncoder(Protocol):
    """An encoder of prompts into the text that cross-attention attends to."""

    def check(self, prompts: Sequence[str]) -> None:
        """Check that the encoder can encode prompts, before a stream depends on them.

        Raises:
            ConfigError: a prompt that it cannot encode.
        """
        ...

    def encode(self, prompts: Sequence[str]) -> Tensor:
        """Encode prompts to text `[B, L, text_dim]`; padding rows are zeros. Any thread may call it."""
        ...

    def ready(self, prompts: Sequence[str]) -> bool:
        """Return whether `encode` takes almost no time: the texts are known, or the encoder is small."""
        ...

    def place(self, device: torch.device) -> None:
        """Tell the encoder which device makes frames, after the stream's allocations there; it may choose its own device now."""
        ...


def text_encoder(folder: Path, given: Weights) -> TextEncoder:
    """Return the umT5 in the folder of a checkpoint; its weights are read when the first new prompt comes.

    Raises:
        WeightsError: it is not there; says what was looked for.
    """
    encoder = Umt5(Umt5Files.find(folder), dtype=DTYPES[given.text_dtype], device=given.text_device)
    return PromptEncoder(encoder, None if given.prompt_cache is None else PromptCache(given.prompt_cache), PromptMemory())


def random_text(config: WanConfig, given: Weights) -> TextEncoder:
    """Return noise for prompts, or an encoder of umT5's size whose weights are drawn when the first prompt comes."""
    if not given.random_text:
        return PromptNoise(config)
    check_installed()
    sizes = Umt5Config(length=config.text_len, dim=config.text_dim)
    return PromptEncoder(RandomUmt5(sizes, dtype=DTYPES[given.text_dtype], device=given.text_device), None, PromptMemory())
