"""What the environment may set."""

from __future__ import annotations

import pytest

from strobe.core.settings import read_settings


@pytest.mark.parametrize(("value", "on"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_launch_blocking(monkeypatch: pytest.MonkeyPatch, value: str | None, on: bool) -> None:
    if value is None:
        monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    else:
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", value)
    assert read_settings().launch_blocking is on


def test_no_color_counts_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert read_settings().no_color is False
    monkeypatch.setenv("NO_COLOR", "1")
    assert read_settings().no_color is True
