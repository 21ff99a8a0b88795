"""The Triton kernels equal the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from forked import in_triton, needs_triton

SCRIPT = Path(__file__).with_name("triton_on_cpu.py")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@needs_triton
def test_kernels_equal_the_reference(device: str) -> None:
    in_triton(SCRIPT, device)
