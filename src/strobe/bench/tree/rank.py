"""One rank of a cell, a process of its own: `torchrun ... -m strobe.bench.tree.rank FOLDER`.

It reads `task.json`, and writes `rankN.json` when it is done or has failed.
"""

from __future__ import annotations

import importlib.metadata
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from strobe.attention.tree import measure_links
from strobe.bench.attempt import Attempt
from strobe.bench.tree.candidates import Inputs, Run, bind, check, draw
from strobe.bench.tree.guide import guide_blocks
from strobe.bench.tree.predict import links_line, predict
from strobe.bench.tree.recorder import MarkRecorder
from strobe.bench.tree.request import PEER, TASK, Check, RankResult, Taken, Task
from strobe.core.device import synchronize
from strobe.core.errors import ConfigError, StrobeError
from strobe.core.files import write_whole
from strobe.perf.measure.machine import describe_run
from strobe.perf.measure.order import palindrome

WARMUP: Final = 3
START_S: Final = 60.0
"""Least timeout for the ranks to start, s: they import torch before they meet."""


@record
def main() -> None:
    """Run this rank; an error is written to its result before it is raised."""
    folder = Path(sys.argv[1])
    task = msgspec.json.decode((folder / TASK).read_bytes(), type=Task)
    device = _begin(task)
    result = RankResult(rank=dist.get_rank())
    with Attempt() as attempt:
        _Rank(task, device, result).run(folder)
    result.error = attempt.reason
    write_whole(folder / f"rank{result.rank}.json", msgspec.json.encode(result))
    if attempt.reason:
        raise StrobeError(attempt.reason)
    dist.destroy_process_group()


def _begin(task: Task) -> torch.device:
    timeout = timedelta(seconds=max(START_S, task.how.timeout_s))
    if task.shape.device == "cpu":
        dist.init_process_group("gloo", timeout=timeout)
        return torch.device("cpu")
    if torch.cuda.device_count() < task.shape.world_size:
        raise ConfigError(f"{task.shape.world_size} ranks on {torch.cuda.device_count()} GPUs; give each rank a GPU of its own")
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timeout)
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


class _Rank:
    def __init__(self, task: Task, device: torch.device, result: RankResult) -> None:
        self._shape, self._how = task.shape, task.how
        self._device, self._result = device, result
        self._held = task.how.delay_ms / 1e3 if task.how.delay_rank == result.rank else 0.0

    def run(self, folder: Path) -> None:
        """Run the phases of this rank: gate, predict, time, profile."""
        how, result = self._how, self._result
        inputs = draw(self._shape, result.rank, self._device, how.seed)
        names = self._gate(inputs)
        if result.rank == 0:
            order = tuple(names) or how.contestants
            result.header = msgspec.structs.replace(
                describe_run(folder, self._device, order, how.rounds, "tree"), world_size=self._shape.world_size
            )
        with torch.inference_mode():
            measured = measure_links(device=self._device, dtype=inputs.q.dtype, timeout=how.timeout_s)
            result.predicted, choice = predict(inputs, measured, how.what_if)
            result.links = links_line(measured, choice)
            result.predicted["auto"] = result.predicted[choice]
            runs = {name: bind(name, inputs, how.timeout_s, measured) for name in names}
            if runs:
                self._time(runs)
            if how.profile:
                self._take_apart(runs)
                result.blocks = guide_blocks(inputs, self._device, how, self._align)
        self._align()

    def _gate(self, inputs: Inputs) -> list[str]:
        """Check every contestant on every rank; return those that passed on all ranks."""
        result, passed = self._result, []
        with torch.inference_mode():
            for name in self._how.contestants:
                self._align()
                result.checks[name] = check(name, inputs, self._how.timeout_s)
        everyone: list[dict[str, Check]] = [{} for _ in range(self._shape.world_size)]
        dist.all_gather_object(everyone, result.checks)
        for name in self._how.contestants:
            if all(each[name].passed for each in everyone):
                passed.append(name)
        if PEER in passed:
            result.versions[PEER] = f"ring-attention-pytorch {importlib.metadata.version('ring-attention-pytorch')}"
        return passed

    def _align(self) -> None:
        """Wait until all ranks are here and the device is idle."""
        synchronize(self._device)
        dist.barrier()
        synchronize(self._device)

    def _held_back(self, run: Callable[[], object]) -> object:
        if self._held:
            time.sleep(self._held)
        return run()

    def _time(self, runs: dict[str, Run]) -> None:
        """Time palindromes; every call begins when all ranks are there, and ends with this rank's result."""
        result, how = self._result, self._how
        for name, run in runs.items():
            for _ in range(WARMUP):
                run()
            result.laps[name] = []
        first, *rest = runs
        order = palindrome(first, rest) if rest else (first, first)
        for _ in range(how.rounds):
            taken: dict[str, list[int]] = {name: [] for name in runs}
            for name in order:
                taken[name] += [self._lap(runs[name]) for _ in range(how.calls)]
            for name, values in taken.items():
                result.laps[name].append(values)

    def _lap(self, run: Run) -> int:
        self._align()
        start = time.perf_counter_ns()
        self._held_back(run)
        synchronize(self._device)
        return time.perf_counter_ns() - start

    def _take_apart(self, runs: dict[str, Run]) -> None:
        """Record the regions of the same calls: free-running, then serialised; the peer has none."""
        for name, run in runs.items():
            if name == PEER:
                continue
            for into, meet in ((self._result.free, None), (self._result.serialised, dist.barrier)):
                recorder = MarkRecorder(self._device, meet)
                recorder.take(run)
                into[name] = [self._marked(recorder, run) for _ in range(max(6, self._how.iterations))]

    def _marked(self, recorder: MarkRecorder, run: Run) -> Taken:
        self._align()
        return recorder.take(lambda: self._held_back(run))


if __name__ == "__main__":
    main()
