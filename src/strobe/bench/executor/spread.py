"""Runs many jobs over one executor: as many cells at a time as it takes, results in the order of the jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from typing import TypeAlias, TypeVar

from strobe.bench.executor.cell import Cell, Executor, Finished, Handle
from strobe.core.errors import StrobeError

T = TypeVar("T")
Job: TypeAlias = Generator[Cell, Finished, T]
"""Generator around one cell: yields the cell, receives its `Finished`, returns a result."""


def spread(jobs: Iterable[Job[T]], executor: Executor) -> Iterator[T]:
    """Run every job; a refused cell raises inside its job. On Ctrl-C all cells are ended, and all jobs told."""
    under_way: deque[tuple[Job[T], Handle]] = deque()
    try:
        for job in jobs:
            cell = next(job)
            while under_way and len(under_way) >= executor.at_once(cell.resources):
                yield _finish(*under_way[0], executor)
                under_way.popleft()
            try:
                under_way.append((job, executor.submit(cell)))
            except StrobeError as error:
                yield _told(job, error)
        while under_way:
            yield _finish(*under_way[0], executor)
            under_way.popleft()
    except KeyboardInterrupt:
        for job, handle in under_way:
            executor.cancel(handle)
            with suppress(KeyboardInterrupt, StopIteration):
                job.throw(KeyboardInterrupt())
        raise
    finally:
        for job, handle in under_way:
            executor.cancel(handle)
            job.close()


def _finish(job: Job[T], handle: Handle, executor: Executor) -> T:
    try:
        job.send(executor.wait(handle))
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a job has one cell")


def _told(job: Job[T], error: StrobeError) -> T:
    try:
        job.throw(error)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a job has one cell")
