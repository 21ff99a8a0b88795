from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import msgspec
import pytest
import torch

from strobe.perf.measure import machine
from strobe.perf.measure.machine import describe_machine
from strobe.perf.records import record

CPU = torch.device("cpu")


def test_a_cpu_machine_is_described() -> None:
    found = describe_machine(CPU)
    assert (found.device, found.torch, found.threads) == ("cpu", torch.__version__, torch.get_num_threads())
    assert found.device_name == found.cpu_name
    assert (found.driver, found.gpu_memory_bytes) == (None, None)
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


_PEAK = """
import torch
from strobe.perf.measure.machine import peak_bytes, reset_peak
cpu = torch.device("cpu")
torch.zeros(100_000_000).add_(1)
reset_peak(cpu)
before = peak_bytes(cpu)
held = torch.zeros(50_000_000).add_(1)
grown = peak_bytes(cpu) - before
del held
reset_peak(cpu)
print(grown, peak_bytes(cpu) - before)
"""


def test_peak_memory_sees_a_tensor_and_starts_again() -> None:
    """In a process of its own: in this one, garbage of other tests may be freed meanwhile."""
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", _PEAK], env=variables, capture_output=True, text=True, check=True)
    grown, after = map(int, result.stdout.split())
    assert 0.9 * 200_000_000 <= grown <= 1.5 * 200_000_000
    assert after < 0.5 * 200_000_000


def test_gpu_clocks_are_read_with_their_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpu_uuid", lambda device: "GPU-0")
    monkeypatch.setattr(record, "_output", lambda command: "1980, 2619, 412.55, 61, 0x0000000000000024")
    found = machine.read_clocks(torch.device("cuda", 0))
    assert (found.source, found.sm_mhz, found.memory_mhz, found.power_mw, found.temperature_c) == (
        "nvidia-smi", 1980, 2619, 412_550, 61
    )  # fmt: skip
    assert found.throttle == ("sw_power_cap", "sw_thermal_slowdown")


@pytest.mark.gpu
def test_a_gpu_machine_is_described() -> None:
    found = describe_machine(torch.device("cuda", 0))
    assert found.gpu_count >= 1
    assert found.gpu_memory_bytes
    assert found.clocks.source in (("nvml",) if importlib.util.find_spec("pynvml") else ("nvidia-smi", "none"))
