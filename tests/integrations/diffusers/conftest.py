"""Models of these tests have random weights, with which no quality was measured: that nobody is told so each time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="quality not measured")
        yield
