"""Measurement of one cell: contestants are built, checked against the oracle, timed in palindromes and traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from strobe.bench import peers
from strobe.bench.attempt import Attempt
from strobe.bench.attention import lines, oracle, ours, stages
from strobe.bench.attention.contestant import PEER, Contestant, group_and_impl
from strobe.bench.attention.inputs import Inputs
from strobe.bench.attention.interleave import matmul_peak, plan_interleave
from strobe.bench.clips import ClipNumbers, call_spans, trace_line
from strobe.core.device import synchronize
from strobe.core.errors import StrobeError
from strobe.core.files import write_whole
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL, span
from strobe.core.tolerances import tolerance
from strobe.perf.measure.clocks import ClockSampler, read_clocks
from strobe.perf.measure.memory import peak_bytes, reset_peak
from strobe.perf.measure.order import palindrome
from strobe.perf.measure.profile import trace_blocks
from strobe.perf.measure.stopwatch import Run, Speed, Stopwatch
from strobe.perf.records import record
from strobe.perf.records.grids import HOST, MATMUL, PEAK, RECALL, SAVED, STAGE, TEMPORARY
from strobe.perf.records.store import RunWriter

_RECALL = "share of full attention's mass on the selected keys, mean over the checked queries"


@dataclass(frozen=True, kw_only=True, slots=True)
class CellPlan:
    """Amounts of one cell: contestants, seconds of timed calls, traced calls.

    Args:
        seconds: seconds of timed calls, about; a cell of slow calls takes longer, three palindromes at least.
        traced_calls: calls of each contestant in a trace of its own; 0 for none.
        contestants: names, in order; the first that can run is what ratios are measured against.
    """

    contestants: tuple[str, ...]
    seconds: float = 4.0
    traced_calls: int = 0


@dataclass(kw_only=True, slots=True)
class _Bound:
    """A contestant that passed its gate."""

    contestant: Contestant
    run: Run
    speed: Speed = field(default_factory=lambda: Speed(device_ns=0, host_ns=0))


def measure_cell(inputs: Inputs, writer: RunWriter, plan: CellPlan, say: Callable[[str], None]) -> None:
    """Measure one cell into a folder that has its header. A contestant that cannot run, fails or is wrong is recorded.

    Raises:
        StrobeError: the records cannot be written, or the device is lost.
    """
    _Measurement(inputs, writer, plan, say).measure()


class _Measurement:
    def __init__(self, inputs: Inputs, writer: RunWriter, plan: CellPlan, say: Callable[[str], None]) -> None:
        self._inputs, self._writer, self._plan, self._say = inputs, writer, plan, say
        self._device = inputs.device
        self._clips = ClipNumbers(inputs.device)

    def measure(self) -> None:
        plan, names = self._plan, self._plan.contestants
        watch = Stopwatch(self._device, cold=True)
        bound: dict[str, _Bound] = {}
        for name in names:
            self._say(f"checking {name}")
            found = self._admit(name, watch)
            if found is not None:
                bound[name] = found
        if bound:
            self._time(bound, watch)
        for name, each in bound.items():
            if each.contestant.line.work == "whole" and not each.contestant.line.peer and not self._inputs.cell.backward:
                self._say(f"splitting {name}")
                self._split(name, each.contestant, watch)
        for name, each in bound.items() if plan.traced_calls else ():
            self._say(f"tracing {name}")
            self._trace(name, each)

    # ------------------------------------------------------------------------------------------------------- gate

    def _admit(self, name: str, watch: Stopwatch) -> _Bound | None:
        """Build, check and try a contestant; on failure write the reason and return None."""
        inputs = self._inputs
        with Attempt() as attempt:
            contestant = (peers if group_and_impl(name)[0] == PEER else ours).build(name, inputs)
            if not self._passes(contestant):
                return None
            self._writer.append(lines.settings(contestant, inputs))
            before = _allocated(self._device)
            run: Run = contestant.backward(inputs, inputs.upstream) if inputs.cell.backward else contestant.forward
            saved = _allocated(self._device) - before
            run()  # compiles and allocates what stays
            synchronize(self._device)
            reset_peak(self._device)
            there = _allocated(self._device) if self._device.type == "cuda" else peak_bytes(self._device)
            speed = watch.probe(run)
            self._writer.append(*self._memory(name, there, saved))
            self._writer.sync()
            return _Bound(contestant=contestant, run=run, speed=speed)
        self._fail(name, attempt)
        return None

    def _fail(self, name: str, attempt: Attempt) -> None:
        kind: record.Exclusion = "refused" if attempt.refused else "failed"
        cause = f"{kind}: {attempt.reason}"
        self._writer.append(record.Excluded(variant=name, span="clip", clip=None, indices=(), kind=kind, cause=cause))
        self._writer.sync()
        with Attempt() as alive:
            synchronize(self._device)
        if alive.reason:
            raise StrobeError(f"the device is lost after {name}: {alive.reason}; leave it out of --impls and run again")
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _passes(self, contestant: Contestant) -> bool:
        """Compare a contestant with the oracle on the checked rows, forward and, if measured, backward."""
        inputs = self._inputs
        with torch.no_grad():
            found = contestant.call(*contestant.leaves, lse=contestant.kind in ("dense", "fine"))
        expected = oracle.expect(inputs, contestant, found, gradients=inputs.cell.backward)
        out = contestant.as_raster(found.out, inputs)[:, inputs.checked]
        close = oracle.precision(out, expected.out)
        wide = str(oracle.wide_dtype(inputs.q.dtype)).removeprefix("torch.")
        selection, full = lines.Against(kind="selection", dtype=wide), lines.Against(kind="dense", dtype=wide)
        numbers = [*lines.quality(contestant.name, selection, "out", close)]
        dense = oracle.precision(out, expected.dense)
        numbers += lines.quality(contestant.name, full, "out", dense)
        checks = [self._rule(contestant, "output", close)]
        if found.lse is not None:
            lse = contestant.lse_rows(found.lse, inputs)
            error = float((lse.double() - expected.lse.double()).abs().max())
            missed = float((lse.double() - expected.dense_lse.double()).abs().max())
            limit = tolerance("lse", inputs.q.dtype)
            checks.append((error <= limit, f"lse within {limit:g}", f"lse {error:.2g}"))
            numbers += [lines.lse_error(contestant.name, selection, error), lines.lse_error(contestant.name, full, missed)]
        if contestant.kind != "dense":
            numbers.append(lines.number(contestant.name, RECALL, expected.recall, _RECALL, against=full))
        if inputs.cell.backward:
            for which, given, wanted in zip("qkv", self._gradients(contestant), expected.gradients, strict=False):
                close = oracle.precision(given, wanted)
                numbers += lines.quality(contestant.name, selection, f"d{which}", close)
                checks.append(self._rule(contestant, f"d{which}", close, oracle.BACKWARD))
        rows = f"{len(inputs.checked)} queries of every head against {selection.words}"
        gate = record.Gate(
            variant=contestant.name,
            reference=selection.words,
            rule=f"{rows}: " + ", ".join(rule for _, rule, _ in checks),
            passed=all(passed for passed, _, _ in checks),
            detail=", ".join(detail for _, _, detail in checks),
            exact=not contestant.close,
        )
        self._writer.append(gate, *numbers)
        self._writer.sync()
        return gate.passed

    def _rule(self, contestant: Contestant, what: str, close: oracle.Precision, slack: float = 1.0) -> tuple[bool, str, str]:
        if contestant.close:
            return close.cosine >= oracle.SIMILAR, f"{what}: cosine >= {oracle.SIMILAR:g}", f"{what} {close.cosine:.4g}"
        limit = slack * tolerance("sampled", self._inputs.q.dtype)
        return close.relative <= limit, f"{what}: relative error <= {limit:g}", f"{what} {close.relative:.3g}"

    def _gradients(self, contestant: Contestant) -> Iterator[Tensor]:
        """Yield gradients of q, k, v in raster order where only the checked queries have an upstream gradient."""
        inputs = self._inputs
        upstream = torch.zeros_like(inputs.upstream)
        upstream[:, inputs.checked] = inputs.upstream[:, inputs.checked]
        for gradient in contestant.backward(inputs, upstream)()[:3]:
            yield contestant.as_raster(gradient, inputs)

    def _memory(self, name: str, before: int, saved: int) -> Iterator[record.Quality]:
        """Yield the peak memory of one call, the increase over the start, and what a forward pass saves for backward."""
        on_gpu = self._device.type == "cuda"
        where = "bytes that torch allocated" if on_gpu else "resident set of the process"
        peak = peak_bytes(self._device)
        yield lines.number(name, PEAK, float(peak), f"{where}, largest during one call", unit="bytes")
        above = f"{where}, above what was there before one call"
        yield lines.number(name, TEMPORARY, float(peak - before), above, unit="bytes")
        if on_gpu and self._inputs.cell.backward:
            yield lines.number(name, SAVED, float(saved), f"{where}, kept from forward for backward", unit="bytes")

    # ------------------------------------------------------------------------------------------------------ times

    def _time(self, bound: dict[str, _Bound], watch: Stopwatch) -> None:
        """Time all contestants and the matrix product in palindromes."""
        product, flops = matmul_peak(self._inputs.q.dtype, self._device)
        dtype = str(self._inputs.q.dtype).removeprefix("torch.")
        cost = record.SpanCost(span=MATMUL, flops=flops, read_bytes=0, write_bytes=0)
        self._writer.append(record.Variant(name=MATMUL, preset="custom", dtype=dtype, costs=(cost,)))
        runs = {name: each.run for name, each in bound.items()} | {MATMUL: product}
        product()
        speeds = {name: each.speed for name, each in bound.items()} | {MATMUL: watch.probe(product)}
        spans = {name: each.contestant.span for name, each in bound.items()} | {MATMUL: MATMUL}
        rounds, calls = plan_interleave(speeds, self._plan.seconds)
        first, *rest = runs
        for number in range(rounds):
            self._say(f"timing, round {number + 1} of {rounds}")
            with ClockSampler(self._device) as sampler:
                taken = [(name, watch.lap(runs[name], calls[name], speeds[name].host_ns)) for name in palindrome(first, rest)]
            clocks = sampler.clocks()
            for name, lap in taken:
                clip = self._clips.finish(name, "timed", number, len(lap.times_ns) + len(lap.hosts_ns), clocks)
                times = call_spans(clip, spans[name], lap.times_ns, lap.clock)
                self._writer.append(*times, *call_spans(clip, HOST, lap.hosts_ns, "perf_counter"), clip)
            self._writer.sync()

    def _split(self, name: str, contestant: Contestant, watch: Stopwatch) -> None:
        with Attempt() as attempt:
            found = stages.split(contestant, self._device, watch)
            clip = self._clips.finish(name, "timed", None, len(found), read_clocks(self._device))
            clock: record.Clock = "cuda_event" if self._device.type == "cuda" else "perf_counter"
            taken = [line for stage, ns in found.items() for line in call_spans(clip, STAGE, (ns,), clock, part=stage)]
            self._writer.append(*taken, clip)
            self._writer.sync()
        if attempt.reason:
            cause = f"stages: {attempt.reason}"
            self._writer.append(record.Excluded(variant=name, span=STAGE, clip=None, indices=(), kind="failed", cause=cause))

    # ------------------------------------------------------------------------------------------------------ traces

    def _trace(self, name: str, each: _Bound) -> None:
        """Trace some calls, with torch's memory summary before and after them."""
        folder, calls = self._writer.folder, self._plan.traced_calls

        def run() -> Iterator[None]:
            for index in range(1 + calls):
                with span(ATTENTION, index), span(ATTENTION_KERNEL):
                    each.run()
                yield

        path = folder / "traces" / f"{name.replace(':', '-')}.json.gz"
        before = _summary(self._device)
        file = trace_blocks(run(), device=self._device, first_block=1, num_blocks=calls, path=path)
        after = _summary(self._device)
        summary = folder / "memory" / f"{name.replace(':', '-')}.txt"
        summary.parent.mkdir(exist_ok=True)
        write_whole(summary, f"before {calls} calls\n{before}\nafter\n{after}\n")
        clip = self._clips.finish(name, "traced", None, 0, read_clocks(self._device))
        self._writer.append(trace_line(clip, file, folder, range(1, 1 + calls)), clip)
        self._writer.sync()


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _summary(device: torch.device) -> str:
    """Return torch's memory summary of a GPU; on a CPU the resident set size, the only figure there."""
    if device.type == "cuda":
        return str(torch.cuda.memory_summary(device))
    return f"largest resident set so far: {peak_bytes(device)} bytes"
