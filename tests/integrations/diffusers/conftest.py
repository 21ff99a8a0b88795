"""Models of these tests have random weights, with which no quality was measured: that nobody is told so each time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """And a compiler knows nothing of the test before."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="quality not measured")
        yield
    torch._dynamo.reset()
