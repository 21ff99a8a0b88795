"""Messages made and merged by Triton equal those of plain PyTorch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "support" / "messages_on_cpu.py"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_messages_equal_those_of_pytorch(device: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | ({"TRITON_INTERPRET": "1"} if device == "cpu" else {})
    result = subprocess.run(
        [sys.executable, SCRIPT, device], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
