"""The command line as a fixture, and a small model for it: `--model tiny`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strobe.cli.main import main
from strobe.engine import load
from terminal import Result, Strobe, check_document
from tiny_model import TINY


@pytest.fixture(scope="module", autouse=True)
def _tiny() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "OURS", (*load.OURS, TINY))
        yield


@pytest.fixture
def strobe(capfd: pytest.CaptureFixture[str]) -> Strobe:
    """Run `strobe ARGUMENTS...` and return what it did."""

    def run(*arguments: object) -> Result:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        if "--json" in arguments and code in (0, 1):
            check_document(tuple(map(str, arguments)), captured.out)
        return Result(code=code, out=captured.out, err=captured.err)

    return run
