"""Messages made and merged by Triton equal those of plain PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from forked import in_triton, needs_triton

SCRIPT = Path(__file__).parents[2] / "support" / "messages_on_cpu.py"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@needs_triton
def test_messages_equal_those_of_pytorch(device: str) -> None:
    in_triton(SCRIPT, device)
