"""Tables and pictures of a scaling grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from strobe.perf.report.blocks.fields import Field, count, numeric, table_of, time
from strobe.perf.report.model import Axis, Block, Code, Figure, Mark, Missing, Number, Plane, Section, Share, Table
from strobe.perf.report.tree_bench.cells import CellRun
from strobe.perf.report.tree_bench.scaling import Crossing, Point, WhatIf, alone, crossings, groups, strong, weak, what_if

_ALONE: Final = "one rank was not measured there"
_NONE: Final = Missing(_ALONE, "-")


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
    strong = kind == "strong"
    serial: Field[Point] = numeric(
        "serial share",
        lambda each: _NONE if each.serial is None else Number(each.serial, 2),
        "Karp and Flatt: (1/S - 1/P) / (1 - 1/P)",
    )
    fields: tuple[Field[Point], ...] = (
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


def _efficiency(kind: str, each: Point) -> float | None:
    if each.speedup is None:
        return None
    return each.speedup / each.world_size if kind == "strong" else each.speedup


def _alone_table(title: str, base: dict[int, float]) -> Table:
    fields: tuple[Field[int], ...] = (count("keys", lambda tokens: tokens), time("median", lambda tokens: base[tokens]))
    return table_of(f"{title}: one rank.", fields, sorted(base))


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
    none = Missing("not measured", "-")

    strategy: Field[str] = Field("strategy", str, Code)

    def at_place(at: int) -> Field[str]:
        return numeric(f"{at} {x}", lambda name: Number(values[name, at], 3) if (name, at) in values else none)

    table = table_of(f"{title}: {y}.", (strategy, *map(at_place, places)), names)
    picture = Plane(x=Axis(x, from_zero=True, whole=True), y=Axis(y, from_zero=True), marks=marks, series=names)
    return Figure(title=title, alt=f"{y} against {x}: {title}", picture=picture, table=table)


def _crossing_tables(title: str, cells: Sequence[CellRun]) -> Iterator[Table]:
    fields: tuple[Field[Crossing], ...] = (
        Field("along", lambda each: each.along),
        Field("fixed", lambda each: f"{each.at} {'ranks' if each.along == 'tokens' else 'keys'}"),
        Field("between", lambda each: f"{each.low} and {each.high}"),
        numeric("at about", lambda each: Number(each.place, 1)),
        Field("fastest before", lambda each: each.before, Code),
        Field("after", lambda each: each.after, Code),
    )
    found = crossings(cells)
    if found:
        notes = ("Of medians: where two strategies are within their spread, a crossing says little.",)
        yield table_of(f"{title}: where the fastest strategy changes.", fields, found, notes=notes)


def _what_if_tables(title: str, cells: Sequence[CellRun]) -> Iterator[Table]:
    fields: tuple[Field[tuple[CellRun, WhatIf]], ...] = (
        count("ranks", lambda row: row[0].run.header.world_size),
        count("keys", lambda row: row[0].sizes["tokens"]),
        Field("links", lambda row: row[1].words),
        Field("best", lambda row: row[1].best, Code),
        time("predicted", lambda row: row[1].total_ns),
        time("as they are", lambda row: row[1].now_ns, "ms", "the best prediction with the measured links"),
        numeric("gain", lambda row: Number(row[1].now_ns / row[1].total_ns, 2)),
    )
    rows = [(cell, each) for cell in cells for each in what_if(cell)]
    if rows:
        notes = ("Predictions of the plan, with the links of each cell as measured and then made faster. Nothing was run.",)
        yield table_of(f"{title}: what if the links were faster.", fields, rows, notes=notes)
