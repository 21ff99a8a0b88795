"""A model small enough to stream many frame blocks in a second, and sessions of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from strobe.engine.model import Model
from strobe.engine.session import Session
from tiny_model import tiny_model


@pytest.fixture(scope="session")
def tiny() -> Model:
    return tiny_model()


@pytest.fixture
def make(tiny: Model) -> Callable[..., Session]:
    """Open a session of the tiny model: `make(prompt, **options of Session)`."""

    def build(prompt: Any = "red circle", **options: Any) -> Session:
        return Session(prompt, **({"model": tiny, "device": "cpu"} | options))

    return build


@pytest.fixture(autouse=True)
def overlap_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode beside the commit pass on one core too, so that the worker is tested everywhere."""
    monkeypatch.setattr("strobe.engine.resolve.OVERLAP_CORES", 1)
