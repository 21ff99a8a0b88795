"""From what ranks measured to what a page says: wait against transfer, exposed against hidden, verdicts, scaling."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from made_records import span_of
from strobe.bench.tree.request import RankedCall, RankErrors, RankResult, Task, TreeSettings
from strobe.bench.tree.run import lines
from strobe.perf.analysis.runs.grid import collectives, parts
from strobe.perf.measure.machine import describe_run, utc_now
from strobe.perf.records.record import End, LinkRate, Links, Prediction, RankCall, SentMessage
from strobe.perf.records.store import RunWriter
from strobe.perf.report.bench_pages import bound, read_cells, straggler, tree_report
from strobe.perf.report.write import render_markdown

MS = 1_000_000


def predicted(
    *, bound: Literal["flop", "memory"] = "memory", alpha_ms: float = 0.1, beta_ms: float = 0.0, messages: int = 1
) -> Prediction:
    sent = SentMessage(payload="parts", kind="gather", sent_bytes=1000, alpha_ns=alpha_ms * MS, beta_ns=beta_ms * MS)
    return Prediction(
        variant="",
        total_ns=MS + messages * (alpha_ms + beta_ms) * MS,
        local_ns=MS,
        messages=(sent,) * messages,
        bound=bound,
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
    for rank in range(shape.world_size):
        share = 1.0 if rank == shape.world_size - 1 else 0.5
        laps = {name: [[round(ms * share * MS) for _ in range(2)] for ms in values] for name, values in times_ms.items()}
        result = RankResult(
            rank=rank,
            checks={name: bad if rank == red_rank and name == names[-1] else good for name in names},
            laps={name: each for name, each in laps.items() if red_rank < 0 or name != names[-1]},
            predicted={name: msgspec.structs.replace(each, variant=name) for name, each in plans.items()},
            links=Links(flops_per_s=1e9, memory_bytes_per_s=1e9, launch_s=2e-6, rates=(gather,), auto=names[0]),
        )
        if apart is not None:
            calls_of = {name: [calls[rank]] * 8 for name, calls in apart.items()}
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
