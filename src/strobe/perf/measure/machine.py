"""The header of a run: the code, the machine and the time it began."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import strobe
from strobe.core.main_memory import total_bytes
from strobe.core.settings import read_settings
from strobe.perf.measure.clocks import gpu_state, gpu_uuid, read_clocks
from strobe.perf.records import environment
from strobe.perf.records.record import Header, Machine, RunKind

if TYPE_CHECKING:
    import torch


def describe_machine(device: torch.device) -> Machine:
    """Return device, driver, versions, cores, threads and clocks; what cannot be read is null."""
    import torch

    cuda = device.type == "cuda"
    gpu = torch.cuda.get_device_properties(device) if cuda else None
    (driver,) = environment.nvidia_smi(gpu_uuid(device), ("driver_version",)) if cuda else (None,)
    name, settings = environment.cpu_name(), read_settings()
    return Machine(
        device=str(device),
        device_name=gpu.name if gpu is not None else name,
        gpu_count=torch.cuda.device_count(),
        gpu_memory_bytes=gpu.total_memory if gpu is not None else None,
        driver=driver,
        cuda=torch.version.cuda,
        torch=str(torch.__version__),
        python=platform.python_version(),
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu_name=name,
        cores=environment.cpu_cores(),
        threads=torch.get_num_threads(),
        memory_bytes=total_bytes(),
        clocks=read_clocks(device),
        launch_blocking=settings.launch_blocking,
        cublaslt_workspace_kib=settings.cublaslt_workspace if cuda else None,
        gpu=gpu_state(device),
    )


def describe_run(folder: Path, device: torch.device, order: tuple[str, ...], palindromes: int, kind: RunKind) -> Header:
    """Return the header of a run that begins now; model and workload are for the caller to add.

    Args:
        folder: the run folder; its name is the run's name.
        order: variants of one palindrome, the baseline first (`strobe.perf.measure.order`).
        palindromes: how many are planned.
        kind: what is measured.
    """
    return Header(
        run=folder.name,
        kind=kind,
        date=utc_now(),
        strobe=strobe.__version__,
        git=environment.git_state(Path(strobe.__file__)),
        argv=tuple(sys.argv),
        machine=describe_machine(device),
        baseline=order[0],
        order=order,
        palindromes=palindromes,
    )


def utc_now() -> str:
    """Return the current time in UTC as ISO 8601, in whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
