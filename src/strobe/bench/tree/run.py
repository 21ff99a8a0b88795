"""Cells of tree attention, each in ranks of its own, and the lines that they leave."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec
import torch

from strobe.bench.case import Progress
from strobe.bench.cells import CellsOutcome, claim, finished, pending
from strobe.bench.executor import Cell, Executor, Finished, LocalExecutor, Resources
from strobe.bench.executor.local import Job, spread
from strobe.bench.runner import ClipNumbers, end_line, number, timed_span
from strobe.bench.tree.machine import check_ranks
from strobe.bench.tree.request import BUSY, PEER, TASK, TOPOLOGY, RankedCall, RankResult, Task, TreeSettings
from strobe.compat.assert_tree_attn import kind_of
from strobe.core.costs import element_bytes
from strobe.core.errors import StrobeError
from strobe.core.files import write_whole
from strobe.core.spans import ATTENTION
from strobe.perf.analysis.runs.rank_calls import RankCall
from strobe.perf.measure.machine import describe_run
from strobe.perf.measure.timing import palindrome
from strobe.perf.records import record
from strobe.perf.records.record import CELLS, Surroundings
from strobe.perf.records.store import RunWriter


def _error(variant: str, metric: str, value: float, rank: int, reference: str) -> record.Quality:
    words = f"largest absolute error{' of the lse' if metric == record.LSE_ERROR else ''} on rank {rank}"
    return number(variant, metric, value, words, reference=reference, better="neither", rank=rank)


def lines(task: Task, ranks: Sequence[RankResult]) -> Iterator[record.Record]:
    """Yield every record but the header, in order."""
    for name in task.how.contestants:
        yield from _contestant(name, task, ranks)
    if ranks[0].links is not None:
        yield ranks[0].links
    clips = ClipNumbers()
    yield from _laps(ranks, clips)
    modes: dict[record.Mode, list[dict[str, list[RankCall]]]] = {
        "free-running": [rank.free for rank in ranks],
        "serialised": [rank.serialised for rank in ranks],
    }
    for mode, calls in modes.items():
        for name in calls[0]:
            yield from _apart(clips, name, mode, [each[name] for each in calls])
    if ranks[0].blocks:
        yield record.Variant(name=record.GUIDE, preset="custom", dtype=task.shape.dtype, sizes=sizes(task.shape))
        yield from _blocks(ranks, clips)


def sizes(shape: RankedCall) -> dict[str, int]:
    """Return the sizes of the call by name."""
    return {
        "world_size": shape.world_size, "tokens": shape.seq_len, "q_tokens": shape.q_len, "heads": shape.heads,
        "kv_heads": shape.kv_heads, "head_dim": shape.dim, "batch": shape.batch,
    }  # fmt: skip


def _contestant(name: str, task: Task, ranks: Sequence[RankResult]) -> Iterator[record.Record]:
    checks = [rank.checks[name] for rank in ranks]
    refused = [(rank, each.refused) for rank, each in enumerate(checks) if each.refused]
    if refused:
        cause = (
            refused[0][1] if len({reason for _, reason in refused}) == 1 else "; ".join(f"rank {r}: {why}" for r, why in refused)
        )
        kind: record.Exclusion = "refused" if all(checks[rank].impossible for rank, _ in refused) else "failed"
        yield record.Excluded(variant=name, span="clip", clip=None, indices=(), kind=kind, cause=cause)
        return
    wide = "float64, dense, every rank"
    replicated = task.shape.placement == "replicated"
    same = (
        ""
        if not replicated
        else f", {'the same bits on' if len({each.bits for each in checks}) == 1 else 'not the same bits on'} all ranks"
    )
    worst = max(range(len(checks)), key=lambda rank: checks[rank].error / checks[rank].limit if checks[rank].limit else 0.0)
    failed = [rank for rank, each in enumerate(checks) if not each.passed]
    detail = f"largest error {checks[worst].error:.3g} of {checks[worst].limit:.3g} (rank {worst}){same}"
    yield record.Gate(
        variant=name,
        reference=wide,
        rule=f"out within {checks[0].limit:.3g}, scaled by |lse|; lse within {checks[0].lse_limit:.3g}",
        passed=not failed,
        exact=True,
        detail=detail + (f"; red on rank {', '.join(map(str, failed))}" if failed else ""),
    )
    for rank, each in enumerate(checks):
        yield _error(name, record.ERROR, each.error, rank, wide)
        if each.lse_error is not None:
            yield _error(name, record.LSE_ERROR, each.lse_error, rank, wide)
    shape = task.shape
    flops = 4 * shape.batch * shape.heads * shape.dim * shape.q_len * shape.seq_len
    moved = 2 * shape.batch * shape.kv_heads * shape.dim * shape.seq_len * element_bytes(shape.dtype)
    yield record.Variant(
        name=name,
        preset="custom",
        attention_impl=ranks[0].versions.get(name, f"tree_attention {name}"),
        dtype=shape.dtype,
        costs=(record.SpanCost(span=ATTENTION, flops=flops, read_bytes=moved, write_bytes=0),),
        contestant=record.Contestant(work="dense", impl=name, peer=name == PEER),
        sizes=sizes(shape),
    )
    if name in ranks[0].predicted:
        yield ranks[0].predicted[name]


def _laps(ranks: Sequence[RankResult], clips: ClipNumbers) -> Iterator[record.Record]:
    """Yield the records of each palindrome, place by place."""
    laps = ranks[0].laps
    if not laps:
        return
    first, *rest = laps
    for lap in range(len(laps[first])):
        seen: Counter[str] = Counter()
        for name in palindrome(first, rest) if rest else (first, first):
            calls = len(laps[name][lap]) // 2
            clip = clips.finish(name, "timed", lap, calls * (1 + len(ranks)))
            for index in range(seen[name] * calls, (seen[name] + 1) * calls):
                values = [rank.laps[name][lap][index] for rank in ranks]
                yield timed_span(clip, record.CALL, index, max(values))
                yield from (timed_span(clip, record.CALL, index, value, rank=rank) for rank, value in enumerate(values))
            seen[name] += 1
            yield clip


def _apart(clips: ClipNumbers, name: str, mode: record.Mode, calls: Sequence[Sequence[RankCall]]) -> Iterator[record.Record]:
    clip = clips.finish(name, "timed", None, sum(1 + len(call.regions) for taken in calls for call in taken))
    for rank, taken in enumerate(calls):
        for index, call in enumerate(taken):
            yield timed_span(clip, record.CALL, index, call.total_ns, rank=rank, mode=mode)
            for region in call.regions:
                yield timed_span(
                    clip, region.name, index, region.value_ns, start_ns=region.start_ns, part=region.part, rank=rank, mode=mode
                )
    yield clip


def _blocks(ranks: Sequence[RankResult], clips: ClipNumbers) -> Iterator[record.Record]:
    found: list[tuple[str, int, int, dict[str, Any]]] = [
        (block, index, round(ms * 1e6), {"part": kind_of(block), "rank": rank.rank, "mode": mode})
        for rank in ranks
        for mode, blocks in rank.blocks.items()
        for block, values in blocks.items()
        for index, ms in enumerate(values)
    ]
    clip = clips.finish(record.GUIDE, "timed", None, len(found))
    yield from (timed_span(clip, block, index, value_ns, **more) for block, index, value_ns, more in found)
    yield clip


def run_cells(
    shapes: Sequence[RankedCall],
    how: TreeSettings,
    folder: Path,
    progress: Progress,
    *,
    timeout_s: float = 30.0,
    cell_timeout_s: float = 600.0,
    executor: Executor | None = None,
) -> CellsOutcome:
    """Measure every cell that is not complete yet. After Ctrl-C finished cells stay, and the next run resumes.

    Args:
        folder: made if absent; may hold cells of earlier runs with the same request.
        timeout_s: of a rank's wait for another.
        cell_timeout_s: a cell is ended when it has run that long.
        executor: where; this machine by default.

    Raises:
        ImplUnavailableError: a cell needs more GPUs than this machine has.
        ConfigError: a cell has more ranks than this machine holds, or the folder holds cells of another
            request.
        StrobeError: the records cannot be written.
    """
    executor = LocalExecutor() if executor is None else executor
    if isinstance(executor, LocalExecutor):
        check_ranks([shape for shape in shapes if not finished(folder / CELLS / shape.name)])
    claim(folder, how)
    kept, tasks = list[str](), {shape.name: Task(shape=shape, how=how, timeout_s=timeout_s) for shape in shapes}
    asked = pending(list(tasks), folder, progress, kept)
    found = list(spread((_measure(tasks[name], place, cell_timeout_s) for name, place, _ in asked), executor))
    return CellsOutcome(
        measured=tuple(name for name, reason in found if not reason),
        kept=tuple(kept),
        failed=tuple(f"{name}: {reason}" for name, reason in found if reason),
    )


def _measure(task: Task, place: Path, timeout_s: float) -> Job[tuple[str, str]]:
    """Build the job that runs a cell and writes its records; it gives the name and, if it failed, the reason."""
    order, shape = task.how.contestants, task.shape
    launch = (shape.device, "--standalone", "--max-restarts=0", f"--nproc-per-node={shape.world_size}")
    cell = Cell(  # under torchrun with a port that it finds itself; each rank has one thread
        argv=(sys.executable, "-m", "strobe.bench.tree.machine", *launch, "-m", "strobe.bench.tree.rank", "."),
        env={"OMP_NUM_THREADS": "1"},
        files={TASK: msgspec.json.encode(task)},
        resources=Resources(cpus=1, gpus=shape.world_size if shape.device == "cuda" else 0),
        timeout_s=timeout_s,
    )
    with RunWriter(place) as writer:
        reason = ""
        try:
            with end_line(writer):
                done, refusal = None, ""
                try:
                    done = yield cell
                except StrobeError as error:
                    refusal = str(error)
                found = _read(done) if done else []
                header = next((each.header for each in found if each.header is not None), None)
                header = header or describe_run(place, torch.device("cpu"), order, task.how.rounds, "tree")
                header = msgspec.structs.replace(header, run=place.name, argv=tuple(sys.argv), world_size=task.shape.world_size)
                writer.append(header, *((_surroundings(task, done, place),) if done else ()))
                reason = refusal if done is None else _failure(task, done, found, timeout_s)
                if reason:
                    raise StrobeError(reason)
                writer.append(*lines(task, found))
        except StrobeError as error:
            if str(error) != reason:
                raise
    return place.name, reason


def _surroundings(task: Task, done: Finished, place: Path) -> Surroundings:
    """Return the busy cores of the cell's machine before its ranks began, lost machines, and the delayed rank."""
    if TOPOLOGY in done.files:
        write_whole(place / TOPOLOGY, done.files[TOPOLOGY])
    rank, held_ms = task.how.delay or (None, 0.0)
    return Surroundings(
        busy_cores=float(done.files[BUSY]) if BUSY in done.files else None,
        lost_machines=len(done.lost),
        delayed_rank=rank if held_ms else None,
        delay_ms=held_ms,
    )


def _read(done: Finished) -> list[RankResult]:
    """Return the results of the ranks in rank order, without those of ranks that were killed."""
    written = [content for name, content in done.files.items() if fnmatch(name, "rank*.json")]
    return sorted((msgspec.json.decode(each, type=RankResult) for each in written), key=lambda each: each.rank)


def _failure(task: Task, done: Finished, found: Sequence[RankResult], timeout_s: float) -> str:
    """Return the reason why a cell has no result: a rank's first error, a missing rank, or the launcher's; empty if none."""
    if done.status == "lost":
        return done.stderr
    if done.status == "timeout":
        return f"ended after {timeout_s:g} s; make the cell smaller, or ask for fewer --iterations"
    said = [f"rank {each.rank}: {each.error}" for each in found if each.error]
    gone = sorted(set(range(task.shape.world_size)) - {each.rank for each in found})
    if said and gone:
        return f"rank {', '.join(map(str, gone))} left no word; {said[0]}"
    if said:
        return said[0]
    if done.status != "done" or gone:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no word on stderr"]
        errors = [line.partition("Error: ")[2] for line in lines if "Error: " in line]
        who = f"; rank {', '.join(map(str, gone))} left no word" if gone else ""
        return f"the launcher ended with code {done.code}{who}: {(errors or lines)[-1]}"
    return ""
