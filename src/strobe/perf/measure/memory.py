"""Memory of this process: the peak over a clip, and the amount held at a moment."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from strobe.perf.records.record import Clip, Memory

if TYPE_CHECKING:
    import torch

_STATUS: Final = Path("/proc/self/status")
_CLEAR_REFS: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"


def reset_peak(device: torch.device) -> None:
    """Reset the memory peak. Where the kernel does not allow it on a CPU, the peak stays that of the whole process."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:
        return


def peak_bytes(device: torch.device) -> int:
    """Return the peak since `reset_peak`, bytes: allocated by torch on the GPU, or the resident set of this process."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    peak = _status("VmHWM:")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if peak is None else peak


class Held(NamedTuple):
    """Memory that a process holds, bytes: resident on the host, allocated and reserved on the GPU; None if unknown or no GPU."""

    resident_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None


def held(device: torch.device) -> Held:
    """Return the memory that this process holds now, without waiting for the device."""
    resident = _status("VmRSS:")
    if device.type != "cuda":
        return Held(resident, None, None)
    import torch

    return Held(resident, torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device))


def memory_records(clip: Clip, own: Sequence[Held | None]) -> tuple[Memory, ...]:
    """Return a record for each frame block of a clip after which the memory was read."""
    return tuple(
        Memory(
            variant=clip.variant, clip=clip.clip, frame_block=number, resident_bytes=each.resident_bytes,
            allocated_bytes=each.allocated_bytes, reserved_bytes=each.reserved_bytes,
        )
        for number, each in enumerate(own) if each is not None
    )  # fmt: skip


def _status(name: str) -> int | None:
    """Return one size from `/proc/self/status`, bytes; None if it is not there."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)
