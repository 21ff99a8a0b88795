"""Load and topology of this machine, and the ranks that it holds."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from strobe.bench.tree.request import RankedCall
from strobe.core.device import GIB, available_bytes
from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.perf.records.record import cpu_cores, cpu_name

RANKS_A_CORE: Final = 8
RANK_BYTES: Final = GIB // 2
"""Main memory of a rank on a CPU, torch included, beside its tensors."""


def check_ranks(shapes: Sequence[RankedCall]) -> None:
    """Refuse cells with more ranks than this machine holds, before any of them starts.

    Raises:
        ImplUnavailableError: more GPUs are needed than there are.
        ConfigError: more ranks on a CPU than 8 for each core, or than one for each 0.5 GiB of free memory.
    """
    gpus = max((shape.world_size for shape in shapes if shape.device == "cuda"), default=0)
    if gpus:
        _check_gpus(gpus)
    ranks = max((shape.world_size for shape in shapes if shape.device == "cpu"), default=0)
    free = available_bytes()
    held = RANKS_A_CORE * cpu_cores() if free is None else min(RANKS_A_CORE * cpu_cores(), free // RANK_BYTES)
    if ranks > max(1, held):
        raise ConfigError(
            f"world_size: got {ranks}, this machine holds {held} ranks ({RANKS_A_CORE} for each of {cpu_cores()} cores, "
            "one for each 0.5 GiB of free memory); give fewer"
        )


def _check_gpus(ranks: int) -> None:
    there = torch.cuda.device_count()
    if ranks > there:
        found = f"{there} CUDA device{'s' * (there != 1)}" if there else "no CUDA device"
        others = ([f"--world-size {there}"] if there else []) + ["--device cpu"]
        reason = f"each rank takes a GPU, {ranks} in all, and torch sees {found} here"
        raise ImplUnavailableError("cuda", reason, others, what="device")


def busy_cores(seconds: float) -> float:
    """Return the cores that other processes keep busy, mean over that time; 0 where the system does not tell."""
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()
    total, idle = after[0] - before[0], after[1] - before[1]
    online = sum(1 for _ in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology")) or cpu_cores()
    return max(0.0, (1 - idle / total) * online) if total > 0 else 0.0


def _ticks() -> tuple[int, int]:
    """Return all ticks and idle ticks since the start of the system."""
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    except OSError:
        return 0, 0
    ticks = [int(each) for each in line]
    return sum(ticks), ticks[3] + ticks[4]


def topology(device: str) -> str:
    """Return cores and memory nodes; for GPUs the links that `nvidia-smi topo -m` prints."""
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
