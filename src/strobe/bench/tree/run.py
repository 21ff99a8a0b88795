"""Cells of tree attention, each in ranks of its own, and the lines that they leave."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import torch

from strobe.bench.case import Progress
from strobe.bench.cells import CellsOutcome, claim, finished, measure_cells
from strobe.bench.processes import run_swept
from strobe.bench.runner import ClipNumbers, end_line, number, timed_span
from strobe.bench.tree.request import PEER, TASK, RankedCall, RankResult, Task, TreeSettings
from strobe.compat.assert_tree_attn import kind_of
from strobe.core.costs import element_bytes
from strobe.core.device import GIB, available_bytes
from strobe.core.errors import ConfigError, ImplUnavailableError, StrobeError
from strobe.core.spans import ATTENTION
from strobe.perf.measure.machine import describe_run
from strobe.perf.measure.timing import palindrome
from strobe.perf.records import record
from strobe.perf.records.record import CELLS, RankCall, Surroundings, cpu_cores
from strobe.perf.records.store import RunWriter


def lines(task: Task, ranks: Sequence[RankResult]) -> Iterator[record.Record]:
    """Yield every record but the header, in order."""
    for name in task.how.contestants:
        yield from _contestant(name, task, ranks)
    if ranks[0].links is not None:
        yield ranks[0].links
    clips = ClipNumbers()
    yield from _laps(ranks, clips)
    for mode, calls in ranks[0].apart.items():
        for name in calls:
            yield from _apart(clips, name, mode, [rank.apart[mode][name] for rank in ranks])
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
    alike = len({each.bits for each in checks}) == 1
    same = f", {'' if alike else 'not '}the same bits on all ranks" if task.shape.placement == "replicated" else ""
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
        for metric, value, of in ((record.ERROR, each.error, ""), (record.LSE_ERROR, each.lse_error, " of the lse")):
            if value is not None:
                words = f"largest absolute error{of} on rank {rank}"
                yield number(name, metric, value, words, reference=wide, better="neither", rank=rank)
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
    clip = clips.finish(name, "timed", None, sum(len(call) for taken in calls for call in taken))
    for rank, taken in enumerate(calls):
        for index, call in enumerate(taken):
            for region in call:
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


RANKS_A_CORE: Final = 8
RANK_BYTES: Final = GIB // 2
"""Main memory of a rank on a CPU, torch included, beside its tensors."""


def check_ranks(shapes: Sequence[RankedCall]) -> None:
    """Refuse cells with more ranks than this machine holds, before any of them starts.

    Raises:
        ImplUnavailableError: more GPUs are needed than there are.
        ConfigError: more ranks on a CPU than 8 for each core, or than one for each 0.5 GiB of free memory.
    """
    gpus, there = max((shape.world_size for shape in shapes if shape.device == "cuda"), default=0), torch.cuda.device_count()
    if gpus > there:
        found = f"{there} CUDA device{'s' * (there != 1)}" if there else "no CUDA device"
        others = ([f"--world-size {there}"] if there else []) + ["--device cpu"]
        reason = f"each rank takes a GPU, {gpus} in all, and torch sees {found} here"
        raise ImplUnavailableError("cuda", reason, others, what="device")
    ranks = max((shape.world_size for shape in shapes if shape.device == "cpu"), default=0)
    free = available_bytes()
    held = RANKS_A_CORE * cpu_cores() if free is None else min(RANKS_A_CORE * cpu_cores(), free // RANK_BYTES)
    if ranks > max(1, held):
        raise ConfigError(
            f"world_size: got {ranks}, this machine holds {held} ranks ({RANKS_A_CORE} for each of {cpu_cores()} cores, "
            "one for each 0.5 GiB of free memory); give fewer"
        )


def busy_cores(seconds: float) -> float:
    """Return the cores that other processes keep busy, mean over that time; 0 where the system does not tell."""
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()
    total, idle = after[0] - before[0], after[1] - before[1]
    online = sum(1 for _ in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology")) or cpu_cores()
    return max(0.0, (1 - idle / total) * online) if total > 0 else 0.0


def _ticks() -> tuple[int, int]:
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    except OSError:
        return 0, 0
    ticks = [int(each) for each in line]
    return sum(ticks), ticks[3] + ticks[4]


def run_cells(
    shapes: Sequence[RankedCall],
    how: TreeSettings,
    folder: Path,
    progress: Progress,
    *,
    timeout_s: float = 30.0,
    cell_timeout_s: float = 600.0,
) -> CellsOutcome:
    """Measure every cell that is not complete yet. After Ctrl-C finished cells stay, and the next run resumes.

    Args:
        folder: made if absent; may hold cells of earlier runs with the same request.
        timeout_s: of a rank's wait for another.
        cell_timeout_s: a cell is ended when it has run that long.

    Raises:
        ImplUnavailableError: a cell needs more GPUs than this machine has.
        ConfigError: a cell has more ranks than this machine holds, or the folder holds cells of another
            request.
        StrobeError: the request cannot be written.
    """
    check_ranks([shape for shape in shapes if not finished(folder / CELLS / shape.name)])
    claim(folder, how)
    tasks = [Task(shape=shape, how=how, timeout_s=timeout_s) for shape in shapes]
    cells = [(task.shape.name, partial(_measure, task, cell_timeout_s)) for task in tasks]
    return measure_cells(cells, folder, torch.device("cpu"), progress)


def _measure(task: Task, timeout_s: float, place: Path, _: Callable[[str], None]) -> None:
    """Run a cell and write its records: under torchrun with a port that it finds itself, each rank with one thread; raises
    StrobeError if the cell failed."""
    launch = ("--standalone", "--max-restarts=0", f"--nproc-per-node={task.shape.world_size}")
    argv = (sys.executable, "-m", "torch.distributed.run", *launch, "-m", "strobe.bench.tree.rank", ".")
    with RunWriter(place) as writer, end_line(writer), TemporaryDirectory(prefix="strobe-cell-") as name:
        (room := Path(name)).joinpath(TASK).write_bytes(msgspec.json.encode(task))
        busy, done = busy_cores(0.25), None
        with suppress(subprocess.TimeoutExpired):
            done = run_swept(argv, room, {"OMP_NUM_THREADS": "1"}, timeout_s)
        found = [msgspec.json.decode(each.read_bytes(), type=RankResult) for each in room.glob("rank*.json")]
        found.sort(key=lambda each: each.rank)
        header = next((each.header for each in found if each.header is not None), None)
        header = header or describe_run(place, torch.device("cpu"), task.how.contestants, task.how.rounds, "tree")
        header = msgspec.structs.replace(header, run=place.name, argv=tuple(sys.argv), world_size=task.shape.world_size)
        rank, held_ms = task.how.delay or (None, 0.0)
        writer.append(header, Surroundings(busy_cores=busy, delayed_rank=rank if held_ms else None, delay_ms=held_ms))
        if done is None:
            raise StrobeError(f"ended after {timeout_s:g} s; make the cell smaller, or ask for fewer --iterations")
        if reason := _failure(task, done, found):
            raise StrobeError(reason)
        writer.append(*lines(task, found))


def _failure(task: Task, done: subprocess.CompletedProcess[str], found: Sequence[RankResult]) -> str:
    """Return the reason why a cell has no result: a rank's first error, a missing rank, or the launcher's; empty if none."""
    said = [f"rank {each.rank}: {each.error}" for each in found if each.error]
    gone = sorted(set(range(task.shape.world_size)) - {each.rank for each in found})
    if said and gone:
        return f"rank {', '.join(map(str, gone))} left no word; {said[0]}"
    if said:
        return said[0]
    if done.returncode or gone:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no word on stderr"]
        errors = [line.partition("Error: ")[2] for line in lines if "Error: " in line]
        who = f"; rank {', '.join(map(str, gone))} left no word" if gone else ""
        return f"the launcher ended with code {done.returncode}{who}: {(errors or lines)[-1]}"
    return ""
