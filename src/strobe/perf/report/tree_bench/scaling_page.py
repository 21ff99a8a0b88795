"""Tables and pictures of a scaling grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from strobe.perf.report.model import (
    Axis,
    Block,
    Code,
    Column,
    Count,
    Figure,
    Mark,
    Missing,
    Number,
    Plane,
    Row,
    Section,
    Share,
    Table,
    Text,
    Time,
)
from strobe.perf.report.tree_bench.cells import CellRun
from strobe.perf.report.tree_bench.scaling import Point, alone, crossings, groups, strong, weak, what_if

_NONE: Final = Missing("one rank was not measured there", "-")


def scaling_sections(cells: Sequence[CellRun]) -> Iterator[Section]:
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


def _curve_table(title: str, kind: str, points: Sequence[Point]) -> Table:
    columns = (
        Column("strategy"),
        Column("ranks", numeric=True),
        Column("keys", numeric=True),
        Column("median", "ms", True),
        Column("one rank", "ms", True, "the same keys" if kind == "strong" else "the keys of one rank"),
        Column("speedup" if kind == "strong" else "one rank / time", numeric=True),
        Column("efficiency", numeric=True, hint="1 is ideal"),
        *((Column("serial share", numeric=True, hint="Karp and Flatt: (1/S - 1/P) / (1 - 1/P)"),) if kind == "strong" else ()),
        Column("predicted", "ms", True),
    )
    rows = []
    for each in points:
        efficiency = _efficiency(kind, each)
        serial = (Number(each.serial, 2) if each.serial is not None else _NONE,) if kind == "strong" else ()
        rows.append(
            Row(
                (
                    Code(each.strategy),
                    Count(each.world_size),
                    Count(each.tokens),
                    Time(each.time_ns),
                    Time(each.base_ns) if each.base_ns is not None else _NONE,
                    Number(each.speedup, 2) if each.speedup is not None else _NONE,
                    Share(efficiency) if efficiency is not None else _NONE,
                    *serial,
                    Time(each.predicted_ns) if each.predicted_ns is not None else Missing("no plan for a peer", "-"),
                )
            )
        )
    return Table(f"{title}: {kind} scaling.", columns, tuple(rows), sortable=True)


def _efficiency(kind: str, each: Point) -> float | None:
    if each.speedup is None:
        return None
    return each.speedup / each.world_size if kind == "strong" else each.speedup


def _alone_table(title: str, base: dict[int, float]) -> Table:
    rows = tuple(Row((Count(tokens), Time(base[tokens]))) for tokens in sorted(base))
    return Table(f"{title}: one rank.", (Column("keys", numeric=True), Column("median", "ms", True)), rows)


def _curves(title: str, kind: str, points: Sequence[Point]) -> Iterator[Figure]:
    """Yield plots of efficiency against ranks for each number of keys (per rank, if weak), and of time against keys."""
    share: Callable[[Point], int] = (
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
    marks = tuple(Mark(at, value, names.index(name)) for name, at, value in points)
    places = sorted({at for _, at, _ in points})
    values = {(name, at): value for name, at, value in points}
    columns = (Column("strategy"), *(Column(f"{at} {x}", numeric=True) for at in places))
    rows = tuple(
        Row(
            (
                Code(name),
                *(Number(values[name, at], 3) if (name, at) in values else Missing("not measured", "-") for at in places),
            )
        )
        for name in names
    )
    picture = Plane(x=Axis(x, from_zero=True, whole=True), y=Axis(y, from_zero=True), marks=marks, series=names)
    return Figure(title=title, alt=f"{y} against {x}: {title}", picture=picture, table=Table(f"{title}: {y}.", columns, rows))


def _crossing_tables(title: str, cells: Sequence[CellRun]) -> Iterator[Table]:
    found = crossings(cells)
    columns = (
        Column("along"),
        Column("fixed"),
        Column("between"),
        Column("at about", numeric=True),
        Column("fastest before"),
        Column("after"),
    )
    rows = []
    for each in found:
        fixed = f"{each.at} {'ranks' if each.along == 'tokens' else 'keys'}"
        rows.append(
            Row(
                (
                    Text(each.along),
                    Text(fixed),
                    Text(f"{each.low} and {each.high}"),
                    Number(each.place, 1),
                    Code(each.before),
                    Code(each.after),
                )
            )
        )
    if rows:
        notes = ("Of medians: where two strategies are within their spread, a crossing says little.",)
        yield Table(f"{title}: where the fastest strategy changes.", columns, tuple(rows), notes)


def _what_if_tables(title: str, cells: Sequence[CellRun]) -> Iterator[Table]:
    rows = []
    for cell in cells:
        for each in what_if(cell):
            head = (Count(cell.run.header.world_size), Count(cell.sizes["tokens"]), Text(each.words))
            rows.append(
                Row((*head, Code(each.best), Time(each.total_ns), Time(each.now_ns), Number(each.now_ns / each.total_ns, 2)))
            )
    if rows:
        columns = (
            Column("ranks", numeric=True),
            Column("keys", numeric=True),
            Column("links"),
            Column("best"),
            Column("predicted", "ms", True),
            Column("as they are", "ms", True, "the best prediction with the measured links"),
            Column("gain", numeric=True),
        )
        notes = ("Predictions of the plan, with the links of each cell as measured and then made faster. Nothing was run.",)
        yield Table(f"{title}: what if the links were faster.", columns, tuple(rows), notes)
