"""Which device each process gets, and what makes no group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from strobe.core.errors import ConfigError
from strobe.engine.parallel import DeviceGroup
from strobe.engine.parallel.group import own_device


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    yield


@pytest.mark.parametrize(("name", "device"), [("auto", "cuda:1"), ("cuda", "cuda:1"), ("cpu", "cpu")])
def test_a_gpu_each(two_gpus: None, name: str, device: str) -> None:
    assert own_device(name, 1, 2) == torch.device(device)


@pytest.mark.parametrize(("name", "size", "words"), [("auto", 3, "3 processes on 2 GPU"), ("cuda:0", 2, "a GPU of its own")])
def test_not_a_gpu_each(two_gpus: None, name: str, size: int, words: str) -> None:
    for rank in range(size):  # all say the same, or nobody would hear it
        with pytest.raises(ConfigError, match=words):
            own_device(name, rank, size)


def test_alone() -> None:
    with pytest.raises(ConfigError, match="not started by torchrun; start it by: torchrun"):
        DeviceGroup.join()
    with pytest.raises(ConfigError, match="torch.distributed: not initialised"):
        DeviceGroup()
