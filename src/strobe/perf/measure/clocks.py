"""Readings of CPU and GPU clocks and of the thermal state, as far as this machine reports them."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from msgspec.structs import replace

from strobe.perf.measure.nvml import REASONS, Gpu, Reading, open_gpu
from strobe.perf.records import environment
from strobe.perf.records.clocks import Clocks, GpuState

if TYPE_CHECKING:
    import torch

PERIOD_S: Final = 0.02
"""Time between two readings while a clip runs. They are taken on a thread of their own; `read_ns` of a clip says for how long."""
THERMAL: Final = frozenset({"sw_thermal_slowdown", "hw_thermal_slowdown"})
"""Throttle reasons that disqualify a clip: a hot GPU slows the code down."""
COOL_S: Final = 60.0
"""Longest wait for a hot GPU to cool, s."""

_SMI_FIELDS: Final = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "clocks_throttle_reasons.active")
_SMI_STATE: Final = ("persistence_mode", "mig.mode.current", "enforced.power.limit", "clocks.max.sm")


def gpu_uuid(device: torch.device) -> str:
    """Return the UUID of a CUDA device as NVML and `nvidia-smi` spell it (an index may be hidden or reordered)."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def read_clocks(device: torch.device) -> Clocks:
    """Read the current clocks. Without NVML this takes up to 0.1 s on a GPU, so call it between clips."""
    if device.type != "cuda":
        return _host()
    gpu = open_gpu(gpu_uuid(device))
    return _by_smi(gpu_uuid(device)) if gpu is None else _by_nvml([gpu.read()], during_clip=False)


def gpu_state(device: torch.device) -> GpuState | None:
    """Return the settings of a GPU (persistence, MIG, power limit, highest clock); None on a CPU."""
    if device.type != "cuda":
        return None
    gpu = open_gpu(gpu_uuid(device))
    if gpu is not None:
        return gpu.state()
    persistence, mig, limit, highest = environment.nvidia_smi(gpu_uuid(device), _SMI_STATE)
    return GpuState(
        persistence=None if persistence is None else persistence == "Enabled",
        mig=None if mig is None else mig == "Enabled",
        power_limit_mw=round(float(limit) * 1000) if limit else None,
        max_sm_mhz=int(highest) if highest else None,
    )


class ClockSampler:
    """Sampler of a GPU's clocks while a clip runs: `with ClockSampler(device) as sampler: ...`, then `sampler.clocks()`.

    A separate thread takes the readings, every `PERIOD_S`. The clip's own thread could only read after the last frames, when the
    GPU is idle and its clocks fall, or during the measured time. The thread releases the interpreter's lock while the driver
    answers; `read_ns` in the record is an upper bound of its cost.

    On a CPU, and on a GPU without NVML, no thread runs, and the clocks are read after the clip.

    Args:
        device: of the clip.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._gpu: Gpu | None = None if device.type != "cuda" else open_gpu(gpu_uuid(device))
        self._readings: list[Reading] = []
        self._energy_mj: list[int | None] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._gpu is not None:
            self._energy_mj.append(self._gpu.energy_mj())
            self._thread = threading.Thread(target=self._run, args=(self._gpu,), name="strobe-clocks", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._gpu is not None:
            self._energy_mj.append(self._gpu.energy_mj())

    def clocks(self) -> Clocks:
        """Return the clocks over the clip; the current clocks if there were no readings (a short clip, or no NVML)."""
        found = _by_nvml(self._readings, during_clip=True) if self._readings else read_clocks(self._device)
        began, ended = self._energy_mj or (None, None)
        return found if began is None or ended is None else replace(found, energy_mj=ended - began)

    def _run(self, gpu: Gpu) -> None:
        while not self._stop.wait(PERIOD_S):
            self._readings.append(gpu.read())


def cool_down(device: torch.device, longest_s: float = COOL_S) -> bool:
    """Wait until a GPU is no longer slowed by heat; False if it still is after `longest_s` seconds."""
    until = time.monotonic() + longest_s
    while THERMAL & set(read_clocks(device).throttle):
        if time.monotonic() >= until:
            return False
        time.sleep(min(1.0, longest_s))
    return True


def _host() -> Clocks:
    """Return the clock, governor and load of the CPU."""
    cpu_mhz = environment.cpu_mhz()
    source = "none" if cpu_mhz is None else "kernel"
    return Clocks(source=source, cpu_mhz=cpu_mhz, governor=environment.cpu_governor(), load=environment.load_average())


def _by_nvml(readings: Sequence[Reading], *, during_clip: bool) -> Clocks:
    """Summarise NVML readings; clocks come from busy readings, or from idle ones if the GPU was never busy."""
    busy = [reading for reading in readings if not reading.idle] or list(readings)
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
        throttle=_throttle(*(reading.reasons for reading in readings)),
    )
    if not during_clip:
        return found
    return replace(
        found,
        samples=len(readings),
        idle_samples=sum(reading.idle for reading in readings),
        sm_mhz_min=min(sm, default=None),
        sm_mhz_max=max(sm, default=None),
        read_ns=sum(reading.read_ns for reading in readings),
    )


def _by_smi(uuid: str) -> Clocks:
    sm, memory, power, temperature, reasons = environment.nvidia_smi(uuid, _SMI_FIELDS)
    return replace(
        _host(),
        source="none" if sm is None else "nvidia-smi",
        sm_mhz=int(sm) if sm else None,
        memory_mhz=int(memory) if memory else None,
        power_mw=round(float(power) * 1000) if power else None,
        temperature_c=int(temperature) if temperature else None,
        throttle=_throttle(int(reasons, 16) if reasons else 0),
    )


def _throttle(*reasons: int) -> tuple[str, ...]:
    return tuple(name for bit, name in REASONS.items() if any(each & bit for each in reasons))
