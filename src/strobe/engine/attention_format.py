"""Attention in eight bits as a setting: what a device must have for it."""

from __future__ import annotations

from typing import Final

import torch

from strobe.core.device import card_of
from strobe.core.errors import ImplUnavailableError

KERNEL_HEAD_DIM: Final = 128
"""Of the kernels, and of Wan's transformers."""


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
