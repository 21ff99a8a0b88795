"""The page of a grid of tree attention."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal, TypeAlias

from strobe.core.printable import bytes_in
from strobe.perf.analysis.runs import grid
from strobe.perf.analysis.runs.grid import names_in, read_grid, recorded
from strobe.perf.analysis.runs.rank_calls import CallCollective, CallRegion, Parts, RankCall, collectives, parts, typical
from strobe.perf.measure.stats import percentile
from strobe.perf.records.record import CALL, GUIDE, TOTAL, Links, Mode, Prediction, SentMessage, Span, Surroundings
from strobe.perf.records.store import RunRecords
from strobe.perf.report.blocks.fields import (
    Field,
    beside,
    count,
    damage_banners,
    heads,
    numeric,
    page,
    rows_of,
    share_of,
    table_of,
    time,
    unread_banners,
)
from strobe.perf.report.blocks.settings import NONE, Timed, bars_figure, compared, reason_cell, settings_section, timed_fields
from strobe.perf.report.model import (
    Axis,
    Banner,
    Block,
    Code,
    Count,
    Fact,
    Figure,
    Missing,
    Number,
    Plane,
    PlotPoint,
    Report,
    Section,
    Share,
    Table,
    Text,
)
from strobe.perf.report.study import load_study

# Cells of a tree-attention run, read from their run folders for the pages.

_NOTHING_SAID = Surroundings()


@dataclass(frozen=True, kw_only=True, eq=False)
class TreeContestant(grid.GridContestant):
    """One contestant of one cell.

    Args:
        ranks: by rank: time of each call.
        apart: by mode: calls, each of all ranks.
        prediction: what the plan says of it; None if it has no plan.
    """

    ranks: Mapping[int, tuple[int, ...]]
    apart: Mapping[Mode, tuple[tuple[RankCall, ...], ...]]
    prediction: Prediction | None

    @property
    def spread(self) -> float:
        """Spread of the timed calls, `(p90 - p10) / median`."""
        return (percentile(self.times_ns, 0.9) - percentile(self.times_ns, 0.1)) / self.median_ns

    @property
    def predicted_ns(self) -> float | None:
        """Predicted time of the whole call, ns; None without a prediction."""
        return None if self.prediction is None else self.prediction.total_ns

    @property
    def sent(self) -> tuple[SentMessage, ...]:
        """Predicted collectives in order."""
        return () if self.prediction is None else self.prediction.messages

    def parts(self, mode: Mode = "free-running") -> Parts | None:
        """Return the parts of a typical call; None if calls were not split in this mode."""
        calls = self.apart.get(mode, ())
        return typical([parts(ranks) for ranks in calls]) if calls else None

    def collectives(self, mode: Mode = "free-running") -> tuple[CallCollective, ...]:
        """Return every collective of a call, over all calls of one mode."""
        return collectives(self.apart.get(mode, ()))


@dataclass(frozen=True, kw_only=True, eq=False)
class TreeCellRun:
    """One cell that was measured, or that failed."""

    run: RunRecords
    entries: tuple[TreeContestant, ...]

    @property
    def name(self) -> str:
        """Name of the cell's folder."""
        return self.run.folder.name

    @cached_property
    def measured(self) -> tuple[TreeContestant, ...]:
        """Contestants with numbers."""
        return tuple(entry for entry in self.entries if not entry.reason)

    @property
    def fastest(self) -> TreeContestant | None:
        """Contestant with the smallest median; None if none was measured."""
        return min(self.measured, key=lambda entry: entry.median_ns, default=None)

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Sizes of the call by name; empty if the cell failed."""
        return next((entry.variant.sizes for entry in self.entries if entry.variant is not None), {})

    @property
    def dtype(self) -> str:
        """Dtype of the call's tensors; empty if the cell failed."""
        return next((entry.variant.dtype for entry in self.entries if entry.variant is not None), "")

    @property
    def failure(self) -> str:
        """Reason why the cell has no numbers at all; empty if it is complete."""
        end = self.run.end
        return "" if end and end.status == "complete" else end.message or end.status if end else "it was cut short"

    @property
    def surroundings(self) -> Surroundings:
        """State of the machine while the cell ran."""
        return self.run.surroundings or _NOTHING_SAID

    @property
    def links(self) -> Links | None:
        """Links measured by `measure_links`; None if the cell failed before."""
        return self.run.links


def read_cells(folder: Path) -> tuple[tuple[TreeCellRun, ...], tuple[str, ...]]:
    """Read every cell of a run that has records, even one that failed; of several attempts the last.

    Raises:
        DataError: the folder holds none.
    """
    return read_grid(folder, "tree", _run_of, _place, "strobe bench tree")


def _place(cell: TreeCellRun) -> tuple[str, int, int]:
    return cell.dtype, cell.sizes.get("tokens", 0), cell.run.header.world_size


def _run_of(run: RunRecords) -> TreeCellRun:
    spans: dict[str, list[Span]] = defaultdict(list)
    for span in run.spans:
        spans[span.variant].append(span)
    names = (name for name in names_in(run) if name != GUIDE)
    return TreeCellRun(run=run, entries=tuple(_entry(run, name, spans[name]) for name in names))


def _entry(run: RunRecords, name: str, spans: Sequence[Span]) -> TreeContestant:
    rounds: dict[int, list[int]] = defaultdict(list)
    ranks: dict[int, list[int]] = defaultdict(list)
    for span in spans:
        if span.palindrome is not None and span.rank is None:
            rounds[span.palindrome].append(span.value_ns)
        elif span.palindrome is not None and span.rank is not None:
            ranks[span.rank].append(span.value_ns)
    modes: tuple[Mode, ...] = ("free-running", "serialised")
    return TreeContestant(
        **recorded(run, name, rounds),
        ranks={rank: tuple(values) for rank, values in ranks.items()},
        apart={mode: tuple(_apart(spans, mode)) for mode in modes},
        prediction=next((line for line in run.predictions if line.variant == name), None),
    )


def _apart(spans: Sequence[Span], mode: Mode) -> Iterator[tuple[RankCall, ...]]:
    """Yield the calls of one mode, each with all of its ranks."""
    totals: dict[tuple[int, int], int] = {}
    regions: dict[tuple[int, int], list[CallRegion]] = defaultdict(list)
    for span in spans:
        if span.mode != mode or span.rank is None:
            continue
        key = (span.index or 0, span.rank)
        if span.name == CALL:
            totals[key] = span.value_ns
        else:
            regions[key].append(CallRegion(name=span.name, part=span.part, start_ns=span.start_ns, value_ns=span.value_ns))
    num_ranks = 1 + max((rank for _, rank in totals), default=-1)
    for index in sorted({index for index, _ in totals}):
        keys = [(index, rank) for rank in range(num_ranks)]
        yield tuple(RankCall(total_ns=totals[key], regions=tuple(regions[key])) for key in keys)


# Blocks of the guide's timers over all ranks: leaves by kind, enclosing blocks separately, both modes.

Blocks = Mapping[tuple[str, str], Mapping[int, tuple[int, ...]]]
"""Times by (block, kind) and by rank, ns."""


_Block: TypeAlias = tuple[str, str, Mapping[int, tuple[int, ...]]]
"""Block, kind, and times by rank, ns."""


def _mean(ranks: Mapping[int, tuple[int, ...]]) -> float:
    """Return the time of a block over all calls, ns, mean over the ranks."""
    return statistics.fmean(sum(values) for values in ranks.values())


def _every(row: _Block) -> list[int]:
    return [value for values in row[2].values() for value in values]


def _medians(row: _Block) -> list[float]:
    return [statistics.median(values) for values in row[2].values()]


def guide_blocks(cell: TreeCellRun, mode: Mode) -> Blocks:
    """Return the times of the ranks' timers in one mode, ns, by block and rank."""
    found: dict[tuple[str, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for span in cell.run.spans:
        if span.variant == GUIDE and span.mode == mode and span.rank is not None:
            found[span.name, span.part][span.rank].append(span.value_ns)
    return {block: {rank: tuple(values) for rank, values in ranks.items()} for block, ranks in found.items()}


def totals(blocks: Blocks) -> dict[str, float]:
    """Return the time of each kind over all calls, ns, mean over the ranks, without the block that encloses a call."""
    found: dict[str, float] = defaultdict(float)
    for (name, kind), ranks in blocks.items():
        if name != TOTAL:
            found[kind] += _mean(ranks)
    return dict(found)


def guide_table(cell: TreeCellRun, mode: Mode) -> Table | None:
    """Build the table of the guide's blocks over all ranks; None if there are none."""
    blocks = guide_blocks(cell, mode)
    if not blocks:
        return None
    sums = totals(blocks)
    share = share_of(sum(sums.values()))
    fields: tuple[Field[_Block], ...] = (
        Field("block", lambda row: row[0], Code),
        Field("kind", lambda row: "around the others, not summed" if row[0] == TOTAL else row[1]),
        time("mean", lambda row: statistics.fmean(_every(row))),
        time("p50", lambda row: statistics.median(_every(row))),
        time("p90", lambda row: percentile(_every(row), 0.9)),
        time("spread", lambda row: max(_every(row)) - min(_every(row)), hint="max - min"),
        numeric("of the leaves", lambda row: None if row[0] == TOTAL else share(_mean(row[2])), missing="it holds the leaves"),
        time("fastest rank", lambda row: min(_medians(row)), hint="p50"),
        time("slowest rank", lambda row: max(_medians(row)), hint="p50"),
    )
    places = sorted(blocks, key=lambda block: (block[0] == TOTAL, block[1] != "computation", block[1]))
    rows = rows_of(fields, [(*place, blocks[place]) for place in places], strong=lambda row: row[0] == TOTAL)
    shares = ", ".join(f"{kind} {100 * value / sum(sums.values()):.1f} %" for kind, value in sums.items())
    words = {
        "free-running": "Free-running: nothing waits inside; a comm block holds the wait for the other ranks too.",
        "serialised": "Serialised: the ranks meet before each collective (wait_*), so comm_* is transfer alone.",
    }[mode]
    return Table(f"{cell.name}: blocks of the guide, {mode}.", heads(fields), rows, (f"Leaves: {shares}.", words))


# Scaling over the cells of a grid: strong and weak, efficiency, crossovers, and predictions for faster links.

Key = tuple[str, str, int, int, int, int, int]
"""Device, dtype, q_tokens, heads, kv_heads, head_dim, batch: constant along a curve."""
Times = Mapping[tuple[int, int], float]
"""Median times by (world size, tokens), ns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingPoint:
    """One point of a curve.

    Args:
        tokens: keys of all ranks.
        base_ns: time of one rank alone: on the same keys (strong), on its own share of them (weak); None if not measured.
        predicted_ns: by the plan.
    """

    strategy: str
    world_size: int
    tokens: int
    time_ns: float
    base_ns: float | None
    predicted_ns: float | None

    @property
    def speedup(self) -> float | None:
        """Speedup over one rank; None if that was not measured."""
        return None if self.base_ns is None else self.base_ns / self.time_ns

    @property
    def serial(self) -> float | None:
        """Serial share by Karp and Flatt, `(1/S - 1/P) / (1 - 1/P)`; it grows with P where overhead does."""
        if self.speedup is None or self.world_size == 1:
            return None
        return (1 / self.speedup - 1 / self.world_size) / (1 - 1 / self.world_size)


def groups(cells: Sequence[TreeCellRun]) -> dict[Key, list[TreeCellRun]]:
    """Group measured cells that differ in world size and tokens alone."""
    found: dict[Key, list[TreeCellRun]] = defaultdict(list)
    for cell in cells:
        if cell.measured:
            sizes = cell.sizes
            rest = (sizes["q_tokens"], sizes["heads"], sizes["kv_heads"], sizes["head_dim"], sizes["batch"])
            found[(cell.run.header.machine.device_type, cell.dtype, *rest)].append(cell)
    return dict(found)


def _entries(cells: Sequence[TreeCellRun]) -> Iterator[tuple[str, int, int, TreeContestant]]:
    for cell in cells:
        for entry in cell.measured:
            yield entry.name, cell.run.header.world_size, cell.sizes["tokens"], entry


def alone(cells: Sequence[TreeCellRun]) -> dict[int, float]:
    """Return the fastest time of one rank, ns, by number of tokens."""
    found: dict[int, float] = {}
    for _, ranks, tokens, entry in _entries(cells):
        if ranks == 1 and not entry.is_peer:
            found[tokens] = min(entry.median_ns, found.get(tokens, math.inf))
    return found


def strong(cells: Sequence[TreeCellRun]) -> list[ScalingPoint]:
    """Return the strong-scaling points: the same keys on more ranks; the ideal speedup is the number of ranks."""
    return [
        ScalingPoint(
            strategy=name,
            world_size=ranks,
            tokens=tokens,
            time_ns=entry.median_ns,
            base_ns=alone(cells).get(tokens),
            predicted_ns=entry.predicted_ns,
        )
        for name, ranks, tokens, entry in _entries(cells)
        if ranks > 1
    ]


def weak(cells: Sequence[TreeCellRun]) -> list[ScalingPoint]:
    """Return the weak-scaling points: the same keys per rank on more ranks; the ideal time is that of one rank."""
    base = alone(cells)
    return [
        replace(point, base_ns=base[point.tokens // point.world_size])
        for point in strong(cells)
        if point.tokens % point.world_size == 0 and point.tokens // point.world_size in base
    ]


Crossing: TypeAlias = tuple[str, int, tuple[int, int], float, tuple[str, str]]
"""A change of the fastest strategy along `tokens` or `ranks`: how many there are of the other, the measured numbers on both sides
of it, the place where the lines of the two strategies, in logarithms, meet, and the fastest on either side."""


def crossings(cells: Sequence[TreeCellRun]) -> list[Crossing]:
    """Return the changes of the fastest strategy along tokens and along ranks."""
    times: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
    for name, ranks, tokens, entry in _entries(cells):
        if ranks > 1:
            times[name][ranks, tokens] = entry.median_ns
    places = {place for each in times.values() for place in each}
    found: list[Crossing] = []
    for along, fixed in (("tokens", 0), ("ranks", 1)):
        for at in sorted({place[fixed] for place in places}):
            line = sorted(place for place in places if place[fixed] == at)
            for low, high in pairwise(line):
                found += _crossing(times, (low, high), along, at)
    return found


def _crossing(
    times: Mapping[str, Times], ends: tuple[tuple[int, int], tuple[int, int]], along: str, at: int
) -> Iterator[Crossing]:
    low, high = ends
    both = [name for name, each in times.items() if low in each and high in each]
    if not both:
        return
    before, after = (min(both, key=lambda name: times[name][place]) for place in ends)
    if before == after:
        return
    axis = 1 if along == "tokens" else 0
    gaps = [math.log(times[before][place] / times[after][place]) for place in ends]  # <= 0 at low, >= 0 at high
    share = gaps[0] / (gaps[0] - gaps[1]) if gaps[0] != gaps[1] else 0.5
    place = math.exp(math.log(low[axis]) + share * math.log(high[axis] / low[axis]))
    yield along, at, (low[axis], high[axis]), place, (before, after)


ScalingWhatIf: TypeAlias = tuple[str, str, float, float]
"""Which links are faster, e.g. `bandwidth x2`; the strategy with the smallest prediction then, it, and the smallest of today."""


def what_if(cell: TreeCellRun) -> list[ScalingWhatIf]:
    """Return the best strategy of a cell with faster links, by prediction, not by measurement."""
    now = {entry.name: entry.predicted_ns for entry in cell.measured if entry.predicted_ns is not None}
    if not now:
        return []
    other: dict[str, dict[str, float]] = defaultdict(dict)
    for entry in cell.measured:
        for each in entry.prediction.what_if if entry.prediction else ():
            words = f"bandwidth x{each.factor:g}" if each.faster == "bandwidth" else f"latency /{each.factor:g}"
            other[words][entry.name] = each.total_ns
    now_ns = min(now.values())
    best = {words: min(values, key=lambda name: values[name]) for words, values in other.items()}
    return [(words, best[words], values[best[words]], now_ns) for words, values in other.items()]


# Tables and pictures of a scaling grid.

_ALONE: Final = "one rank was not measured there"
_NONE: Final = Missing(_ALONE, "-")


def scaling_sections(cells: Sequence[TreeCellRun]) -> Iterator[Section]:
    """Yield one section for every dtype and shape of the call."""
    for key, own in groups(cells).items():
        device, dtype, rows, heads, kv_heads, dim, batch = key
        title = f"{device}, {dtype}, {rows} queries, {heads} heads of {dim}, {kv_heads} of keys, batch {batch}"
        blocks: list[Block] = []
        for kind, points in (("strong", strong(own)), ("weak", weak(own))):
            blocks += [_curve_table(title, kind, points)] if points else []
            blocks += _curves(title, kind, points)
        blocks += [_alone_table(title, alone(own))] if alone(own) else []
        blocks += [*_crossing_tables(title, own), *_what_if_tables(title, own)]
        if blocks:
            lead = "Every time is the median over calls of the slowest rank."
            yield Section(title.replace(" ", "-").replace(",", ""), title, lead, tuple(blocks))


def _curve_table(title: str, kind: str, points: Sequence[ScalingPoint]) -> Table:
    strong = kind == "strong"
    serial: Field[ScalingPoint] = numeric(
        "serial share",
        lambda each: _NONE if each.serial is None else Number(each.serial, 2),
        "Karp and Flatt: (1/S - 1/P) / (1 - 1/P)",
    )
    fields: tuple[Field[ScalingPoint], ...] = (
        Field("strategy", lambda each: each.strategy, Code),
        count("ranks", lambda each: each.world_size),
        count("keys", lambda each: each.tokens),
        time("median", lambda each: each.time_ns),
        time("one rank", lambda each: each.base_ns, "ms", "the same keys" if strong else "the keys of one rank", missing=_ALONE),
        numeric(
            "speedup" if strong else "one rank / time",
            lambda each: _NONE if each.speedup is None else Number(each.speedup, 2),
        ),
        numeric("efficiency", lambda each: _efficiency(kind, each), "1 is ideal", show=Share, missing=_ALONE),
        *([serial] if strong else []),
        time("predicted", lambda each: each.predicted_ns, missing="no plan for a peer"),
    )
    return table_of(f"{title}: {kind} scaling.", fields, points, sortable=True)


def _efficiency(kind: str, each: ScalingPoint) -> float | None:
    if each.speedup is None:
        return None
    return each.speedup / each.world_size if kind == "strong" else each.speedup


def _alone_table(title: str, base: dict[int, float]) -> Table:
    fields: tuple[Field[int], ...] = (count("keys", lambda tokens: tokens), time("median", lambda tokens: base[tokens]))
    return table_of(f"{title}: one rank.", fields, sorted(base))


def _curves(title: str, kind: str, points: Sequence[ScalingPoint]) -> Iterator[Figure]:
    """Yield plots of efficiency against ranks for each number of keys (per rank, if weak), and of time against keys."""
    share: Callable[[ScalingPoint], int] = (
        (lambda each: each.tokens) if kind == "strong" else (lambda each: each.tokens // each.world_size)
    )
    for tokens in sorted({share(each) for each in points}):
        own = [each for each in points if share(each) == tokens and _efficiency(kind, each) is not None]
        if own:
            words = f"{title}: {kind} scaling of {tokens} keys{'' if kind == 'strong' else ' a rank'}"
            yield _plane(
                words, "ranks", "efficiency", [(each.strategy, each.world_size, _efficiency(kind, each) or 0.0) for each in own]
            )
    if kind == "strong":
        for ranks in sorted({each.world_size for each in points}):
            own = [each for each in points if each.world_size == ranks]
            yield _plane(
                f"{title}: {ranks} ranks", "keys", "time, ms", [(each.strategy, each.tokens, each.time_ns / 1e6) for each in own]
            )


def _plane(title: str, x: str, y: str, points: Sequence[tuple[str, int, float]]) -> Figure:
    names = tuple(dict.fromkeys(name for name, _, _ in points))
    marks = tuple(PlotPoint(at, value, names.index(name)) for name, at, value in points)
    places = sorted({at for _, at, _ in points})
    values = {(name, at): value for name, at, value in points}
    none = Missing("not measured", "-")

    strategy: Field[str] = Field("strategy", str, Code)

    def at_place(at: int) -> Field[str]:
        return numeric(f"{at} {x}", lambda name: Number(values[name, at], 3) if (name, at) in values else none)

    table = table_of(f"{title}: {y}.", (strategy, *map(at_place, places)), names)
    picture = Plane(x=Axis(x, from_zero=True, whole=True), y=Axis(y, from_zero=True), marks=marks, series=names)
    return Figure(title=title, alt=f"{y} against {x}: {title}", picture=picture, table=table)


def _crossing_tables(title: str, cells: Sequence[TreeCellRun]) -> Iterator[Table]:
    fields: tuple[Field[Crossing], ...] = (
        Field("along", lambda row: row[0]),
        Field("fixed", lambda row: f"{row[1]} {'ranks' if row[0] == 'tokens' else 'keys'}"),
        Field("between", lambda row: f"{row[2][0]} and {row[2][1]}"),
        numeric("at about", lambda row: Number(row[3], 1)),
        Field("fastest before", lambda row: row[4][0], Code),
        Field("after", lambda row: row[4][1], Code),
    )
    found = crossings(cells)
    if found:
        notes = ("Of medians: where two strategies are within their spread, a crossing says little.",)
        yield table_of(f"{title}: where the fastest strategy changes.", fields, found, notes=notes)


def _what_if_tables(title: str, cells: Sequence[TreeCellRun]) -> Iterator[Table]:
    fields: tuple[Field[tuple[TreeCellRun, ScalingWhatIf]], ...] = (
        count("ranks", lambda row: row[0].run.header.world_size),
        count("keys", lambda row: row[0].sizes["tokens"]),
        Field("links", lambda row: row[1][0]),
        Field("best", lambda row: row[1][1], Code),
        time("predicted", lambda row: row[1][2]),
        time("as they are", lambda row: row[1][3], "ms", "the best prediction with the measured links"),
        numeric("gain", lambda row: Number(row[1][3] / row[1][2], 2)),
    )
    rows = [(cell, each) for cell in cells for each in what_if(cell)]
    if rows:
        notes = ("Predictions of the plan, with the links of each cell as measured and then made faster. Nothing was run.",)
        yield table_of(f"{title}: what if the links were faster.", fields, rows, notes=notes)


# Verdicts on the limit of each strategy, with evidence and one remedy.

Label = Literal["flop-bound", "memory-bound", "launch-bound", "skew-bound", "latency-bound", "bandwidth-bound"]
HIGH_SPREAD = 0.5
"""Spread `(p90 - p10) / median` from which a warning is given."""
NAMED = 0.6
"""Share of the calls in which a straggler must have been last; with two ranks chance alone gives 0.5."""


Bound: TypeAlias = tuple[Label, str, str]
"""Verdict on one strategy of one cell, its evidence, and one remedy."""


def bound(cell: TreeCellRun, entry: TreeContestant) -> Bound | None:
    """Return the verdict from the largest of attention, wait, transfer and host time; None if calls were not split."""
    found = entry.parts()
    if found is None:
        return None
    ranks = cell.run.header.world_size
    wait = found.wait * ranks / max(1, ranks - 1)  # in every call one rank waits for nobody: its lateness is the others' wait
    largest = max((found.local + found.merge, "work"), (wait, "wait"), (found.transfer, "transfer"), (found.host, "host"))[1]
    match largest:
        case "work":
            return _work(cell, entry, found)
        case "wait":
            return _waiting_bound(entry, found)
        case "transfer":
            return _transfer(cell, entry, found)
        case _:
            evidence = f"{_share(found.host, found)} is neither attention nor communication: checks, packing, launching"
            remedy = "give each call more to do (more queries or keys a rank, fewer ranks); on a GPU capture a CUDA graph"
            return "launch-bound", evidence, remedy


def _share(value: float, whole: Parts) -> str:
    return f"{100 * value / whole.total:.0f} % ({value / 1e6:.3g} of {whole.total / 1e6:.3g} ms)"


def _work(cell: TreeCellRun, entry: TreeContestant, found: Parts) -> Bound:
    is_flop = entry.prediction is not None and entry.prediction.bound == "flop"
    evidence = f"{_share(found.local + found.merge, found)} is attention and merge"
    ranks = cell.sizes.get("world_size", 1)
    cost = entry.variant.costs[0] if entry.variant else None
    links = cell.links or Links()
    if is_flop:
        roof, amount, unit = links.flops_per_s, cost.flops / ranks if cost else 0, "GFLOP/s"
    else:
        share = 1 if entry.name == "ring" else ranks
        roof, amount, unit = links.memory_bytes_per_s, cost.read_bytes / share if cost else 0, "GB/s"
    if roof and found.local:
        rate = amount / found.local * 1e9
        evidence += f"; a rank reached {rate / 1e9:.3g} {unit} of {roof / 1e9:.3g} measured on these ranks"
    if is_flop:
        remedy = "fewer pairs (a window, block-sparse attention), or more ranks while each keeps enough to do"
        return "flop-bound", evidence, remedy
    remedy = "fewer bytes of keys a rank: more ranks, grouped heads, or a 16-bit cache"
    return "memory-bound", evidence, remedy


def straggler(found: Sequence[CallCollective]) -> tuple[int, float] | None:
    """Return the rank that the others waited for most and the share of calls in which it was last; None if no rank stands out."""
    weights: Counter[int] = Counter()
    for each in found:
        weights[each.last] += round(sum(each.waits_ns))
    if not weights:
        return None
    rank = weights.most_common(1)[0][0]
    share = max(each.last_share for each in found if each.last == rank)
    return (rank, share) if share >= NAMED else None


def _waiting_bound(entry: TreeContestant, found: Parts) -> Bound:
    who = straggler(entry.collectives())
    evidence = f"{_share(found.wait, found)} is waiting for other ranks"
    if who is None:
        evidence += f"; no rank was last in {100 * NAMED:.0f} % of the calls: they take turns"
        remedy = "give every rank cores of its own (fewer ranks, or fewer threads each): they are being scheduled in turns"
        return "skew-bound", evidence, remedy
    rank, share = who
    evidence += f"; rank {rank} was last in {100 * share:.0f} % of the calls"
    remedy = f"look at rank {rank}: more keys than the others, a slower device, or another process on its cores"
    return "skew-bound", evidence, remedy


def _transfer(cell: TreeCellRun, entry: TreeContestant, found: Parts) -> Bound:
    alpha, beta = sum(each.alpha_ns for each in entry.sent), sum(each.beta_ns for each in entry.sent)
    sent = bytes_in(sum(each.sent_bytes for each in entry.sent), "MB")
    evidence = f"{_share(found.transfer, found)} is exposed transfer: {len(entry.sent)} collectives of {sent:.3g} MB"
    evidence += f"; predicted {alpha / 1e6:.3g} ms of latency and {beta / 1e6:.3g} ms of bandwidth"
    if alpha >= beta:
        fewest = min((each for each in cell.measured if each.sent), key=lambda each: len(each.sent))
        other = f"{fewest.name} has {len(fewest.sent)}" if len(fewest.sent) < len(entry.sent) else "several layers in one call"
        return "latency-bound", evidence, f"fewer collectives: {other}"
    least = min((each for each in cell.measured if each.sent), key=lambda each: sum(one.sent_bytes for one in each.sent))
    fewer = least.name if least is not entry else "16-bit tensors, or a result that stays spread"
    return "bandwidth-bound", evidence, f"fewer bytes: {fewer}"


def warnings(cell: TreeCellRun) -> tuple[str, ...]:
    """Return warnings on what makes the times of a cell doubtful."""
    found = []
    header, ranks = cell.run.header, cell.run.header.world_size
    if header.machine.device == "cpu" and ranks * header.machine.threads > header.machine.cores:
        found.append(f"{ranks} ranks share {header.machine.cores} cores: read ratios, not times; they wait for each other's turn")
    wide = [entry for entry in cell.measured if entry.spread > HIGH_SPREAD]
    if wide:
        which = ", ".join(f"{entry.name} {100 * entry.spread:.0f} %" for entry in wide)
        found.append(f"high variance, (p90 - p10) / median: {which}; run more --iterations and look for other load")
    busy, lost = cell.surroundings.busy_cores, cell.surroundings.lost_machines
    if busy is not None and busy > 0.2:
        found.append(f"other processes kept {busy:.1f} of {header.machine.cores} cores busy before the ranks began")
    if lost:
        found.append(f"{lost} machines were lost while it ran there; what is shown was measured on another, from the start")
    return tuple(found)


# Tables of the strategies of one cell.

_Sent: TypeAlias = tuple[TreeContestant, CallCollective, SentMessage | None, float | None]
"""A collective of a strategy: as measured, as planned, and its transfer in the serialised call, ns."""
PARTS: Final = ("local", "merge", "wait", "transfer", "host")


def speed_table(cell: TreeCellRun) -> Table:
    """Build the table of times, speedups and predictions; every call counts by its slowest rank."""
    fields: tuple[Field[Timed], ...] = (
        Field("strategy", lambda row: row[1].name, Code),
        time("median", lambda row: row[1].median_ns, "ms", "of the slowest rank of each call"),
        *timed_fields("first strategy"),
        time(
            "predicted",
            lambda row: row[1].predicted_ns or None,
            "ms",
            "by the plan, with links measured on these ranks",
            missing=NONE,
        ),
        numeric("measured / predicted", lambda row: _over_plan(row[1]), missing=NONE),
        numeric("spread", lambda row: row[1].spread, "(p90 - p10) / median", show=Share),
        Field("gate", lambda row: Text(row[1].gate.detail if row[1].gate else "", "good"), hint="every rank against float64"),
    )
    rows = [(cell, entry, compared(cell.measured[0], entry)) for entry in cell.measured]
    choice = cell.links.auto if cell.links else ""
    notes = [f"auto takes {choice} with these links."] if choice else []
    return table_of(f"{cell.name}: strategies.", fields, rows, notes=notes, sortable=True)


def _over_plan(entry: TreeContestant) -> Number | None:
    return Number(entry.median_ns / entry.predicted_ns, 2) if entry.predicted_ns else None


def parts_table(cell: TreeCellRun) -> Table | None:
    """Build the table of a typical call's parts, free-running, mean over the ranks, and of the serialised call's overhead."""
    fields: tuple[Field[tuple[str, Parts, Parts | None]], ...] = (
        Field("strategy", lambda row: row[0], Code),
        time("local", lambda row: row[1].local),
        time("merge", lambda row: row[1].merge),
        time("wait", lambda row: row[1].wait),
        time("transfer", lambda row: row[1].transfer),
        time("host", lambda row: row[1].host),
        time("whole", lambda row: row[1].total),
        numeric(
            "exposed", lambda row: (row[1].wait + row[1].transfer) / row[1].total, "wait and transfer, of the whole", show=Share
        ),
        time("hidden", lambda row: row[1].hidden, "ms", "communication beside attention; no part of the whole"),
        time(
            "serialised",
            lambda row: row[2] and row[2].total,
            "ms",
            "the same call where the ranks meet before each collective",
            missing=NONE,
        ),
        numeric(
            "perturbation",
            lambda row: row[2] and row[2].total / row[1].total - 1,
            "serialised / free-running - 1",
            show=Share,
            missing=NONE,
        ),
    )
    rows = [(entry.name, found, entry.parts("serialised")) for entry in cell.measured if (found := entry.parts()) is not None]
    notes = (
        "Free-running: nothing waits but what must. exposed = |union(messages, work)| - |union(work)|, rank by rank; a message "
        "is under way from the moment it is posted, so the transfer holds the time of posting.",
        "Mean over the half of the calls around the median; the parts add up to the whole.",
    )
    return table_of(f"{cell.name}: where a call went.", fields, rows, notes=notes) if rows else None


def part_figures(cell: TreeCellRun) -> Iterator[Figure]:
    """Yield the parts of each strategy's typical call as bars."""
    for entry in cell.measured:
        found = entry.parts()
        if found is None:
            continue
        title, own = f"Parts of {entry.name}: {cell.name}", [(name, round(getattr(found, name))) for name in PARTS]
        fields: tuple[Field[tuple[str, int]], ...] = (
            Field("part", lambda part: part[0]),
            time("time", lambda part: part[1]),
            numeric("of the whole", lambda part: part[1], show=share_of(found.total)),
        )
        whole = ("whole", round(found.total))
        yield bars_figure(title, own, whole, ("wait", "transfer", "host"), table_of(f"{title}.", fields, own))


def collective_table(cell: TreeCellRun) -> Table | None:
    """Build the table of each collective: transfer, wait of each rank, last rank, and prediction."""
    rows: list[_Sent] = []
    for entry in cell.measured:
        meeting, names = entry.collectives("serialised"), iter(entry.sent)
        for each in entry.collectives("free-running"):
            sent = None if each.kind == "agreement" else next(names, None)
            rows.append((entry, each, sent, meeting[each.place].transfer_ns if each.place < len(meeting) else None))
    fields: tuple[Field[_Sent], ...] = (
        Field("strategy", lambda row: row[0].name, Code),
        Field("collective", lambda row: row[1].kind if row[2] is None else f"{row[2].kind}: {row[2].payload}"),
        time("transfer", lambda row: row[1].transfer_ns, "ms", "the shortest time that a rank was held up, median"),
        *map(_wait_of, range(cell.run.header.world_size)),
        Field("last", lambda row: f"rank {row[1].last}, {100 * row[1].last_share:.0f} % of the calls"),
        time(
            "predicted",
            lambda row: row[2] and row[2].alpha_ns + row[2].beta_ns,
            "ms",
            "latency and bandwidth",
            missing="not in the plan",
        ),
        time("serialised", lambda row: row[3], "ms", "transfer where the ranks had met just before", missing=NONE),
    )
    notes = (
        "wait + transfer is how long a rank was held up; the last to come waits for nobody. In a ring it waits for one.",
        "agreement: ranks tell each other what they are called with, while attention runs; no part of the plan.",
    )
    return table_of(f"{cell.name}: collectives.", fields, rows, notes=notes) if rows else None


def _wait_of(rank: int) -> Field[_Sent]:
    return time(f"wait of rank {rank}", lambda row: row[1].waits_ns[rank])


def verdict_table(cell: TreeCellRun) -> Table | None:
    """Build the table with each strategy's verdict, its evidence and one remedy; None if there are none."""
    fields: tuple[Field[tuple[TreeContestant, Bound]], ...] = (
        Field("strategy", lambda row: row[0].name, Code),
        Field("verdict", lambda row: row[1][0]),
        Field("evidence", lambda row: row[1][1]),
        Field("remedy", lambda row: row[1][2]),
        Field("straggler", lambda row: _late(straggler(row[0].collectives()))),
    )
    rows = [(entry, found) for entry in cell.measured if (found := bound(cell, entry)) is not None]
    return table_of(f"{cell.name}: verdicts.", fields, rows) if rows else None


def _late(who: tuple[int, float] | None) -> Text:
    return Text("none", "muted") if who is None else Text(f"rank {who[0]}, {100 * who[1]:.0f} % of the calls", "bad")


def absent_table(cell: TreeCellRun) -> Table | None:
    """Build the table of strategies without a number and the reason; None if there are none."""
    fields: tuple[Field[TreeContestant], ...] = (Field("strategy", lambda row: row.name, Code), Field("why", reason_cell))
    rows = [entry for entry in cell.entries if entry.reason]
    return table_of(f"{cell.name}: without a number.", fields, rows) if rows else None


# Builder of the tree-attention page from its folder of cells.

_LEAD = (
    "All strategies compute the same call on the same ranks, each rank with its own run of the keys. Every rank's result was "
    "held against float64 before any number was taken. Calls begin when all ranks are there and count by the slowest rank; "
    "strategies take turns in palindromes, so that ratios hold within one cell."
)


def tree_report(folder: Path, *, scaling: bool = False) -> Report:
    """Build the page of a tree-attention run.

    Args:
        scaling: scaling first, and the cells after it.

    Raises:
        DataError: the folder holds no cells.
    """
    cells, unread = read_cells(folder)
    first = cells[0].run.header
    sections = [*(scaling_sections(cells) if scaling else ()), *(_cell_section(cell) for cell in cells)]
    environment = settings_section(load_study([cells[0].run.folder], into=folder))
    return page(
        title="Tree attention: scaling" if scaling else "Tree attention: strategies side by side",
        subtitle=f"{len(cells)} cells on {first.machine.device_name}, torch {first.machine.torch}",
        facts=(
            Fact("cells", Count(len(cells))),
            Fact("ranks", Text(", ".join(str(each) for each in sorted({cell.run.header.world_size for cell in cells})))),
            Fact("timing", Text("host clock around each call, ranks aligned by a barrier, slowest rank")),
        ),
        banners=(*_banners(cells), *unread_banners(unread)),
        sections=(*sections, environment),
    )


def shown_tables(cells: Sequence[TreeCellRun], *, scaling: bool) -> tuple[Table, ...]:
    """Choose the tables that a terminal shows, in the page's order.

    Args:
        scaling: those of scaling, instead of those of each cell.
    """
    if scaling:
        blocks = [block for section in scaling_sections(cells) for block in section.blocks]
        return tuple(block for block in blocks if isinstance(block, Table))
    found: list[Table | None] = []
    for cell in cells:
        if cell.measured:
            found += [speed_table(cell), parts_table(cell), collective_table(cell)]
            found += [guide_table(cell, "free-running"), guide_table(cell, "serialised")]
        found.append(absent_table(cell))
    return tuple(table for table in found if table is not None)


def _banners(cells: Sequence[TreeCellRun]) -> list[Banner]:
    found = list(damage_banners((cell.name, cell.run.damage) for cell in cells))
    failed = tuple(f"{cell.name}: {cell.failure}" for cell in cells if cell.failure)
    red = tuple(f"{cell.name} {e.name}: {e.reason}" for cell in cells for e in cell.entries if e.outcome == "red")
    held = tuple(
        f"{cell.name}: rank {cell.surroundings.delayed_rank} was held back"
        for cell in cells
        if cell.surroundings.delayed_rank is not None
    )
    if failed or red:
        found.append(Banner("stop", "Some of it has no numbers.", (*failed, *red)))
    if held:
        found.append(Banner("stop", "A rank was held back on purpose: these are not times of the code.", held))
    doubts = tuple(f"{cell.name}: {text}" for cell in cells for text in warnings(cell))
    if doubts:
        found.append(Banner("caution", "Before you read the numbers.", doubts))
    return found


def _cell_section(cell: TreeCellRun) -> Section:
    title = cell.name
    if not cell.measured:
        absent = absent_table(cell)
        return Section(_id(title), title, f"No numbers: {cell.failure or 'no strategy passed'}.", (absent,) if absent else ())
    tables = (
        speed_table(cell), verdict_table(cell), parts_table(cell), collective_table(cell),
        guide_table(cell, "free-running"), guide_table(cell, "serialised"), absent_table(cell), _links(cell),
    )  # fmt: skip
    blocks: list[Block] = [table for table in tables if table is not None]
    return Section(_id(title), title, _LEAD, (*blocks, *part_figures(cell)))


def _id(title: str) -> str:
    return title.replace(".", "-").replace("_", "-")


def _links(cell: TreeCellRun) -> Table | None:
    """Build the table of the measured links that the plan was made with; None if the cell has none."""
    found = cell.links
    if found is None:
        return None
    named = [
        ("flops per", _giga(found.flops_per_s, "GFLOP/s")),
        ("memory bytes per", _giga(found.memory_bytes_per_s, "GB/s")),
        ("launch", _micro(found.launch_s)),
    ]
    for rate in found.rates:
        named += [
            (f"{rate.kind} alpha", _micro(rate.alpha_s)),
            (f"{rate.kind} bytes per", _giga(rate.bytes_per_s, "GB/s")),
            (f"{rate.kind} host", _micro(rate.host_s)),
        ]
    fields = beside("of these ranks", ("measured",), numeric=True)
    rows = [row for row in named if row[1] is not None]
    return table_of(f"{cell.name}: links and roofs.", fields, rows, collapsed=True) if rows else None


def _giga(value: float | None, unit: str) -> Number | None:
    return None if value is None else Number(value * 1e-9, 2, unit)


def _micro(value: float | None) -> Number | None:
    return None if value is None else Number(value * 1e6, 2, "us")
