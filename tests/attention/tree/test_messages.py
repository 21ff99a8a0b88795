"""Messages made and merged by Triton equal those of plain PyTorch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from forked import in_triton

SCRIPT = Path(__file__).parents[2] / "support" / "messages_on_cpu.py"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_messages_equal_those_of_pytorch(device: str) -> None:
    in_triton(SCRIPT, device)
