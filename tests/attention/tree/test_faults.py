"""A rank that dies, hangs or disagrees gives every survivor an error that names it, in time; nothing is left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tree_work as work
from strobe.attention.tree import CollectiveError
from strobe.attention.tree.comm import CollectiveCall, Comm, Queued, Watch, fingerprint
from tree_ranks import Outcome, Processes

LIMIT_S = work.PATIENT_S / 5
"""In time: long before the timeout of calls that nobody has to hurry for, and before a rank that hangs would go on."""
HANG_S = 10 * work.PATIENT_S


@pytest.fixture
def three() -> Iterator[Processes]:
    with Processes(3) as processes:
        assert processes.run(work.patient) == [1.0, 1.0, 1.0]  # they have met
        yield processes


def free_port() -> int:
    """One that no other program is given by chance: systems hand out those from 32768 on."""
    for port in random.Random(os.getpid()).sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("100 ports are in use")


def blames(outcomes: list[Outcome], rank: int, *words: str) -> None:
    for each in outcomes:
        assert each.kind == "CollectiveError" and each.blamed == (rank,), each
        assert each.seconds < LIMIT_S, each
        for word in (f"rank {rank} ", "q [1, 1, 2, 8]", *words):
            assert word in each.error, each.error


@dataclass(frozen=True)
class Fault:
    """Work and its arguments, the rank to blame, words of each answer, and what the rank itself says if not the same."""

    work: Callable[..., Any]
    given: tuple[Any, ...]
    blamed: int
    words: tuple[str, ...] = ()
    own: Outcome | None = None
    silent: bool = False


OTHER_CALL = "disagrees on the arguments"
FAULTS = {
    "ends": Fault(work.after, ({1: 0.3},), 1, ("closed the connection (", "call 2"), Outcome(ended=True)),
    **{
        f"goes amid {strategy}, {hang_s:g} s, {behind} behind": Fault(
            work.exit_in_call, (1, strategy, hang_s, behind), 1, (strategy,), silent=True
        )
        for strategy in ("allgather", "allreduce3")
        for hang_s, behind in ((0.0, None), (HANG_S, None), (0.0, 0), (0.0, 2))
    },
    "says its call late": Fault(work.late_and_other, (1.5,), 1, (OTHER_CALL, "scale 0.5")),
    "calls in another order": Fault(work.calls, (work.PATIENT_S, {2: 2}, {0: 2, 1: 2}), 2, (OTHER_CALL, "q [1, 2, 2, 8]")),
    "leaves out a call": Fault(work.calls, (work.SHORT_S, {0: 0}, {}), 0, ("call 3",), Outcome()),
    "has wrong arguments": Fault(work.wrong_shape, (2,), 2, (), Outcome(kind="ShapeError")),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_others_name_a_rank_that(three: Processes, name: str) -> None:
    """One that finds its connection closed sends nothing more; one `behind` would wait for it until the timeout."""
    fault = FAULTS[name]
    three.start(fault.work, *fault.given)
    apart = fault.own is not None or fault.silent
    outcomes = three.outcomes([rank for rank in range(3) if rank != fault.blamed or not apart])
    blames(outcomes, fault.blamed, *fault.words)
    assert not any("(no answer)" in each.error for each in outcomes)
    if fault.own is not None:
        (own,) = three.outcomes([fault.blamed])
        assert (own.kind, own.ended) == (fault.own.kind, fault.own.ended)


def test_a_rank_that_is_killed(three: Processes) -> None:
    three.start(work.after, {2: HANG_S})
    time.sleep(0.3)
    assert three.processes[2].pid
    os.kill(three.processes[2].pid, signal.SIGKILL)
    blames(three.outcomes([0, 1]), 2, "closed the connection (")
    three.start(work.small, ranks=[0, 1])
    for each in three.outcomes([0, 1]):
        assert "this process group has failed before (call 2: rank 2 closed" in each.error and each.seconds < LIMIT_S


def test_a_rank_that_hangs_and_holds_the_store() -> None:
    port = free_port()
    with Processes(3, f"tcp://127.0.0.1:{port}") as three:
        three.run(work.patient)
        assert three.processes[0].pid
        os.kill(three.processes[0].pid, signal.SIGSTOP)
        three.start(work.small, ranks=[1, 2])
        blames(three.outcomes([1, 2]), 0, "did not answer within 1.5 s")
    assert not any(process.is_alive() for process in three.processes)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))  # the port is free again


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": torch.float64}, ("float32", "float64")),
        ({"heads": 4}, ("q [1, 1, 4, 8]",)),
        ({"rows": 3}, ("q [1, 3, 2, 8]",)),
        ({"options": {"strategy": "ring"}}, ("auto q", "ring q")),
        ({"options": {"softmax_scale": 0.5}}, ("scale 0.5",)),
        ({"value": 2.0}, ("queries, which are replicated: the same values on every rank",)),
        ({"flip": [3]}, ("queries, which are replicated: the same values on every rank",)),
    ],
    ids=lambda change: next(iter(change)) if isinstance(change, dict) else "",
)
def test_a_rank_that_disagrees(three: Processes, change: dict[str, object], words: tuple[str, ...]) -> None:
    three.start(work.patient, {1: change})
    blames(three.outcomes(), 1, "disagrees on the ", *words)  # it is told at once, not at the timeout
    assert three.run(work.patient) == [1.0, 1.0, 1.0]  # nothing is under way: the group goes on


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_fingerprint_of_queries(dtype: torch.dtype) -> None:
    """It sees every bit and its place, and not how the values lie in memory."""
    q = torch.randn(2, 5, 3, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    q[0, 0, 0, 0], q[0, 0, 0, 1], q[0, 0, 0, 2] = 0.0, float("nan"), float("-inf")
    bits = q.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
    swapped = q.clone()
    swapped[0, 0, 0, 0] = -0.0
    others = [bits.clone() for _ in range(2)]
    others[0][0, 0, 0, 1] ^= 1  # another NaN
    others[1][1, 4, 2, 3] ^= 1
    mirrored = q[:, [0, 4, 2, 3, 1]]
    pair = q[:, [1, 0, 0, 1, 2]], q[:, [0, 1, 1, 0, 2]]  # the same rows, and the same sum of their places
    found = [fingerprint(each) for each in (q, swapped, *(each.view(dtype) for each in others), mirrored, q.flip(0), *pair)]
    assert len(set(found)) == len(found)
    assert fingerprint(q.transpose(1, 2).contiguous().transpose(1, 2)) == fingerprint(q.clone()) == found[0]
    assert fingerprint(q[:, :0]) == fingerprint(q[:0])


def test_gpus_agree_in_the_store(three: Processes) -> None:
    assert three.run(work.agree_in_store, -1, -1) == [(2, 8)] * 3  # rank 0 has no keys and learns their shape
    with Processes(3) as others:
        others.start(work.agree_in_store, 1, -1)
        for each in others.outcomes():
            assert each.blamed == (1,) and "rank 1 disagrees on the arguments" in each.error and "a call of 1" in each.error
    with Processes(3) as others:
        others.start(work.agree_in_store, -1, 2)
        for each in others.outcomes([0, 1]):
            assert each.blamed == (2,) and "rank 2 did not answer within 1.5 s" in each.error and each.seconds < LIMIT_S


@pytest.mark.parametrize("number", [2, 3])
def test_gpus_disagree_on_a_call_that_some_know(number: int) -> None:
    with Processes(number) as ranks:
        ranks.start(work.repeat_in_store, 1)
        for each in ranks.outcomes():
            assert each.kind == "CollectiveError" and each.blamed == (1,) and each.seconds < LIMIT_S, each
            assert (
                "rank 1 disagrees on the arguments: rank 0 is in call 2: a call of 0; rank 1 is in call 2: a call of 1"
                in each.error
            )


LONG_S = work.PATIENT_S


def test_what_ends_is_not_late_and_what_is_late_is_told_once() -> None:
    watch, ended, told = Watch(), threading.Event(), threading.Event()
    late: list[str] = []

    def tell(name: str) -> None:
        late.append(name)
        told.set()

    def broken() -> bool:
        raise RuntimeError("the device has failed")

    watch.add(ended.is_set, lambda: tell("ends"), LONG_S)
    watch.add(broken, lambda: tell("broken"), 0.0)
    watch.add(lambda: True, lambda: tell("has ended"), 0.0)
    ended.set()
    watch.add(lambda: False, lambda: tell("never ends"), 0.01)
    assert told.wait(LONG_S) and late == ["never ends"]
    told.clear()
    watch.add(lambda: False, lambda: tell("the next"), 0.01)
    assert told.wait(LONG_S) and late == ["never ends", "the next"]


def test_time_starts_when_the_device_comes_to_it() -> None:
    reached, ended = set[str](), set[str]()

    def queued(name: str) -> Queued:
        return Queued(done=lambda: name in ended, begun=lambda: name in reached, late=lambda: None, timeout_s=30)

    first, second = queued("first"), queued("second")
    seen: list[list[bool]] = []
    for now, begun, done in (
        (0, "", ""), (1000, "", ""),  # a healthy backlog
        (1001, "first", ""), (1021, "first second", ""), (1031, "", ""),  # asked no more
        (1032, "", ""), (1051, "", "first"), (1052, "", "first"),
    ):  # fmt: skip
        reached, ended = {*begun.split()}, {*done.split()}
        seen.append([each.over(now) for each in (first, second)])
    assert seen == [[False, False]] * 5 + [[True, False], [True, False], [True, True]]


def test_nothing_is_late_behind_a_backlog() -> None:
    watch, begun, told = Watch(), threading.Event(), threading.Event()
    watch.add(lambda: False, told.set, 0.01, begun=begun.is_set)
    assert not told.wait(0.3)
    begun.set()
    assert told.wait(LONG_S)


def test_a_process_ends_and_says_for_whom_it_waited(tmp_path: Path) -> None:
    with Processes(2) as two:
        two.run(work.patient)
        two.start(work.queued_for_ever, str(tmp_path / "error.json"), True)
        assert two.outcomes()[0].ended
        two.processes[0].join(LONG_S)
        assert two.processes[0].exitcode == 1
    told = json.loads((tmp_path / "error.json").read_text())["message"]
    said = told["message"]
    assert said in told["extraInfo"]["py_callstack"]  # what torchrun prints
    assert said.startswith("CollectiveError: tree attention, call 2 of rank 0 of 2 (a replayed graph): rank 1 did not answer"), (
        said
    )


def test_what_is_late_ends_the_process_by_the_word_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    comm = Comm(None)
    given_up: list[bool] = []
    monkeypatch.setattr(comm, "give_up", lambda error, *, ends_process: given_up.append(ends_process))
    shared, own = comm.begin("of a session", 0, LONG_S, ends_process=False), comm.begin("a call", 0, LONG_S)
    monkeypatch.setattr(CollectiveCall, "failure", lambda *_: CollectiveError("late"))
    shared.late()
    own.late()
    assert given_up == [False, True]


def test_the_watch_goes_on_while_a_group_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL waits there for the whole GPU, and so for what another group has to give up."""
    watch, free, begun = Watch(), threading.Event(), list[str]()

    def abort(name: str) -> None:
        begun.append(name)
        assert free.wait(LONG_S)

    for name in ("one", "other"):
        group = SimpleNamespace(_get_backend=lambda _, name=name: SimpleNamespace(abort=lambda: abort(name)))
        comm = type("Fake", (Comm,), {"group": group})(None)
        watch.add(lambda: False, partial(comm.give_up, CollectiveError("late"), ends_process=False), 0.01)
    deadline = time.monotonic() + LIMIT_S
    while len(begun) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    free.set()
    assert sorted(begun) == ["one", "other"]


def test_the_next_call_raises_where_results_are_looked_at_first(tmp_path: Path) -> None:
    with Processes(2) as two:
        two.run(work.patient)
        two.start(work.queued_for_ever, str(tmp_path / "error.json"), False)
        told = two.outcomes([0])[0]
        assert told.kind == "CollectiveError" and told.blamed == (1,) and "rank 1 did not answer within 1.5 s" in told.error
        two.start(work.patient, ranks=[0])
        assert "this process group has failed before" in two.outcomes([0])[0].error
