"""Code in a process of its own, forked from one that has imported torch, for which a fresh interpreter needs over a second."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "av"])
TIMEOUT_S: Final = 600.0


def run(code: str, *arguments: object, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run code as `python -c` does, with these variables of the environment besides; it imports `strobe` from where this does."""
    words = [str(each) for each in arguments]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = _CONTEXT.Process(target=_run, args=(code, words, dict(environment or {}), out, err))
        process.start()
        process.join(TIMEOUT_S)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, TIMEOUT_S, out.read_bytes(), err.read_bytes())
        return subprocess.CompletedProcess(words, process.exitcode, out.read_text(), err.read_text())


def _run(code: str, arguments: list[str], environment: Mapping[str, str], out: Path, err: Path) -> None:
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<forked>", "exec"), {"__name__": "__main__"})
