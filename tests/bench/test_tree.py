"""Cells of the tree benchmark on real ranks, the gate that they pass first, and what a page says of what ranks measured."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Literal
from uuid import UUID, uuid4

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from made_records import span_of
from strobe.attention.types import AttentionOutput
from strobe.bench.processes import alive, run_swept
from strobe.bench.tree import rank
from strobe.bench.tree.request import PEER, RankedCall, RankErrors, RankResult, Task, TreeSettings
from strobe.bench.tree.run import lines, run_cells
from strobe.core.errors import ConfigError
from strobe.perf.analysis.runs.grid import collectives, covered_ns, parts, regions_of
from strobe.perf.measure.machine import describe_run, utc_now
from strobe.perf.records.record import MESSAGE, End, LinkRate, Links, Prediction, RankCall, SentMessage
from strobe.perf.records.store import RunWriter, read_run
from strobe.perf.report.bench_pages import bound, collectives_of, parts_of, read_cells, split_calls, straggler, tree_report
from strobe.perf.report.write import render_markdown
from terminal import quiet


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The mark of each command that has run, such as of a cell."""
    found: list[str] = []

    def draw() -> UUID:
        found.append((drawn := uuid4()).hex)
        return drawn

    monkeypatch.setattr("strobe.bench.processes.uuid4", draw)
    return found


def test_all_ranks_are_measured_and_taken_apart(tmp_path: Path, marks: list[str]) -> None:
    """One is held back; who waits for whom is up to the machine, so what that makes of a verdict is tested on made calls."""
    how = TreeSettings(contestants=("allgather", "ring", "auto", PEER), iterations=1, profile=True, delay=(1, 20.0))
    shape = RankedCall(world_size=2, seq_len=101, heads=4, kv_heads=2, dim=8, batch=2)
    outcome = run_cells([shape], how, tmp_path, quiet, timeout_s=300)
    assert outcome.measured == (shape.name,), outcome.failed
    assert alive(marks[0]) == []
    (cell,) = read_cells(tmp_path, "tree")[0]
    ours = [entry for entry in cell.entries if entry.name != PEER]
    assert not any(entry.reason for entry in ours)
    for entry in ours:
        assert len(entry.times_ns) == 6 and min(entry.times_ns) >= 20e6
        assert len(split_calls(entry, "free-running")) == len(split_calls(entry, "serialised")) == 6
        (sample, *_) = split_calls(entry, "free-running")
        held = sample[1]
        marked = ((each.start_ns, each.start_ns + each.value_ns) for each in held[1:])
        assert covered_ns(marked) <= held[0].value_ns - 20e6  # no region is told to have slept
        kinds = [region.part for region in regions_of(sample[0], MESSAGE)]
        messages = {"allgather": ["gather"], "ring": ["exchange", "gather"]}
        sent = [each.kind for each in entry.sent]
        assert kinds == ["agreement", *sent] and sent == messages.get(entry.name, sent)  # auto is one of all
        parts = parts_of(entry)
        assert parts is not None
        assert parts.local + parts.merge + parts.wait + parts.transfer + parts.host == pytest.approx(parts.total)
        assert bound(cell, entry) is not None and all(len(each.waits_ns) == 2 for each in collectives_of(entry))
    assert cell.run.header.world_size == 2
    again = run_cells([shape], how, tmp_path, quiet)
    assert again.kept == (shape.name,) and len(marks) == 1
    with pytest.raises(ConfigError, match="differ in seed"):
        run_cells([shape], TreeSettings(contestants=how.contestants, iterations=1, profile=True, seed=1), tmp_path, quiet)


@pytest.mark.rest
def test_a_rank_that_does_not_answer_fails_the_cell_in_words_and_leaves_nothing(tmp_path: Path, marks: list[str]) -> None:
    how = TreeSettings(contestants=("allgather",), iterations=1, delay=(1, 600_000.0))
    shape = RankedCall(world_size=2, seq_len=16, heads=1, kv_heads=1, dim=8)
    start = time.monotonic()
    (failed,) = run_cells([shape], how, tmp_path, quiet, timeout_s=3.0).failed
    assert "rank 0: tree attention, call" in failed and "rank 1 did not answer within 3 s" in failed and "\n" not in failed
    assert time.monotonic() - start < 500 and alive(marks[0]) == []
    end = read_run(tmp_path / "cells" / shape.name).end
    assert end is not None and end.status == "failed" and "rank 1" in end.message


def test_a_cell_that_takes_too_long_is_ended(tmp_path: Path, marks: list[str]) -> None:
    shape = RankedCall(world_size=2, seq_len=16)
    (failed,) = run_cells([shape], TreeSettings(), tmp_path, quiet, cell_timeout_s=0.5).failed
    assert "ended after 0.5 s" in failed and alive(marks[0]) == []
    (cell,) = read_cells(tmp_path, "tree")[0]
    assert not cell.measured and "ended after 0.5 s" in cell.failure


def test_cells_whose_launcher_fails_fail_one_by_one_and_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Traceback\n  File x\nValueError: no room\nlast words\n"
    done = subprocess.CompletedProcess(args=[], returncode=4, stdout="", stderr=said)
    monkeypatch.setattr("strobe.bench.tree.run.run_swept", lambda *_: done)
    shapes = [RankedCall(world_size=ranks, seq_len=16, heads=1, kv_heads=1, dim=8) for ranks in (2, 1)]
    outcome = run_cells(shapes, TreeSettings(contestants=("allgather",), iterations=1), tmp_path, quiet)
    whys = [f"the launcher ended with code 4; rank {gone} left no word: no room" for gone in ("0, 1", "0")]
    assert outcome.failed == tuple(f"{shape.name}: {why}" for shape, why in zip(shapes, whys, strict=True))
    assert not outcome.measured and [cell.failure for cell in read_cells(tmp_path, "tree")[0]] == whys[::-1]
    for shape, why in zip(shapes, whys, strict=True):
        end = read_run(tmp_path / "cells" / shape.name).end
        assert end is not None and (end.status, end.message) == ("failed", why)


@pytest.fixture
def inputs() -> rank.RankShare:
    return rank.draw(RankedCall(world_size=1, seq_len=63, heads=4, kv_heads=2, dim=8, q_len=3), 0, torch.device("cpu"), seed=0)


def right(inputs: rank.RankShare) -> AttentionOutput:
    from strobe.attention.dense.api import dense_attention

    return dense_attention(inputs.q, inputs.k, inputs.v, return_lse=True)


HALVES = slice(0, 20), slice(20, None)
WRONG = {
    "last key dropped": lambda i: (right(replace(i, k=i.k[:, :-1], v=i.v[:, :-1])).out, None),
    "no scale": lambda i: (right(replace(i, q=i.q * 8**0.5)).out, None),
    "mean of two halves": lambda i: (sum(right(replace(i, k=i.k[:, at], v=i.v[:, at])).out for at in HALVES) / 2, None),
    "lse of base 2": lambda i: (right(i).out, right(i).lse / 0.6931),
    "nothing": lambda i: (torch.full_like(i.q, float("nan")), None),
    "heads mixed up": lambda i: (right(i).out.flip(2), None),
    "another dtype": lambda i: (right(i).out.double(), None),
}


@pytest.mark.parametrize("fault", WRONG)
def test_the_gate_sees_what_is_wrong(inputs: rank.RankShare, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(rank, "_ours", lambda name, given, timeout, return_lse: WRONG[fault](given))
    assert not rank.check("allgather", inputs, 1.0).passed


def test_ranks_draw_the_same_call_and_keep_their_share() -> None:
    shape = RankedCall(world_size=3, seq_len=10, q_len=4, placement="sequence", kv_heads=4, dim=8)
    ranks = [rank.draw(shape, number, torch.device("cpu"), seed=3) for number in range(3)]
    whole = rank.draw(RankedCall(world_size=1, seq_len=10, q_len=4, kv_heads=4, dim=8), 0, torch.device("cpu"), seed=3)
    for name in ("q", "k", "v", "expected"):
        assert torch.equal(torch.cat([getattr(each, name) for each in ranks], dim=1), getattr(whole, name))
    assert [each.k.shape[1] for each in ranks] == [4, 3, 3]


@pytest.mark.parametrize(("dtype", "least", "most"), [("float32", 2.0**-21, 1e-5), ("bfloat16", 1e-5, 1e-3)])
def test_the_gate_passes_what_is_right(dtype: str, least: float, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lse of 16-bit tensors is rounded to half precision."""
    shape = RankedCall(world_size=1, seq_len=63, heads=4, kv_heads=2, dim=8, q_len=3, dtype=dtype)
    inputs = rank.draw(shape, 0, torch.device("cpu"), seed=0)
    monkeypatch.setattr(rank, "_ours", lambda name, given, timeout, return_lse: (right(given).out, right(given).lse))
    found = rank.check("allgather", inputs, 1.0)
    assert found.passed and not found.refused and found.lse_error is not None and least <= found.lse_limit <= most
    monkeypatch.setattr(rank, "_ours", lambda *_, **__: 1 / 0)
    assert rank.check("allgather", inputs, 1.0).refused == "failed: ZeroDivisionError: division by zero"


MS = 1_000_000


def predicted(
    *, bound: Literal["flop", "memory"] = "memory", alpha_ms: float = 0.1, beta_ms: float = 0.0, messages: int = 1
) -> Prediction:
    sent = SentMessage(payload="parts", kind="gather", sent_bytes=1000, alpha_ns=alpha_ms * MS, beta_ns=beta_ms * MS)
    return Prediction(
        variant="", total_ns=MS + messages * (alpha_ms + beta_ms) * MS, local_ns=MS, messages=(sent,) * messages, bound=bound
    )


def taken(local_ms: float, blocked_ms: float, *, host_ms: float = 0.0) -> RankCall:
    """Attention, then one gather that holds the rank up, then nothing that is marked."""
    local, blocked = round(local_ms * MS), round(blocked_ms * MS)
    message, wait = (
        span_of("", name, blocked, clip=0, order=0, part="gather", start_ns=local) for name in ("tree_message", "tree_wait")
    )
    return [*call(local + blocked + round(host_ms * MS), ("tree_local", 0, local)), message, wait]


def write(
    folder: Path, shape: RankedCall, times_ms: dict[str, list[float]], *, apart: dict[str, list[RankCall]] | None = None,
    plans: dict[str, Prediction] | None = None, red_rank: int = -1,
) -> Path:  # fmt: skip
    """A cell: of each contestant the time of each call on the slowest rank; the others take half. `apart`: one call by rank."""
    names = tuple(times_ms)
    plans = {name: predicted() for name in names if not name.startswith("peer")} if plans is None else plans
    task = Task(shape=shape, how=TreeSettings(contestants=names, profile=apart is not None))
    good, bad = RankErrors(error=1e-8, limit=1e-6, bits=7), RankErrors(error=float("nan"), limit=1e-6, bits=8)
    gather, ranks = LinkRate(kind="gather", alpha_s=1e-4, host_s=3e-6), []
    for number in range(shape.world_size):
        share = 1.0 if number == shape.world_size - 1 else 0.5
        laps = {name: [[round(ms * share * MS) for _ in range(2)] for ms in values] for name, values in times_ms.items()}
        result = RankResult(
            rank=number,
            checks={name: bad if number == red_rank and name == names[-1] else good for name in names},
            laps={name: each for name, each in laps.items() if red_rank < 0 or name != names[-1]},
            predicted={name: msgspec.structs.replace(each, variant=name) for name, each in plans.items()},
            links=Links(flops_per_s=1e9, memory_bytes_per_s=1e9, launch_s=2e-6, rates=(gather,), auto=names[0]),
        )
        if apart is not None:
            calls_of = {name: [calls[number]] * 8 for name, calls in apart.items()}
            result.apart = {"free-running": calls_of, "serialised": calls_of}
            result.blocks = {"free-running": {"comp_local_attention": [3.0], "comm_max_lse": [1.0], "total_tree_attn": [4.0]}}
        ranks.append(result)
    place = folder / "cells" / shape.name
    with RunWriter(place) as writer:
        header = describe_run(place, torch.device("cpu"), names, 3, "tree")
        writer.append(msgspec.structs.replace(header, world_size=shape.world_size), *lines(task, ranks))
        writer.append(End(status="complete", date=utc_now(), wall_ns=1))
    return place


def call(total: int, *regions: tuple[str, int, int]) -> RankCall:
    found = ((*(*name.split(":"), "")[:2], start, value) for name, start, value in (("tree_call", 0, total), *regions))
    return [span_of("", name, value, clip=0, order=0, part=part, start_ns=start) for name, part, start, value in found]


def test_what_runs_beside_attention_is_hidden() -> None:
    beside = call(
        100,
        ("tree_message:exchange", 10, 60),  # 10..70
        ("tree_local", 15, 40),  # 15..55
        ("tree_merge", 50, 10),  # 50..60: 5 of it beside attention
        ("tree_wait:exchange", 60, 10),
    )
    found = parts([beside])
    assert (found.local, found.merge, found.transfer, found.hidden, found.host) == (40, 5, 15, 45, 40)


@given(
    st.lists(
        st.tuples(st.sampled_from(["tree_local", "tree_merge", "tree_message:gather"]), st.integers(0, 90), st.integers(0, 10))
    )
)
def test_parts_add_up(regions: list[tuple[str, int, int]]) -> None:
    found = parts([call(100, *regions), call(100, *regions)])
    assert found.local + found.merge + found.wait + found.transfer + found.host == pytest.approx(100)


def test_the_rank_that_is_last_most_often_is_named_and_turns_are_not() -> None:
    held = [(call(9, ("tree_message:gather", 0, 9)), call(2, ("tree_message:gather", 0, 2)))]
    assert straggler(collectives(held * 7 + [(held[0][1], held[0][0])] * 3)) == (1, 0.7)
    assert straggler(collectives(held * 5 + [(held[0][1], held[0][0])] * 5)) is None
    assert straggler([]) is None


SHAPE = RankedCall(world_size=2, seq_len=100, heads=4, kv_heads=2, dim=8)


@pytest.mark.parametrize(
    ("ranks", "plan", "label", "evidence", "remedy"),
    [
        ([taken(9, 1)] * 2, predicted(bound="flop"), "flop-bound", "GFLOP/s of 1 measured", "fewer pairs"),
        ([taken(9, 1)] * 2, predicted(bound="memory"), "memory-bound", "GB/s of 1 measured", "fewer bytes of keys"),
        ([taken(1, 1, host_ms=8)] * 2, predicted(), "launch-bound", "80 % (8 of 10 ms)", "CUDA graph"),
        ([taken(1, 21), taken(1, 1)], predicted(), "skew-bound", "waiting for other ranks", "look at the straggler"),
        ([taken(1, 9)] * 2, predicted(alpha_ms=5, messages=3), "latency-bound", "3 collectives", "fewer collectives"),
        ([taken(1, 9)] * 2, predicted(beta_ms=5, messages=3), "bandwidth-bound", "15 of bandwidth", "fewer bytes"),
    ],
)
def test_a_verdict_has_its_evidence_and_one_remedy(
    tmp_path: Path, ranks: list[object], plan: object, label: str, evidence: str, remedy: str
) -> None:
    apart = {"allgather": ranks}
    write(tmp_path, SHAPE, {"allgather": [1.0], "ring": [1.0]}, apart=apart, plans={"allgather": plan, "ring": predicted()})  # type: ignore[arg-type, dict-item]
    (cell,) = read_cells(tmp_path, "tree")[0]
    found = bound(cell, cell.measured[0])
    assert found is not None and found[0] == label
    assert evidence in found[1] and remedy in found[2]
    assert bound(cell, cell.measured[1]) is None


def test_a_gate_that_is_red_on_one_rank_is_red(tmp_path: Path) -> None:
    write(tmp_path, SHAPE, {"allgather": [4.0], "ring": [1.0]}, red_rank=1)
    (cell,) = read_cells(tmp_path, "tree")[0]
    assert [entry.name for entry in cell.measured] == ["allgather"]
    assert "red on rank 1" in cell.entries[1].reason
    text = render_markdown(tree_report(tmp_path))
    assert "Some of it has no numbers" in text and "red on rank 1" in text


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
    tmp_path: Path, marks: list[str], monkeypatch: pytest.MonkeyPatch
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
    assert alive(marks[0]) == []


def test_orphans_of_a_command_that_ended_by_itself_are_swept(tmp_path: Path, marks: list[str]) -> None:
    found = run(ORPHANS, tmp_path)
    assert found.returncode == 0 and found.stdout == "ready\n" and alive(marks[0]) == []


def test_a_stopped_command_is_woken_to_hear_that_it_ends(tmp_path: Path, marks: list[str]) -> None:
    """Long before it would be ended by force."""
    start = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        run("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", tmp_path, timeout_s=5, grace_s=PATIENCE_S)
    assert time.monotonic() - start < PATIENCE_S / 2 and alive(marks[0]) == []
