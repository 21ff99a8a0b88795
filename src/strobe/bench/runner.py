"""Runs a comparison: gates, warm-up, timed clips in palindromes, separate traced clips, then quality; writes at once."""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from strobe.bench.case import Case, ComparePlan, Progress
from strobe.core.costs import Cost
from strobe.core.errors import ConfigError, StrobeError, Terminated
from strobe.core.files import write_whole
from strobe.core.spans import E2E, TRACEABLE, recording, span
from strobe.perf.analysis.runs.timeline import encode_passes, passes_of
from strobe.perf.measure.machine import (
    THERMAL,
    ClockSampler,
    HeldMemory,
    cool_down,
    describe_run,
    held,
    peak_bytes,
    reset_peak,
    utc_now,
)
from strobe.perf.measure.profile import Capture, file_sha256, trace_blocks, trace_clip
from strobe.perf.measure.timing import TimingRecorder, num_compiles, palindrome, region_records, span_records
from strobe.perf.records import record
from strobe.perf.records.store import RunWriter, create_run
from strobe.perf.trace import read_trace


def timed_span(
    clip: record.Clip, name: str, index: int | None, value_ns: int, clock: record.Clock = "perf_counter", **more: Any
) -> record.Span:
    """Return the span of one timed call, or of a region of it."""
    return record.Span(
        variant=clip.variant, clip=clip.clip, order=clip.order, palindrome=clip.palindrome, name=name, index=index,
        value_ns=value_ns, clock=clock, warmup=clip.phase == "warmup", **({"start_ns": 0} | more),
    )  # fmt: skip


def call_spans(
    clip: record.Clip, name: str, times_ns: Sequence[int], clock: record.Clock, *, part: str = "", start_ns: int = 0
) -> Iterator[record.Span]:
    """Yield one span per call. Queued calls have no start of their own: it is the sum of the times before them.

    Args:
        part: stage of the call, if the spans are of one.
        start_ns: what the calls before these took.
    """
    for index, value in enumerate(times_ns):
        yield timed_span(clip, name, index, value, clock, part=part, start_ns=start_ns)
        start_ns += value


def span_cost(name: str, cost: Cost, **more: Any) -> record.SpanCost:
    """Return the cost of one call of a region as a record; `more`: its other fields."""
    return record.SpanCost(span=name, flops=cost.flops, read_bytes=cost.read_bytes, write_bytes=cost.write_bytes, **more)


def number(variant: str, metric: str, value: float | None, definition: str, **more: Any) -> record.Quality:
    """Return a measured number as a record; one that is not finite has no value.

    Args:
        more: other fields of the record; without them it is one sample, of which less is better.
    """
    finite = value is not None and abs(value) < float("inf")
    usual: dict[str, Any] = {"unit": "", "reference": "", "n": 1, "better": "lower", "note": "" if finite else "not finite"}
    own = usual | more
    return record.Quality(variant=variant, metric=metric, value=value if finite else None, definition=definition, **own)


def trace_line(
    clip: record.Clip, path: Path, folder: Path, blocks: range, regions: Sequence[str] = (), options: Sequence[str] = ()
) -> record.ClipTrace:
    """Return the record of a clip's trace.

    Args:
        folder: of the run; the path of the trace is recorded relative to it.
        blocks: numbers of the frame blocks, or calls, that were recorded.
        options: of the profiler, which slow the host down.
    """
    return record.ClipTrace(
        variant=clip.variant,
        clip=clip.clip,
        path=str(path.relative_to(folder)),
        sha256=file_sha256(path),
        size_bytes=path.stat().st_size,
        first_block=blocks.start,
        num_blocks=len(blocks),
        regions=tuple(regions),
        options=tuple(options),
    )


_WARM_UP_BLOCKS: Final = 2


class VariantError(StrobeError):
    """A variant of a run failed."""

    def __init__(self, variant: str, reason: str) -> None:
        self.variant = variant
        super().__init__(f"{variant}: {reason}")


def run_case(
    case: Case, *, root: Path, plan: ComparePlan, progress: Progress, open_run: Callable[[Path, str], RunWriter] = create_run
) -> Path:
    """Measure a case into a new folder under `root`, and return it.

    Every finished clip is on the disk before the next begins. Candidates whose gate is red get no numbers. On Ctrl-C, and on any
    error of ours, the end line says so and the exception goes on.

    Args:
        open_run: makes the folder from `root` and the case's slug; called once everything else is known to be possible.

    Raises:
        ConfigError: variants do not differ in name, or the clip is too short to trace a frame block of it.
        StrobeError: the records cannot be written, or a variant cannot run.
    """
    order = (case.baseline,) if plan.alone and not case.candidates else palindrome(case.baseline, case.candidates)
    traced = traced_window(case.workload, plan)
    attributed = range(0) if plan.attribution is None else traced[:1] or steady_window(case.workload, 1)
    with open_run(root, case.slug) as writer, end_line(writer):
        run = _CaseRun(case, plan, writer, progress)
        header = describe_run(writer.folder, case.device, order, plan.palindromes, "stream")
        writer.append(msgspec.structs.replace(header, model=case.model, workload=case.workload, absent=case.absent))
        run.measure(traced, attributed)
    return writer.folder


@contextmanager
def end_line(writer: RunWriter) -> Iterator[None]:
    """Write the end line of a run when the body has finished, whether it was complete, interrupted or failed."""
    began = time.perf_counter_ns()
    status: record.Status = "failed"
    message, variant = "stopped by an error that is not ours", ""
    try:
        yield
        status, message = "complete", ""
    except KeyboardInterrupt as error:
        status, message = "interrupted", "SIGTERM" if isinstance(error, Terminated) else "Ctrl-C"
        raise
    except StrobeError as error:
        message, variant = str(error), error.variant if isinstance(error, VariantError) else ""
        raise
    finally:
        notes: list[str] = getattr(sys.exception(), "__notes__", [])
        message = notes[-1] if notes else message
        with suppress(StrobeError):
            wall_ns = time.perf_counter_ns() - began
            writer.append(record.End(status=status, date=utc_now(), wall_ns=wall_ns, message=message, variant=variant))
            writer.sync()


def traced_window(workload: record.Workload, plan: ComparePlan) -> range:
    """Return the frame blocks to trace.

    Raises:
        ConfigError: the clip has no such blocks.
    """
    if plan.traced_from is None:
        return steady_window(workload, plan.traced_blocks)
    window = range(plan.traced_from, plan.traced_from + plan.traced_blocks)
    if window.stop > workload.frame_blocks or window.start < plan.capture.warmup:
        raise ConfigError(
            f"a clip of {workload.frame_blocks} frame blocks has no blocks {window.start}..{window.stop - 1} to trace after "
            f"{plan.capture.warmup} of warm-up; make it longer, or wait for fewer"
        )
    return window


def steady_window(workload: record.Workload, most: int) -> range:
    """Return as many consecutive frame blocks as possible, up to `most`, without a switch in or right before them.

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


class ClipNumbers:
    """Counter that numbers each finished clip among its variant's clips and in the run.

    Args:
        device: whose peak memory a clip has; None: it ran elsewhere.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device
        self._done: Counter[str] = Counter()

    def finish(
        self, name: str, phase: record.Phase, lap: int | None, num_spans: int, clocks: record.Clocks | None = None, **more: Any
    ) -> record.Clip:
        """Return the record of a variant's clip that ends now, with the peak memory since its start."""
        peak = None if self._device is None else peak_bytes(self._device)
        clip = record.Clip(
            variant=name, clip=self._done[name], order=self._done.total(), palindrome=lap, phase=phase, num_spans=num_spans,
            clocks=clocks, **({"peak_bytes": peak} | more),
        )  # fmt: skip
        self._done[name] += 1
        return clip


class Rounds:
    """A comparison under way: what it writes, the numbers of its clips, what it tells before each of its steps."""

    def __init__(self, writer: RunWriter, device: torch.device, progress: Progress, steps: int) -> None:
        self.writer, self.device, self.clips = writer, device, ClipNumbers(device)
        self._progress, self._done, self._steps = progress, 0, steps
        self._region_ns: int | None = None
        self._marked = False

    def say(self, what: str) -> None:
        self._progress(self._done, self._steps, what)
        self._done += 1

    def write(self, *lines: record.Record) -> None:
        """Append lines to the records; they are on the disk afterwards."""
        self.writer.append(*lines)
        self.writer.sync()

    def exclude(self, name: str, clips: Sequence[int], kind: record.Exclusion, cause: str, span: str = "clip") -> None:
        self.writer.append(record.Excluded(variant=name, span=span, clip=None, indices=tuple(clips), kind=kind, cause=cause))

    def laps(self, names: Sequence[str], rounds: int) -> Iterator[tuple[str, int]]:
        """Yield each variant and the number of its round, in palindromes; one alone runs once a round."""
        for lap in range(rounds):
            for name in palindrome(names[0], names[1:]) if len(names) > 1 else names:
                self.say(f"timing {name}, round {lap + 1} of {rounds}")
                yield name, lap

    def timed(
        self,
        name: str,
        phase: record.Phase,
        lap: int | None,
        recorder: TimingRecorder,
        body: Callable[[], Sequence[HeldMemory | None]],
        **more: Any,
    ) -> Counter[str]:
        """Run one clip under the timing recorder and record it; return how often each region was entered.

        Args:
            body: runs it, and returns what the process holds after each frame block, or None.
        """
        compiled = num_compiles()
        gc.collect()
        reset_peak(self.device)
        with ClockSampler(self.device) as sampler, recording(recorder):
            recorder.start_clip()
            with span(E2E):
                own = body()
            regions = recorder.finish_clip()
        clip = self.clips.finish(name, phase, lap, len(regions), sampler.clocks(), **more)
        self.writer.append(*span_records(clip, regions))
        self._marked |= bool(inside := recorder.inside())
        if phase == "timed":
            read = ((number, each) for number, each in enumerate(own) if each is not None)
            memory = (record.Memory(variant=name, clip=clip.clip, frame_block=number, **each) for number, each in read)
            self.writer.append(*self._inside(clip, inside), *memory)
        self.writer.append(clip)
        if phase == "timed" and num_compiles() > compiled:
            self.exclude(name, (clip.clip,), "compilation", "compilation")
        if clip.clocks is not None and THERMAL & set(clip.clocks.throttle):
            if phase == "timed":
                self.exclude(name, (clip.clip,), "throttling", "thermal throttling")
            cool_down(self.device)
        self.writer.sync()
        return Counter(region.name for region in regions)

    def _inside(
        self, clip: record.Clip, found: Mapping[tuple[int, tuple[str, ...]], Sequence[int]]
    ) -> tuple[record.Regions, ...]:
        """Return a clip's time in regions inside its frame blocks; a line without any where only other variants have some."""
        if self._region_ns is None:
            self._region_ns = TimingRecorder(self.device, inside=True).region_ns()
        if found or not self._marked:
            return region_records(clip, found, self._region_ns)
        none: dict[str, Any] = {"paths": (), "calls": (), "value_ns": ()}
        where: dict[str, Any] = {"variant": clip.variant, "clip": clip.clip, "order": clip.order}
        return (record.Regions(blocks=(0,), region_ns=self._region_ns, **where, **none),)


class _CaseRun(Rounds):
    """The rounds of a case."""

    def __init__(self, case: Case, plan: ComparePlan, writer: RunWriter, progress: Progress) -> None:
        candidates = len(case.candidates)
        each = 1 + bool(plan.traced_blocks) + (plan.attribution is not None) + plan.review
        clips = plan.palindromes * (2 * (1 + candidates) if candidates else 1)
        super().__init__(writer, case.device, progress, candidates + (1 + candidates) * each + clips)
        self._case, self._plan = case, plan
        self._recorder = TimingRecorder(case.device, inside=True)

    def measure(self, traced: range, attributed: range) -> None:
        case, plan, green = self._case, self._plan, list[str]()
        for name in case.candidates:
            self.say(f"checking {name} against {case.baseline}")
            self.write(gate := case.gate(name))
            green += [name] if gate.passed else []
        if green or not case.candidates:
            names = (case.baseline, *green)
            for name in names:
                self.say(f"warming up {name}")
                calls = self._time(name, "warmup", None)
                self.writer.append(msgspec.structs.replace(case.settings(name), calls_per_stage=dict(calls)))
                self.exclude(name, (0,), "warm-up", "warm-up")
            for name, lap in self.laps(names, plan.palindromes):
                self._time(name, "timed", lap)
            for name in names:
                self._trace(name, traced, plan.capture, "traces")
                if plan.attribution is not None:
                    self._trace(name, attributed, plan.attribution, "attribution")
            for name in names if plan.review else ():  # which needs the memory of what was measured
                self.say(f"judging {name}")
                self.write(*case.review(name, self.writer.folder))

    def _time(self, name: str, phase: record.Phase, lap: int | None) -> Counter[str]:
        case, memory = self._case, self._plan.memory
        case.prepare(name)
        return self.timed(
            name, phase, lap, self._recorder, lambda: [held(case.device) if memory else None for _ in case.blocks(name)]
        )

    def _trace(self, name: str, traced: range, capture: Capture, folder: str) -> None:
        """Profile one clip: whole and lightly on a GPU, else the frame blocks asked for with their operators."""
        if not traced:
            return
        case, sampler = self._case, ClockSampler(self.device)
        whole = self._plan.whole_clip and self._plan.traced_from is None and self.device.type == "cuda" and not capture.options
        self.say(f"tracing {name}" + (f" with {' and '.join(capture.options)}" if capture.options else ""))
        path = self.writer.folder / folder / f"{name}.json.gz"
        if whole:
            traced = range(case.workload.frame_blocks)
            self._trace_clip(name, path, sampler)
        else:
            case.prepare(name)
            trace_blocks(
                case.blocks(name),
                device=case.device,
                first_block=traced.start,
                num_blocks=len(traced),
                path=path,
                capture=capture,
            )
        clip = self.clips.finish(name, "traced", None, 0, sampler.clocks())
        regions = TRACEABLE if whole else capture.regions
        trace = trace_line(clip, path, self.writer.folder, traced, regions, capture.options)
        self.write(trace, *(() if capture.options else self._launched(name)), clip)

    def _trace_clip(self, name: str, path: Path, sampler: ClockSampler) -> None:
        """Trace a whole clip; the profiler is warmed up on frame blocks of another clip before it."""
        case = self._case

        def warm_up() -> None:
            case.prepare(name)
            for _ in islice(case.blocks(name), _WARM_UP_BLOCKS):
                pass
            case.prepare(name)

        def clip() -> None:
            with sampler:
                for _ in case.blocks(name):
                    pass

        trace_clip(clip, device=case.device, path=path, warm_up=warm_up)

    def _launched(self, name: str) -> tuple[record.LaunchedPasses, ...]:
        """Record a variant's graphed passes launched kernel by kernel, so that kernels of its graphs can be labelled."""
        launched = self._case.launched(name)
        if launched is None:
            return ()
        folder = self.writer.folder / "traces"
        scratch, path = folder / f"{name}.launched.json.gz", folder / f"{name}.passes.json.gz"
        try:
            with launched:
                self._trace_clip(name, scratch, ClockSampler(self.device))
            passes = passes_of(read_trace(scratch))
        finally:
            scratch.unlink(missing_ok=True)
        write_whole(path, encode_passes(passes))
        return (record.LaunchedPasses(variant=name, path=str(path.relative_to(self.writer.folder)), sha256=file_sha256(path)),)
