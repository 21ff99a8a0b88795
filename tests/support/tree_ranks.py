"""Ranks for tests: threads of this process, hundreds of groups a second, and real processes over gloo, which can be killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed import multi_threaded_pg as threaded

from strobe.attention.tree.comm import Comm

Runner = Callable[[int, Callable[[int], Any]], list[Any]]


@contextmanager
def threads() -> Iterator[Runner]:
    """Give a runner that calls a function once per rank, each in a thread with its own process group; errors are raised."""
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    threaded._install_threaded_pg()
    try:
        yield _run_threads
    finally:
        threaded._uninstall_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)


def _run_threads(num_ranks: int, work: Callable[[int], Any]) -> list[Any]:
    store, results, errors = dist.HashStore(), [None] * num_ranks, [None] * num_ranks

    def run(rank: int) -> None:
        dist.init_process_group("threaded", rank=rank, world_size=num_ranks, store=store)
        try:
            results[rank] = work(rank)
        except BaseException as error:  # noqa: BLE001  # a rank's error wakes the others
            errors[rank] = error
            threaded.ProcessLocalGroup.exception_handle(error)  # wakes the others
        finally:
            dist.destroy_process_group()

    running = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(num_ranks)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(600)
    threaded.ProcessLocalGroup.reset()
    for error in errors:
        if error is not None and not isinstance(error, SystemExit):
            raise error
    assert not any(thread.is_alive() for thread in running)
    return results


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a rank's work: its value, or its error and after how many seconds; `exit` if its process ended."""

    value: Any = None
    error: str = ""
    kind: str = ""
    blamed: tuple[int, ...] = ()
    seconds: float = 0.0
    ended: bool = False


_CONTEXT = multiprocessing.get_context("forkserver")


def _start_server() -> None:
    """Start the process that ranks are forked from, with what they import; it finds modules where this process does."""
    _CONTEXT.set_forkserver_preload(["torch.distributed.device_mesh", "strobe.attention.tree", "tree_work", "ring_cases"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()


class Processes:
    """Processes with one group, which run what they are given until they are closed.

    Args:
        num_ranks: how many.
        store: where they meet; a file by default.
        nccl: a GPU each: `blocking`, where a wait for NCCL stops the CPU and so has a timeout, or `queued`, as NCCL is by itself.
    """

    def __init__(self, num_ranks: int, store: str = "", *, nccl: Literal["", "blocking", "queued"] = "") -> None:
        _start_server()
        self.folder = tempfile.TemporaryDirectory()
        self.within = 60.0 if nccl else 600.0
        init = store or f"file://{self.folder.name}/store"
        pairs = [_CONTEXT.Pipe() for _ in range(num_ranks)]
        self.pipes = [ours for ours, _ in pairs]
        self.processes = [
            _CONTEXT.Process(target=_serve, args=(theirs, rank, num_ranks, init, nccl), daemon=True)
            for rank, (_, theirs) in enumerate(pairs)
        ]
        for process, (_, theirs) in zip(self.processes, pairs, strict=True):
            process.start()
            theirs.close()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            if process.is_alive() and process.pid:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
            process.join(0.5)  # one that sleeps is not waited for
            if process.is_alive():
                process.kill()
                process.join(5)
        self.folder.cleanup()

    def start(self, work: Callable[..., Any], *arguments: Any, ranks: list[int] | None = None) -> None:
        """Send work to some ranks: `work(rank, *arguments)`."""
        for rank in range(len(self.pipes)) if ranks is None else ranks:
            self.pipes[rank].send((work, arguments))

    def outcomes(self, ranks: list[int] | None = None, within: float | None = None) -> list[Outcome]:
        """Collect the answers of the ranks."""
        found = []
        deadline = time.monotonic() + (self.within if within is None else within)
        for rank in range(len(self.pipes)) if ranks is None else ranks:
            try:
                assert self.pipes[rank].poll(max(0.0, deadline - time.monotonic())), f"rank {rank} is silent"
                found.append(self.pipes[rank].recv())
            except EOFError:
                found.append(Outcome(ended=True))
        return found

    def run(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return the values of all ranks; an error of one raises."""
        self.start(work, *arguments)
        outcomes = self.outcomes()
        assert not any(each.error or each.ended for each in outcomes), [each.error for each in outcomes]
        return [each.value for each in outcomes]


def _serve(pipe: Connection, rank: int, num_ranks: int, init: str, nccl: str) -> None:
    torch.set_num_threads(1)
    if nccl:
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = str(int(nccl == "blocking"))
        torch.cuda.set_device(rank)
    else:
        read = Comm.read  # a busy machine takes longer than 0.4 s, in which a failing rank waits for notes
        Comm.read = lambda comm, key, ranks, s: read(comm, key, ranks, 3 * s if key == "note" else s)  # type: ignore[method-assign]
    backend = "cpu:gloo,cuda:nccl" if nccl else "gloo"
    dist.init_process_group(backend, init_method=init, rank=rank, world_size=num_ranks, timeout=timedelta(seconds=60))
    while True:
        try:
            work, arguments = pipe.recv()
        except EOFError:
            break
        start = time.monotonic()
        try:
            pipe.send(Outcome(value=work(rank, *arguments), seconds=time.monotonic() - start))
        except Exception as error:  # noqa: BLE001  # whatever it is, the test looks at it
            text = (
                str(error) if type(error).__name__ in ("CollectiveError", "ShapeError", "ConfigError") else traceback.format_exc()
            )
            blamed = getattr(error, "ranks", ())
            took = time.monotonic() - start
            pipe.send(Outcome(error=text, kind=type(error).__name__, blamed=blamed, seconds=took))
    os._exit(0)
