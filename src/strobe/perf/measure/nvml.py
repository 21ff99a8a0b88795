"""GPU readings and settings through `nvidia-ml-py`, which is imported when first used; None where it is absent or refuses."""

from __future__ import annotations

import functools
import importlib
import time
from dataclasses import dataclass
from typing import Any, Final

from strobe.core.libraries import broken
from strobe.perf.records.clocks import GpuState

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """State of a GPU at one moment; None where the driver does not report a value.

    Args:
        reasons: bits of the clock event reasons.
        read_ns: how long the reading took.
    """

    sm_mhz: int | None
    memory_mhz: int | None
    power_mw: int | None
    temperature_c: int | None
    reasons: int
    read_ns: int

    @property
    def idle(self) -> bool:
        """Whether the GPU had nothing to do."""
        return bool(self.reasons & IDLE)


class Gpu:
    """One GPU as NVML sees it. A query that the driver does not answer gives None, never an error."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def read(self) -> Reading:
        """Read clocks, power, temperature and throttle reasons, in five short calls that release the interpreter's lock."""
        nvml, began = self._nvml, time.perf_counter_ns()
        sm, memory = (self._ask("nvmlDeviceGetClockInfo", kind) for kind in (nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM))
        power = self._ask("nvmlDeviceGetPowerUsage")
        temperature = self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return Reading(
            sm_mhz=sm,
            memory_mhz=memory,
            power_mw=power,
            temperature_c=temperature,
            reasons=reasons or 0,
            read_ns=time.perf_counter_ns() - began,
        )

    def energy_mj(self) -> int | None:
        """Read the counter of the energy taken since the driver was loaded, mJ; None: the GPU has none."""
        found: int | None = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return found

    def state(self) -> GpuState:
        """Return the settings of the GPU: persistence, MIG, power limit, highest clock."""
        persistence = self._ask("nvmlDeviceGetPersistenceMode")
        mig = self._ask("nvmlDeviceGetMigMode")
        return GpuState(
            persistence=None if persistence is None else bool(persistence),
            mig=None if mig is None else bool(mig[0]),
            power_limit_mw=self._ask("nvmlDeviceGetEnforcedPowerLimit"),
            max_sm_mhz=self._ask("nvmlDeviceGetMaxClockInfo", self._nvml.NVML_CLOCK_SM),
        )

    def _ask(self, question: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, question)(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None


@functools.cache
def open_gpu(uuid: str) -> Gpu | None:
    """Open a GPU by its UUID; None if `nvidia-ml-py` is not installed or the driver does not know the GPU."""
    if broken("pynvml"):
        return None
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        return Gpu(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))
    except nvml.NVMLError:
        return None
