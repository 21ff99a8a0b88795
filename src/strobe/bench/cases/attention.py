"""One attention operator as a case, and its calls measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch
from msgspec.structs import replace
from torch import Tensor

from strobe.attention.dense import dense_attention
from strobe.attention.explain import explain
from strobe.attention.impls import Choice
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.layout import TileLayout, tile_layout
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.video import video_sparse_attention
from strobe.bench import gate
from strobe.bench.case import Progress
from strobe.bench.cases.call import AttentionCall, AttentionPlan
from strobe.bench.runner import ClipNumbers, call_spans, end_line, trace_line
from strobe.core import costs
from strobe.core.device import resolve_device
from strobe.core.errors import ConfigError
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL, span
from strobe.perf.measure.machine import ClockSampler, describe_run, read_clocks, reset_peak
from strobe.perf.measure.profile import Capture, trace_blocks
from strobe.perf.measure.timing import Isolated, palindrome, time_isolated
from strobe.perf.records import record
from strobe.perf.records.store import RunWriter

SPARSE: Final = "sparse:"
"""Prefix of the implementations of sparse attention: `sparse:cpu`."""
_GATE_ROWS: Final = 192
_GATE_BLOCKS: Final = 3

Span = Literal["attention_kernel", "attention"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionVariant:
    """One implementation: the kernel, the whole section around it, the kernel's check, and its cost."""

    kernel: Callable[[], Tensor]
    section: Callable[[], Tensor]
    check: Callable[[], gate.GateResult]
    cost: record.SpanCost
    settings: record.Variant


class AttentionCase:
    """Implementations of one call on one device.

    Args:
        call: sizes and data of the call.
        impls: names of implementations of dense attention, and of sparse attention with the prefix `sparse:`; the first is the
            reference that ratios are measured against.
        device: "auto", "cpu", "cuda" or "cuda:N".

    Raises:
        ConfigError: no implementation, one twice or unknown, or a sparse one without a grid.
        ImplUnavailableError: one cannot run this call here.
    """

    def __init__(self, call: AttentionCall, impls: Sequence[str], *, device: str | torch.device = "auto") -> None:
        if not impls or len(set(impls)) < len(impls):
            raise ConfigError(f"name one implementation or several different ones, got: {', '.join(impls) or 'none'}")
        self.device = resolve_device(device)
        automatic = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self._dtype = automatic if call.dtype == "auto" else getattr(torch, call.dtype)
        self._call = call
        self._q, self._k, self._v = _draw(call, self._dtype, self.device)
        self._tiles = tile_layout(call.grid, (4, 4, 4)) if call.grid is not None else None
        self.variants = {name: self._sparse(name) if name.startswith(SPARSE) else self._dense(name) for name in impls}
        self.order = tuple(impls) if len(impls) == 1 else palindrome(impls[0], impls[1:])
        self.spans: tuple[Span, ...] = (
            (ATTENTION_KERNEL, ATTENTION) if any(name.startswith(SPARSE) for name in impls) else (ATTENTION_KERNEL,)
        )

    @property
    def slug(self) -> str:
        """Part of the run folder's name."""
        return f"attention-{'-'.join(self.variants)}"

    def _shape(self) -> costs.AttentionShape:
        call = self._call
        return costs.AttentionShape(
            batch=call.batch,
            q_tokens=call.q_tokens,
            kv_tokens=call.num_keys,
            num_heads=call.num_heads,
            num_kv_heads=call.num_kv_heads,
            head_dim=call.head_dim,
        )

    def _dense(self, impl: str) -> AttentionVariant:
        q, k, v = self._q, self._k, self._v
        choice = explain(q, k, v, impl=impl)

        def run() -> Tensor:
            return dense_attention(q, k, v, impl=impl).out

        def check() -> gate.GateResult:
            rows = torch.linspace(0, q.shape[1] - 1, min(_GATE_ROWS, q.shape[1]), device=q.device).round().long()
            expected = dense_attention(q[:, rows].double(), k.double(), v.double(), impl="reference").out
            return gate.same_output(run()[:, rows], expected, self._dtype, f"{len(rows)} rows of the output")

        cost = costs.attention(self._shape(), dtype=str(self._dtype))
        settings = self._settings(impl, choice, 0.0)
        return AttentionVariant(kernel=run, section=run, check=check, cost=_span_cost(cost, None), settings=settings)

    def _sparse(self, name: str) -> AttentionVariant:
        tiles, call, impl = self._tiles, self._call, name.removeprefix(SPARSE)
        if tiles is None or call.grid is None:
            raise ConfigError(f"{name} needs the grid of tokens in time, height and width; give --grid")
        grid = call.grid

        def section() -> Tensor:
            return video_sparse_attention(self._q, self._k, self._v, grid=grid, sparsity=call.sparsity, impl=impl).out

        q, k, v = (tiles.to_tiles(tensor) for tensor in (self._q, self._k, self._v))
        chosen = video_sparse_attention(self._q, self._k, self._v, grid=grid, sparsity=call.sparsity, impl=impl).selection
        choice = explain(q, k, v, chosen, impl=impl)

        def kernel() -> Tensor:
            return block_sparse_attention(q, k, v, chosen, impl=impl).out

        def check() -> gate.GateResult:
            blocks = torch.linspace(0, tiles.num_tiles - 1, min(_GATE_BLOCKS, tiles.num_tiles), device=q.device).round().long()
            rows = (blocks[:, None] * tiles.block + torch.arange(tiles.block, device=q.device)).flatten()
            part = BlockSelection(
                indices=chosen.indices[:, :, blocks].contiguous(),
                counts=chosen.counts[:, :, blocks].contiguous(),
                block=chosen.block,
                q_sizes=None if chosen.q_sizes is None else chosen.q_sizes[blocks].contiguous(),
                kv_sizes=chosen.kv_sizes,
            )
            wide = (q[:, rows].double(), k.double(), v.double())
            expected = block_sparse_attention(*wide, part, impl="reference").out
            return gate.same_output(kernel()[:, rows], expected, self._dtype, f"{len(blocks)} tiles of the output")

        shape = self._shape()
        pairs = selected_pairs(chosen, tiles)
        cost = _span_cost(costs.attention(shape, dtype=str(self._dtype), pairs=pairs), costs.attention(shape, dtype="bf16").flops)
        settings = self._settings(name, choice, 1 - pairs / shape.pairs)
        return AttentionVariant(kernel=kernel, section=section, check=check, cost=cost, settings=settings)

    def _settings(self, name: str, choice: Choice[Any], sparsity: float) -> record.Variant:
        call = self._call
        sizes = {
            "batch": call.batch,
            "q_tokens": call.q_tokens,
            "kv_tokens": call.num_keys,
            "heads": call.num_heads,
            "kv_heads": call.num_key_heads,
            "head_dim": call.head_dim,
        }
        return record.Variant(
            name=name,
            preset="custom",
            attention_impl=choice.impl.name,
            attention_reason=gate.passed_over(choice),
            sparsity=sparsity,
            dtype=str(self._dtype).removeprefix("torch."),
            sizes=sizes,
        )


def selected_pairs(selection: BlockSelection, tiles: TileLayout) -> int:
    """Count the (query token, key token) pairs that a selection computes, over heads and samples, without padding."""
    sizes = tiles.sizes(selection.indices.device).long()
    selected = selection.mask(tiles.num_tiles).long()  # [B, H, N_q, N_kv]
    return int(((selected * sizes).sum(-1) * sizes).sum().item())


def _span_cost(cost: costs.Cost, dense_flops: int | None) -> record.SpanCost:
    return record.SpanCost(
        span=ATTENTION_KERNEL,
        flops=cost.flops,
        read_bytes=cost.read_bytes,
        write_bytes=cost.write_bytes,
        dense_flops=dense_flops,
    )


def _draw(call: AttentionCall, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Draw q, k, v `[B, S, H, D]`, standard normal, on the CPU so that every device gets the same."""
    generator = torch.Generator().manual_seed(call.seed)
    keys = (call.num_keys, call.num_key_heads)
    q, k, v = (
        torch.randn(call.batch, tokens, heads, call.head_dim, generator=generator).to(device=device, dtype=dtype)
        for tokens, heads in ((call.q_tokens, call.num_heads), keys, keys)
    )
    return q, k, v


def measure_attention(case: AttentionCase, writer: RunWriter, plan: AttentionPlan, progress: Progress) -> tuple[record.Gate, ...]:
    """Gate, time and trace every implementation; return the red gates. One whose gate is red gets no numbers.

    Raises:
        StrobeError: the records cannot be written.
    """
    with end_line(writer):
        return _AttentionRun(case, writer, plan, progress).measure()


class _AttentionRun:
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
        run, calls, capture = (
            self._case.variants[name].kernel,
            self._plan.traced_calls,
            Capture(regions=(ATTENTION, ATTENTION_KERNEL)),
        )
        self._writer.append(*trace_calls(run, name, calls, self._writer.folder, self._clips, self._case.device, capture))


def trace_calls(
    run: Callable[[], object], name: str, calls: int, folder: Path, clips: ClipNumbers, device: torch.device, capture: Capture
) -> tuple[record.Trace, record.Clip]:
    """Trace some calls of a contestant into a run's folder, after one that warms up."""

    def each() -> Iterator[None]:
        for index in range(1 + calls):
            with span(ATTENTION, index), span(ATTENTION_KERNEL):
                run()
            yield

    path = folder / "traces" / f"{name.replace(':', '-')}.json.gz"
    file = trace_blocks(each(), device=device, first_block=1, num_blocks=calls, path=path, capture=capture)
    clip = clips.finish(name, "traced", None, 0, read_clocks(device))
    return trace_line(clip, file, folder, range(1, 1 + calls), capture.regions), clip


def _spans(clip: record.Clip, found: dict[Span, Isolated]) -> Iterator[record.Span]:
    """Yield one span per call, those of the section after those of the kernel."""
    start_ns = 0
    for what, times in found.items():
        yield from call_spans(clip, what, times.times_ns, times.clock, start_ns=start_ns)
        start_ns += sum(times.times_ns)
