"""Implementations of one attention call, gated, timed in palindromes and traced, as records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from strobe.bench.case import Progress
from strobe.bench.cases.attention import AttentionCase, Span
from strobe.bench.clips import ClipNumbers, call_spans, trace_line
from strobe.bench.runner import end_line
from strobe.core.errors import ConfigError
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL, span
from strobe.perf.measure.clocks import ClockSampler, read_clocks
from strobe.perf.measure.isolated import Isolated, time_isolated
from strobe.perf.measure.machine import describe_run
from strobe.perf.measure.memory import reset_peak
from strobe.perf.measure.order import palindrome
from strobe.perf.measure.profile import Capture, trace_blocks
from strobe.perf.records import record
from strobe.perf.records.store import RunWriter


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionPlan:
    """Amounts of a measurement: palindromes, timed and traced calls.

    Args:
        rounds: palindromes of laps; an interval needs 2.
        calls: timed calls in a lap.
        cold: overwrite a GPU's cache before each call.
        traced_calls: calls of each implementation in its trace; 0 for none.

    Raises:
        ConfigError: a count is not possible.
    """

    rounds: int = 4
    calls: int = 60
    cold: bool = False
    traced_calls: int = 10

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.calls < 1 or self.traced_calls < 0:
            raise ConfigError(f"give 1 round and 1 call or more, got {self.rounds} and {self.calls}")


def measure_attention(case: AttentionCase, writer: RunWriter, plan: AttentionPlan, progress: Progress) -> tuple[record.Gate, ...]:
    """Gate, time and trace every implementation; return the red gates. One whose gate is red gets no numbers.

    Raises:
        StrobeError: the records cannot be written.
    """
    with end_line(writer):
        return _Run(case, writer, plan, progress).measure()


class _Run:
    def __init__(self, case: AttentionCase, writer: RunWriter, plan: AttentionPlan, progress: Progress) -> None:
        self._case, self._writer, self._plan, self._progress = case, writer, plan, progress
        self._clips = ClipNumbers(case.device)
        self._done = 0

    @torch.inference_mode()
    def measure(self) -> tuple[record.Gate, ...]:
        case, plan = self._case, self._plan
        self._writer.append(describe_run(self._writer.folder, case.device, case.order, plan.rounds, "operator"))
        gates = [self._check(name) for name in case.variants]
        green = [gate.variant for gate in gates if gate.passed]
        if gates[0].passed:
            order = tuple(green) if len(green) == 1 else palindrome(green[0], green[1:])
            for name in green:
                self._writer.append(self._settings(name))
            for lap in range(plan.rounds):
                for name in order:
                    self._say(f"timing {name}, round {lap + 1} of {plan.rounds}")
                    self._time(name, lap)
            for name in green if plan.traced_calls else ():
                self._say(f"tracing {name}")
                self._trace(name)
        return tuple(gate for gate in gates if not gate.passed)

    def _say(self, what: str) -> None:
        each = 1 + bool(self._plan.traced_calls)
        self._progress(self._done, len(self._case.variants) * each + self._plan.rounds * len(self._case.order), what)
        self._done += 1

    def _check(self, name: str) -> record.Gate:
        self._say(f"checking {name}")
        found = self._case.variants[name].check().line(name, "reference, float64")
        self._writer.append(found)
        return found

    def _settings(self, name: str) -> record.Variant:
        """Return the variant's settings with the number of calls in a lap."""
        variant = self._case.variants[name]
        calls = dict.fromkeys(self._case.spans, self._plan.calls)
        return replace(variant.settings, costs=(variant.cost,), calls_per_stage=calls)

    def _time(self, name: str, lap: int) -> None:
        case, plan, variant = self._case, self._plan, self._case.variants[name]
        reset_peak(case.device)
        with ClockSampler(case.device) as sampler:
            found: dict[Span, Isolated] = {}
            for what in case.spans:
                run = variant.kernel if what == ATTENTION_KERNEL else variant.section
                found[what] = time_isolated(run, iterations=plan.calls, device=case.device, cold=plan.cold)
        clip = self._clips.finish(name, "timed", lap, plan.calls * len(found), sampler.clocks())
        self._writer.append(*_spans(clip, found), clip)
        self._writer.sync()

    def _trace(self, name: str) -> None:
        case, plan, variant = self._case, self._plan, self._case.variants[name]

        def calls() -> Iterator[None]:
            for index in range(1 + plan.traced_calls):
                with span(ATTENTION, index), span(ATTENTION_KERNEL):
                    variant.kernel()
                yield

        path = self._writer.folder / "traces" / f"{name.replace(':', '-')}.json.gz"
        capture = Capture(regions=(ATTENTION, ATTENTION_KERNEL))
        file = trace_blocks(calls(), device=case.device, first_block=1, num_blocks=plan.traced_calls, path=path, capture=capture)
        clip = self._clips.finish(name, "traced", None, 0, read_clocks(case.device))
        blocks = range(1, 1 + plan.traced_calls)
        self._writer.append(trace_line(clip, file, self._writer.folder, blocks, capture.regions), clip)


def _spans(clip: record.Clip, found: dict[Span, Isolated]) -> Iterator[record.Span]:
    """Yield one span per call, those of the section after those of the kernel."""
    start_ns = 0
    for what, times in found.items():
        yield from call_spans(clip, what, times.times_ns, times.clock, start_ns=start_ns)
        start_ns += sum(times.times_ns)
