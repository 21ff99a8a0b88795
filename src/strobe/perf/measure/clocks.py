"""Clocks and thermal state, as far as this machine tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from strobe.perf.records import environment
from strobe.perf.records.record import Clocks

if TYPE_CHECKING:
    import torch

_FIELDS: Final = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "clocks_throttle_reasons.active")
_THROTTLE: Final = {
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Bits of NVML's clock event reasons; 0x1 is an idle GPU, which is none."""


def gpu_uuid(device: torch.device) -> str:
    """Return the UUID of a CUDA device as `nvidia-smi` spells it (an index may be hidden or reordered)."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def read_clocks(device: torch.device) -> Clocks:
    """Return the clocks now; takes up to a tenth of a second on a GPU, so call it between clips."""
    cpu_mhz, governor, load = environment.cpu_mhz(), environment.cpu_governor(), environment.load_average()
    if device.type != "cuda":
        return Clocks(source="none" if cpu_mhz is None else "kernel", cpu_mhz=cpu_mhz, governor=governor, load=load)
    sm, memory, power, temperature, reasons = environment.nvidia_smi(gpu_uuid(device), _FIELDS)
    active = int(reasons, 16) if reasons else 0
    return Clocks(
        source="none" if sm is None else "nvidia-smi",
        cpu_mhz=cpu_mhz,
        governor=governor,
        load=load,
        sm_mhz=int(sm) if sm else None,
        memory_mhz=int(memory) if memory else None,
        power_mw=round(float(power) * 1000) if power else None,
        temperature_c=int(temperature) if temperature else None,
        throttle=tuple(name for bit, name in _THROTTLE.items() if active & bit),
    )
