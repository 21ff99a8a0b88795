from __future__ import annotations

import pytest

from strobe.core.costs import DEVICES, device_peaks


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("H100 SXM", "H100 SXM"),
    ],
)
def test_devices_are_found_by_the_name_they_report(reported: str, name: str) -> None:
    found = device_peaks(reported)
    assert found is not None and found.name == name


@pytest.mark.parametrize(
    "reported",
    [
        "",
        "NVIDIA",
        "NVIDIA H100",  # which of three?
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",  # a slice
        "NVIDIA A100-PG509-200",
        "NVIDIA L40",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "AMD Radeon Graphics",
        "Intel(R) Xeon(R) Platinum 8480C",
    ],
)
def test_what_is_not_known_is_not_guessed(reported: str) -> None:
    assert device_peaks(reported) is None


def test_no_name_means_two_devices() -> None:
    for device in DEVICES:
        assert device.source
        assert [device_peaks(name) for name in (device.name, *device.reported_as)] == [device] * (1 + len(device.reported_as))


def test_peaks_are_dense_and_per_dtype() -> None:
    h100 = device_peaks("NVIDIA H100 80GB HBM3")
    assert h100 is not None
    assert h100.peak_flops_per_s("c10::BFloat16") == 989_400_000_000_000
    assert h100.peak_flops_per_s("fp8_e4m3") == 1_978_900_000_000_000
    assert h100.peak_flops_per_s("float32") == 66_900_000_000_000
    assert h100.peak_flops_per_s("float64") is None and h100.peak_flops_per_s("what") is None
    assert h100.bandwidth_bytes_per_s == 3_352_000_000_000
    a100 = device_peaks("NVIDIA A100-SXM4-80GB")
    assert a100 is not None and a100.peak_flops_per_s("float8") is None
