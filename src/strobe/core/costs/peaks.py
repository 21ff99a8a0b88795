"""Peak rates of devices, as their makers publish them: dense matrix peaks at boost clock, and memory bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strobe.core.costs.operations import parse_dtype

_TERA: Final = 10**12
_GIGA: Final = 10**9
_MEGA: Final = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class DevicePeaks:
    """Peak rates of one device.

    Args:
        name: short name.
        reported_as: names under which torch, drivers and traces report it, with or without the maker's prefix.
        bandwidth_bytes_per_s: of the device memory, bytes/s.
        cache_bytes: last-level cache; what fits into it may be read faster than from the memory.
        flops_per_s: dense matrix peak by canonical dtype, FLOP/s, accumulated in float32 where the device has that choice;
            `float32` is without tensor cores; a dtype that the device does not have is absent.
        source: document.
        clock_mhz: SM clock at which the matrix peaks hold: peak / (SMs x FLOPs of an SM in a cycle), MHz; None: not known.
    """

    name: str
    reported_as: tuple[str, ...]
    bandwidth_bytes_per_s: int
    cache_bytes: int
    flops_per_s: dict[str, int]
    source: str
    clock_mhz: int | None = None

    def peak_flops_per_s(self, dtype: str) -> int | None:
        """Return the peak of a dtype in any spelling, FLOP/s; None if the device (or this table) has none."""
        known = parse_dtype(dtype)
        return None if known is None else self.flops_per_s.get(known)


def _tensor(half: float, float8: float | None, tfloat32: float, float32: float) -> dict[str, int]:
    """Convert peaks in TFLOP/s to FLOP/s by dtype, for a device with one rate for bfloat16 and float16."""
    peaks = {"bfloat16": half, "float16": half, "tfloat32": tfloat32, "float32": float32}
    return {dtype: round(value * _TERA) for dtype, value in (peaks if float8 is None else peaks | {"float8": float8}).items()}


_A100: Final = _tensor(312, None, 156, 19.5)

DEVICES: Final = (
    DevicePeaks(
        name="H100 SXM",
        reported_as=("H100 80GB HBM3",),
        bandwidth_bytes_per_s=3352 * _GIGA,
        cache_bytes=50 * _MEGA,
        flops_per_s=_tensor(989.4, 1978.9, 494.7, 66.9),
        source="NVIDIA H100 Tensor Core GPU Architecture, H100 SXM5",
        clock_mhz=1830,  # 989.4 TFLOP/s / (132 SMs x 4096 FLOPs)
    ),
    DevicePeaks(
        name="H100 PCIe",
        reported_as=("H100 PCIe",),
        bandwidth_bytes_per_s=2039 * _GIGA,
        cache_bytes=50 * _MEGA,
        flops_per_s=_tensor(756, 1513, 378, 51.2),
        source="NVIDIA H100 Tensor Core GPU Architecture, H100 PCIe",
    ),
    DevicePeaks(
        name="H100 NVL",
        reported_as=("H100 NVL",),
        bandwidth_bytes_per_s=3900 * _GIGA,
        cache_bytes=50 * _MEGA,
        flops_per_s=_tensor(835.5, 1671, 417.5, 60),
        source="NVIDIA H100 datasheet, H100 NVL; sparse figures halved",
    ),
    DevicePeaks(
        name="H200 SXM",
        reported_as=("H200",),
        bandwidth_bytes_per_s=4800 * _GIGA,
        cache_bytes=50 * _MEGA,
        flops_per_s=_tensor(989.5, 1979, 494.5, 67),
        source="NVIDIA H200 datasheet, H200 SXM; sparse figures halved",
        clock_mhz=1830,
    ),
    DevicePeaks(
        name="H200 NVL",
        reported_as=("H200 NVL",),
        bandwidth_bytes_per_s=4800 * _GIGA,
        cache_bytes=50 * _MEGA,
        flops_per_s=_tensor(835.5, 1670.5, 417.5, 60),
        source="NVIDIA H200 datasheet, H200 NVL; sparse figures halved",
    ),
    DevicePeaks(
        name="A100 40GB",
        reported_as=("A100-SXM4-40GB", "A100-PCIE-40GB"),
        bandwidth_bytes_per_s=1555 * _GIGA,
        cache_bytes=40 * _MEGA,
        flops_per_s=_A100,
        source="NVIDIA A100 datasheet, 40 GB",
    ),
    DevicePeaks(
        name="A100 80GB SXM",
        reported_as=("A100-SXM4-80GB",),
        bandwidth_bytes_per_s=2039 * _GIGA,
        cache_bytes=40 * _MEGA,
        flops_per_s=_A100,
        source="NVIDIA A100 datasheet, 80 GB SXM",
    ),
    DevicePeaks(
        name="A100 80GB PCIe",
        reported_as=("A100 80GB PCIe",),
        bandwidth_bytes_per_s=1935 * _GIGA,
        cache_bytes=40 * _MEGA,
        flops_per_s=_A100,
        source="NVIDIA A100 datasheet, 80 GB PCIe",
    ),
    DevicePeaks(
        name="B200",
        reported_as=("B200",),
        bandwidth_bytes_per_s=8000 * _GIGA,
        cache_bytes=126 * _MEGA,
        flops_per_s=_tensor(2250, 4500, 1125, 80),
        source="NVIDIA Blackwell architecture brief and HGX B200 datasheet, the larger where they differ; sparse figures halved",
    ),
    DevicePeaks(
        name="L40S",
        reported_as=("L40S",),
        bandwidth_bytes_per_s=864 * _GIGA,
        cache_bytes=96 * _MEGA,
        flops_per_s=_tensor(362.05, 733, 183, 91.6),
        source="NVIDIA L40S datasheet",
    ),
    DevicePeaks(
        name="RTX 4090",
        reported_as=("GeForce RTX 4090",),
        bandwidth_bytes_per_s=1008 * _GIGA,
        cache_bytes=72 * _MEGA,
        flops_per_s=_tensor(165.2, 330.3, 82.6, 82.6),
        source="NVIDIA Ada GPU Architecture, appendix A",
    ),
    DevicePeaks(
        name="MI300X",
        reported_as=("Instinct MI300X", "Instinct MI300X VF", "Instinct MI300X OAM"),
        bandwidth_bytes_per_s=5300 * _GIGA,
        cache_bytes=256 * _MEGA,
        flops_per_s=_tensor(1307.4, 2614.9, 653.7, 163.4),
        source="AMD Instinct MI300X data sheet, matrix; cache: Infinity Cache",
    ),
)
"""Every device this package knows the peaks of."""

_PREFIXES: Final = ("NVIDIA ", "AMD ")


def device_peaks(name: str) -> DevicePeaks | None:
    """Return the peaks of a device by its short name or the one that torch, a driver or a trace reports; None if it is unknown.

    Never a guess: a slice of a device (`... MIG 1g.10gb`), a sibling or an engineering name is unknown.
    """
    word = " ".join(name.split())
    for prefix in _PREFIXES:
        word = word.removeprefix(prefix)
    return next((device for device in DEVICES if word in (device.name, *device.reported_as)), None)
