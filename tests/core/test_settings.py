"""What the environment may set."""

from __future__ import annotations

import pytest

from strobe.core.settings import forgo_cublaslt_workspace, read_settings, split_list


@pytest.mark.parametrize(("value", "on"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_launch_blocking(monkeypatch: pytest.MonkeyPatch, value: str | None, on: bool) -> None:
    if value is None:
        monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    else:
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", value)
    assert read_settings().launch_blocking is on


def test_no_workspace_for_cublaslt_unless_the_user_gives_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "")  # so that what the call sets is taken back
    monkeypatch.delenv("CUBLASLT_WORKSPACE_SIZE")
    assert read_settings().cublaslt_workspace is None
    forgo_cublaslt_workspace()
    assert read_settings().cublaslt_workspace == 0
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "4096")
    forgo_cublaslt_workspace()
    assert read_settings().cublaslt_workspace == 4096
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "much")
    assert read_settings().cublaslt_workspace is None


def test_no_color_counts_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert read_settings().no_color is False
    monkeypatch.setenv("NO_COLOR", "1")
    assert read_settings().no_color is True


def test_where_and_what_a_profile_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STROBE_PROFILE_DIR", "STROBE_PROFILE_REGIONS"):
        monkeypatch.delenv(name, raising=False)
    assert (read_settings().profile_dir, read_settings().profile_regions) == ("", ())
    monkeypatch.setenv("STROBE_PROFILE_DIR", "out dir")
    monkeypatch.setenv("STROBE_PROFILE_REGIONS", "dit_forward, attention,")
    assert (read_settings().profile_dir, read_settings().profile_regions) == ("out dir", ("dit_forward", "attention"))


@pytest.mark.parametrize(("text", "words"), [("", ()), (" , ", ()), ("a", ("a",)), (" a ,b c", ("a", "b c"))])
def test_a_list_is_split_at_commas(text: str, words: tuple[str, ...]) -> None:
    assert split_list(text) == words
