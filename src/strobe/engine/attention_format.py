"""Attention in eight bits as a setting: what it goes with, and what a device and a model must have for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from strobe.core.device import card_of
from strobe.core.errors import ConfigError, ImplUnavailableError

if TYPE_CHECKING:
    from strobe.engine.config import EngineConfig, ModelDefaults

KERNEL_HEAD_DIM: Final = 128
"""Of the kernels, and of Wan's transformers."""


def check_attention_format(config: EngineConfig) -> None:
    """Check that the other settings go with attention in eight bits.

    Raises:
        ConfigError: one does not; names it.
    """
    off = {
        f"kv_format {config.kv_format!r} (the cache is in eight bits already)": config.kv_format != "native",
        f"sparsity {config.sparsity}": config.sparsity > 0,
        "knob ring_cache off": not config.knobs.ring_cache,
    }
    if wrong := [what for what, found in off.items() if found]:
        raise ConfigError(
            f"attention_format {config.attention_format!r} does not go with {' and '.join(wrong)}: "
            "use attention_format 'native', or change the other"
        )


def check_past_of_format(config: EngineConfig, own: ModelDefaults) -> None:
    """Check that a model's past goes with attention in eight bits.

    Raises:
        ConfigError: it does not.
    """
    if config.attention_format != "native" and own.past != "kept":
        what = {"recomputed": "is recomputed", "rolling": "is rolling", "shots": "comes in shots"}[own.past]
        raise ConfigError(
            f"attention_format {config.attention_format!r} is for models whose past is kept, and the past of this one {what}: "
            "use attention_format 'native', or a preset such as balanced"
        )


def without_kernel(device: torch.device, dtype: torch.dtype, head_dim: int = KERNEL_HEAD_DIM) -> str:
    """Say why attention in eight bits does not run on a device; empty if it does. On a CPU its reference runs."""
    from strobe.attention.dense.eight.api import choose
    from strobe.attention.types import AttentionSpec

    spec = AttentionSpec(
        batch=1,
        q_len=1,
        kv_len=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=head_dim,
        dtype=dtype,
        device=device,
        softmax_scale=head_dim**-0.5,
        return_lse=False,
        needs_grad=False,
        card=card_of(device),
    )
    try:
        choose(spec, "auto")
    except ImplUnavailableError as error:
        return error.reason
    return ""
