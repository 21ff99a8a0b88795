"""Functions of the caller's own: held against each other, timed in palindromes, and traced, as records."""

from __future__ import annotations

import gc
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

import numpy as np
import torch
from msgspec.structs import replace

from strobe.bench.clips import ClipNumbers, trace_line
from strobe.bench.own.inputs import Inputs, bound
from strobe.bench.own.outputs import Leaf, agree, leaves
from strobe.bench.runner import Outcome, end_line
from strobe.core.device import gpus_in_use, resolve_device, synchronize
from strobe.core.errors import ConfigError
from strobe.core.spans import E2E, FRAME_BLOCK, recording, span
from strobe.perf.measure.clocks import THERMAL, ClockSampler, cool_down, read_clocks
from strobe.perf.measure.compiles import num_compiles
from strobe.perf.measure.machine import describe_run
from strobe.perf.measure.memory import held, reset_peak
from strobe.perf.measure.order import palindrome
from strobe.perf.measure.profile import Capture, trace_blocks
from strobe.perf.measure.timing import TimingRecorder, region_records, span_records
from strobe.perf.records import record
from strobe.perf.records.store import RunWriter

Functions = Mapping[str, Callable[..., object]]

SAMPLE_NS: Final = 2_000_000
"""Shorter calls are repeated within a sample until it lasts this long, so that the cost of taking it does not count."""
LONG_NS: Final = 500_000_000
"""But only until one of the slowest function lasts this long."""
SEED: Final = 0
"""Of torch's random numbers, before each call whose output is compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallsPlan:
    """Amount of measuring.

    Args:
        rounds: palindromes `B C1 C2 C2 C1 B` of samples; an interval needs 2.
        warmup: calls of each function before anything is timed, after the one whose output is compared.
        tolerance: largest relative error of an output; None: by dtype; infinite: outputs are not compared.
        trace: one more sample of each under the profiler.

    Raises:
        ConfigError: a count or tolerance is not possible.
    """

    rounds: int = 10
    warmup: int = 3
    tolerance: float | None = None
    trace: bool = False

    def __post_init__(self) -> None:
        if self.warmup < 1 or self.rounds < 1:
            raise ConfigError(f"warmup and rounds must be at least 1, got {self.warmup} and {self.rounds}")
        if self.tolerance is not None and not self.tolerance >= 0:
            raise ConfigError(f"tolerance={self.tolerance}: give a relative error of 0 or more; math.inf compares no outputs")


def check_functions(functions: Functions) -> None:
    """Refuse what is no comparison, before anything is called.

    Raises:
        ConfigError: fewer than two functions, a name that is no text, or something that cannot be called.
    """
    if not isinstance(functions, Mapping):
        raise ConfigError(
            f'give a dictionary of functions, such as {{"eager": f, "compiled": g}}; got a {type(functions).__name__}'
        )
    if len(functions) < 2:
        raise ConfigError(f"a comparison needs two functions or more, got {', '.join(map(repr, functions)) or 'none'}")
    for name, function in functions.items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise ConfigError(f"{name!r} is no name of a function: give text that can be printed, such as 'compiled'")
        if not callable(function):
            kind = type(function).__name__
            raise ConfigError(f"{name!r} cannot be called, for its type is {kind}; give a function, not its result")
    alike = [name.strip() for name in functions]
    if len(set(alike)) < len(alike):
        raise ConfigError(f"names must differ in more than spaces, got: {', '.join(map(repr, functions))}")


def measure_calls(
    functions: Functions, inputs: object, plan: CallsPlan, open_run: Callable[[], RunWriter], *, device: str = "auto"
) -> Outcome:
    """Hold functions against the first, time and trace them. One whose gate is red gets no numbers.

    Args:
        functions: by name; the first is the baseline.
        inputs: of every call, see `Inputs`.
        plan: how much is measured.
        open_run: makes the run folder, once every function has been called.
        device: where the functions work; auto: on a GPU, if the process has used one by the end of the warm-up.

    Raises:
        ConfigError: something is given that cannot be measured.
        StrobeError: the records cannot be written.

    Whatever a function raises goes on to the caller, with a note that says which function it was, and when.
    """
    check_functions(functions)
    named = None if str(device) == "auto" else resolve_device(device)
    run = _Run(dict(functions), Inputs(inputs), plan)
    outputs = run.begin(named)
    with open_run() as writer, end_line(writer):
        return Outcome(folder=writer.folder, red=run.measure(writer, outputs))


class _Blame:
    """Adds to whatever a function raises which one it was, and when."""

    def __init__(self, name: str, when: str) -> None:
        self._note = f"strobe.compare: {name!r} raised this in {when}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            error.add_note(self._note)


class _Run:
    """One comparison under way."""

    def __init__(self, functions: dict[str, Callable[..., object]], inputs: Inputs, plan: CallsPlan) -> None:
        self._functions, self._inputs, self._plan = functions, inputs, plan
        self._own: dict[str, Any] = {}
        self._gpus: tuple[torch.device, ...] = ()
        self._calls, self._marked, self._region_ns = 1, False, 0

    def begin(self, named: torch.device | None) -> dict[str, list[Leaf]]:
        """Call every function: once for its output, which is returned, and then to warm up."""
        plan, names = self._plan, list(self._functions)
        outputs = {name: self._first_call(name) for name in names}
        self._own = {name: None if self._inputs.fresh else self._inputs.one() for name in names}
        for name in names:
            with _Blame(name, "the warm-up"):
                for call in self._prepared(name, plan.warmup):
                    call()
        self._gpus = self._find_gpus(named)
        self._device = self._gpus[0] if self._gpus else torch.device("cpu")
        return outputs

    def measure(self, writer: RunWriter, outputs: dict[str, list[Leaf]]) -> tuple[record.Gate, ...]:
        """Write the header and the gates, then time and trace; return the red gates."""
        plan, names, self._writer = self._plan, list(self._functions), writer
        order = palindrome(names[0], names[1:])
        self._writer.append(describe_run(self._writer.folder, self._device, order, plan.rounds, "calls"))
        gates = [] if plan.tolerance == math.inf else [self._gate(name, outputs) for name in names[1:]]
        self._writer.append(*gates)
        outputs.clear()
        red = [gate.variant for gate in gates if not gate.passed]
        green = [name for name in names if name not in red]
        if len(green) > 1:
            with _settled():
                self._time_all(green)
        return tuple(gate for gate in gates if not gate.passed)

    def _time_all(self, names: list[str]) -> None:
        plan = self._plan
        took = [self._one_call_ns(name) for name in names]
        self._calls = max(1, min(math.ceil(SAMPLE_NS / min(took)), LONG_NS // max(took), self._inputs.most()))
        self._recorder, self._clips = TimingRecorder(self._device, inside=True), ClipNumbers(self._device)
        self._region_ns = self._recorder.region_ns()
        counted = {name: self._sample(name, "warmup", None) for name in names}
        for name in names:
            self._writer.append(
                record.Variant(name=name, preset=record.CUSTOM, calls_per_stage=dict(counted[name])),
                record.Excluded(variant=name, span="clip", clip=None, indices=(0,), kind="warm-up", cause="warm-up"),
            )
        for lap in range(plan.rounds):
            for name in palindrome(names[0], names[1:]):
                with _Blame(name, f"round {lap + 1}"):
                    self._sample(name, "timed", lap)
        for number, name in enumerate(names if plan.trace else ()):
            with _Blame(name, "the traced sample"):
                self._trace(number, name)

    # Before anything is timed.

    def _first_call(self, name: str) -> list[Leaf]:
        """Call a function once with inputs and random numbers that are those of all others; return its output."""
        inputs = self._inputs.one()
        with _Blame(name, "its first call"), _seeded():
            output = bound(self._functions[name], inputs)()
        if not self._inputs.unchanged(inputs):
            self._inputs.fresh = True  # from now on every call of every function has its own
        return [] if self._plan.tolerance == math.inf else leaves(output, f"{name}: out")

    def _gate(self, name: str, outputs: dict[str, list[Leaf]]) -> record.Gate:
        baseline = next(iter(outputs))
        found, expected = (
            [leaf._replace(path=leaf.path.removeprefix(f"{each}: ")) for leaf in outputs[each]] for each in (name, baseline)
        )
        return agree(found, expected, self._plan.tolerance).line(name, baseline)

    def _find_gpus(self, named: torch.device | None) -> tuple[torch.device, ...]:
        """Return the GPUs to wait for, the one whose events are read first; none on a CPU.

        Raises:
            ConfigError: the CPU was named and a function works on a GPU.
        """
        used = gpus_in_use()
        if named is None:
            return used
        if named.type == "cuda":
            return (named, *(each for each in used if each != named))
        for name in self._functions if used else ():
            if self._works_on_gpu(name):
                raise ConfigError(
                    f'device="cpu", but {name!r} works on a GPU: its kernels would not be timed; leave device out, or give "cuda"'
                )
        return ()

    def _works_on_gpu(self, name: str) -> bool:
        """Call a function once under the profiler and say whether a GPU had anything to do."""
        from torch._C._autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        (call,) = self._prepared(name, 1)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            call()
            for gpu in gpus_in_use():
                synchronize(gpu)
        return any(event.device_type == DeviceType.CUDA for event in profiler.events())

    # Samples.

    def _prepared(self, name: str, calls: int) -> list[Callable[[], object]]:
        """Calls with their inputs: of their own each where a function changes them, else those of the function."""
        function = self._functions[name]
        if self._inputs.fresh:
            return [bound(function, self._inputs.one()) for _ in range(calls)]
        return [bound(function, self._own[name])] * calls

    def _one_call_ns(self, name: str) -> int:
        (call,) = self._prepared(name, 1)
        self._wait()
        start = time.perf_counter_ns()
        with _Blame(name, "the warm-up"):
            call()
        self._wait()
        return max(1, time.perf_counter_ns() - start)

    def _wait(self) -> None:
        for gpu in self._gpus:
            synchronize(gpu)

    def _sample(self, name: str, phase: record.Phase, lap: int | None) -> Counter[str]:
        """Time some calls in a row, from an idle device to an idle device, and write them down."""
        calls, compiled, recorder = self._prepared(name, self._calls), num_compiles(), self._recorder
        gc.collect()
        self._wait()
        reset_peak(self._device)
        start = held(self._device)
        with ClockSampler(self._device) as sampler, recording(recorder):
            recorder.start_clip()
            with span(E2E):
                with span(FRAME_BLOCK, 0):
                    for call in calls:
                        call()
                self._wait()
            regions = recorder.finish_clip()
        clip = replace(
            self._clips.finish(name, phase, lap, len(regions), sampler.clocks()),
            calls=len(calls),
            start_bytes=start.resident_bytes if start.allocated_bytes is None else start.allocated_bytes,
        )
        inside = recorder.inside()
        self._marked |= bool(inside)
        self._writer.append(*span_records(clip, regions), *(self._regions(clip) if phase == "timed" else ()), clip)
        hot = clip.clocks is not None and bool(THERMAL & set(clip.clocks.throttle))
        if phase == "timed" and (hot or num_compiles() > compiled):
            kind: record.Exclusion = "throttling" if hot else "compilation"
            cause = "thermal throttling" if hot else "compilation"
            self._writer.append(
                record.Excluded(variant=name, span="clip", clip=None, indices=(clip.clip,), kind=kind, cause=cause)
            )
        if hot:
            cool_down(self._device)
        return Counter(region.name for region in regions)

    def _regions(self, clip: record.Clip) -> tuple[record.Regions, ...]:
        """Return the sample's time in the caller's regions; a line without any where only other functions have some."""
        found = region_records(clip, self._recorder.inside(), self._region_ns)
        if found or not self._marked:
            return found
        return (
            record.Regions(
                variant=clip.variant,
                clip=clip.clip,
                order=clip.order,
                blocks=(0,),
                paths=(),
                calls=(),
                value_ns=(),
                region_ns=self._region_ns,
            ),
        )

    def _trace(self, number: int, name: str) -> None:
        """Run a sample under the profiler, after one that warms it up."""

        def samples() -> Iterator[None]:
            for index in (1, 0):  # the second is kept, and has the number of the timed one
                calls = self._prepared(name, self._calls)
                self._wait()
                with span(FRAME_BLOCK, index):
                    for call in calls:
                        call()
                    self._wait()
                yield

        words = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40] or "function"
        path = self._writer.folder / "traces" / f"{number}-{words}.json.gz"
        file = trace_blocks(samples(), device=self._device, first_block=1, num_blocks=1, path=path, capture=Capture())
        clip = replace(self._clips.finish(name, "traced", None, 0, read_clocks(self._device)), calls=self._calls)
        self._writer.append(trace_line(clip, file, self._writer.folder, range(1)), clip)


@contextmanager
def _settled() -> Iterator[None]:
    """Let garbage be collected before every sample, and only what came to be meanwhile."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _seeded() -> Iterator[None]:
    """Let torch, NumPy and Python draw the same random numbers every time; afterwards they go on as before."""
    python, array = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([gpu.index for gpu in gpus_in_use()]):
            torch.manual_seed(SEED)
            np.random.seed(SEED)
            random.seed(SEED)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(array)
