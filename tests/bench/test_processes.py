"""Commands that leave no process behind: what they say, and how all that came of them ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest

from strobe.bench.processes import alive, run_swept

ORPHANS = """
import pathlib, subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)"
for new in (False, True):
    child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, start_new_session=new)
    child.stdout.readline()
pathlib.Path("ready").touch()
print("ready", flush=True)
"""
PATIENCE_S = 120.0
"""For what takes a fraction of a second on a machine that has nothing else to do."""


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """The mark of the commands of this test."""
    found = uuid4()
    monkeypatch.setattr("strobe.bench.processes.uuid4", lambda: found)
    return found.hex


def run(
    program: str, folder: Path, *, timeout_s: float = PATIENCE_S, grace_s: float = 0.3, **env: str
) -> subprocess.CompletedProcess[str]:
    return run_swept((sys.executable, "-c", program), folder, env, timeout_s, grace_s)


def test_a_command_says_what_it_printed_and_how_it_ended(tmp_path: Path) -> None:
    program = "import os, sys; print(os.environ['HERE'], os.getcwd()); sys.stderr.buffer.write(b'why\\xff'); sys.exit(3)"
    found = run(program, tmp_path, HERE="there")
    assert (found.returncode, found.stdout, found.stderr) == (3, f"there {tmp_path}\n", "why\N{REPLACEMENT CHARACTER}")
    own = run("import os; print(os.getsid(0))", tmp_path)
    assert own.returncode == 0 and int(own.stdout) != os.getsid(0), "a signal to the terminal's group does not reach it"
    assert run("import os; os.kill(os.getpid(), 9)", tmp_path).returncode == -9
    assert len(run("print('x' * 300_000)", tmp_path).stdout) == 300_001, "much output blocks nothing"
    assert tmp_path.is_dir()


def test_a_timeout_ends_processes_that_left_the_session_and_do_not_listen(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(subprocess.Popen[str]):
        def wait(self, timeout: float | None = None) -> int:
            while not (tmp_path / "ready").exists():
                time.sleep(0.01)
            return super().wait(0.01 if timeout == PATIENCE_S else timeout)

    names = SimpleNamespace(Popen=Slow, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr("strobe.bench.processes.subprocess", names)
    with pytest.raises(subprocess.TimeoutExpired):
        run(ORPHANS + "time.sleep(1000)", tmp_path)
    assert alive(mark) == []


def test_orphans_of_a_command_that_ended_by_itself_are_swept(tmp_path: Path, mark: str) -> None:
    found = run(ORPHANS, tmp_path)
    assert found.returncode == 0 and found.stdout == "ready\n" and alive(mark) == []


def test_a_stopped_command_is_woken_to_hear_that_it_ends(tmp_path: Path, mark: str) -> None:
    """Long before it would be ended by force."""
    start = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", tmp_path, timeout_s=5, grace_s=PATIENCE_S)
    assert time.monotonic() - start < PATIENCE_S / 2 and alive(mark) == []
