"""Runs the cells of the tree benchmark, each in its own ranks; records are written when it ends, finished ones stay."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

import msgspec
import torch

from strobe.bench.case import Progress
from strobe.bench.cells import Outcome, claim, finished
from strobe.bench.executor import Cell, Executor, Finished, LocalExecutor, Resources
from strobe.bench.executor.spread import Job, spread
from strobe.bench.runner import end_line
from strobe.bench.tree.lines import lines
from strobe.bench.tree.machine import check_ranks
from strobe.bench.tree.request import BUSY, TASK, TOPOLOGY, How, RankResult, Shape, Task
from strobe.core.errors import ConfigError, StrobeError
from strobe.core.files import write_whole
from strobe.perf.measure.machine import describe_run
from strobe.perf.records.grids import CELLS, Surroundings
from strobe.perf.records.store import RunWriter, rotate


def cell_of(task: Task, timeout_s: float) -> Cell:
    """Return the command that runs a cell's ranks, under torchrun with a port that it finds itself."""
    shape = task.shape
    launch = (shape.device, "--standalone", "--max-restarts=0", f"--nproc-per-node={shape.world_size}")
    return Cell(
        argv=(sys.executable, "-m", "strobe.bench.tree.launch", *launch, "-m", "strobe.bench.tree.rank", "."),
        env={"OMP_NUM_THREADS": str(task.how.threads)},
        files={TASK: msgspec.json.encode(task)},
        resources=Resources(cpus=1, gpus=shape.world_size if shape.device == "cuda" else 0),
        timeout_s=timeout_s,
    )


def run_cells(
    shapes: Sequence[Shape],
    how: How,
    folder: Path,
    progress: Progress,
    *,
    cell_timeout_s: float = 600.0,
    executor: Executor | None = None,
    max_ranks: int | None = None,
) -> Outcome:
    """Measure every cell that is not complete yet. After Ctrl-C finished cells stay, and the next run resumes.

    Args:
        folder: made if absent; may hold cells of earlier runs with the same request.
        cell_timeout_s: a cell is ended when it has run that long.
        executor: where; this machine by default.
        max_ranks: most ranks on the CPU of this machine; default as `check_ranks` has it.

    Raises:
        ImplUnavailableError: a cell needs more GPUs than this machine has.
        ConfigError: a cell has more ranks than this machine holds or would have no time, or the folder holds cells of another
            request.
        StrobeError: the records cannot be written.
    """
    if cell_timeout_s <= 0:
        raise ConfigError(f"cell_timeout: got {cell_timeout_s:g}, expected more than 0 seconds")
    executor = LocalExecutor() if executor is None else executor
    if isinstance(executor, LocalExecutor):
        check_ranks([shape for shape in shapes if not finished(folder / CELLS / shape.name)], max_ranks)
    claim(folder, how)
    measured, kept, failed = [], [], []

    def jobs() -> Iterator[Job[tuple[str, str]]]:
        for number, shape in enumerate(dict.fromkeys(shapes)):
            place = folder / CELLS / shape.name
            if finished(place):
                kept.append(shape.name)
                continue
            progress(number, len(shapes), shape.name)
            if place.exists():
                rotate(place)
            yield _measure(Task(shape=shape, how=how), place, cell_timeout_s)

    for name, reason in spread(jobs(), executor):
        if reason:
            failed.append(f"{name}: {reason}")
        else:
            measured.append(name)
    return Outcome(measured=tuple(measured), kept=tuple(kept), failed=tuple(failed))


def _measure(task: Task, place: Path, timeout_s: float) -> Job[tuple[str, str]]:
    """Build the job that runs a cell and writes its records; it gives the name and, if it failed, the reason."""
    order = task.how.contestants
    with RunWriter(place) as writer:
        reason = ""
        try:
            with end_line(writer):
                done, refusal = None, ""
                try:
                    done = yield cell_of(task, timeout_s)
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
    how = task.how
    delayed = how.delay_rank >= 0 and how.delay_ms > 0
    return Surroundings(
        busy_cores=float(done.files[BUSY]) if BUSY in done.files else None,
        lost_machines=len(done.lost),
        delayed_rank=how.delay_rank if delayed else None,
        delay_ms=how.delay_ms if delayed else 0.0,
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
        return f"ended after {timeout_s:g} s; give more with --cell-timeout"
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
