"""Cells of the grid of attention calls: gated against an oracle, timed in turns, and written as lines."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from strobe.attention.dense.api import IMPLS as DENSE
from strobe.attention.dense.api import dense_attention, explain_dense
from strobe.attention.explain import explain
from strobe.attention.impls import Choice
from strobe.attention.sparse.api import block_sparse_attention
from strobe.attention.sparse.coarse import Estimator
from strobe.attention.sparse.impls import IMPLS as SPARSE
from strobe.attention.sparse.selection import BlockSelection
from strobe.attention.sparse.video import video_sparse_attention
from strobe.bench import gate
from strobe.bench.attention import peers
from strobe.bench.attention.contestant import PEER, TILES, BoundContestant, CellTensors, Found, GridCell, Kind, draw, parsed
from strobe.bench.case import Progress
from strobe.bench.cases.attention import selected_pairs, trace_calls
from strobe.bench.cells import Attempt, CellsOutcome, claim, measure_cells
from strobe.bench.runner import Rounds, call_spans, end_line, number, span_cost
from strobe.core import costs
from strobe.core.device import resolve_device, synchronize
from strobe.core.errors import ConfigError, ImplUnavailableError, StrobeError, unknown_choice
from strobe.core.spans import recording, span
from strobe.core.tolerances import tolerance
from strobe.perf.measure.machine import ClockSampler, describe_run, peak_bytes, read_clocks, reset_peak
from strobe.perf.measure.profile import Capture
from strobe.perf.measure.timing import Run, Speed, Stopwatch, TimedRegion, TimingRecorder, palindrome
from strobe.perf.records import record
from strobe.perf.records.store import RunWriter

BACKWARD: Final = 3.0
"""Tolerance of gradients / tolerance of outputs: gradients are rounded about twice as often, after the output's rounding."""
SIMILAR: Final = 0.98
"""Least cosine similarity of an operator whose own selection is not known."""


DEFINITIONS: Final = {
    record.COSINE: "of all values as one vector",
    record.L1: "sum of absolute differences / sum of absolute expected values",
    record.RMSE: "root of the mean squared difference",
    record.RELATIVE: "RMSE / root mean square of the expected values",
}
"""Distances of computed values from expected ones."""


def precision(found: Tensor, expected: Tensor) -> dict[str, float]:
    """Compare two tensors of one shape, in float64, by each of `DEFINITIONS`.

    Values that are not finite give infinities and a cosine of 0.
    """
    found, expected = found.double(), expected.double()
    difference = found - expected
    rmse = difference.square().mean().sqrt()
    cosine = (found * expected).sum() / (found.square().sum().sqrt() * expected.square().sum().sqrt())
    values = (cosine, difference.abs().sum() / expected.abs().sum(), rmse, rmse / expected.square().mean().sqrt())
    numbers = [float(value) for value in values]
    if not all(map(math.isfinite, numbers)):
        numbers = [0.0, *[math.inf] * 3]
    return dict(zip(DEFINITIONS, numbers, strict=True))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Expected:
    """Expected results of the checked queries.

    Args:
        out: `[B, R, H, D]`, on the selection.
        lse: `[B, H, R]`, on the selection.
        dense: `[B, R, H, D]`: full attention of the same queries and keys, without a coarse part.
        dense_lse: `[B, H, R]`, of the same.
        gradients: gradients of q, k, v `[B, S, H, D]` if only the checked rows have an upstream gradient; empty if not requested.
    """

    out: Tensor
    lse: Tensor
    dense: Tensor
    dense_lse: Tensor
    gradients: tuple[Tensor, ...]


def expect(inputs: CellTensors, contestant: BoundContestant, found: Found, *, gradients: bool = False) -> Expected:
    """Compute the expected result of a contestant, on the selection that it made or was given."""
    selection = None if contestant.kind == "dense" else found.selection or inputs.selection
    wide = torch.float64 if inputs.q.dtype == torch.float32 else torch.float32
    heads: list[tuple[Tensor, ...]] = []
    for sample in range(inputs.q.shape[0]):
        for head in range(inputs.q.shape[2]):
            q, k, v, gate, upstream = (
                tensor[sample, :, head].to(wide) for tensor in (inputs.q, inputs.k, inputs.v, inputs.gate, inputs.upstream)
            )
            leaves = tuple(tensor.requires_grad_(gradients) for tensor in (q, k, v))
            with torch.set_grad_enabled(gradients):
                seen = None if selection is None else _seen(inputs, selection, sample, head)
                own = leaves if contestant.kind != "raster" else (_turned(q, inputs), _turned(k, inputs), v)
                parts = _head(inputs, (*own, gate), seen, contestant)
            given = torch.autograd.grad(parts[0], leaves, upstream[inputs.checked]) if gradients else ()
            heads.append((*(part.detach() for part in parts), *given))
    shape = inputs.q.shape[0], inputs.q.shape[2]
    stacked = [torch.stack(parts).unflatten(0, shape) for parts in zip(*heads, strict=True)]  # [B, H, ...]
    out, lse, dense, dense_lse, *grads = stacked
    rows = (tensor.transpose(1, 2) for tensor in (out, dense, *grads))
    out, dense, *turned = rows
    return Expected(out=out, lse=lse, dense=dense, dense_lse=dense_lse, gradients=tuple(turned))


def _seen(inputs: CellTensors, selection: BlockSelection, sample: int, head: int) -> Tensor:
    """Return a mask of the keys that each checked query attends to, boolean `[R, S]`."""
    tiles = inputs.tile_of[inputs.checked]
    chosen, counts = selection.indices[sample, head, tiles].long(), selection.counts[sample, head, tiles]
    used = torch.arange(chosen.shape[1], device=chosen.device) < counts[:, None]
    by_tile = torch.zeros(len(tiles), inputs.tiles.num_tiles + 1, dtype=torch.bool, device=chosen.device)
    by_tile.scatter_(1, torch.where(used, chosen, inputs.tiles.num_tiles), True)
    return by_tile[:, inputs.tile_of]


def _turned(x: Tensor, inputs: CellTensors) -> Tensor:
    """Rotate `[S, D]` by pairs of channels (2i, 2i + 1)."""
    cos, sin = inputs.cos.to(x.dtype), inputs.sin.to(x.dtype)
    real, imaginary = x[:, 0::2], x[:, 1::2]
    return torch.stack((real * cos - imaginary * sin, real * sin + imaginary * cos), dim=-1).flatten(1)


def _head(
    inputs: CellTensors, tensors: tuple[Tensor, ...], seen: Tensor | None, contestant: BoundContestant
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute one head: out `[R, D]`, lse `[R]`, and both without a selection."""
    q, k, v, gate = tensors
    rows, scale = inputs.checked, inputs.q.shape[-1] ** -0.5
    scores = q[rows] @ k.T * scale  # [R, S]
    dense, dense_lse = torch.softmax(scores, dim=-1) @ v, torch.logsumexp(scores, dim=-1)
    if seen is None:
        return dense, dense_lse, dense, dense_lse
    kept = scores.masked_fill(~seen, float("-inf"))
    out, lse = torch.softmax(kept, dim=-1) @ v, torch.logsumexp(kept, dim=-1)
    if contestant.corrected:  # attends to the mean of every tile that is not selected too, as often as it has tokens
        keys, values = (inputs.means(each[None, :, None], each.dtype)[0, 0] for each in (k, v))  # [N, D]
        chosen = torch.zeros(len(kept), len(keys), dtype=torch.bool, device=k.device)
        chosen.scatter_(1, inputs.tile_of.expand(kept.shape), kept > float("-inf"))
        skipped = (q[rows] * scale) @ keys.T + inputs.tiles.sizes(k.device).to(k.dtype).log()
        weights = torch.softmax(torch.cat((kept, skipped.masked_fill(chosen, float("-inf"))), dim=-1), dim=-1)
        out = weights @ torch.cat((v, values))
    if contestant.coarse:
        queries, keys, values = (inputs.means(each[None, :, None], each.dtype)[0, 0] for each in (q, k, v))  # [N, D]
        coarse = torch.softmax(queries[inputs.tile_of[rows]] @ keys.T * scale, dim=-1) @ values
        out = out + (coarse * gate[rows] if len(contestant.leaves) > 3 else coarse)
    return out, lse, dense, dense_lse


MIN_ROUNDS: Final = 3
"""Fewest palindromes: with two, the interval of a ratio is too wide to say anything."""
MAX_ROUNDS: Final = 8
MAX_CALLS: Final = 6
"""Most calls of a contestant in a row."""


def plan_interleave(speeds: Mapping[str, Speed], seconds: float) -> tuple[int, Mapping[str, int]]:
    """Spend the budget: as many rounds of single calls as fit, then more calls per round of fast contestants.

    Returns:
        Palindromes, never fewer than `MIN_ROUNDS`, and by contestant its calls in each of its two places of one.
    """
    budget_ns = seconds * 1e9
    cost = {name: max(*speed, 1) for name, speed in speeds.items()}
    round_ns = 2 * sum(cost.values())
    rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, int(budget_ns / max(1, round_ns))))
    spare_ns = max(0.0, budget_ns - rounds * round_ns) / max(1, len(cost))
    calls = {name: max(1, min(MAX_CALLS, 1 + int(spare_ns / (2 * rounds * each)))) for name, each in cost.items()}
    return rounds, calls


CALLS = 9


@torch.no_grad()
def split(contestant: BoundContestant, device: torch.device, watch: Stopwatch) -> dict[str, int]:
    """Measure the median forward time, ns, of every stage in order of start and, in the same calls, of the whole operator."""
    recorder = TimingRecorder(device, fine=True)
    found: dict[str, list[int]] = defaultdict(list)
    with recording(recorder):
        speed = watch.probe(contestant.forward)
        for _ in range(CALLS):
            recorder.start_clip()
            watch.hold(speed[1])
            with span(record.WHOLE):
                contestant.forward()
            for name, total in _sums(recorder.finish_clip()).items():
                found[name].append(total)
    return {name: round(statistics.median(values)) for name, values in found.items()}


def _sums(regions: tuple[TimedRegion, ...]) -> dict[str, int]:
    """Add up the time of each name in one call. Of nested regions only the innermost count, so that none counts twice."""
    inner = [region for region in regions if region.name != record.WHOLE]
    sums: dict[str, int] = {}
    for region in inner:
        start_ns, end_ns = region.start_ns, region.start_ns + region.value_ns
        others = (other for other in inner if other is not region)
        if not any(start_ns <= other.start_ns and other.start_ns + other.value_ns <= end_ns for other in others):
            sums[region.name] = sums.get(region.name, 0) + region.value_ns
    return sums | {region.name: region.value_ns for region in regions if region.name == record.WHOLE}


SLOW = "reference"
"""Name of the reference impl, which materialises all scores; it is measured only if named."""
KINDS = ("dense", "fine", "tiled", "raster")
"""Dense attention, the fine stage of a given selection, and the whole operator on tokens in tile and in raster order."""
METHODS: Final[Mapping[str, Callable[[float], dict[str, Any]]]] = {
    "count": lambda level: {"sparsity": level},
    "sub-block": lambda level: {"sparsity": level, "estimator": Estimator(parts=4)},
    "corrected": lambda level: {"sparsity": level, "pool_skipped": True},
    "share": lambda level: {"share": level},
}
"""Methods of selection that captured calls are measured with: arguments of `video_sparse_attention` at a level."""
SHARES: Final = (0.3, 0.5, 0.7, 0.9)
"""Levels of `share`, the same on all calls as a user gives it; the others have those that were asked for."""


def names(levels: Sequence[float] = ()) -> tuple[str, ...]:
    """Return every implementation as `kind:impl`, and the peers; with levels those that captured calls are measured with."""
    ours = tuple(f"{kind}:{impl.name}" for kind in KINDS for impl in (DENSE if kind == "dense" else SPARSE))
    if not levels:
        return (*ours, *(f"{PEER}:{name}" for name in peers.PEERS))
    dense = [*ours[: len(DENSE)], *(f"{PEER}:{name}" for name, peer in peers.PEERS.items() if peer.dense)]
    own = {f"vsa:{name}": SHARES if name == "share" else levels for name in METHODS}
    sparse = own | {f"{PEER}:{name}": levels for name, peer in peers.PEERS.items() if not peer.dense}
    return (*dense, *(f"{name}@{level:g}" for name, each in sparse.items() for level in each))


def build_ours(name: str, inputs: CellTensors) -> BoundContestant:
    """Bind an implementation to the tensors of a cell.

    Raises:
        ImplUnavailableError: it cannot run this cell here, or its gate has not been run on this card: no number without it.
    """
    kind: Kind
    kind, impl, _ = parsed(name)  # type: ignore[assignment]
    method = METHODS[impl](inputs.cell.sparsity or 0.0) if kind == "vsa" else None
    impl = impl if method is None else "auto"
    raster, dense = (inputs.q, inputs.k, inputs.v), kind == "dense"
    q, k, v = (each.detach().requires_grad_(inputs.cell.backward) for each in (raster if dense else inputs.tiled))
    order = "tiled" if kind == "tiled" else "raster"
    options: dict[str, Any] = {} if kind in ("dense", "fine") else {
        "grid": inputs.tiles.grid, "tile": inputs.tiles.tile, "q_layout": order, "kv_layout": order, "coarse": method is None,
        "rope": (inputs.cos, inputs.sin) if kind == "raster" else None,
    } | (method or {"topk": inputs.cell.selected(inputs.tiles)})  # fmt: skip
    choice: Choice[Any]
    if dense:
        choice = explain_dense(q, k, v, impl=impl)
    elif method is None:
        choice = explain(q, k, v, inputs.selection, impl=impl)
    else:  # what it selects need not be what the cell would
        choice = explain(*raster, impl=impl, **options)
    held = gate.recorded(choice, inputs.device)
    if not held.passed:
        raise ImplUnavailableError(choice.impl.name, f"no number is taken of it here: {held.detail}")
    given = inputs.selection if kind == "fine" else None

    def call(*leaves: Tensor, lse: bool) -> Found:
        q, k, v, *coarse = leaves
        if dense:
            found = dense_attention(q, k, v, impl=impl, return_lse=lse)
        elif given is not None:
            found = block_sparse_attention(q, k, v, given, impl=impl, return_lse=lse)
        else:
            whole = video_sparse_attention(q, k, v, gate=coarse[0] if coarse else None, impl=impl, return_lse=lse, **options)
            return Found(out=whole.out, lse=whole.lse, selection=whole.selection)
        return Found(out=found.out, lse=found.lse)

    tiled = kind in ("fine", "tiled")
    return BoundContestant(
        name=name,
        kind=kind,
        impl=choice.impl.name,
        leaves=inputs.tiled if tiled else (*raster, inputs.gate) if kind == "raster" else raster,
        call=call,
        tiled=tiled,
        coarse=kind in ("tiled", "raster"),
        corrected=method is not None and method.get("pool_skipped", False),
        reason=gate.passed_over(choice),
    )


BACKWARD_FLOPS: Final = 2.5
"""FLOPs of the backward pass / of the forward pass: five matrix products instead of two."""


def quality(variant: str, reference: Mapping[str, str], tensor: str, close: Mapping[str, float]) -> Iterator[record.Quality]:
    """Yield the quality numbers of one tensor against its reference."""
    for metric, value in close.items():
        better = "higher" if metric == record.COSINE else "lower"
        yield number(variant, metric, value, f"{tensor}: {DEFINITIONS[metric]}", **reference, tensor=tensor, better=better)


def settings(contestant: BoundContestant, inputs: CellTensors, selection: BlockSelection | None) -> record.Variant:
    """Return the contestant's record: implementation, sizes and cost; FLOPs count selected token pairs without padding."""
    cell, tiles, dense = inputs.cell, inputs.tiles, selection is None
    batch, tokens, heads, width = inputs.q.shape
    per_pair = round(4 * width * (BACKWARD_FLOPS if cell.backward else 1))
    all_pairs = batch * heads * tokens * tokens
    pairs = all_pairs if selection is None else selected_pairs(selection, tiles)
    most, blocks = (0, 0) if selection is None else (int(selection.counts.max()), int(selection.counts.sum()))
    moved = inputs.q.numel() * costs.element_bytes(str(inputs.q.dtype))
    read, written = (5, 3) if cell.backward else (3, 1)
    spent = costs.Cost(flops=per_pair * pairs, read_bytes=moved * read, write_bytes=moved * written)
    sizes = {
        "batch": batch, "tokens": tokens, "heads": heads, "head_dim": width, "block": tiles.block,
        "rows": tokens if dense else tiles.num_rows, "blocks_in_all": tiles.num_tiles,
        "blocks_per_row": most, "selected_blocks": blocks,
        "padded_flops": per_pair * (all_pairs if dense else blocks * tiles.block**2),
    }  # fmt: skip
    sizes |= {f"grid_{axis}": size for axis, size in zip("thw", tiles.grid, strict=True)}
    sizes |= {f"tile_{axis}": size for axis, size in zip("thw", tiles.tile, strict=True)}
    return record.Variant(
        name=contestant.name,
        preset="custom",
        attention_impl=contestant.impl,
        attention_reason=contestant.reason,
        sparsity=1 - pairs / all_pairs,
        dtype=str(inputs.q.dtype).removeprefix("torch."),
        costs=(span_cost(contestant.span, spent, dense_flops=None if dense else per_pair * all_pairs),),
        sizes=sizes,
        contestant=contestant.line,
    )


_RECALL = "share of full attention's mass on the selected keys, mean over the checked queries"


class _CellRun(Rounds):
    """Measures one cell into a folder that has its header. A contestant that cannot run, fails or is wrong is recorded."""

    def __init__(self, inputs: CellTensors, writer: RunWriter, plan: Request, say: Callable[[str], None]) -> None:
        super().__init__(writer, inputs.device, lambda _, __, what: say(what), 0)
        self._inputs, self._plan = inputs, plan
        self._watch = Stopwatch(self.device, cold=True)
        self._speeds: dict[str, Speed] = {}

    def measure(self) -> None:
        plan, runs = self._plan, dict[str, Run]()
        contestants: dict[str, BoundContestant] = {}
        for name in plan.contestants:
            self.say(f"checking {name}")
            if (found := self._admit(name)) is not None:
                contestants[name], runs[name] = found
        if runs:
            self._time(runs, {name: each.span for name, each in contestants.items()})
        for name, each in contestants.items():
            if each.kind in ("tiled", "raster") and not each.line.peer and not self._inputs.cell.backward:
                self.say(f"splitting {name}")
                self._split(name, each)
        for name, run in runs.items() if plan.traced_calls else ():
            self.say(f"tracing {name}")
            self.write(*trace_calls(run, name, plan.traced_calls, self, Capture()))

    def _admit(self, name: str) -> tuple[BoundContestant, Run] | None:
        """Build, check and try a contestant; on failure write the reason and return None."""
        group, _, level = parsed(name)
        inputs = self._inputs.at(level)
        with Attempt() as attempt:
            contestant = (peers.build if group == PEER else build_ours)(name, inputs)
            passed, selection = self._passes(contestant, inputs)
            if not passed:
                return None
            self.writer.append(settings(contestant, inputs, selection))
            before = _allocated(self.device)
            run: Run = contestant.backward(inputs, inputs.upstream) if inputs.cell.backward else contestant.forward
            saved = _allocated(self.device) - before
            run()  # compiles and allocates what stays
            synchronize(self.device)
            reset_peak(self.device)
            there = _allocated(self.device) if self.device.type == "cuda" else peak_bytes(self.device)
            self._speeds[name] = self._watch.probe(run)
            self.write(*self._memory(name, there, saved))
            return contestant, run
        self._fail(name, attempt)
        return None

    def _fail(self, name: str, attempt: Attempt) -> None:
        kind: record.Exclusion = "refused" if attempt.refused else "failed"
        cause = f"{kind}: {attempt.reason}"
        self.exclude(name, (), kind, cause)
        self.writer.sync()
        with Attempt() as alive:
            synchronize(self.device)
        if alive.reason:
            raise StrobeError(f"the device is lost after {name}: {alive.reason}; leave it out of --impls and run again")
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _passes(self, contestant: BoundContestant, inputs: CellTensors) -> tuple[bool, BlockSelection | None]:
        """Compare a contestant with the oracle on the checked rows, forward and, if measured, backward; return its selection."""
        with torch.no_grad():
            found = contestant.call(*contestant.leaves, lse=contestant.kind in ("dense", "fine"))
        expected = expect(inputs, contestant, found, gradients=inputs.cell.backward)
        out = contestant.as_raster(found.out, inputs)[:, inputs.checked]
        close = precision(out, expected.out)
        wide = str(expected.dense.dtype).removeprefix("torch.")
        selection = {"against": "selection", "reference": f"the same selection, {wide}"}
        full = {"against": "dense", "reference": f"full dense attention, {wide}"}
        numbers = [*quality(contestant.name, selection, "out", close)]
        numbers += quality(contestant.name, full, "out", precision(out, expected.dense))
        heads = (precision(out[:, :, head], expected.dense[:, :, head])[record.RELATIVE] for head in range(out.shape[2]))
        numbers.append(number(contestant.name, record.WORST_HEAD, max(heads), DEFINITIONS[record.RELATIVE], **full, tensor="out"))
        checks = [self._rule(contestant, "output", close)]
        if found.lse is not None:
            rows = inputs.tiles.rows(self.device)[inputs.checked] if contestant.tiled else inputs.checked
            lse = found.lse.index_select(2, rows)
            error = float((lse.double() - expected.lse.double()).abs().max())
            missed = float((lse.double() - expected.dense_lse.double()).abs().max())
            limit = tolerance("lse", inputs.q.dtype)
            checks.append((error <= limit, f"lse within {limit:g}", f"lse {error:.2g}"))
            numbers += [
                number(contestant.name, record.LSE, value, "largest absolute difference", **reference, tensor="lse")
                for value, reference in ((error, selection), (missed, full))
            ]
        if contestant.kind != "dense":
            recall = float(torch.exp(expected.lse - expected.dense_lse).mean())
            numbers.append(number(contestant.name, record.RECALL, recall, _RECALL, **full, better="higher"))
        if inputs.cell.backward:
            upstream = torch.zeros_like(inputs.upstream)  # of the checked queries alone
            upstream[:, inputs.checked] = inputs.upstream[:, inputs.checked]
            gradients = contestant.backward(inputs, upstream)()
            for which, given, wanted in zip("qkv", gradients, expected.gradients, strict=False):
                close = precision(contestant.as_raster(given, inputs), wanted)
                numbers += quality(contestant.name, selection, f"d{which}", close)
                checks.append(self._rule(contestant, f"d{which}", close, BACKWARD))
        what = f"{len(inputs.checked)} queries of every head against {selection['reference']}"
        gate = record.Gate(
            variant=contestant.name,
            reference=selection["reference"],
            rule=f"{what}: " + ", ".join(rule for _, rule, _ in checks),
            passed=all(passed for passed, _, _ in checks),
            detail=", ".join(detail for _, _, detail in checks),
            exact=not contestant.close,
        )
        self.write(gate, *numbers)
        return gate.passed, None if contestant.kind == "dense" else found.selection or inputs.selection

    def _rule(
        self, contestant: BoundContestant, what: str, close: Mapping[str, float], slack: float = 1.0
    ) -> tuple[bool, str, str]:
        if contestant.close:
            return close[record.COSINE] >= SIMILAR, f"{what}: cosine >= {SIMILAR:g}", f"{what} {close[record.COSINE]:.4g}"
        limit = slack * tolerance("sampled", self._inputs.q.dtype)
        return close[record.RELATIVE] <= limit, f"{what}: relative error <= {limit:g}", f"{what} {close[record.RELATIVE]:.3g}"

    def _memory(self, name: str, before: int, saved: int) -> Iterator[record.Quality]:
        on_gpu = self.device.type == "cuda"
        where = "bytes that torch allocated" if on_gpu else "resident set of the process"
        peak = peak_bytes(self.device)
        yield number(name, record.PEAK, float(peak), f"{where}, largest during one call", unit="bytes")
        above = f"{where}, above what was there before one call"
        yield number(name, record.TEMPORARY, float(peak - before), above, unit="bytes")
        if on_gpu and self._inputs.cell.backward:
            yield number(name, record.SAVED, float(saved), f"{where}, kept from forward for backward", unit="bytes")

    def _time(self, runs: Mapping[str, Run], spans: Mapping[str, str]) -> None:
        """Time all contestants in palindromes, and a large matrix product: its rate is the peak that this device reaches now."""
        side, dtype = 8192 if self.device.type == "cuda" else 512, self._inputs.q.dtype
        left, right = (torch.randn(side, side, device=self.device, dtype=dtype) for _ in range(2))
        cost = span_cost(record.MATMUL, costs.Cost(flops=2 * side**3))
        name = str(dtype).removeprefix("torch.")
        self.writer.append(record.Variant(name=record.MATMUL, preset="custom", dtype=name, costs=(cost,)))

        def product() -> Tensor:
            return torch.mm(left, right)

        runs, spans, watch = {**runs, record.MATMUL: product}, {**spans, record.MATMUL: record.MATMUL}, self._watch
        product()
        speeds = self._speeds | {record.MATMUL: watch.probe(product)}
        rounds, calls = plan_interleave(speeds, self._plan.seconds)
        first, *rest = runs
        for index in range(rounds):
            self.say(f"timing, round {index + 1} of {rounds}")
            taken = []
            for name in palindrome(first, rest):
                with ClockSampler(self.device, lap=True) as sampler:
                    lap = watch.lap(runs[name], calls[name], speeds[name][1])
                taken.append((name, lap, sampler.sampled()))
            at_end = read_clocks(self.device)  # of laps that were not sampled
            for name, (times_ns, hosts_ns, clock), clocks in taken:
                clip = self.clips.finish(name, "timed", index, len(times_ns) + len(hosts_ns), clocks or at_end)
                times = call_spans(clip, spans[name], times_ns, clock)
                self.writer.append(*times, *call_spans(clip, record.HOST, hosts_ns, "perf_counter"), clip)
            self.writer.sync()

    def _split(self, name: str, contestant: BoundContestant) -> None:
        with Attempt() as attempt:
            found = split(contestant, self.device, self._watch)
            clip = self.clips.finish(name, "timed", None, len(found), read_clocks(self.device))
            clock: record.Clock = "cuda_event" if self.device.type == "cuda" else "perf_counter"
            taken = [line for stage, ns in found.items() for line in call_spans(clip, record.STAGE, (ns,), clock, part=stage)]
            self.write(*taken, clip)
        if attempt.reason:
            self.exclude(name, (), "failed", f"stages: {attempt.reason}", span=record.STAGE)


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


DTYPES: Final = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all cells of a folder share.

    Args:
        contestants: names, in order; the first that can run is what ratios are measured against.
        seconds: seconds of timed calls in a cell, about; slow calls take longer, three palindromes at least.
        captured: hash of the file of captured calls; empty: tensors are drawn.
    """

    contestants: tuple[str, ...]
    dtype: str = "auto"
    device: str = "auto"
    tile: str = "auto"
    seed: int = 0
    seconds: float = 4.0
    traced_calls: int = 0
    captured: str = ""

    def __post_init__(self) -> None:
        if self.dtype != "auto" and self.dtype not in DTYPES:
            raise unknown_choice("dtype", self.dtype, ["auto", *DTYPES])
        if self.tile not in TILES:
            raise unknown_choice("tile", self.tile, TILES)
        if self.seconds <= 0 or self.traced_calls < 0:
            raise ConfigError(
                f"give more than 0 seconds per cell and 0 or more traced calls, got {self.seconds:g}, {self.traced_calls}"
            )


def contestants(chosen: Sequence[str], device: torch.device, levels: Sequence[float] = ()) -> tuple[str, ...]:
    """Resolve the user's words (`kind:impl`, `peer:name`, a kind, an impl, `peers`) to contestants; none: all but slow ones.

    Args:
        levels: shares of the key tiles that are skipped, of captured calls.

    Raises:
        ConfigError: a word that is none of them.
    """
    known, on_gpu = names(levels), device.type == "cuda"
    if not chosen:
        left_out = (SLOW, "cpu" if on_gpu else "flex")  # FlexAttention forms all pairs of tokens on a CPU
        words = ((name, *parsed(name)[:2]) for name in known)
        return tuple(
            name
            for name, group, impl in words
            if (on_gpu and peers.PEERS[impl].installed() if group == PEER else impl not in left_out)
        )
    found: dict[str, None] = {}
    for word in chosen:
        named = [name for name in known if word in _words(name)]
        if word in KINDS:  # the slow one is measured by name alone
            named = [name for name in named if parsed(name)[1] != SLOW]
        if not named:
            raise unknown_choice("implementation", word, dict.fromkeys(part for name in known for part in _words(name)))
        found |= dict.fromkeys(named)
    return tuple(name for name in known if name in found)


def _words(name: str) -> tuple[str, ...]:
    """Return the words by which a user may name a contestant: `peers`, its group, its impl, its full name."""
    group, impl, _ = parsed(name)
    return (*(("peers",) if group == PEER else ()), group, impl, name)


def run_grid(cells: Sequence[GridCell], request: Request, folder: Path, progress: Progress) -> CellsOutcome:
    """Measure every cell that is not complete yet. After Ctrl-C finished cells stay, and the next run resumes.

    Args:
        folder: made if absent; may hold cells of earlier runs with the same request.
    """
    claim(folder, request)
    asked = [(cell.name, partial(_measure, cell, request)) for cell in cells]
    return measure_cells(asked, folder, resolve_device(request.device), progress)


def _measure(cell: GridCell, request: Request, place: Path, say: Callable[[str], None]) -> None:
    device = resolve_device(request.device)
    automatic = torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype = automatic if request.dtype == "auto" else DTYPES[request.dtype]
    call = None if cell.captured is None else cell.captured[2]
    facts: dict[str, Any] = {} if call is None else {"layer": call.layer, "step": call.step, "text_tokens": call.text_tokens}
    line = record.AttentionCell(
        shape=cell.shape.name, sparsity=cell.sparsity, topk=cell.topk, block=cell.block, backward=cell.backward, **facts
    )
    with RunWriter(place) as writer, end_line(writer):
        writer.append(describe_run(place, device, request.contestants, 0, "attention"), line)
        with Attempt() as attempt:
            inputs = draw(cell, tile=request.tile, dtype=dtype, device=device, seed=request.seed)
            _CellRun(inputs, writer, request, say).measure()
        if attempt.reason:
            raise StrobeError(attempt.reason)
