"""Runs a comparison: gates, warm-up, timed clips in palindromes, traced clips apart, then quality. Writes as it goes."""

from __future__ import annotations

import gc
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from strobe.bench.case import Case, Plan, Progress
from strobe.core.errors import ConfigError, StrobeError
from strobe.core.spans import E2E, span
from strobe.perf.measure.clocks import read_clocks
from strobe.perf.measure.compiles import num_compiles
from strobe.perf.measure.machine import describe_run, utc_now
from strobe.perf.measure.memory import peak_bytes, reset_peak
from strobe.perf.measure.order import palindrome
from strobe.perf.measure.profile import trace_blocks
from strobe.perf.measure.timing import Region, TimingRecorder, recording, span_records
from strobe.perf.records.record import Clip, End, Excluded, Gate, Phase, Status, Trace, Workload
from strobe.perf.records.store import RunWriter, create_run


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A finished comparison: where its records are, and the gates that were red."""

    folder: Path
    red: tuple[Gate, ...]


def run_case(case: Case, *, root: Path, plan: Plan, progress: Progress) -> Outcome:
    """Measure a case into a new folder under `root`.

    Every finished clip is on the disk before the next begins. Candidates whose gate is red get no numbers. On Ctrl-C, and on any
    error of ours, the end line says so and the exception goes on.

    Raises:
        ConfigError: variants do not differ in name, or the clip is too short to trace a frame block of it.
        StrobeError: the records cannot be written, or a variant cannot run.
    """
    order = palindrome(case.baseline, case.candidates)
    traced = steady_window(case.workload, plan.traced_blocks)
    began = time.perf_counter_ns()
    with create_run(root, case.slug) as writer:
        status: Status = "failed"
        message = "stopped by an error that is not ours"
        try:
            run = _Run(case, plan, writer, progress)
            header = describe_run(writer.folder, case.device, order, plan.palindromes)
            writer.append(msgspec.structs.replace(header, model=case.model, workload=case.workload))
            red = run.measure(traced)
            status, message = "complete", ""
        except KeyboardInterrupt:
            status, message = "interrupted", "Ctrl-C"
            raise
        except StrobeError as error:
            message = str(error)
            raise
        finally:
            with suppress(StrobeError):
                wall_ns = time.perf_counter_ns() - began
                writer.append(End(status=status, date=utc_now(), wall_ns=wall_ns, message=message))
                writer.sync()
    return Outcome(folder=writer.folder, red=red)


def steady_window(workload: Workload, most: int) -> range:
    """Return the frame blocks to trace: as many in a row as there are, up to `most`, without a switch in or right before them.

    The middle of the clip comes first, where every cache is full. Empty if `most` is 0.

    Raises:
        ConfigError: the clip has no such block.
    """
    switches = {prompt.frame_block for prompt in workload.prompts}
    middle = workload.frame_blocks // 2
    for count in range(most, 0, -1):
        firsts = range(2, workload.frame_blocks - count + 1)
        for first in sorted(firsts, key=lambda block: (abs(block - middle), block)):
            if switches.isdisjoint(range(first - 1, first + count)):
                return range(first, first + count)
    if most == 0:
        return range(0)
    raise ConfigError(
        f"a clip of {workload.frame_blocks} frame blocks with prompts at {sorted(switches)} has no 2 blocks in a row without a "
        f"switch to trace; make it longer"
    )


class _Run:
    """One comparison under way."""

    def __init__(self, case: Case, plan: Plan, writer: RunWriter, progress: Progress) -> None:
        self._case = case
        self._plan = plan
        self._writer = writer
        self._progress = progress
        self._recorder = TimingRecorder(case.device)
        self._clips: Counter[str] = Counter()
        self._done = 0

    def measure(self, traced: range) -> tuple[Gate, ...]:
        """Do everything in order; return the red gates."""
        case, plan = self._case, self._plan
        gates = [self._check(name) for name in case.candidates]
        green = tuple(gate.variant for gate in gates if gate.passed)
        if green:
            names = (case.baseline, *green)
            for name in names:
                self._warm_up(name)
            for lap in range(plan.palindromes):
                for name in palindrome(case.baseline, green):
                    self._say(f"timing {name}, round {lap + 1} of {plan.palindromes}")
                    self._time(name, "timed", lap)
            for name in names:
                self._trace(name, traced)
                self._review(name)
        return tuple(gate for gate in gates if not gate.passed)

    def _say(self, what: str) -> None:
        variants = 1 + len(self._case.candidates)
        each = self._plan.warmup + 2 * self._plan.palindromes + bool(self._plan.traced_blocks) + self._plan.review
        self._progress(self._done, variants * (each + 1) - 1, what)
        self._done += 1

    def _check(self, name: str) -> Gate:
        self._say(f"checking {name} against {self._case.baseline}")
        gate = self._case.gate(name)
        self._writer.append(gate)
        self._writer.sync()
        return gate

    def _warm_up(self, name: str) -> None:
        for number in range(self._plan.warmup):
            self._say(f"warming up {name}")
            regions = self._time(name, "warmup", None)
            if number == 0:
                calls = Counter(region.name for region in regions)
                self._writer.append(msgspec.structs.replace(self._case.settings(name), calls_per_stage=dict(calls)))
        numbers = tuple(range(self._plan.warmup))
        self._writer.append(Excluded(variant=name, span="clip", clip=None, indices=numbers, cause="warm-up"))

    def _time(self, name: str, phase: Phase, lap: int | None) -> tuple[Region, ...]:
        """Run one clip under the timing recorder and write it down."""
        case, compiled = self._case, num_compiles()
        case.prepare(name)
        gc.collect()
        reset_peak(case.device)
        with recording(self._recorder):
            self._recorder.start_clip()
            with span(E2E):
                for _ in case.blocks(name):
                    pass
            regions = self._recorder.finish_clip()
        clip = self._clip(name, phase, lap, len(regions))
        self._writer.append(*span_records(clip, regions), clip)
        if phase == "timed" and num_compiles() > compiled:
            self._writer.append(Excluded(variant=name, span="clip", clip=None, indices=(clip.clip,), cause="compilation"))
        self._writer.sync()
        return regions

    def _trace(self, name: str, traced: range) -> None:
        if not traced:
            return
        self._say(f"tracing {name}")
        self._case.prepare(name)
        path = self._writer.folder / "traces" / f"{name}.json.gz"
        blocks = self._case.blocks(name)
        file = trace_blocks(blocks, device=self._case.device, first_block=traced.start, num_blocks=len(traced), path=path)
        clip = self._clip(name, "traced", None, 0)
        trace = Trace(
            variant=name,
            clip=clip.clip,
            path=str(path.relative_to(self._writer.folder)),
            sha256=file.sha256,
            size_bytes=file.size_bytes,
            first_block=traced.start,
            num_blocks=len(traced),
        )
        self._writer.append(trace, clip)
        self._writer.sync()

    def _review(self, name: str) -> None:
        if not self._plan.review:
            return
        self._say(f"judging {name}")
        self._writer.append(*self._case.review(name, self._writer.folder))
        self._writer.sync()

    def _clip(self, name: str, phase: Phase, lap: int | None, num_spans: int) -> Clip:
        clip = Clip(
            variant=name,
            clip=self._clips[name],
            order=self._clips.total(),
            palindrome=lap,
            phase=phase,
            num_spans=num_spans,
            peak_bytes=peak_bytes(self._case.device),
            clocks=read_clocks(self._case.device),
        )
        self._clips[name] += 1
        return clip
