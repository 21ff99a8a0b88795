"""What else this machine does, and how it is built."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from strobe.perf.records.environment import cpu_cores, cpu_name


def busy_cores(seconds: float) -> float:
    """Cores that others keep busy, mean over that time; 0 where the system does not tell."""
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()
    total, idle = after[0] - before[0], after[1] - before[1]
    return max(0.0, (1 - idle / total) * _online()) if total > 0 else 0.0


def _ticks() -> tuple[int, int]:
    """All ticks and idle ones since the start of the system."""
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    except OSError:
        return 0, 0
    ticks = [int(each) for each in line]
    return sum(ticks), ticks[3] + ticks[4]


def _online() -> int:
    return sum(1 for _ in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology")) or cpu_cores()


def topology(device: str) -> str:
    """Cores and memory nodes; for GPUs what `nvidia-smi topo -m` says of their links."""
    nodes = [
        f"node {place.name.removeprefix('node')}: cores {(place / 'cpulist').read_text(encoding='ascii').strip()}"
        for place in sorted(Path("/sys/devices/system/node").glob("node[0-9]*"))
    ]
    text = "\n".join([f"{cpu_name()}, {cpu_cores()} cores usable", *nodes]) + "\n"
    if device == "cuda":
        try:
            links = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=10, check=True).stdout
        except (OSError, subprocess.SubprocessError) as error:
            links = f"nvidia-smi topo -m: {error}\n"
        text += re.sub(r"\x1b\[[0-9;]*m", "", links)  # it underlines its header, terminal or not
    return text
