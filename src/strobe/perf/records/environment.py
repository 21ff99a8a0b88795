"""Facts of this machine and this checkout for the header, without torch. Nothing here fails: what cannot be read is null."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Final

from strobe.perf.records.record import Git

_TIMEOUT_S: Final = 5.0


def git_state(file: Path) -> Git:
    """Return the commit of the checkout that tracks `file`, and whether its tracked files differ from that commit."""
    git = ["git", "-C", str(file.parent)]
    commit = _output([*git, "rev-parse", "HEAD"])
    if commit is None or _output([*git, "ls-files", "--error-unmatch", file.name]) is None:
        return Git(commit=None, dirty=None)
    changed = _output([*git, "status", "--porcelain", "--untracked-files=no"])
    return Git(commit=commit, dirty=None if changed is None else bool(changed))


def cpu_name() -> str:
    """Return the model name of the CPU."""
    for line in _text("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Hardware", "cpu model"):
            return value.strip()
    return platform.processor() or platform.machine()


def cpu_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_mhz() -> int | None:
    """Return the mean current clock of the CPU cores, MHz; None if this machine does not report it."""
    paths = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
    clocks = [int(text) / 1000 for text in map(_text, paths) if text]
    if not clocks:
        fields = (line.partition(":") for line in _text("/proc/cpuinfo").splitlines())
        clocks = [float(value) for key, _, value in fields if key.strip() == "cpu MHz"]
    return round(sum(clocks) / len(clocks)) if clocks else None


def cpu_governor() -> str | None:
    """Return the frequency governor of the first core; None if this machine does not report it."""
    return _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None


def load_average() -> float | None:
    """Return the 1-minute load average; None if this machine does not report it."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def nvidia_smi(gpu: str, fields: tuple[str, ...]) -> tuple[str | None, ...]:
    """Query `nvidia-smi` for `--query-gpu` fields of one GPU (UUID); None for each field that cannot be read."""
    query = ["nvidia-smi", f"--id={gpu}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    line = _output(query)
    values = [value.strip() for value in line.splitlines()[0].split(",")] if line else []
    if len(values) != len(fields):
        return (None,) * len(fields)
    return tuple(None if value.startswith("[") or value == "N/A" else value for value in values)


def _output(command: list[str]) -> str | None:
    """Return what a command prints, or None if it is absent, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
