"""Size and free part of the main memory, as Linux reports them; None on other systems."""

from __future__ import annotations

from pathlib import Path
from typing import Final

GIB: Final = 1 << 30
_TOLD: Final = Path("/proc/meminfo")


def total_bytes() -> int | None:
    """Return the size of the main memory, bytes."""
    return _field("MemTotal")


def available_bytes() -> int | None:
    """Return the bytes that can be allocated without swapping."""
    return _field("MemAvailable")


def _field(name: str) -> int | None:
    try:
        lines = _TOLD.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)
