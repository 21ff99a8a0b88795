from __future__ import annotations

import msgspec
import pytest
import torch

from strobe.perf.measure import clocks
from strobe.perf.measure.machine import describe_machine
from strobe.perf.measure.memory import peak_bytes, reset_peak
from strobe.perf.records import environment

CPU = torch.device("cpu")


def test_a_cpu_machine_is_described() -> None:
    found = describe_machine(CPU)
    assert (found.device, found.torch, found.threads) == ("cpu", torch.__version__, torch.get_num_threads())
    assert found.device_name == found.cpu_name
    assert (found.driver, found.gpu_memory_bytes) == (None, None)
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


def test_peak_memory_sees_a_tensor_and_starts_again() -> None:
    reset_peak(CPU)
    before = peak_bytes(CPU)
    held = torch.zeros(50_000_000, dtype=torch.float32).add_(1)
    grown = peak_bytes(CPU) - before
    assert grown >= 0.9 * held.numel() * 4
    del held
    reset_peak(CPU)
    assert peak_bytes(CPU) <= before + grown


def test_gpu_clocks_are_read_with_their_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "gpu_uuid", lambda device: "GPU-0")
    monkeypatch.setattr(environment, "_output", lambda command: "1980, 2619, 412.55, 61, 0x0000000000000024")
    found = clocks.read_clocks(torch.device("cuda", 0))
    assert (found.source, found.sm_mhz, found.memory_mhz, found.power_mw, found.temperature_c) == (
        "nvidia-smi", 1980, 2619, 412_550, 61
    )  # fmt: skip
    assert found.throttle == ("sw_power_cap", "sw_thermal_slowdown")


@pytest.mark.gpu
def test_a_gpu_machine_is_described() -> None:
    found = describe_machine(torch.device("cuda", 0))
    assert found.gpu_count >= 1
    assert found.gpu_memory_bytes
    assert found.clocks.source in ("nvidia-smi", "none")
