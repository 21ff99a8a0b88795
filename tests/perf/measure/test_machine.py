"""The machine: its facts and memory, and GPU clocks through a `pynvml` of the test's own: no GPU is needed, and none is asked."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from itertools import count
from types import ModuleType

import msgspec
import pytest
import torch

from forked import run
from strobe.perf.measure import machine
from strobe.perf.measure.machine import ClockSampler, cool_down, describe_machine, gpu_state, read_clocks
from strobe.perf.records.record import GpuState

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
    grown, after = map(int, run(_PEAK).stdout.split())
    assert 0.9 * 200_000_000 <= grown <= 1.5 * 200_000_000
    assert after < 0.5 * 200_000_000


@pytest.mark.gpu
def test_a_gpu_machine_is_described() -> None:
    found = describe_machine(torch.device("cuda", 0))
    assert found.gpu_count >= 1
    assert found.gpu_memory_bytes
    if importlib.util.find_spec("pynvml"):
        assert found.clocks.source == "nvml" and found.driver


GPU = torch.device("cuda", 0)
IDLE, POWER_CAP, HOT = 0x1, 0x4, 0x20
ENERGY = "nvmlDeviceGetTotalEnergyConsumption"


class NVMLError(Exception):
    pass


class FakeNvml(ModuleType):
    """Answers from a script of (SM clock, power in mW, temperature, reasons), the last one for ever; raises what is `refused`."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVMLError = NVMLError

    def __init__(self, *script: tuple[int, int, int, int]) -> None:
        super().__init__("pynvml")
        self.__spec__ = ModuleSpec("pynvml", None)
        self.script, self.now = list(script), script[0]
        self.threads, self.asked, self.refused = set[str](), set[str](), {"nvmlDeviceGetMigMode"}
        energy = count(7_000_000, 4_000)
        self.answers: dict[str, Callable[..., object]] = {
            "nvmlInit": lambda: None,
            "nvmlSystemGetDriverVersion": lambda: "550.54",
            "nvmlDeviceGetHandleByUUID": lambda uuid: {"GPU-7": "handle"}[uuid],
            "nvmlDeviceGetClockInfo": self.clock,
            "nvmlDeviceGetPowerUsage": lambda handle: self.now[1],
            "nvmlDeviceGetTotalEnergyConsumption": lambda handle: next(energy),
            "nvmlDeviceGetTemperature": lambda handle, kind: self.now[2],
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: self.now[3],
            "nvmlDeviceGetPersistenceMode": lambda handle: 1,
            "nvmlDeviceGetMigMode": lambda handle: (1, 1),
            "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
            "nvmlDeviceGetMaxClockInfo": lambda handle, kind: 1980,
        }

    def __getattr__(self, name: str) -> Callable[..., object]:
        self.asked.add(name)
        if name in self.refused:
            raise NVMLError("not supported")
        return self.answers[name]

    def clock(self, handle: str, kind: int) -> int:
        assert handle == "handle"
        if kind == self.NVML_CLOCK_MEM:
            return 2619
        self.now = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.threads.add(threading.current_thread().name)
        return self.now[0]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """A GPU with a UUID, and nothing remembered from another test; nothing of it where a real GPU is tested."""
    if request.node.get_closest_marker("gpu"):
        yield
        return
    monkeypatch.setattr(machine, "gpu_uuid", lambda device: "GPU-7")
    machine.open_gpu.cache_clear()
    yield
    machine.open_gpu.cache_clear()


def use(monkeypatch: pytest.MonkeyPatch, *script: tuple[int, int, int, int]) -> FakeNvml:
    fake = FakeNvml(*script)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def wait_for(fake: FakeNvml) -> None:
    """Until the script has been read to its end."""
    until = time.monotonic() + 120
    while len(fake.script) > 1 or not fake.threads:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_a_reading_has_its_units(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, (1980, 412_550, 61, POWER_CAP | HOT))
    found = read_clocks(GPU)
    shown = (found.sm_mhz, found.memory_mhz, found.power_mw, found.temperature_c)
    assert found.source == "nvml" and shown == (1980, 2619, 412_550, 61)
    assert found.throttle == ("sw_power_cap", "sw_thermal_slowdown")
    assert (found.samples, found.sm_mhz_min, found.read_ns) == (None, None, None)


def test_readings_are_taken_while_the_clip_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Busy readings give the clock; idle ones are counted; the hottest counts; every throttle reason is told."""
    monkeypatch.setattr(machine, "PERIOD_S", 0.001)
    fake = use(monkeypatch, (1980, 600_000, 60, 0), (1755, 690_000, 64, POWER_CAP), (345, 90_000, 62, IDLE))
    with ClockSampler(GPU) as sampler:
        wait_for(fake)
    found = sampler.clocks()
    assert found.samples is not None and found.idle_samples == found.samples - 2
    assert (found.sm_mhz, found.sm_mhz_min, found.sm_mhz_max) == (1868, 1755, 1980)
    power = 600_000 + 690_000 + 90_000 * found.idle_samples
    assert (found.power_mw, found.temperature_c, found.throttle) == (round(power / found.samples), 64, ("sw_power_cap",))
    assert found.read_ns is not None and found.read_ns > 0
    assert fake.threads == {"strobe-clocks"}
    assert not any(thread.name == "strobe-clocks" for thread in threading.enumerate())


def test_energy_is_what_the_counter_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = use(monkeypatch, (1980, 600_000, 60, 0))
    with ClockSampler(GPU) as sampler:
        pass
    assert sampler.clocks().energy_mj == 4_000
    fake.refused.add(ENERGY)
    with ClockSampler(GPU) as without:
        pass
    assert without.clocks().energy_mj is None


def test_a_clip_too_short_for_a_reading_is_read_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PERIOD_S", 3600.0)
    use(monkeypatch, (1980, 0, 50, 0))
    with ClockSampler(GPU) as sampler:
        pass
    found = sampler.clocks()
    assert (found.source, found.sm_mhz, found.samples) == ("nvml", 1980, None)


def test_a_lap_too_short_for_a_reading_is_sampled_once_as_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is still that of the calls, so it counts as theirs; the energy counter is not asked."""
    monkeypatch.setattr(machine, "LAP_S", 3600.0)
    fake = use(monkeypatch, (1475, 690_000, 60, POWER_CAP))
    with ClockSampler(GPU, lap=True) as sampler:
        pass
    found = sampler.sampled()
    assert found is not None and found == sampler.clocks()
    assert (found.sm_mhz, found.samples, found.throttle, found.energy_mj) == (1475, 1, ("sw_power_cap",), None)
    assert ENERGY not in fake.asked


def test_a_lap_is_read_more_often_than_a_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PERIOD_S", 3600.0)
    fake = use(monkeypatch, (1980, 600_000, 60, 0), (1475, 690_000, 60, 0))
    with ClockSampler(GPU, lap=True) as sampler:
        wait_for(fake)
    assert fake.threads == {"strobe-clocks"} and sampler.sampled() is not None


def test_an_error_in_the_clip_stops_the_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PERIOD_S", 0.001)
    use(monkeypatch, (1980, 0, 50, 0))
    with pytest.raises(RuntimeError, match="of the clip"), ClockSampler(GPU):
        raise RuntimeError("of the clip")
    assert not any(thread.name == "strobe-clocks" for thread in threading.enumerate())


def test_a_gpu_that_was_never_busy_shows_its_idle_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PERIOD_S", 0.001)
    fake = use(monkeypatch, (345, 70_000, 40, IDLE))
    with ClockSampler(GPU) as sampler:
        wait_for(fake)
    found = sampler.clocks()
    assert found.sm_mhz == 345 and found.samples == found.idle_samples and found.samples


def test_what_the_driver_does_not_answer_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = use(monkeypatch, (1980, 412_550, 61, 0))
    fake.refused.add("nvmlDeviceGetPowerUsage")
    assert (read_clocks(GPU).power_mw, read_clocks(GPU).sm_mhz) == (None, 1980)
    assert gpu_state(GPU) == GpuState(persistence=True, mig=None, power_limit_mw=700_000, max_sm_mhz=1980)
    assert gpu_state(CPU) is None and machine._driver("GPU-7") == "550.54"


@pytest.mark.parametrize("how", ["not installed", "nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_without_nvml_a_gpu_says_nothing(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "not installed":
        monkeypatch.setattr(machine, "broken", lambda module: f"{module} is not installed")
    else:
        use(monkeypatch, (1, 1, 1, 0)).refused.add(how)
    with ClockSampler(GPU) as sampler:
        assert sampler._thread is None
    assert sampler.clocks().source in ("kernel", "none") and sampler.clocks().sm_mhz is None
    assert gpu_state(GPU) == GpuState() and machine._driver(machine.gpu_uuid(GPU)) is None


def test_nothing_runs_beside_a_clip_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = use(monkeypatch, (1, 1, 1, 0))
    with ClockSampler(CPU) as sampler:
        assert sampler._thread is None
    assert sampler.sampled() is None and sampler.clocks().source in ("kernel", "none") and not fake.threads


def test_a_hot_gpu_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(machine.time, "sleep", slept.append)
    use(monkeypatch, (1200, 0, 90, HOT), (1200, 0, 88, HOT), (1980, 0, 70, POWER_CAP))
    assert cool_down(GPU)
    assert slept == [1.0, 1.0]
    machine.open_gpu.cache_clear()
    use(monkeypatch, (1200, 0, 90, HOT))
    monkeypatch.setattr(machine, "COOL_S", 0.0)
    assert not cool_down(GPU)


@pytest.mark.gpu
@pytest.mark.alone
def test_a_real_gpu_is_read_while_it_works() -> None:
    pytest.importorskip("pynvml")
    x = torch.randn(8192, 8192, device="cuda")
    with ClockSampler(GPU) as sampler:
        until = time.monotonic() + 1
        while time.monotonic() < until:
            x = (x @ x).clamp(-1, 1)
            torch.cuda.synchronize()
    found = sampler.clocks()
    assert found.source == "nvml" and found.samples and found.sm_mhz and found.sm_mhz > 500
