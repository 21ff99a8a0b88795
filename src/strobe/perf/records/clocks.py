"""Record structs of a machine's clocks and of a GPU's settings."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from strobe.perf.records.base import Part


class Clocks(Part, frozen=True, kw_only=True):
    """Clocks and thermal state at one moment, or of a GPU over a clip; null where this machine does not report them."""

    source: Annotated[str, Meta(description="where the values come from: `kernel` (CPU only), `nvml`, `nvidia-smi`, `none`")]
    cpu_mhz: Annotated[int | None, Meta(description="mean current clock of the CPU cores, MHz")] = None
    governor: Annotated[str | None, Meta(description="CPU frequency governor")] = None
    load: Annotated[float | None, Meta(description="1-minute load average of the machine")] = None
    sm_mhz: Annotated[int | None, Meta(description="SM clock, MHz; over a clip: median of the busy readings")] = None
    memory_mhz: Annotated[int | None, Meta(description="GPU memory clock, MHz; over a clip: median")] = None
    power_mw: Annotated[int | None, Meta(description="GPU power draw, mW; over a clip: mean")] = None
    temperature_c: Annotated[int | None, Meta(description="GPU temperature, degrees Celsius; over a clip: highest")] = None
    throttle: Annotated[tuple[str, ...], Meta(description="active GPU throttle reasons; over a clip: of any reading")] = ()
    samples: Annotated[int | None, Meta(description="readings while the clip ran; null: one reading, not while a clip ran")] = (
        None
    )
    idle_samples: Annotated[int | None, Meta(description="of these, readings of an idle GPU; no part of `sm_mhz`")] = None
    sm_mhz_min: Annotated[int | None, Meta(description="lowest SM clock of the busy readings, MHz")] = None
    sm_mhz_max: Annotated[int | None, Meta(description="highest SM clock of the busy readings, MHz")] = None
    read_ns: Annotated[
        int | None, Meta(description="time the readings took in all, on a thread of their own: what observing cost at most, ns")
    ] = None


class GpuState(Part, frozen=True, kw_only=True):
    """Settings of a GPU (persistence, MIG, power limit, highest clock); null where the driver does not report them."""

    persistence: Annotated[bool | None, Meta(description="persistence mode is on")] = None
    mig: Annotated[bool | None, Meta(description="the GPU is split into instances (MIG)")] = None
    power_limit_mw: Annotated[int | None, Meta(description="enforced power limit, mW")] = None
    max_sm_mhz: Annotated[int | None, Meta(description="highest SM clock, MHz")] = None
