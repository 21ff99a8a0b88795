"""The choice of the device, the properties of GPUs, and how a process runs compiled code. The only module that asks torch for a
device."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Literal

from strobe.core.errors import ConfigError, ImplUnavailableError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """Properties of a GPU that decide what runs on it; plain values, so that a test can make up any GPU.

    Args:
        vendor: who made it; empty for a device that is no GPU.
        architecture: as compilers name it, such as `sm_90` or `gfx942`.
        capability: compute capability of an NVIDIA GPU; (0, 0) of any other device. AMD's driver reports numbers of its own
            under the same name: (9, 0) is an MI250 there.
        name: as the driver gives it.
        shared_bytes: shared memory that one program may take.
    """

    vendor: Literal["nvidia", "amd", ""] = ""
    architecture: str = ""
    capability: tuple[int, int] = (0, 0)
    name: str = ""
    shared_bytes: int = 0

    def __str__(self) -> str:
        if self.vendor == "nvidia":
            return f"compute capability {self.capability[0]}.{self.capability[1]}"
        return self.architecture or "no GPU"


NO_GPU: Final = Card()
"""A CPU, and every other device that is no GPU."""


def card_of(device: torch.device) -> Card:
    """Describe a GPU; `NO_GPU` for any other device."""
    return _card(device.index or 0) if device.type == "cuda" else NO_GPU


@cache
def _card(index: int) -> Card:
    import torch

    if not torch.cuda.is_available():
        return NO_GPU
    found = torch.cuda.get_device_properties(index)
    amd = torch.version.hip is not None
    return Card(
        vendor="amd" if amd else "nvidia",
        architecture=found.gcnArchName.partition(":")[0] if amd else f"sm_{found.major}{found.minor}",
        capability=(0, 0) if amd else (found.major, found.minor),
        name=found.name,
        shared_bytes=found.shared_memory_per_block if amd else found.shared_memory_per_block_optin,  # type: ignore[attr-defined]
    )


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
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise ImplUnavailableError(name, f"this machine has {count} CUDA device(s)", ["cpu", "cuda:0"], what="device")
        return torch.device("cuda", device.index or 0)
    if device.type != "cpu":
        raise ConfigError(f"device {name!r} is not supported; allowed: auto, cpu, cuda, cuda:N")
    return device


def gpus_in_use() -> tuple[torch.device, ...]:
    """Return the GPUs that this process has used: the current one first, then those with tensors.

    There are none if CUDA is not initialised; asking does not initialise it.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ()
    current = torch.cuda.current_device()
    others = (index for index in range(torch.cuda.device_count()) if index != current and torch.cuda.memory_reserved(index))
    return tuple(torch.device("cuda", index) for index in (current, *others))


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor from the CPU to a device without waiting; to a GPU it goes from pinned memory.

    Torch does not reuse that memory before the copy has arrived.
    """
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


_PIECE: Final = 1 << 23
"""Bytes of pinned memory that a thread moves at a time."""


def uploaded(tensors: Mapping[str, torch.Tensor], device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Copy tensors from the CPU to a device and dtype; on return they are there.

    Threads read what is to go to a GPU into pinned memory, while what was read before travels: memory that is not pinned, such as
    the file behind a tensor, CUDA reads with one core. A GPU also converts. Half of the cores read: they are not the only ones
    that begin to work with new weights.
    """
    import torch

    with torch.inference_mode(False):  # what an inference makes, nobody could write to, the threads below among them
        if device.type != "cuda":
            return {name: tensor.detach().to(device, dtype, copy=True) for name, tensor in tensors.items()}
        found = {name: torch.empty(tensor.shape, dtype=dtype, device=device) for name, tensor in tensors.items()}
    number = max(1, min(8, (os.cpu_count() or 1) // 2))
    pinned = torch.empty(2 * number, _PIECE, dtype=torch.uint8, device="cpu", pin_memory=True)
    streams = [torch.cuda.Stream(device) for _ in pinned]
    free = SimpleQueue[tuple[torch.Tensor, torch.cuda.Stream]]()
    for piece, stream in zip(pinned, streams, strict=True):
        stream.wait_stream(torch.cuda.current_stream(device))
        free.put((piece, stream))

    def move(source: torch.Tensor, target: torch.Tensor) -> None:
        piece, stream = free.get()
        try:
            stream.synchronize()
            there = piece[: source.nbytes]
            there.numpy()[:] = source.view(torch.uint8).numpy()
            with torch.no_grad(), torch.cuda.stream(stream):
                there = there.view(source.dtype)
                target.copy_(there if source.dtype == dtype else there.to(device, non_blocking=True), non_blocking=True)
        finally:
            free.put((piece, stream))

    with ThreadPoolExecutor(number, "strobe-upload") as pool:
        moves = []
        for name, tensor in tensors.items():
            length = _PIECE // tensor.element_size()
            parts = (each.reshape(-1).split(length) for each in (tensor.detach().cpu(), found[name]))
            moves += [pool.submit(move, *each) for each in zip(*parts, strict=True)]
        for each in moves:
            each.result()
    for stream in streams:
        stream.synchronize()
    return found


def synchronize(device: torch.device) -> None:
    """Wait for all work on the device; does nothing on a CPU."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


_LOCK: Final = threading.Lock()
_STANCES: Final[list[Any]] = []


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run what is compiled uncompiled until the last that is inside leaves: torch has one stance for every thread."""
    import torch

    with _LOCK:
        _STANCES.append(_STANCES[0] if _STANCES else torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        with _LOCK:
            stance = _STANCES.pop()
            if not _STANCES:
                stance.__exit__(None, None, None)


GIB: Final = 1 << 30
_TOLD: Final = Path("/proc/meminfo")


def total_bytes() -> int | None:
    """Return the size of the main memory, bytes; None where no Linux tells."""
    return _field("MemTotal")


def available_bytes() -> int | None:
    """Return the bytes of main memory that can be allocated without swapping; None where no Linux tells."""
    return _field("MemAvailable")


def _field(name: str) -> int | None:
    try:
        lines = _TOLD.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)
