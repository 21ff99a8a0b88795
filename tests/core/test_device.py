"""A device name becomes a device that exists here, or an error that says what does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from strobe.core import device
from strobe.core.device import resolve_device, synchronize
from strobe.core.errors import ConfigError, ImplUnavailableError


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """As if the machine had so many CUDA devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: request.param > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: request.param)


@pytest.mark.parametrize(
    ("gpus", "name", "expected"),
    [
        (0, "auto", "cpu"), (2, "auto", "cuda:0"), (2, "cuda", "cuda:0"), (2, "cuda:1", "cuda:1"),
        (2, torch.device("cuda"), "cuda:0"), (2, torch.device("cuda", 1), "cuda:1"),
    ],
    indirect=["gpus"],
)  # fmt: skip
@pytest.mark.usefixtures("gpus")
def test_names_that_exist(name: str | torch.device, expected: str) -> None:
    assert resolve_device(name) == torch.device(expected)


@pytest.mark.parametrize(
    ("gpus", "name", "message"),
    [
        (0, "cuda", "device 'cuda' cannot run: torch sees no CUDA device on this machine; would run here: cpu"),
        (0, torch.device("cuda", 0), "torch sees no CUDA device"),
        (2, "cuda:2", r"device 'cuda:2' cannot run: this machine has 2 CUDA device\(s\); would run here: cpu, cuda:0"),
    ],
    indirect=["gpus"],
)
@pytest.mark.usefixtures("gpus")
def test_devices_that_are_not_here(name: str | torch.device, message: str) -> None:
    with pytest.raises(ImplUnavailableError, match=message):
        resolve_device(name)


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:-1", "", "mps", "meta", torch.device("meta")])
def test_names_that_mean_nothing_here(name: str | torch.device) -> None:
    with pytest.raises(ConfigError, match=r"allowed: auto, cpu, cuda, cuda:N$"):
        resolve_device(name)


def test_a_cpu_has_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    synchronize(torch.device("cpu"))
    assert waited == []
    synchronize(torch.device("cuda", 0))
    assert waited == [torch.device("cuda", 0)]


def test_sizes_are_read_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "meminfo"
    monkeypatch.setattr(device, "_TOLD", told)
    assert (device.total_bytes(), device.available_bytes()) == (None, None)
    told.write_text("MemTotal:       24096000 kB\nMemFree:         1000 kB\nMemAvailable:   22000001 kB\n")
    assert device.total_bytes() == 24_096_000 * 1024
    assert device.available_bytes() == 22_000_001 * 1024
    told.write_text("MemTotal:       24096000 kB\n")  # an old kernel
    assert device.available_bytes() is None


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_weights_arrive_as_torch_copies_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_PIECE", 64)  # bytes: most tensors are several pieces, and some end in half of one
    shapes = [(3, 7), (), (0, 4), (32,), (33,), (5, 2, 13)]
    tensors = {str(at): torch.randn(shape) for at, shape in enumerate(shapes)}
    tensors |= {"half": torch.randn(70).half(), "turned": torch.randn(9, 5).t(), "learned": torch.nn.Parameter(torch.randn(40))}
    there = resolve_device(name)
    with torch.inference_mode():
        found = device.uploaded(tensors, there, torch.bfloat16)
    assert found.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert not found[key].requires_grad and not found[key].is_inference()
        assert found[key].device == there
        assert torch.equal(found[key].cpu(), tensor.detach().bfloat16()), key
        assert found[key].data_ptr() != tensor.data_ptr() or tensor.numel() == 0
