"""Main memory, read from a table in the manner of Linux."""

from __future__ import annotations

from pathlib import Path

import pytest

from strobe.core import main_memory


def test_sizes_are_read_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "meminfo"
    monkeypatch.setattr(main_memory, "_TOLD", told)
    assert (main_memory.total_bytes(), main_memory.available_bytes()) == (None, None)
    told.write_text("MemTotal:       24096000 kB\nMemFree:         1000 kB\nMemAvailable:   22000001 kB\n")
    assert main_memory.total_bytes() == 24_096_000 * 1024
    assert main_memory.available_bytes() == 22_000_001 * 1024
    told.write_text("MemTotal:       24096000 kB\n")  # an old kernel
    assert main_memory.available_bytes() is None
