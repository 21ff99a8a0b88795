"""Facts beside the configuration that a stream's exact bits depend on: the kind of device, and versions."""

from __future__ import annotations

import platform

import torch

import strobe


def device_name(device: torch.device) -> str:
    """Return the kind of a device; streams are bit-equal on devices of the same kind."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu {platform.machine()}"


def versions() -> dict[str, str]:
    """Return the versions of strobe, torch and Python."""
    return {"strobe": strobe.__version__, "torch": str(torch.__version__), "python": platform.python_version()}
