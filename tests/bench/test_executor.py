"""Cells as processes of this machine: what they say and bring, how they end, and many over one executor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strobe.bench.executor import Cell, Finished, LocalExecutor, Resources
from strobe.bench.executor.local import Job, Running, spread
from strobe.bench.executor.processes import alive
from strobe.bench.tree.request import RankedCall, TreeSettings
from strobe.bench.tree.run import run_cells
from strobe.core.errors import ConfigError
from strobe.perf.records.store import read_run
from strobe.perf.report.tree_bench import read_cells

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


def test_a_cell_has_a_folder_of_its_own_and_brings_back_what_it_left_there() -> None:
    program = """
import pathlib
assert pathlib.Path("in/kept").read_bytes() == b"\\0a" and pathlib.Path("changed").read_bytes() == b"before"
pathlib.Path("changed").write_bytes(b"after")
pathlib.Path("out").mkdir()
pathlib.Path("out/new").write_bytes(b"\\xff")
pathlib.Path("link").symlink_to("changed")
print(pathlib.Path.cwd())
"""
    executor = LocalExecutor(grace_s=0.3)
    files = {"in/kept": b"\0a", "changed": b"before"}
    found = executor.wait(executor.submit(Cell(argv=(sys.executable, "-c", program), files=files, timeout_s=PATIENCE_S)))
    assert found.status == "done", found.stderr
    assert found.files == {"changed": b"after", "out/new": b"\xff"} and not Path(found.stdout.strip()).exists()


def jobs(cells: list[Cell], told: list[str]) -> Iterator[Job[str]]:
    """Jobs that write down how they end."""

    def job(cell: Cell) -> Job[str]:
        try:
            found = yield cell
        except ConfigError as error:
            return f"refused: {error}"
        except KeyboardInterrupt:
            told.append("interrupted")
            raise
        except GeneratorExit:
            told.append("closed")
            raise
        return found.stdout

    return (job(cell) for cell in cells)


def test_jobs_give_their_results_in_order_and_hear_why_they_were_refused() -> None:
    class Watched(LocalExecutor):
        most = 0

        def submit(self, cell: Cell) -> Running:
            running = super().submit(cell)
            self.most = max(self.most, len(self._running))
            return running

        def at_once(self, resources: Resources) -> int:
            return 1 if resources.exclusive else 2

    numbers = [
        Cell(argv=("sh", "-c", f"sleep 0.{3 * (n == 0)}; echo {n}"), timeout_s=PATIENCE_S, resources=PARALLEL) for n in range(5)
    ]
    many = Cell(argv=("true",), timeout_s=1, resources=Resources(cpus=10_000, exclusive=False))
    executor = Watched(grace_s=0.3)
    found = list(spread(jobs([*numbers[:2], many, *numbers[2:]], []), executor))
    assert [line.strip() for line in found if not line.startswith("refused")] == ["0", "1", "2", "3", "4"]
    assert sum("ask for fewer" in line for line in found) == 1 and executor.most == 2
    alone = Watched(grace_s=0.3)
    assert len(list(spread(jobs([python(f"print({n})") for n in range(3)], []), alone))) == 3 and alone.most == 1


def test_ctrl_c_ends_all_cells_and_tells_their_jobs() -> None:
    class Interrupted(LocalExecutor):
        def wait(self, handle: Running) -> Finished:
            raise KeyboardInterrupt

        def at_once(self, resources: Resources) -> int:
            return 3

    executor, told = Interrupted(grace_s=0.3), list[str]()
    cells = [Cell(argv=("sleep", f"100{n}"), timeout_s=1000, resources=PARALLEL) for n in range(3)]
    with pytest.raises(KeyboardInterrupt):
        list(spread(jobs(cells, told), executor))
    assert told == ["interrupted"] * 3 and executor._running == []
    some = spread(jobs([python("pass"), python("pass")], told), LocalExecutor(grace_s=0.3))
    assert next(some) == ""
    some.close()


def test_cells_that_no_machine_takes_fail_one_by_one_and_in_words(tmp_path: Path) -> None:
    class Small(LocalExecutor):
        def submit(self, cell: Cell) -> Running:
            raise ConfigError("no such machine")

    shapes = [RankedCall(world_size=ranks, seq_len=16, heads=1, kv_heads=1, dim=8) for ranks in (9, 8)]
    how = TreeSettings(contestants=("allgather",), iterations=1)
    outcome = run_cells(shapes, how, tmp_path, lambda *_: None, executor=Small(grace_s=0.5))
    assert outcome.failed == tuple(f"{shape.name}: no such machine" for shape in shapes) and not outcome.measured
    for shape in shapes:
        end = read_run(tmp_path / "cells" / shape.name).end
        assert end is not None and (end.status, end.message) == ("failed", "no such machine")
    assert [cell.failure for cell in read_cells(tmp_path)[0]] == ["no such machine"] * 2


def test_a_cell_whose_processes_do_not_listen_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    file = tmp_path / "mark"
    deaf = ORPHANS + "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(1000)"
    program = f"""
import sys, pathlib, time
from strobe.bench.executor import Cell, LocalExecutor
argv = (sys.executable, "-c", {deaf!r})
handle = LocalExecutor(grace_s=0.3).submit(Cell(argv=argv, timeout_s=1000))
pathlib.Path({str(file)!r}).write_text(handle.mark)
time.sleep(1000)
"""
    starter = subprocess.Popen([sys.executable, "-c", program])
    try:
        wait_until(lambda: file.exists() and len(alive(file.read_text())) == 3)
        time.sleep(0.2)  # the last of them stops listening after it has started the others
    finally:
        os.kill(starter.pid, signal.SIGKILL)
        starter.wait()
    wait_until(lambda: not alive(file.read_text()))
