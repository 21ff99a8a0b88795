"""`strobe serve` refuses what it could not load, before it prints an address."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from strobe.cli.model import ModelFlags
from terminal import Strobe


@pytest.fixture(autouse=True)
def ended_after_a_while() -> Iterator[None]:
    """Send Ctrl-C to a server that does not end by itself; it then returns 0."""
    timer = threading.Timer(20, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    yield
    timer.cancel()


def test_weights_that_cannot_be_read_end_the_server(strobe: Strobe, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"no weights")
    result = strobe("serve", "--port", "0", "--model", "wan-1.3b", "--weights", str(file))
    assert result.code == 3 and "model.safetensors" in result.err.splitlines()[-1] and "every viewer" not in result.err


@pytest.mark.parametrize(("error", "code"), [(RuntimeError("no kernel"), 70), (KeyError("blocks.0"), 70), (MemoryError(), 3)])
def test_whatever_loading_raises_ends_the_server(
    strobe: Strobe, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def load(flags: ModelFlags) -> None:
        raise error

    monkeypatch.setattr(ModelFlags, "load", load)
    result = strobe("serve", "--port", "0")
    assert result.code == code and '"failed to start"' in result.err
