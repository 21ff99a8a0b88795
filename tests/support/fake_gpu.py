"""A GPU for tests on a machine without one: a clock advanced by work, behind the calls of `torch.cuda` that measuring makes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch


class FakeGpu:
    """A GPU whose kernels queue up while the host goes on; a synchronisation sets the host's clock to their end.

    Args:
        launch_ns: host time of a launch.
        used: the process has used the GPU already.
    """

    def __init__(self, patch: pytest.MonkeyPatch, *, launch_ns: int = 5_000, used: bool = True) -> None:
        self.now_ns = 0
        self.idle_at_ns = 0
        self.launch_ns = launch_ns
        self.used = used
        gpu = self

        class Event:
            def __init__(self, *, enable_timing: bool = False) -> None:
                assert enable_timing
                self.at_ns = -1

            def record(self, stream: object = None) -> None:
                self.at_ns = max(gpu.now_ns, gpu.idle_at_ns)

            def synchronize(self) -> None:
                gpu.now_ns = max(gpu.now_ns, self.at_ns)

            def elapsed_time(self, end: Event) -> float:
                return (end.at_ns - self.at_ns) / 1e6

        answers = {
            "is_available": True, "device_count": 1, "current_device": 0, "memory_reserved": 0, "current_stream": None,
            "manual_seed_all": None, "get_rng_state": None, "set_rng_state": None, "reset_peak_memory_stats": None,
            "max_memory_allocated": 3 << 20, "memory_allocated": 1 << 20,
            "get_device_properties": SimpleNamespace(name="a GPU", total_memory=1 << 30, uuid="none"),
        }  # fmt: skip
        for name, answer in answers.items():
            patch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
        patch.setattr(torch.cuda, "is_initialized", lambda: self.used)
        patch.setattr(torch.cuda, "synchronize", self.synchronize)
        patch.setattr(torch.cuda, "Event", Event)

    def synchronize(self, device: object = None) -> None:
        """Wait for every kernel."""
        self.now_ns = max(self.now_ns, self.idle_at_ns)

    def kernel(self, length_ns: int) -> None:
        """Launch a kernel."""
        self.used = True
        self.now_ns += self.launch_ns
        self.idle_at_ns = max(self.now_ns, self.idle_at_ns) + length_ns
