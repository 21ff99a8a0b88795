"""What is installed and what the device is: facts the implementations decide on. Nothing optional is imported here."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import warnings
from typing import Final

import torch


def not_installed(module: str, distribution: str, wanted: str = "") -> str | None:
    """Say why a library cannot be used, or None if it can: its top-level module is found and its version begins with `wanted`.

    The module is looked up and not imported: `module` is a name without a dot.
    """
    if importlib.util.find_spec(module) is None:
        return f"{distribution} is not installed" + (" (strobe[hopper] installs it)" if wanted else "")
    if not wanted:
        return None
    try:
        found = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return f"{distribution} is not installed (strobe[hopper] installs it); another package provides {module}"
    if not re.match(re.escape(wanted) + r"(?!\d)", found):
        return f"it is written for {distribution} {wanted}, {found} is installed"
    return None


def _missing() -> dict[str, str | None]:
    dsl = not_installed("cutlass", "nvidia-cutlass-dsl", "4.8")
    return {
        "cudnn": not_installed("cudnn", "nvidia-cudnn-frontend", "1.32") or dsl,
        "fa4": not_installed("flash_attn", "flash-attn-4", "4.0.0b36") or dsl,
        "fa3": not_installed("flash_attn_interface", "flash_attn_interface of flash-attention 3, which is built from source,"),
        "triton": not_installed("triton", "triton"),
    }


MISSING: Final = _missing()
"""Why the library of an implementation cannot be used, or None; looked up once, because a compiler cannot trace a look-up."""


def silence_fa4() -> None:
    """Pass over what FA4's compiler warns of with every kernel: that it does not know the type of an argument that FA4 itself
    hands over. The kernels pass their gates all the same, and who calls them can do nothing about it.
    """
    message = r"Argument aux_data \(position \d+\) cannot be converted to a JitArgument for function '\w*flash_attn"
    warnings.filterwarnings("ignore", message=message, category=UserWarning)


def capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a CUDA device; (0, 0) of any other."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return (0, 0)
    return torch.cuda.get_device_capability(device)


def not_hopper(device: torch.device) -> str | None:
    """Say why a device is not of compute capability 9.0, or None if it is."""
    if device.type != "cuda":
        return f"it runs on a GPU, the tensors are on {device}"
    major, minor = capability(device)
    return None if (major, minor) == (9, 0) else f"it runs on compute capability 9.0, {device} has {major}.{minor}"


def short(dtype: torch.dtype) -> str:
    """`bfloat16` for `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")
