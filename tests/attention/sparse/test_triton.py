"""The Triton impl: its kernels in Triton's interpreter, its place among the impls anywhere."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from forked import in_triton
from tiers import rest_while_gated

SCRIPT = Path(__file__).parents[2] / "support" / "triton_on_cpu.py"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@rest_while_gated("sparse", "triton")
@needs_triton
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_kernels_equal_the_reference(device: str) -> None:
    in_triton(SCRIPT, device)
