"""What the ranks of a cell wrote, as records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from strobe.bench.tree.request import Predicted, RankResult, Shape, Taken, Task
from strobe.core.spans import ATTENTION
from strobe.perf.measure.clocks import read_clocks
from strobe.perf.measure.order import palindrome
from strobe.perf.records import record
from strobe.perf.report.tree_bench import names


def quality(variant: str, metric: str, value: float, unit: str, definition: str, reference: str = "") -> record.Quality:
    """One number; one that is not finite is written as absent."""
    finite = abs(value) < float("inf")
    return record.Quality(
        variant=variant,
        metric=metric,
        value=value if finite else None,
        unit=unit,
        reference=reference,
        definition=definition,
        n=1,
        better="neither",
        note="" if finite else "not finite",
    )


def lines(task: Task, ranks: Sequence[RankResult]) -> Iterator[record.Record]:
    """Everything but the header, in order."""
    for name in task.how.contestants:
        yield from _contestant(name, task, ranks)
    yield from _machine(task, ranks[0])
    number = _Clips()
    yield from _laps(ranks, number)
    for mode, calls in ((names.FREE, [rank.free for rank in ranks]), (names.SERIALISED, [rank.serialised for rank in ranks])):
        for name in calls[0]:
            yield from _apart(number, name, mode, [each[name] for each in calls])
    if ranks[0].blocks:
        yield record.Variant(name=names.GUIDE, preset="custom", dtype=task.shape.dtype, sizes=sizes(task.shape))
        yield from _blocks(ranks, number)


def sizes(shape: Shape) -> dict[str, int]:
    """Sizes of the call."""
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
        yield record.Excluded(variant=name, span="clip", clip=None, indices=(), cause=cause)
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
        detail=detail + (f"; red on rank {', '.join(map(str, failed))}" if failed else ""),
    )
    for rank, each in enumerate(checks):
        yield quality(name, names.ERROR, each.error, "", f"largest absolute error on rank {rank}", wide)
        if each.lse_error is not None:
            yield quality(name, names.LSE_ERROR, each.lse_error, "", f"largest absolute error of the lse on rank {rank}", wide)
    shape = task.shape
    flops = 4 * shape.batch * shape.heads * shape.dim * shape.q_len * shape.seq_len
    moved = 2 * shape.batch * shape.kv_heads * shape.dim * shape.seq_len * _item(shape.dtype)
    yield record.Variant(
        name=name,
        preset="custom",
        attention_impl=ranks[0].versions.get(name, f"tree_attention {name}"),
        dtype=shape.dtype,
        costs=(record.SpanCost(span=ATTENTION, flops=flops, read_bytes=moved, write_bytes=0),),
        sizes=sizes(shape),
    )
    if name in ranks[0].predicted:
        yield from _predicted(name, ranks[0].predicted[name])


def _item(dtype: str) -> int:
    return {"float64": 8, "float32": 4}.get(dtype, 2)


def _predicted(name: str, found: Predicted) -> Iterator[record.Quality]:
    yield quality(
        name, names.PREDICTED, found.total_ns, "ns", "local attention + messages - hidden + waiting for the host, measured links"
    )
    yield quality(name, names.LOCAL_PREDICTED, found.local_ns, "ns", f"roofline of one rank: {found.bound}")
    yield quality(name, names.HIDDEN_PREDICTED, found.hidden_ns, "ns", "messages beside attention")
    for index, message in enumerate(found.messages):
        what = f"{message.kind}: {message.what}"
        yield quality(name, f"{names.SENT}:{index}", message.sent_bytes, "bytes", what)
        yield quality(name, f"{names.ALPHA}:{index}", message.alpha_ns, "ns", what)
        yield quality(name, f"{names.BETA}:{index}", message.beta_ns, "ns", what)
    for words, total_ns in found.what_if.items():
        yield quality(name, names.WHAT_IF + words, total_ns, "ns", "whole call, predicted with these links")


def _machine(task: Task, first: RankResult) -> Iterator[record.Record]:
    for name, value in first.links.items():
        yield quality(names.MACHINE, names.LINK + name, value, name.partition("_")[2], "measure_links, all ranks together")
    if first.choice:
        yield quality(names.MACHINE, names.CHOICE, 1.0, "", first.choice)
    if task.how.delay_rank >= 0 and task.how.delay_ms:
        yield quality(names.MACHINE, names.DELAY, task.how.delay_ms, "ms", f"rank {task.how.delay_rank} was held back")


class _Clips:
    """Numbers clips."""

    def __init__(self) -> None:
        self._done: Counter[str] = Counter()

    def next(self, name: str, lap: int | None, spans: list[tuple[str, int, int, int]]) -> Iterator[record.Record]:
        """The spans of a clip, `(name, index, start, value)`, and its line."""
        import torch

        number, order = self._done[name], self._done.total()
        self._done[name] += 1
        for what, index, start_ns, value_ns in spans:
            yield record.Span(
                variant=name,
                clip=number,
                order=order,
                palindrome=lap,
                name=what,
                index=index,
                start_ns=start_ns,
                value_ns=value_ns,
                clock="perf_counter",
                warmup=False,
            )
        clocks = read_clocks(torch.device("cpu")) if not order else None
        yield record.Clip(
            variant=name, clip=number, order=order, palindrome=lap, phase="timed", num_spans=len(spans), clocks=clocks
        )


def _laps(ranks: Sequence[RankResult], clips: _Clips) -> Iterator[record.Record]:
    """Each palindrome, place by place."""
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
                spans.append((names.CALL, index, 0, max(values)))
                spans += [(f"{names.CALL}/rank{rank}", index, 0, value) for rank, value in enumerate(values)]
            seen[name] += 1
            yield from clips.next(name, lap, spans)


def _apart(clips: _Clips, name: str, mode: str, calls: Sequence[Sequence[Taken]]) -> Iterator[record.Record]:
    spans = []
    for rank, taken in enumerate(calls):
        for index, call in enumerate(taken):
            spans.append((f"{mode}/{names.CALL}/rank{rank}", index, 0, call.total_ns))
            spans += [(f"{mode}/{mark.name}/rank{rank}", index, mark.start_ns, mark.value_ns) for mark in call.marks]
    yield from clips.next(name, None, spans)


def _blocks(ranks: Sequence[RankResult], clips: _Clips) -> Iterator[record.Record]:
    spans = []
    for rank in ranks:
        for mode, blocks in rank.blocks.items():
            for block, values in blocks.items():
                spans += [(f"{mode}/{block}/rank{rank.rank}", index, 0, round(ms * 1e6)) for index, ms in enumerate(values)]
    yield from clips.next(names.GUIDE, None, spans)
