"""Cells as processes of this machine: what they say, how they end, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from strobe.bench.executor import Cell, LocalExecutor, Resources
from strobe.bench.executor.processes import alive
from strobe.core.errors import ConfigError

PARALLEL = Resources(exclusive=False)
ORPHANS = """
import subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)"
for new in (False, True):
    child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, start_new_session=new)
    child.stdout.readline()
print("ready", flush=True)
"""


PATIENCE_S = 120.0
"""For what takes a fraction of a second on a machine that has nothing else to do."""


def python(program: str, *, timeout_s: float = PATIENCE_S, **env: str) -> Cell:
    return Cell(argv=(sys.executable, "-c", program), env=env, timeout_s=timeout_s)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_cell_says_what_it_printed_and_how_it_ended() -> None:
    executor = LocalExecutor(grace_s=0.3)
    cell = python("import os, sys; print(os.environ['HERE']); print('why', file=sys.stderr); sys.exit(3)", HERE="there")
    handle = executor.submit(cell)
    found = executor.wait(handle)
    assert (found.status, found.code, found.stdout, found.stderr, found.swept) == ("failed", 3, "there\n", "why\n", 0)
    assert executor.wait(handle) is found and executor.cancel(handle) is found
    assert executor.wait(executor.submit(python("pass"))).status == "done"
    own = executor.wait(executor.submit(python("import os; print(os.getsid(0))")))
    assert int(own.stdout) != os.getsid(0), "a signal to the terminal's group does not reach a cell"
    killed = executor.wait(executor.submit(python("import os; os.kill(os.getpid(), 9)")))
    assert (killed.status, killed.code) == ("failed", -9)


def test_only_the_end_of_much_output_is_kept_and_none_of_it_blocks() -> None:
    executor = LocalExecutor(grace_s=0.3)
    found = executor.wait(executor.submit(python("print('x' * 300_000 + 'end')")))
    assert found.status == "done" and len(found.stdout) == 65_536 and found.stdout.endswith("end\n")


def test_a_timeout_ends_processes_that_left_the_session_and_do_not_listen() -> None:
    executor = LocalExecutor(grace_s=0.3)
    handle = executor.submit(python(ORPHANS + "time.sleep(1000)", timeout_s=900))
    wait_until(lambda: os.pread(handle.output[0].fileno(), 100, 0) == b"ready\n")
    handle.started -= 900  # as if it had been submitted that long ago
    found = executor.wait(handle)
    assert found.status == "timeout" and found.swept == 3 and found.stdout == "ready\n"
    assert alive(handle.mark) == []


def test_a_cell_is_given_its_time_and_no_more() -> None:
    executor = LocalExecutor(grace_s=0.3)
    start = time.monotonic()
    found = executor.wait(executor.submit(python("import time; time.sleep(1000)", timeout_s=0.4)))
    assert found.status == "timeout" and 0.4 <= time.monotonic() - start < 900


def test_orphans_of_a_cell_that_ended_by_itself_are_swept() -> None:
    executor = LocalExecutor(grace_s=0.3)
    handle = executor.submit(python(ORPHANS))
    found = executor.wait(handle)
    assert found.status == "done" and found.swept == 2 and alive(handle.mark) == []


def test_cancel_ends_a_stopped_cell_now() -> None:
    """It is woken to hear the signal, long before it would be ended by force."""
    executor = LocalExecutor(grace_s=PATIENCE_S)
    handle = executor.submit(python("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"))
    wait_until(lambda: Path(f"/proc/{handle.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    start = time.monotonic()
    found = executor.cancel(handle)
    assert (found.status, found.code) == ("cancelled", -signal.SIGTERM) and time.monotonic() - start < PATIENCE_S / 2
    assert alive(handle.mark) == []


def test_a_cell_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    file = tmp_path / "mark"
    program = f"""
import sys, pathlib, time
from strobe.bench.executor import Cell, LocalExecutor
handle = LocalExecutor().submit(Cell(argv=(sys.executable, "-c", "import time; time.sleep(1000)"), timeout_s=1000))
pathlib.Path({str(file)!r}).write_text(handle.mark)
time.sleep(1000)
"""
    starter = subprocess.Popen([sys.executable, "-c", program])
    try:
        wait_until(lambda: file.exists() and file.read_text() and alive(file.read_text()))
        mark = file.read_text()
        assert len(alive(mark)) == 1
    finally:
        os.kill(starter.pid, signal.SIGKILL)
        starter.wait()
    wait_until(lambda: not alive(mark))


def test_a_cell_that_takes_times_runs_alone() -> None:
    executor = LocalExecutor(grace_s=0.3)
    handle = executor.submit(python("import time; time.sleep(1000)"))
    with pytest.raises(ConfigError, match="runs alone"):
        executor.submit(Cell(argv=("true",), timeout_s=1, resources=PARALLEL))
    executor.cancel(handle)
    both = [executor.submit(Cell(argv=("true",), timeout_s=PATIENCE_S, resources=PARALLEL)) for _ in range(2)]
    assert [executor.wait(each).status for each in both] == ["done", "done"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a command"):
        Cell(argv=(), timeout_s=1)
    with pytest.raises(ConfigError, match="ask for fewer"):
        LocalExecutor(grace_s=0.3).submit(Cell(argv=("true",), timeout_s=1, resources=Resources(cpus=10_000)))
    with pytest.raises(ConfigError, match="expected 1 or more"):
        Resources(cpus=0)
    missing = LocalExecutor(grace_s=0.3)
    found = missing.wait(missing.submit(Cell(argv=("no-such-command",), timeout_s=PATIENCE_S)))
    assert found.status == "failed" and found.code == 127 and "no-such-command" in found.stderr
