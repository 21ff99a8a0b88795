"""The kernels as a decoder calls them; that shapes fit together is asserted here, once per call. Inference only.

A *bordered* video is `[B, F, Y + 2, X + 2, C]`, contiguous, with zeros in the first and last row and column.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from strobe.core.device import card_of
from strobe.core.errors import ConfigError
from strobe.core.libraries import broken
from strobe.core.settings import read_settings

EPS = 1e-24
"""Added to a mean square, so that a pixel of zeros stays zeros; the official formula bounds the norm by 1e-12 instead."""
WHOLE = 256
"""Most channels that are normed where they are computed."""
SHARED_BYTES = 200 * 1024
"""Least shared memory of a program, for its tiles."""
Impl = Literal["triton", "reference"]
IMPLS: tuple[Impl, ...] = ("triton", "reference")


def unavailable(impl: Impl, device: torch.device, dtype: torch.dtype) -> str:
    """Return why an impl does not run there in a dtype; empty if it does."""
    if impl == "reference" or (device.type == "cpu" and read_settings().triton_interpret):
        return ""
    card = card_of(device)
    if card.vendor != "nvidia" or card.capability < (9, 0) or card.shared_bytes < SHARED_BYTES:
        has = f", {card.shared_bytes // 1024} KiB of shared memory" if card.shared_bytes else ""
        least = f"compute capability 9.0 or later with {SHARED_BYTES // 1024} KiB of shared memory"
        return f"they need {least}; {device} has {card}{has}"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"they compute in bfloat16 and float16, not {str(dtype)[6:]}"
    return broken("triton.tools.tensor_descriptor") or ""


def fits(channels: int, out_channels: int) -> bool:
    """Return whether the kernels take a convolution of so many channels: in eights, beyond 256 out in multiples of 128."""
    return channels % 8 == 0 and out_channels % 8 == 0 and (out_channels <= WHOLE or out_channels % 128 == 0)


def convolve(seen: Tensor, weight: Tensor, bias: Tensor, skip: Tensor | None = None, *, impl: Impl = "triton") -> Tensor:
    """Convolve each frame with the two before it: `weight * seen + bias + skip`, in float32, rounded once.

    Args:
        seen: bordered, `[B, 2 + F, Y + 2, X + 2, C]`: two frames, then those that are computed.
        weight: `[C', C, 3, 3, 3]`.
        bias: `[C']`.
        skip: bordered, `[B, F, Y + 2, X + 2, C']`, or None.

    Returns:
        bordered, `[B, F, Y + 2, X + 2, C']`.

    Raises:
        ConfigError: a gradient is wanted.
    """
    _check(seen, weight, bias)
    if skip is not None:
        batch, planes, height, width, _ = seen.shape
        assert skip.shape == (batch, planes - 2, height, width, bias.numel()) and skip.is_contiguous()
    out: Tensor = _home(impl).convolve(seen, weight, bias, skip)
    return out


def convolve_norm(
    seen: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, before: Tensor | None, *, impl: Impl = "triton"
) -> tuple[Tensor, Tensor]:
    """Convolve as `convolve` does, norm each pixel and apply SiLU: what the next convolution sees.

    Formula: with `y = weight * seen + bias`, `silu(y / sqrt(mean(y^2) + 1e-24) * gamma)`, in float32, rounded once.

    Args:
        seen, weight, bias: as in `convolve`; at most 256 channels out.
        gamma: `[C']`.
        before: two frames that stand in front of the result, `[B, 2, Y, X, C']`; None: zeros.

    Returns:
        bordered, `[B, 2 + F, Y + 2, X + 2, C']`, and its last two frames without border, `[B, 2, Y, X, C']`.

    Raises: as `convolve`.
    """
    _check(seen, weight, bias)
    assert gamma.numel() == bias.numel() <= WHOLE
    _check_before(before, (seen.shape[0], 2, seen.shape[2] - 2, seen.shape[3] - 2, bias.numel()))
    made: tuple[Tensor, Tensor] = _home(impl).convolve_norm(seen, weight, bias, gamma.flatten(), before, EPS)
    return made


def norm(
    x: Tensor, bias: Tensor | None, gamma: Tensor, before: Tensor | None, *, copied: bool = False, impl: Impl = "triton"
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Add a bias, norm each pixel over its channels, apply SiLU, and put a border around.

    Formula: with `y = x + bias`, `silu(y / sqrt(mean(y^2) + 1e-24) * gamma)`, in float32, rounded once.

    Args:
        x: `[B, F, Y, X, C]` without border; a pixel's channels lie side by side.
        bias: `[C]`, or None.
        gamma: `[C]`.
        before: as in `convolve_norm`.
        copied: whether `x + bias` is wanted too.

    Returns:
        as `convolve_norm`, then `x + bias` bordered, `[B, F, Y + 2, X + 2, C]`, or None.

    Raises:
        ConfigError: a gradient is wanted.
    """
    _check_inference(x, gamma)
    assert gamma.numel() == x.shape[-1] and x.stride(-1) == 1
    _check_before(before, (x.shape[0], 2, *x.shape[2:]))
    made: tuple[Tensor, Tensor, Tensor | None] = _home(impl).norm(x, bias, gamma.flatten(), before, EPS, copied)
    return made


def leave(seen: Tensor, weight: Tensor, bias: Tensor, *, impl: Impl = "triton") -> Tensor:
    """Convolve to few channels: one matrix product for all taps, rounded, then every pixel sums its neighbours' parts in float32.

    Args:
        seen: as in `convolve`.
        weight: `[C', C, 3, 3, 3]`.
        bias: `[C']`.

    Returns:
        `[B, F, Y, X, C']`, without border.

    Raises:
        ConfigError: a gradient is wanted.
    """
    _check_inference(seen, weight)
    taps = weight.permute(2, 3, 4, 0, 1).flatten(0, 3)  # [27 C', C]
    parts = F.linear(seen, F.pad(taps, (0, 0, 0, -len(taps) % 8)))  # aligned, or the product is slow
    out: Tensor = _home(impl).add_taps(parts, bias)
    return out


def _check(seen: Tensor, weight: Tensor, bias: Tensor) -> None:
    _check_inference(seen, weight)
    channels = seen.shape[-1]
    assert seen.shape[1] >= 3 and weight.shape == (bias.numel(), channels, 3, 3, 3) and fits(channels, bias.numel())
    assert seen.dtype == weight.dtype and seen.is_contiguous()


def _check_before(before: Tensor | None, expected: tuple[int, ...]) -> None:
    assert before is None or (before.shape == expected and before.is_contiguous())


def _home(impl: Impl) -> Any:
    return import_module(f"strobe.models.vae.kernels.impl.{impl}")


def _check_inference(*tensors: Tensor) -> None:
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise ConfigError("the kernels of decoders have no gradient; decode without them, or under torch.no_grad()")
