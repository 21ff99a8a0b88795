"""Which device runs, and what it can do. The only place that asks torch for a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strobe.core.errors import ConfigError, ImplUnavailableError

if TYPE_CHECKING:
    import torch


def resolve_device(name: str | torch.device = "auto") -> torch.device:
    """Turn `auto`, `cpu`, `cuda` or `cuda:1` into a device that exists here.

    Raises:
        ConfigError: the name is not a device name.
        ImplUnavailableError: the device is not on this machine.
    """
    import torch

    name = str(name)
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"unknown device {name!r}; allowed: auto, cpu, cuda, cuda:N") from error
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ImplUnavailableError(name, "torch sees no CUDA device on this machine", ["cpu"], what="device")
        if (device.index or 0) >= torch.cuda.device_count():
            raise ImplUnavailableError(
                str(device),
                f"this machine has {torch.cuda.device_count()} CUDA device(s)",
                ["cpu", "cuda:0"],
                what="device",
            )
        return torch.device("cuda", device.index or 0)
    if device.type != "cpu":
        raise ConfigError(f"device {name!r} is not supported; allowed: auto, cpu, cuda, cuda:N")
    return device


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor from the CPU to a device. Nobody waits: it goes to a GPU from pinned memory, which torch does not hand out
    again before it has arrived."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def synchronize(device: torch.device) -> None:
    """Wait for all work on the device; nothing on a CPU."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
