"""Record lines from the results of the ranks of a cell."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from strobe.bench.tree.predict import finite
from strobe.bench.tree.request import PEER, Predicted, RankResult, Shape, Taken, Task
from strobe.compat.assert_tree_attn import kind_of
from strobe.core.spans import ATTENTION
from strobe.perf.measure.clocks import read_clocks
from strobe.perf.measure.order import palindrome
from strobe.perf.records import grids, record


def _error(variant: str, metric: str, value: float, rank: int, reference: str) -> record.Quality:
    """Return one number as a record; one that is not finite has no value."""
    finite = abs(value) < float("inf")
    return record.Quality(
        variant=variant,
        metric=metric,
        value=value if finite else None,
        unit="",
        reference=reference,
        definition=f"largest absolute error{' of the lse' if metric == grids.LSE_ERROR else ''} on rank {rank}",
        n=1,
        better="neither",
        note="" if finite else "not finite",
        rank=rank,
    )


def lines(task: Task, ranks: Sequence[RankResult]) -> Iterator[record.Record]:
    """Yield every record but the header, in order."""
    for name in task.how.contestants:
        yield from _contestant(name, task, ranks)
    if ranks[0].links is not None:
        yield ranks[0].links
    number = _Clips()
    yield from _laps(ranks, number)
    modes: dict[record.Mode, list[dict[str, list[Taken]]]] = {
        "free-running": [rank.free for rank in ranks],
        "serialised": [rank.serialised for rank in ranks],
    }
    for mode, calls in modes.items():
        for name in calls[0]:
            yield from _apart(number, name, mode, [each[name] for each in calls])
    if ranks[0].blocks:
        yield record.Variant(name=grids.GUIDE, preset="custom", dtype=task.shape.dtype, sizes=sizes(task.shape))
        yield from _blocks(ranks, number)


def sizes(shape: Shape) -> dict[str, int]:
    """Return the sizes of the call by name."""
    return {
        "world_size": shape.world_size, "tokens": shape.seq_len, "q_tokens": shape.q_len, "heads": shape.heads,
        "kv_heads": shape.kv_heads, "head_dim": shape.dim, "batch": shape.batch,
    }  # fmt: skip


def _contestant(name: str, task: Task, ranks: Sequence[RankResult]) -> Iterator[record.Record]:
    checks = [rank.checks[name] for rank in ranks]
    refused = [(rank, each.refused) for rank, each in enumerate(checks) if each.refused]
    if refused:
        cause = (
            refused[0][1] if len({reason for _, reason in refused}) == 1 else "; ".join(f"rank {r}: {why}" for r, why in refused)
        )
        kind: record.Exclusion = "refused" if all(checks[rank].impossible for rank, _ in refused) else "failed"
        yield record.Excluded(variant=name, span="clip", clip=None, indices=(), kind=kind, cause=cause)
        return
    wide = "float64, dense, every rank"
    replicated = task.shape.placement == "replicated"
    same = (
        ""
        if not replicated
        else f", {'the same bits on' if len({each.bits for each in checks}) == 1 else 'not the same bits on'} all ranks"
    )
    worst = max(range(len(checks)), key=lambda rank: checks[rank].error / checks[rank].limit if checks[rank].limit else 0.0)
    failed = [rank for rank, each in enumerate(checks) if not each.passed]
    detail = f"largest error {checks[worst].error:.3g} of {checks[worst].limit:.3g} (rank {worst}){same}"
    yield record.Gate(
        variant=name,
        reference=wide,
        rule=f"out within {checks[0].limit:.3g}, scaled by |lse|; lse within {checks[0].lse_limit:.3g}",
        passed=not failed,
        exact=True,
        detail=detail + (f"; red on rank {', '.join(map(str, failed))}" if failed else ""),
    )
    for rank, each in enumerate(checks):
        yield _error(name, grids.ERROR, each.error, rank, wide)
        if each.lse_error is not None:
            yield _error(name, grids.LSE_ERROR, each.lse_error, rank, wide)
    shape = task.shape
    flops = 4 * shape.batch * shape.heads * shape.dim * shape.q_len * shape.seq_len
    moved = 2 * shape.batch * shape.kv_heads * shape.dim * shape.seq_len * _item(shape.dtype)
    yield record.Variant(
        name=name,
        preset="custom",
        attention_impl=ranks[0].versions.get(name, f"tree_attention {name}"),
        dtype=shape.dtype,
        costs=(record.SpanCost(span=ATTENTION, flops=flops, read_bytes=moved, write_bytes=0),),
        contestant=grids.Contestant(work="dense", impl=name, peer=name == PEER),
        sizes=sizes(shape),
    )
    if name in ranks[0].predicted:
        yield _predicted(name, ranks[0].predicted[name])


def _item(dtype: str) -> int:
    return {"float64": 8, "float32": 4}.get(dtype, 2)


def _predicted(name: str, found: Predicted) -> grids.Prediction:
    return grids.Prediction(
        variant=name,
        total_ns=finite(found.total_ns),
        local_ns=finite(found.local_ns),
        bound=found.bound,
        hidden_ns=found.hidden_ns,
        messages=found.messages,
        what_if=tuple(each for each in found.what_if if math.isfinite(each.total_ns)),
    )


class _Taken(NamedTuple):
    """One timed call or region of a clip, before it becomes a span record."""

    name: str
    number: int
    start_ns: int
    value_ns: int
    part: str = ""
    rank: int | None = None
    mode: record.Mode | None = None


class _Clips:
    """Counter of clips."""

    def __init__(self) -> None:
        self._done: Counter[str] = Counter()

    def next(self, name: str, lap: int | None, spans: Sequence[_Taken]) -> Iterator[record.Record]:
        """Yield the spans of the next clip, and its line."""
        import torch

        number, order = self._done[name], self._done.total()
        self._done[name] += 1
        for each in spans:
            yield record.Span(
                variant=name,
                clip=number,
                order=order,
                palindrome=lap,
                name=each.name,
                index=each.number,
                start_ns=each.start_ns,
                value_ns=each.value_ns,
                clock="perf_counter",
                warmup=False,
                part=each.part,
                rank=each.rank,
                mode=each.mode,
            )
        clocks = read_clocks(torch.device("cpu")) if not order else None
        yield record.Clip(
            variant=name, clip=number, order=order, palindrome=lap, phase="timed", num_spans=len(spans), clocks=clocks
        )


def _laps(ranks: Sequence[RankResult], clips: _Clips) -> Iterator[record.Record]:
    """Yield the records of each palindrome, place by place."""
    laps = ranks[0].laps
    if not laps:
        return
    first, *rest = laps
    for lap in range(len(laps[first])):
        seen: Counter[str] = Counter()
        for name in palindrome(first, rest) if rest else (first, first):
            calls = len(laps[name][lap]) // 2
            spans = []
            for index in range(seen[name] * calls, (seen[name] + 1) * calls):
                values = [rank.laps[name][lap][index] for rank in ranks]
                spans.append(_Taken(grids.CALL, index, 0, max(values)))
                spans += [_Taken(grids.CALL, index, 0, value, rank=rank) for rank, value in enumerate(values)]
            seen[name] += 1
            yield from clips.next(name, lap, spans)


def _apart(clips: _Clips, name: str, mode: record.Mode, calls: Sequence[Sequence[Taken]]) -> Iterator[record.Record]:
    spans = []
    for rank, taken in enumerate(calls):
        for index, call in enumerate(taken):
            spans.append(_Taken(grids.CALL, index, 0, call.total_ns, rank=rank, mode=mode))
            spans += [
                _Taken(mark.name, index, mark.start_ns, mark.value_ns, part=mark.part, rank=rank, mode=mode)
                for mark in call.marks
            ]
    yield from clips.next(name, None, spans)


def _blocks(ranks: Sequence[RankResult], clips: _Clips) -> Iterator[record.Record]:
    spans = []
    for rank in ranks:
        for mode, blocks in rank.blocks.items():
            for block, values in blocks.items():
                kind = kind_of(block)
                spans += [
                    _Taken(block, index, 0, round(ms * 1e6), part=kind, rank=rank.rank, mode=mode)
                    for index, ms in enumerate(values)
                ]
    yield from clips.next(grids.GUIDE, None, spans)
