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


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--model", "wan-1.3b", "--weights", "nothere.pt"), 3, "--weights nothere.pt: there is no file or folder of that name"),
        (("--model", "wan-1.3b", "--random-weights", "--lora", "a.safetensors=0.5"), 3, "--lora a.safetensors: there is no file"),
        (("--model", "wan1.3b"), 2, "no model or folder 'wan1.3b' (did you mean 'wan-1.3b'?)"),
        (("--preset", "turbi"), 2, "turbi"),
        (("--model", "wan-1.3b"), 2, "wan-1.3b comes without weights: give --weights with their folder, or --random-weights"),
        (("--model", "krea"), 2, "krea comes without weights: give --weights"),
        (("--weights", "."), 2, "model 'shapes' has weights and a size of its own"),
        (("--model", "wan-1.3b", "--random-weights", "--weights", "."), 2, "give weights or ask for random ones, not both"),
        (("--keep", "/proc/streams"), 2, "--keep /proc/streams: No such file or directory; give a folder that can be written"),
    ],
)
def test_what_is_not_there_is_told_before_the_address(strobe: Strobe, flags: tuple[str, ...], code: int, words: str) -> None:
    result = strobe("serve", "--port", "0", *flags)
    assert result.code == code and words in result.err and "http://" not in result.err


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
