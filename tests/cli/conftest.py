"""The command line as a fixture."""

from __future__ import annotations

import pytest

from strobe.cli.main import main
from terminal import Result, Strobe, check_document


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
