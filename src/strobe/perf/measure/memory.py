"""Peak memory of a clip: device memory on a GPU, resident set on a CPU."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

_STATUS: Final = Path("/proc/self/status")
_CLEAR_REFS: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"


def reset_peak(device: torch.device) -> None:
    """Start a new peak. Where a CPU's kernel does not allow it, the peak is that of the process so far."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:
        return


def peak_bytes(device: torch.device) -> int:
    """Return the peak since `reset_peak`: bytes that torch allocated on the GPU, or the resident set of this process."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
