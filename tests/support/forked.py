"""Code in a process of its own, forked from one that has imported torch, for which a fresh interpreter needs over a second.

For what has to die, to fill a disk, to set a variable before an import, or to run Triton's interpreter. What is about imports,
Python's start or a shell starts a process instead.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

needs_triton: Final = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "av"])
TIMEOUT_S: Final = 600.0
_STROBE: Final = "import sys; from strobe.cli.main import main; sys.exit(main(sys.argv[1:]))"

Done = subprocess.CompletedProcess[str]


def run(code: str | Path, *arguments: object, environment: Mapping[str, str] | None = None) -> Done:
    """Run code as `python -c` does, or a file, with these variables besides; it imports `strobe` from where this process does."""
    words = [str(each) for each in arguments]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = _CONTEXT.Process(target=_run, args=(code, words, {**os.environ, **(environment or {})}, out, err))
        process.start()
        process.join(TIMEOUT_S)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, TIMEOUT_S, out.read_bytes(), err.read_bytes())
        return subprocess.CompletedProcess(words, process.exitcode, out.read_text(), err.read_text())


def strobe(*arguments: object, environment: Mapping[str, str] | None = None) -> Done:
    """Run `strobe ARGUMENTS...`."""
    return run(_STROBE, *arguments, environment=environment)


def in_triton(script: Path, device: str, *arguments: object) -> None:
    """Run a script of kernels on a device, on a CPU in Triton's interpreter; it has to end well."""
    done = run(script, device, *arguments, environment={"TRITON_INTERPRET": "1"} if device == "cpu" else {})
    assert done.returncode == 0, done.stderr[-3000:]


def _run(code: str | Path, arguments: list[str], environment: Mapping[str, str], out: Path, err: Path) -> None:
    import torch

    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    sys.argv = [str(code) if isinstance(code, Path) else "-c", *arguments]
    if isinstance(code, Path):
        runpy.run_path(str(code), run_name="__main__")
    else:
        exec(compile(code, "<forked>", "exec"), {"__name__": "__main__"})
