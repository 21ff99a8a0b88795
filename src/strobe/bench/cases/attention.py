"""One attention operator as a case, and its calls measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
from strobe.bench.runner import Rounds, call_spans, end_line, span_cost, trace_line
from strobe.core import costs
from strobe.core.device import resolve_device
from strobe.core.errors import ConfigError
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL, span
from strobe.perf.measure.machine import ClockSampler, describe_run, read_clocks, reset_peak
from strobe.perf.measure.profile import Capture, trace_blocks
from strobe.perf.measure.timing import palindrome, time_isolated
from strobe.perf.records import record
from strobe.perf.records.store import RunWriter

SPARSE: Final = "sparse:"
"""Prefix of the implementations of sparse attention: `sparse:cpu`."""
_GATE_ROWS: Final = 192
_GATE_BLOCKS: Final = 3

Span = Literal["attention_kernel", "attention"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionVariant:
    """One implementation: the kernel, the whole section around it, and the kernel's check."""

    kernel: Callable[[], Tensor]
    section: Callable[[], Tensor]
    check: Callable[[], gate.GateResult]
    settings: record.Variant


class AttentionCase:
    """Implementations of one call on one device.

    Args:
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
        self._shape = costs.AttentionShape(
            batch=call.batch,
            q_tokens=call.q_tokens,
            kv_tokens=call.num_keys,
            num_heads=call.num_heads,
            num_kv_heads=call.num_kv_heads,
            head_dim=call.head_dim,
        )
        self._q, self._k, self._v = _draw(call, self._dtype, self.device)
        self._tiles = tile_layout(call.grid, (4, 4, 4)) if call.grid is not None else None
        self.slug = f"attention-{'-'.join(impls)}"
        self.variants = {name: self._sparse(name) if name.startswith(SPARSE) else self._dense(name) for name in impls}
        self.order = tuple(impls) if len(impls) == 1 else palindrome(impls[0], impls[1:])
        sections: tuple[Span, ...] = (ATTENTION,) if any(name.startswith(SPARSE) for name in impls) else ()
        self.spans: tuple[Span, ...] = (ATTENTION_KERNEL, *sections)

    def _dense(self, impl: str) -> AttentionVariant:
        q, k, v = self._q, self._k, self._v
        choice = explain(q, k, v, impl=impl)

        def run() -> Tensor:
            return dense_attention(q, k, v, impl=impl).out

        def check() -> gate.GateResult:
            rows = torch.linspace(0, q.shape[1] - 1, min(_GATE_ROWS, q.shape[1]), device=q.device).round().long()
            expected = dense_attention(q[:, rows].double(), k.double(), v.double(), impl="reference").out
            return gate.same_output(run()[:, rows], expected, self._dtype, f"{len(rows)} rows of the output")

        settings = self._settings(impl, choice, costs.attention(self._shape, dtype=str(self._dtype)))
        return AttentionVariant(kernel=run, section=run, check=check, settings=settings)

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

        pairs = selected_pairs(chosen, tiles)
        cost = costs.attention(self._shape, dtype=str(self._dtype), pairs=pairs)
        settings = self._settings(name, choice, cost, sparsity=1 - pairs / self._shape.pairs)
        return AttentionVariant(kernel=kernel, section=section, check=check, settings=settings)

    def _settings(self, name: str, choice: Choice[Any], cost: costs.Cost, sparsity: float | None = None) -> record.Variant:
        """Return the settings of an implementation; `sparsity`: of one that selects."""
        call = self._call
        dense = None if sparsity is None else costs.attention(self._shape, dtype="bf16").flops
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
            sparsity=sparsity or 0.0,
            dtype=str(self._dtype).removeprefix("torch."),
            sizes=sizes,
            costs=(span_cost(ATTENTION_KERNEL, cost, dense_flops=dense),),
        )


def selected_pairs(selection: BlockSelection, tiles: TileLayout) -> int:
    """Count the (query token, key token) pairs that a selection computes, over heads and samples, without padding."""
    sizes = tiles.sizes(selection.indices.device).long()
    selected = selection.mask(tiles.num_tiles).long()  # [B, H, N_q, N_kv]
    return int(((selected * sizes).sum(-1) * sizes).sum().item())


def _draw(call: AttentionCall, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Draw q, k, v `[B, S, H, D]`, standard normal, on the CPU so that every device gets the same."""
    generator = torch.Generator().manual_seed(call.seed)
    keys = (call.num_keys, call.num_key_heads)
    q, k, v = (
        torch.randn(call.batch, tokens, heads, call.head_dim, generator=generator).to(device=device, dtype=dtype)
        for tokens, heads in ((call.q_tokens, call.num_heads), keys, keys)
    )
    return q, k, v


@torch.inference_mode()
def measure_attention(case: AttentionCase, writer: RunWriter, plan: AttentionPlan, progress: Progress) -> None:
    """Gate, time and trace every implementation. One whose gate is red gets no numbers."""
    steps = len(case.variants) * (1 + bool(plan.traced_calls)) + plan.rounds * len(case.order)
    run = Rounds(writer, case.device, progress, steps)
    with end_line(writer):
        writer.append(describe_run(writer.folder, case.device, case.order, plan.rounds, "operator"))
        gates = []
        for name, variant in case.variants.items():
            run.say(f"checking {name}")
            gates.append(variant.check().line(name, "reference, float64"))
            writer.append(gates[-1])
        green = [gate.variant for gate in gates if gate.passed] if gates[0].passed else []
        calls = dict.fromkeys(case.spans, plan.calls)
        writer.append(*(replace(case.variants[name].settings, calls_per_stage=calls) for name in green))
        for name, lap in run.laps(green, plan.rounds) if green else ():
            _time(case, run, plan, name, lap)
        for name in green if plan.traced_calls else ():
            run.say(f"tracing {name}")
            capture = Capture(regions=(ATTENTION, ATTENTION_KERNEL))
            run.writer.append(*trace_calls(case.variants[name].kernel, name, plan.traced_calls, run, capture))


def _time(case: AttentionCase, run: Rounds, plan: AttentionPlan, name: str, lap: int) -> None:
    """Time the calls of a lap: one span per call, those of the section after those of the kernel."""
    variant = case.variants[name]
    reset_peak(case.device)
    with ClockSampler(case.device) as sampler:
        found = {
            what: time_isolated(
                variant.kernel if what == ATTENTION_KERNEL else variant.section,
                iterations=plan.calls,
                device=case.device,
                cold=plan.cold,
            )
            for what in case.spans
        }
    clip, start_ns = run.clips.finish(name, "timed", lap, plan.calls * len(found), sampler.clocks()), 0
    for what, (times_ns, clock) in found.items():
        run.writer.append(*call_spans(clip, what, times_ns, clock, start_ns=start_ns))
        start_ns += sum(times_ns)
    run.write(clip)


def trace_calls(
    function: Callable[[], object], name: str, calls: int, run: Rounds, capture: Capture
) -> tuple[record.ClipTrace, record.Clip]:
    """Trace some calls of a contestant into a run's folder, after one that warms up."""

    def each() -> Iterator[None]:
        for index in range(1 + calls):
            with span(ATTENTION, index), span(ATTENTION_KERNEL):
                function()
            yield

    folder = run.writer.folder
    path = folder / "traces" / f"{name.replace(':', '-')}.json.gz"
    trace_blocks(each(), device=run.device, first_block=1, num_blocks=calls, path=path, capture=capture)
    clip = run.clips.finish(name, "traced", None, 0, read_clocks(run.device))
    return trace_line(clip, path, folder, range(1, 1 + calls), capture.regions), clip
