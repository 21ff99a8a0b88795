"""Cells over a Ray cluster of two real nodes of this machine, one of which is killed while a cell runs on it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from strobe.bench.executor import Cell, Resources, open_executor
from strobe.bench.executor.processes import MARK
from strobe.bench.traces import spread_reading
from strobe.core.errors import ConfigError, ImplUnavailableError, StrobeError
from strobe.perf.report.study import load_trace_study

SHARED = Resources(exclusive=False)
PATIENCE_S = 120.0
DEAF = """
import pathlib, subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(100)"
child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
pathlib.Path(sys.argv[1]).open("a").write("up\\n")
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes that ignore SIGINT, as what a script started in the background does."""
    pytest.importorskip("ray", reason="needs the extra ray")
    import ray
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "resources": {"strobe_node": 1}}
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    cluster.add_node(**size, wait=False)
    signal.signal(signal.SIGINT, before)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def python(program: str, *arguments: str, timeout_s: float = PATIENCE_S, **env: str) -> Cell:
    return Cell(argv=(sys.executable, "-c", program, *arguments), env=env, timeout_s=timeout_s)


def deaf(file: Path, seconds: float, timeout_s: float = PATIENCE_S) -> Cell:
    return python(DEAF, str(file), str(seconds), timeout_s=timeout_s, WHOSE=str(file))


def left(whose: str) -> list[int]:
    """Processes of cells with that word in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"WHOSE={whose}".encode() in words and any(word.startswith(MARK.encode()) for word in words):
            found.append(int(place.name))
    return found


def until(condition: Any, seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.bench.executor.ray.broken", lambda module: f"{module} cannot be imported (ImportError: half)")
    with pytest.raises(ImplUnavailableError, match=r"ImportError: half\); pip install .*\[ray\].*would run here: local"):
        open_executor("ray")
    for other in ("rya", "local:host:1"):
        with pytest.raises(ConfigError, match=f"unknown executor '{other}'.*ray:HOST:PORT"):
            open_executor(other)


@pytest.mark.rest
def test_where_no_cluster_is_it_says_so_and_what_to_start() -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    for address in ("127.0.0.1:1", "nowhere"):
        with pytest.raises(StrobeError, match=f"no Ray cluster at {address}: .*; start each machine with `ray start"):
            open_executor(f"ray:{address}")


@pytest.mark.rest
def test_cells_that_take_times_have_a_machine_each(cluster: Any) -> None:
    executor = open_executor("ray")
    program = (
        "import pathlib, sys, time; start = time.time(); time.sleep(1); pathlib.Path('span').write_text(f'{start} {time.time()}')"
    )
    cells = [python(program, str(number)) for number in range(3)]
    handles = [executor.submit(cell) for cell in cells]
    found = [executor.wait(handle) for handle in handles]
    spans: dict[str, list[list[float]]] = {}
    for each in found:
        assert each.status == "done" and not each.lost, each.stderr
        spans.setdefault(each.node, []).append([float(word) for word in each.files["span"].split()])
    assert len(spans) == 2
    for on_one in spans.values():
        on_one.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(on_one))
    assert executor.at_once(Resources()) == 4 and executor.at_once(SHARED) == 8


@pytest.mark.rest
def test_a_failure_and_a_timeout_bring_their_words_and_leave_nothing(cluster: Any, tmp_path: Path) -> None:
    executor = open_executor("ray")
    program = "import os, sys; print(open('given').read()); print(os.environ['HERE'], file=sys.stderr); sys.exit(3)"
    cell = Cell(
        argv=(sys.executable, "-c", program),
        env={"HERE": "why"},
        files={"given": b"text"},
        timeout_s=PATIENCE_S,
        resources=SHARED,
    )
    found = executor.wait(executor.submit(cell))
    assert (found.status, found.code, found.stdout, found.stderr, found.files) == ("failed", 3, "text\n", "why\n", {})
    file = tmp_path / "late"
    found = executor.wait(executor.submit(deaf(file, 100, timeout_s=2)))
    assert found.status == "timeout" and found.swept >= 1 and file.read_text() == "up\n" and left(str(file)) == []
    queued = [executor.submit(deaf(tmp_path / name, 100)) for name in "abc"]
    until(lambda: sum((tmp_path / name).exists() for name in "abc") == 2)
    queued.sort(key=lambda handle: Path(handle.cell.argv[3]).exists())
    ended = [executor.cancel(handle) for handle in queued]
    assert [each.status for each in ended] == ["cancelled"] * 3
    assert [each.code is None for each in ended] == [True, False, False], "the first of them never began"
    assert [left(str(tmp_path / name)) for name in "abc"] == [[], [], []]


@pytest.mark.rest
def test_what_the_cluster_cannot_do_is_refused_at_once(cluster: Any) -> None:
    executor = open_executor("ray")
    with pytest.raises(ConfigError, match=r"asks for a machine of 1 CPU and 8 GPU.*the cluster has .* 2 CPU, 0 GPU; .* 2 CPU"):
        executor.submit(Cell(argv=("true",), timeout_s=1, resources=Resources(gpus=8)))
    many = Cell(argv=("true",), timeout_s=1, resources=Resources(cpus=2, exclusive=False), files={"a/b": b"", "a": b""})
    found = executor.wait(executor.submit(many))
    assert found.status == "failed" and "a worker of the cluster cannot start it" in found.stderr


@pytest.mark.rest
def test_a_cell_outlives_the_machine_it_ran_on(cluster: Any, tmp_path: Path) -> None:
    """The last one: the cluster has one node afterwards."""
    executor = open_executor("ray")
    files = [tmp_path / name for name in ("first", "second")]
    handles = [executor.submit(deaf(file, 2)) for file in files]
    until(lambda: all(file.exists() for file in files))
    (node,) = cluster.worker_nodes
    os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)
    found = [executor.wait(handle) for handle in handles]
    assert [each.status for each in found] == ["done", "done"], [each.stderr for each in found]
    again = [each for each in found if each.lost]
    assert len(again) == 1 and again[0].lost[0] != again[0].node == next(each for each in found if not each.lost).node
    assert sorted(file.read_text().count("up") for file in files) == [1, 2]
    assert [left(str(file)) for file in files] == [[], []]


@pytest.mark.rest
def test_traces_are_sent_to_the_machines_and_come_back_read(cluster: Any, tmp_path: Path) -> None:
    event = (
        '{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": %d, "dur": 5, "args": {"device": 0, "stream": 7}}'
    )
    for rank in range(3):
        (tmp_path / str(rank)).mkdir()  # the same name three times
        head = f'{{"schemaVersion": 1, "distributedInfo": {{"rank": {rank}, "world_size": 3}}, "traceEvents": ['
        (tmp_path / str(rank) / "trace.json").write_text(head + event % (10 + rank) + "]}")
    study = load_trace_study([tmp_path], reading=spread_reading(open_executor(f"ray:{cluster.address}")))
    assert [trace.rank for trace in study.traces] == [0, 1, 2]
    for rank, trace in enumerate(study.traces):
        assert trace.path == tmp_path / str(rank) / "trace.json" and trace.device_events[0].start_ns == 1000 * (10 + rank)
