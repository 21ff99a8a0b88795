"""What is queued on a GPU has a deadline; here what is queued is a function that says whether it has ended."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

import tree_work as work
from strobe.attention.tree import CollectiveError, deadline
from strobe.attention.tree.comm import CollectiveCall, Comm, Queued, Watch, look
from tree_ranks import Processes, Runner

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
    reached: set[str] = set()
    ended: set[str] = set()

    def queued(name: str) -> Queued:
        return Queued(done=lambda: name in ended, begun=lambda: name in reached, late=lambda: None, timeout_s=30)

    first, second = queued("first"), queued("second")
    assert look([first, second], 0) == ([first, second], [])
    assert look([first, second], 1000) == ([first, second], [])  # a healthy backlog
    reached.add("first")
    assert look([first, second], 1001) == ([first, second], [])
    reached.add("second")
    assert look([first, second], 1021) == ([first, second], [])
    reached.clear()  # asked no more
    assert look([first, second], 1031) == ([first, second], [])
    assert look([first, second], 1032) == ([first, second], [first])
    ended.add("first")
    assert look([first, second], 1051) == ([second], [])
    assert look([first, second], 1052) == ([second], [second])


def test_nothing_is_late_behind_a_backlog() -> None:
    watch, begun, told = Watch(), threading.Event(), threading.Event()
    watch.add(lambda: False, told.set, 0.01, begun=begun.is_set)
    assert not told.wait(0.3)
    begun.set()
    assert told.wait(LONG_S)


def test_the_thread_ends_and_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.attention.tree.comm.IDLE_S", 0.01)
    watch, told = Watch(), threading.Event()
    for _ in range(2):
        watch.add(lambda: False, told.set, 0.0)
        assert told.wait(LONG_S)
        told.clear()
        thread = watch._thread
        if thread is not None:
            thread.join(LONG_S)
        assert watch._thread is None


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


def test_the_next_call_raises_where_results_are_looked_at_first(tmp_path: Path) -> None:
    with Processes(2) as two:
        two.run(work.patient)
        two.start(work.queued_for_ever, str(tmp_path / "error.json"), False)
        told = two.outcomes([0])[0]
        assert told.kind == "CollectiveError" and told.blamed == (1,) and "rank 1 did not answer within 1.5 s" in told.error
        two.start(work.patient, ranks=[0])
        assert "this process group has failed before" in two.outcomes([0])[0].error


def test_nothing_is_watched_on_a_cpu(ranks: Runner) -> None:
    def work(rank: int) -> str:
        with deadline("nothing"):
            return "done"

    assert ranks(2, work) == ["done", "done"]
