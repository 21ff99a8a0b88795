"""Of several processes one talks."""

from __future__ import annotations

import pytest

from strobe.attention.tree import CollectiveError
from strobe.cli.console import Output
from strobe.cli.main import MISSING, USAGE, main
from strobe.cli.ranks import said_by_rank_0, says
from strobe.core.errors import ConfigError, ImplUnavailableError, StrobeError


@pytest.mark.parametrize(
    ("code", "error", "followers"),
    [
        (USAGE, ConfigError("wrong on all ranks"), False),
        (MISSING, CollectiveError("rank 1 is gone, and rank 0 says so", [1]), False),
        (MISSING, CollectiveError("rank 0 is gone", [0]), True),
        (MISSING, StrobeError("this GPU is full"), True),
        (MISSING, ImplUnavailableError("cuda", "no GPU on this machine", ["cpu"]), False),
    ],
)
def test_who_says_what(monkeypatch: pytest.MonkeyPatch, code: int, error: Exception, followers: bool) -> None:
    assert says(code, error)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert says(code, error) == followers


def test_what_another_machine_lacks_is_said_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "8")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert says(MISSING, ImplUnavailableError("cuda", "no GPU on this machine", ["cpu"]))


def test_a_rank_that_follows_says_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert said_by_rank_0(Output(json=True)) == Output(json=True)
    command = ["generate", "a red circle", "--seconds", "1", "--blocks", "1"]
    assert main(command) == USAGE and "give --seconds or --blocks" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    assert main(command) == USAGE and capsys.readouterr().err == ""
    assert said_by_rank_0(Output(json=True)) == Output(quiet=True)


def test_a_process_alone_shares_no_heads(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "a red circle", "--ulysses", "2"]) == USAGE
    assert "--ulysses 2: this process runs alone and shares nothing; start it by torchrun" in capsys.readouterr().err
