"""A folder with small versions of the files that the docs' commands name, and functions that run a command or snippet in it."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import torch

import strobe
from artefacts import write_guide
from certificate import write_certificate
from manual_text import ROOT, Command, Snippet
from model_traces import write_model_trace
from strobe.cli.main import main

RUN: Final = "runs/20260101T120000Z-compare-1a2b3c"
TIMEOUT_S: Final = 1200.0
SERVER_S: Final = 300.0
_SERVERS: Final = ("serve",)
_ADDRESS: Final = re.compile(r"https?://127\.0\.0\.1:\d+/")
_TOKEN: Final = "correct horse battery"
_LINKS: Final = ("README.md", "docs", "tests", "examples", "tools", "benchmarks")
_COPIES: Final = {
    RUN: "benchmarks/presets-h200",
    "h200": "benchmarks/attention-h200/scenarios",
    "h200-scaling": "benchmarks/tree-h200/scaling",
}


def furnish(folder: Path) -> None:
    """Put all files and links into the folder."""
    (folder / "runs").mkdir()
    for name in _LINKS:
        (folder / name).symlink_to(ROOT / name)
    for name, source in _COPIES.items():
        shutil.copytree(ROOT / source, folder / name)
    guide = write_guide(folder)
    (folder / "fa.log.gz").write_bytes(gzip.compress(guide["fa_log"].read_bytes()))
    for name, trace in (("fa", guide["fa_trace"]), ("vsa", guide["vsa_trace"])):
        (folder / name).mkdir()
        for link in (folder / name / "rank0.json.gz", folder / f"{name}.json.gz"):
            link.symlink_to(trace)
    for several in ("traces", "traces_of_64_ranks"):
        (folder / several).mkdir()
        for rank in range(2):
            write_model_trace(folder / several / f"rank{rank}.json.gz", kernels=("flash_fwd", "_attn_fwd_sparse"))
    (folder / "pieces" / "traces").mkdir(parents=True)
    (folder / "pieces" / "traces" / "balanced.json.gz").symlink_to(ROOT / "tests" / "data" / "shapes_cpu" / "baseline.json.gz")
    for name in ("trace", "large", "rank0", "rank1", "a", "b", "bert"):
        write_model_trace(folder / f"{name}.json.gz")
    write_model_trace(folder / "vit.json.gz", "ViT")
    (folder / "token.txt").write_text(f"{_TOKEN}\n", encoding="utf-8")
    (folder / "optimisation-log.md").write_text("| run | ms |\n|---|---|\n| a | 12.5 |\n", encoding="utf-8")


def run(command: Command, folder: Path) -> str:
    """Run a command in the folder; return what went wrong, empty if nothing.

    A gate or a lint that finds something, and a machine on which no preset holds the rate, end with 1 and are no failure.
    """
    arguments = command.arguments
    allowed = _allowed(arguments)
    if arguments is None or command.needs_shell or command.words[0] != "strobe":
        return _in_a_shell(command, folder, allowed)
    if arguments[0] in _SERVERS:
        return _as_a_server(command, folder)
    out, err = io.StringIO(), io.StringIO()
    words = [word for each in arguments for word in _expanded(each, folder)]
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return "" if code in allowed else f"exit {code}: {err.getvalue()[-600:]}"


def run_alone(command: Command, folder: Path, *, timeout_s: float = TIMEOUT_S) -> str:
    """Run a command as `run` does, in a process of its own that ends after timeout_s; a server is run as `run` does."""
    arguments = command.arguments
    if arguments is not None and arguments[0] in _SERVERS:
        return _as_a_server(command, folder)
    return _in_a_shell(command, folder, _allowed(arguments), timeout_s)


def run_snippet(snippet: Snippet, folder: Path) -> None:
    """Run a snippet in the folder after the code that it needs, as the only process of a group if it needs one."""
    names: dict[str, Any] = {"strobe": strobe, "torch": torch, "Path": Path}
    before = dict(os.environ)
    try:
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
            exec(compile(snippet.given, f"given of {snippet.page}:{snippet.line}", "exec"), names)
            exec(compile(snippet.code, f"{snippet.page}:{snippet.line}", "exec"), names)
    finally:
        os.environ.clear()
        os.environ.update(before)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _allowed(arguments: list[str] | None) -> tuple[int, ...]:
    """Exit codes that are no failure."""
    judges = arguments is not None and ("--require" in arguments or arguments[0] == "lint")
    return (0, 1) if judges else (0,)


def _as_a_server(command: Command, folder: Path) -> str:
    """Start a server on a free port, read its page, end it with Ctrl-C; return what went wrong, empty if nothing."""
    line = f"exec {command.text}{'' if '--port' in command.words else ' --port 0'}"
    if "cert.pem" in command.words:
        write_certificate(folder)
    environment = _environment(folder) | {"PYTHONUNBUFFERED": "1", "TOKEN": _TOKEN}
    output = folder / "server.txt"
    with output.open("w") as said:
        process = subprocess.Popen(
            ["bash", "-c", line], cwd=folder, env=environment, stdout=said, stderr=subprocess.STDOUT, preexec_fn=hears_ctrl_c
        )
    try:
        give_up = time.monotonic() + SERVER_S
        while (address := _ADDRESS.search(output.read_text())) is None:
            if process.poll() is not None or time.monotonic() > give_up:
                return f"printed no address: {output.read_text()[-600:]}"
            time.sleep(0.1)
        trusting = ssl._create_unverified_context()  # the certificate signs itself
        with urllib.request.urlopen(address[0], timeout=SERVER_S, context=trusting) as page:
            status = page.status
        process.send_signal(signal.SIGINT)
        code = process.wait(SERVER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{error}: {output.read_text()[-600:]}"
    finally:
        process.kill()
    return "" if status == 200 and code == 0 else f"page {status}, exit {code}: {output.read_text()[-600:]}"


def _environment(folder: Path) -> dict[str, str]:
    """The environment of a shell that finds this Python's programs under the names that the manual has."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, words in {"strobe": "-m strobe", "python": "", "torchrun": "-m torch.distributed.run"}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (programs / name).chmod(0o755)
    return os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def hears_ctrl_c() -> None:
    """Restore SIGINT in a new process, because a shell lets its background jobs ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _in_a_shell(command: Command, folder: Path, allowed: tuple[int, ...], timeout_s: float = TIMEOUT_S) -> str:
    process = subprocess.Popen(
        ["bash", "-c", command.text],
        cwd=folder,
        env=_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
        process.communicate()
        return f"not finished after {timeout_s:g} s"
    return "" if process.returncode in allowed else f"exit {process.returncode}: {said[-600:]}"


def _expanded(word: str, folder: Path) -> list[str]:
    """Expand a word with a star as a shell does."""
    found = sorted(str(path.relative_to(folder)) for path in folder.glob(word)) if "*" in word else []
    return found or [word]
