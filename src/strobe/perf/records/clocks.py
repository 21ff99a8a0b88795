"""Record structs of a machine's clocks and of a GPU's settings."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from strobe.perf.records.base import RecordPart


class Clocks(RecordPart, frozen=True, kw_only=True):
    """Clocks and thermal state at one moment, or of a GPU during a clip; null where the machine does not report a value."""

    source: Annotated[str, Meta(description="source of the values: `nvml`, `nvidia-smi`, `kernel` (CPU values only), or `none`")]
    cpu_mhz: Annotated[int | None, Meta(description="mean current clock of the CPU cores, MHz")] = None
    governor: Annotated[str | None, Meta(description="CPU frequency governor of the first core")] = None
    load: Annotated[float | None, Meta(description="1-minute load average of the machine")] = None
    sm_mhz: Annotated[
        int | None,
        Meta(
            description="SM clock, MHz; during a clip: median of the readings of a busy GPU (of all readings if it was never "
            "busy)"
        ),
    ] = None
    memory_mhz: Annotated[int | None, Meta(description="GPU memory clock, MHz; during a clip: median of the same readings")] = (
        None
    )
    power_mw: Annotated[int | None, Meta(description="GPU power draw, mW; during a clip: mean of all readings")] = None
    temperature_c: Annotated[int | None, Meta(description="GPU temperature, degrees Celsius; during a clip: highest reading")] = (
        None
    )
    throttle: Annotated[
        tuple[str, ...], Meta(description="active GPU throttle reasons; during a clip: those of any reading")
    ] = ()
    samples: Annotated[int | None, Meta(description="number of NVML readings during the clip; null: a single reading")] = None
    idle_samples: Annotated[int | None, Meta(description="number of these readings in which the GPU was idle")] = None
    sm_mhz_min: Annotated[int | None, Meta(description="lowest SM clock of the readings behind `sm_mhz`, MHz")] = None
    sm_mhz_max: Annotated[int | None, Meta(description="highest SM clock of the readings behind `sm_mhz`, MHz")] = None
    energy_mj: Annotated[
        int | None, Meta(description="energy that the GPU took during the clip, by its own counter, mJ; null: it has none")
    ] = None
    read_ns: Annotated[
        int | None,
        Meta(description="total time that the readings took on their own thread, ns; an upper bound on what they cost the clip"),
    ] = None


class GpuState(RecordPart, frozen=True, kw_only=True):
    """Settings of a GPU (persistence, MIG, power limit, highest clock); null where the driver does not report them."""

    persistence: Annotated[bool | None, Meta(description="true: persistence mode is on")] = None
    mig: Annotated[bool | None, Meta(description="true: the GPU is split into instances (MIG)")] = None
    power_limit_mw: Annotated[int | None, Meta(description="enforced power limit, mW")] = None
    max_sm_mhz: Annotated[int | None, Meta(description="highest SM clock that the GPU supports, MHz")] = None
