"""Prompts that are several, each with a weight: `(a red circle moving left:0.7) (a yellow circle moving left:0.3)`.

The transformer is given one text, the blend of theirs: `sum_i w_i text_i / sum_i w_i`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from strobe.core.errors import ConfigError

if TYPE_CHECKING:
    from strobe.engine.texts import TextEncoder

_PART: Final = re.compile(r"(?<!\\)\((?P<prompt>(?:[^()\\]|\\.)*):\s*(?P<weight>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*\)")
EXAMPLE: Final = '"(a red circle moving left:0.7) (a yellow circle moving left:0.3)"'


def read_weights(prompt: str) -> tuple[tuple[str, float], ...]:
    r"""Split a prompt into prompts and their shares, which sum to 1; needs no model. One without weights is its own only part.

    ``\(`` and ``\)`` are brackets of the text.

    Raises:
        ConfigError: words inside a prompt have a weight, only one prompt has, a prompt is empty, or a weight is negative or no
            number, or all are 0.
    """
    found = [*_PART.finditer(prompt)]
    if not found:
        return ((_plain(prompt), 1.0),)
    if _PART.sub("", prompt).strip(" ,\t\n"):
        raise ConfigError(
            f"the prompt {prompt!r} weighs some of its words, and weights here are for whole prompts, whose texts are blended: "
            f"{EXAMPLE}; write \\( and \\) for brackets that are meant"
        )
    if len(found) == 1:
        raise ConfigError(
            f"the prompt {prompt!r} is one with a weight, and weights are the shares of several: {EXAMPLE}; leave it out"
        )
    weights = [(_plain(part["prompt"].strip()), float(part["weight"])) for part in found]
    for text, weight in weights:
        if not text:
            raise ConfigError(f"the prompt {prompt!r} has an empty part; write for example {EXAMPLE}")
        if weight < 0:
            raise ConfigError(
                f"the prompt {prompt!r} gives {text!r} the weight {weight:g}: nothing is steered away from, because the models "
                "are distilled without guidance; give 0 or more, and say what to show"
            )
    total = sum(weight for _, weight in weights)
    if not 0 < total < float("inf"):
        raise ConfigError(f"the weights of the prompt {prompt!r} sum to {total:g}; give at least one more than 0")
    return tuple((text, weight / total) for text, weight in weights if weight)


def check_prompts(encoder: TextEncoder, prompts: Sequence[str]) -> None:
    """Check prompts, and each part of those that are several, before a stream depends on them.

    Raises:
        ConfigError: a weight cannot be read, or the encoder cannot encode a prompt.
    """
    encoder.check(_parts(prompts))


def prompts_ready(encoder: TextEncoder, prompts: Sequence[str]) -> bool:
    """Return whether `encode_prompts` takes almost no time."""
    return encoder.ready(_parts(prompts))


def encode_prompts(encoder: TextEncoder, prompts: Sequence[str]) -> Tensor:
    """Encode prompts to text `[B, L, text_dim]` in the encoder's dtype; blends are summed in float64.

    Row `j` of a blend is `sum_i w_i text_i[j]`: rows of its prompts are not moved, and padding counts as the zeros that it is.
    """
    parts = _parts(prompts)
    texts = encoder.encode(parts)
    if parts == [*prompts]:
        return texts
    rows = dict(zip(parts, texts, strict=True))
    return torch.stack([_blend([(rows[text], weight) for text, weight in read_weights(prompt)]) for prompt in prompts])


def _blend(parts: Sequence[tuple[Tensor, float]]) -> Tensor:
    first, _ = parts[0]
    if len(parts) == 1:
        return first
    return torch.stack([weight * text.double() for text, weight in parts]).sum(0).to(first.dtype)


def _parts(prompts: Sequence[str]) -> list[str]:
    """Return the texts that an encoder has to know, each once unless no prompt has weights."""
    read = [read_weights(prompt) for prompt in prompts]
    texts = [text for parts in read for text, _ in parts]
    return texts if all(len(parts) == 1 for parts in read) else [*dict.fromkeys(texts)]


def _plain(text: str) -> str:
    """Take the backslashes of brackets away."""
    return re.sub(r"\\([()])", r"\1", text) if "\\" in text else text
