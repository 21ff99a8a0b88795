"""Runs of the command line in the test's own process."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from documents import DOCUMENTS
from strobe.cli.main import main
from strobe.perf.table.rows import struct_of


@dataclass(frozen=True, kw_only=True)
class Result:
    """Exit code, stdout and stderr of one command line."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """JSON on stdout, which must be all there is."""
        return json.loads(self.out)


def check_document(arguments: tuple[str, ...], out: str) -> None:
    """Check that a verb's `--json` output has every key of the document that the manual describes, and no other."""
    verb = next(
        verb for verb in sorted(DOCUMENTS, key=len, reverse=True) if arguments[: verb.count(" ") + 1] == tuple(verb.split())
    )
    printed = json.loads(out)
    kinds = [struct_of(kind) for kind in DOCUMENTS[verb]]
    kind = next((kind for kind in kinds if set(printed) <= set(kind.__struct_fields__)), kinds[-1])
    msgspec.convert(printed, kind)


def alone(*arguments: object) -> Result:
    """Run `strobe ARGUMENTS...` where no test captures what it prints, such as in a fixture of a module."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Result(code=code, out=out.getvalue(), err=err.getvalue())


Strobe = Callable[..., Result]
"""Runs `strobe ARGUMENTS...`."""


def quiet(*_: object) -> None:
    """Show no progress."""
