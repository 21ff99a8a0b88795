"""What decides on the bits of a stream beside its configuration: the kind of device, and versions."""

from __future__ import annotations

import platform

import torch

import strobe


def device_name(device: torch.device) -> str:
    """Kind of a device: streams are bit-equal on another of the same."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu {platform.machine()}"


def versions() -> dict[str, str]:
    """Versions of strobe, torch and Python."""
    return {"strobe": strobe.__version__, "torch": str(torch.__version__), "python": platform.python_version()}
