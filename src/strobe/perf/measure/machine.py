"""The machine under a measurement: its facts, clocks, power and memory."""

from __future__ import annotations

import functools
import importlib
import platform
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec.structs import replace

import strobe
from strobe.core.device import total_bytes
from strobe.core.libraries import broken
from strobe.core.settings import read_settings
from strobe.perf.records import record
from strobe.perf.records.record import Clocks, GpuState, Header, Machine, RunKind

if TYPE_CHECKING:
    import torch


# GPU readings and settings through `nvidia-ml-py`, which is imported when first used; None where it is absent or refuses.

IDLE: Final = 0x001
"""Bit of the clock event reasons: nothing runs, and clocks fall for that reason alone."""
REASONS: Final = {
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Names of the other bits of the clock event reasons, which hold clocks down."""


Ask = Callable[..., Any]
"""Answers a query of NVML about one GPU, by its name and that of a constant; None where the driver has no answer."""


@functools.cache
def open_gpu(uuid: str) -> Ask | None:
    """Open a GPU by its UUID; None if `nvidia-ml-py` is not installed or the driver does not know the GPU."""
    if broken("pynvml"):
        return None
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        return None

    def ask(query: str, *constants: str) -> Any:
        try:
            return getattr(nvml, f"nvmlDeviceGet{query}")(handle, *(getattr(nvml, f"NVML_{each}") for each in constants))
        except nvml.NVMLError:
            return None

    return ask


def _driver(uuid: str) -> str | None:
    """Return the version of the driver; None where NVML is absent or refuses."""
    return None if open_gpu(uuid) is None else importlib.import_module("pynvml").nvmlSystemGetDriverVersion()


def _reading(ask: Ask) -> Clocks:
    """Read clocks, power, temperature and throttle reasons, in five short calls that release the interpreter's lock."""
    began = time.perf_counter_ns()
    sm, memory = ask("ClockInfo", "CLOCK_SM"), ask("ClockInfo", "CLOCK_MEM")
    power, temperature = ask("PowerUsage"), ask("Temperature", "TEMPERATURE_GPU")
    reasons = ask("CurrentClocksThrottleReasons") or 0
    return Clocks(
        source="nvml",
        sm_mhz=sm,
        memory_mhz=memory,
        power_mw=power,
        temperature_c=temperature,
        throttle=tuple(name for bit, name in REASONS.items() if reasons & bit),
        idle_samples=int(bool(reasons & IDLE)),
        read_ns=time.perf_counter_ns() - began,
    )


# Readings of CPU and GPU clocks and of the thermal state, as far as this machine reports them.

PERIOD_S: Final = 0.02
"""Time between two readings while a clip runs. They are taken on a thread of their own; `read_ns` of a clip says for how long."""
LAP_S: Final = 0.002
"""The same while a few calls run."""
THERMAL: Final = frozenset({"sw_thermal_slowdown", "hw_thermal_slowdown"})
"""Throttle reasons that disqualify a clip: a hot GPU slows the code down."""
COOL_S: Final = 60.0
"""Longest wait for a hot GPU to cool, s."""


def gpu_uuid(device: torch.device) -> str:
    """Return the UUID of a CUDA device as NVML spells it (an index may be hidden or reordered)."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def read_clocks(device: torch.device) -> Clocks:
    """Read the current clocks; those of the CPU alone where there is no GPU, or no NVML."""
    gpu = None if device.type != "cuda" else open_gpu(gpu_uuid(device))
    return _host() if gpu is None else _by_nvml([_reading(gpu)], during_clip=False)


def gpu_state(device: torch.device) -> GpuState | None:
    """Return the settings of a GPU (persistence, MIG, power limit, highest clock), null without NVML; None on a CPU."""
    if device.type != "cuda":
        return None
    ask = open_gpu(gpu_uuid(device))
    if ask is None:
        return GpuState()
    persistence, mig = ask("PersistenceMode"), ask("MigMode")
    return GpuState(
        persistence=None if persistence is None else bool(persistence),
        mig=None if mig is None else bool(mig[0]),
        power_limit_mw=ask("EnforcedPowerLimit"),
        max_sm_mhz=ask("MaxClockInfo", "CLOCK_SM"),
    )


class ClockSampler:
    """Sampler of a GPU's clocks while a clip runs: `with ClockSampler(device) as sampler: ...`, then `sampler.clocks()`.

    A separate thread takes the readings, every `PERIOD_S`. The clip's own thread could only read after the last frames, when the
    GPU is idle and its clocks fall, or during the measured time. The thread releases the interpreter's lock while the driver
    answers; `read_ns` in the record is an upper bound of its cost.

    On a CPU, and on a GPU without NVML, no thread runs, and the clocks are read after the clip.

    Args:
        device: of the clip.
        lap: a few calls instead of a clip: read every `LAP_S`, and at their end if they were shorter, while the clock is still
            theirs; without the energy, whose counter is too coarse for them.
    """

    def __init__(self, device: torch.device, *, lap: bool = False) -> None:
        self._device = device
        self._lap = lap
        self._gpu: Ask | None = None if device.type != "cuda" else open_gpu(gpu_uuid(device))
        self._readings: list[Clocks] = []
        self._energy_mj: list[int | None] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._gpu is not None:
            if not self._lap:
                self._energy_mj.append(self._gpu("TotalEnergyConsumption"))
            self._thread = threading.Thread(target=self._run, args=(self._gpu,), name="strobe-clocks", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._gpu is not None and not self._lap:
            self._energy_mj.append(self._gpu("TotalEnergyConsumption"))
        elif self._gpu is not None and not self._readings:
            self._readings.append(_reading(self._gpu))

    def sampled(self) -> Clocks | None:
        """Return the clocks over the clip; None if there were no readings (a short clip, or no NVML)."""
        return _by_nvml(self._readings, during_clip=True) if self._readings else None

    def clocks(self) -> Clocks:
        """Return the clocks over the clip; the current clocks if there were no readings."""
        found = self.sampled() or read_clocks(self._device)
        began, ended = self._energy_mj or (None, None)
        return found if began is None or ended is None else replace(found, energy_mj=ended - began)

    def _run(self, gpu: Ask) -> None:
        while not self._stop.wait(LAP_S if self._lap else PERIOD_S):
            self._readings.append(_reading(gpu))


def cool_down(device: torch.device) -> bool:
    """Wait until a GPU is no longer slowed by heat; False if it still is after `COOL_S` seconds."""
    until = time.monotonic() + COOL_S
    while THERMAL & set(read_clocks(device).throttle):
        if time.monotonic() >= until:
            return False
        time.sleep(1.0)
    return True


def _host() -> Clocks:
    cpu_mhz = record.cpu_mhz()
    source = "none" if cpu_mhz is None else "kernel"
    return Clocks(source=source, cpu_mhz=cpu_mhz, governor=record.cpu_governor(), load=record.load_average())


def _by_nvml(readings: Sequence[Clocks], *, during_clip: bool) -> Clocks:
    """Summarise NVML readings; clocks come from busy readings, or from idle ones if the GPU was never busy."""
    busy = [reading for reading in readings if not reading.idle_samples] or list(readings)
    sm = [reading.sm_mhz for reading in busy if reading.sm_mhz is not None]
    memory = [reading.memory_mhz for reading in busy if reading.memory_mhz is not None]
    power = [reading.power_mw for reading in readings if reading.power_mw is not None]
    found = replace(
        _host(),
        source="nvml",
        sm_mhz=round(statistics.median(sm)) if sm else None,
        memory_mhz=round(statistics.median(memory)) if memory else None,
        power_mw=round(statistics.fmean(power)) if power else None,
        temperature_c=max((reading.temperature_c for reading in readings if reading.temperature_c is not None), default=None),
        throttle=tuple(name for name in REASONS.values() if any(name in reading.throttle for reading in readings)),
    )
    if not during_clip:
        return found
    return replace(
        found,
        samples=len(readings),
        idle_samples=sum(reading.idle_samples or 0 for reading in readings),
        sm_mhz_min=min(sm, default=None),
        sm_mhz_max=max(sm, default=None),
        read_ns=sum(reading.read_ns or 0 for reading in readings),
    )


# Memory of this process: the peak over a clip, and the amount held at a moment.

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


HeldMemory = Mapping[str, Any]
"""Memory that a process holds, bytes, by the keys of a `Memory` record; None if unknown or no GPU."""


def held(device: torch.device) -> HeldMemory:
    """Return the memory that this process holds now, without waiting for the device."""
    resident = {"resident_bytes": _status("VmRSS:")}
    if device.type != "cuda":
        return resident
    import torch

    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    return {**resident, "allocated_bytes": allocated, "reserved_bytes": reserved}


def _status(name: str) -> int | None:
    """Return one size from `/proc/self/status`, bytes; None if it is not there."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)


# The header of a run: the code, the machine and the time it began.


def describe_machine(device: torch.device) -> Machine:
    """Return device, driver, versions, cores, threads and clocks; what cannot be read is null."""
    import torch

    cuda = device.type == "cuda"
    gpu = torch.cuda.get_device_properties(device) if cuda else None
    name, settings = record.cpu_name(), read_settings()
    return Machine(
        device=str(device),
        device_name=gpu.name if gpu is not None else name,
        gpu_count=torch.cuda.device_count(),
        gpu_memory_bytes=gpu.total_memory if gpu is not None else None,
        driver=_driver(gpu_uuid(device)) if cuda else None,
        cuda=torch.version.cuda,
        torch=str(torch.__version__),
        python=platform.python_version(),
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu_name=name,
        cores=record.cpu_cores(),
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
        order: variants of one palindrome, the baseline first (`strobe.perf.measure.timing`).
    """
    return Header(
        run=folder.name,
        kind=kind,
        date=utc_now(),
        strobe=strobe.__version__,
        git=record.git_state(Path(strobe.__file__)),
        argv=tuple(sys.argv),
        machine=describe_machine(device),
        baseline=order[0],
        order=order,
        palindromes=palindromes,
    )


def utc_now() -> str:
    """Return the current time in UTC as ISO 8601, in whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
