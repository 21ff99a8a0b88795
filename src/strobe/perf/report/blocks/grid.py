"""Tables, pictures and the page of a grid whose contestants took turns in the palindromes of each cell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, TypeAlias, TypeVar

from strobe.perf.analysis.runs.grid import CellRun, GridContestant, Outcome, speedup
from strobe.perf.records.record import RECALL, RELATIVE, WORST_HEAD, Contestant
from strobe.perf.report.blocks.fields import page, verdict_cell
from strobe.perf.report.blocks.settings import settings_section
from strobe.perf.report.study import load_study
from strobe.perf.table.fields import Field, beside, count, numeric, table_of, time
from strobe.perf.table.model import (
    Axis,
    Banner,
    Cell,
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
    Speedup,
    Table,
    Text,
)
from strobe.perf.table.rows import gathered

T = TypeVar("T")
Entry: TypeAlias = tuple[CellRun, GridContestant]
"""A cell and one contestant of it."""
NONE: Final = "not measured here"
"""Reason of a number that a cell does not have."""


def grid_page(
    cells: Sequence[CellRun],
    unread: tuple[str, ...],
    *,
    title: str,
    about: str,
    facts: Sequence[Fact],
    banners: Sequence[Banner],
    sections: Iterable[Section | None],
    speedups: Iterable[Speedup] = (),
) -> Report:
    """Return the page of a grid, with the cells that could not be read in a banner, and the settings of its first cell last."""
    first = cells[0].run
    settings = settings_section(load_study([first.folder], into=first.folder.parents[1]))
    return page(
        title=title,
        subtitle=f"{len(cells)} cells on {first.header.machine.device_name}, torch {first.header.machine.torch}{about}",
        facts=(Fact("cells", Count(len(cells))), *facts),
        banners=(*banners, *([Banner("caution", "Some cells could not be read and are left out.", unread)] if unread else ())),
        sections=(*sections, settings),
        speedups=speedups,
    )


def timed_fields(
    reference: str, own: Callable[[T], GridContestant], against: Callable[[T], GridContestant | Missing]
) -> tuple[Field[T], ...]:
    """Return the columns of the median's interval, the number of calls, the speedup over the reference and its verdict."""

    def compared(row: T) -> tuple[Cell, Text]:
        entry, other = own(row), against(row)
        if isinstance(other, Missing):
            return other, Text("not compared", "muted")
        if entry is other:
            return Missing("it is the reference", "1"), Text("reference", "muted")
        ratio, verdict = speedup(other, entry)
        return ratio, verdict_cell(verdict)

    hint = "bootstrap, from 30 calls on; else shortest and longest call"
    return (
        Field("95 % of the median", lambda row: _range(own(row)), hint=hint),
        count("calls", lambda row: len(own(row).times_ns)),
        numeric("speedup", lambda row: compared(row)[0], f"time of the {reference} / time, same palindromes, 95 % interval"),
        Field("verdict", lambda row: compared(row)[1]),
    )


def _range(entry: GridContestant) -> str:
    interval, times = entry.interval, entry.times_ns
    low, high = (interval.low, interval.high) if interval else (min(times), max(times))
    return f"{low / 1e6:.4g} to {high / 1e6:.4g}{'' if interval else ' (all)'}"


def absent_table(cells: Sequence[CellRun]) -> Table | None:
    """Build the table of contestants without a number and the reason, cells with the same reason in one row; None if empty."""
    without = ((cell, entry) for cell in cells for entry in cell.contestants if entry.reason)
    found = gathered(((entry.name, entry.reason, entry.outcome), cell.name) for cell, entry in without)

    def which(names: Sequence[str]) -> Text | Code:
        return Text("all") if len(names) == len(cells) else Code(", ".join(names[:3]) + (" ..." if len(names) > 3 else ""))

    fields: tuple[Field[tuple[tuple[str, str, Outcome], list[str]]], ...] = (
        Field("contestant", lambda row: row[0][0], Code),
        Field("why it has no number", lambda row: Text(row[0][1], "plain" if row[0][2] == "refused" else "bad")),
        count("cells", lambda row: len(row[1])),
        Field("which", lambda row: which(row[1])),
    )
    return table_of("Entries without a number.", fields, list(found.items())) if found else None


def plane_of(named: Mapping[str, Sequence[tuple[float, float]]], x: Axis, y: Axis) -> Plane:
    """Plot the points of each name in a colour of its own."""
    marks = tuple(PlotPoint(*point, series) for series, points in enumerate(named.values()) for point in points)
    return Plane(x=x, y=y, marks=marks, series=tuple(named))


def across(
    title: str,
    named: Mapping[str, Sequence[tuple[float, float]]],
    head: tuple[str, Callable[[float], str]],
    cell: Callable[[float], Number],
) -> Table:
    """Build the table with a row for each name and a column for each place of its points."""
    places = sorted({x for points in named.values() for x, _ in points})
    missing = Missing(NONE, "-")
    rows = []
    for name, points in named.items():
        values = dict(points)
        rows.append((Code(name), *(cell(values[place]) if place in values else missing for place in places)))
    return table_of(f"{title}.", beside(head[0], map(head[1], places), numeric=True), rows)


# The front of speed and quality, and methods of attention on captured q, k and v, judged by error and time.

BEST: Final = 60.0
"""Quality from which pictures count as equal, dB: a mean error of a quarter of an 8-bit step."""


def front(points: Sequence[T], place: Callable[[T], tuple[float, float]]) -> tuple[T, ...]:
    """Return the points that no other point beats in speed and quality, fastest first; of equal points the first given.

    Args:
        place: speed and quality of a point; quality in dB counts up to `BEST`, and is infinite where the pictures are equal.
    """

    def quality(point: T) -> float:
        return min(place(point)[1], BEST)

    kept: list[T] = []
    for point in sorted(points, key=lambda each: (-place(each)[0], -quality(each))):
        if all(quality(point) > quality(other) for other in kept):
            kept.append(point)
    return tuple(kept)


LIMITS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Relative errors that the answer tries one after the other."""
_SAID: Final = {"corrected": "count with correction", "share": "share of weight"}
"""Words of methods whose name is not what the page says."""
_LEVELS: Final = (
    "The percentage is the share of key tiles that is skipped; by share of weight, that of the estimated weight that is "
    "kept. With correction, each skipped tile counts by its mean key and value."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """One method over all captured calls of a grid and a block size.

    Args:
        entry: its calls in all of them, and their palindromes.
        density: share of all pairs of tokens that is computed, mean.
        kept: share of dense attention's mass on the selected keys, mean; None for dense attention.
        error: relative error of the output against dense attention, mean.
        worst_head: of any call.
        worst_layer: its name and its error, mean over its steps.
        ratio: of the time of the fastest dense contestant to its own, and whether that is proven.
        on_front: nothing measured is as fast with less error.
    """

    entry: GridContestant
    made: Contestant
    density: float
    kept: float | None
    error: float
    worst_head: float
    worst_layer: tuple[str, float]
    ratio: float
    faster: bool
    on_front: bool = False

    @property
    def method(self) -> str:
        if self.made.peer:
            return self.made.impl
        by = _SAID.get(self.made.impl, self.made.impl)
        return f"{self.made.work} ({self.made.impl})" if self.made.level is None else f"VSA by {by}"

    @property
    def words(self) -> str:
        return self.method if self.made.level is None else f"{self.method} at {100 * self.made.level:g} %"

    @property
    def whole(self) -> bool:
        """Whether its time has the selection in it; a fine stage of others is given one."""
        return self.made.work != "fine"


def judge_methods(cells: Sequence[Any]) -> tuple[GridContestant | None, tuple[Judged, ...]]:
    """Return the fastest dense contestant and every method that was measured in all of the cells of a grid, fastest first."""
    own = [{entry.name: entry for entry in cell.measured} for cell in cells]
    merged = {name: _merged([entries[name] for entries in own]) for name in own[0] if all(name in each for each in own)}
    dense = [entry for name, entry in merged.items() if own[0][name].kind == "dense"]
    reference = min(dense, key=lambda entry: entry.median_ns, default=None)
    if reference is None:
        return None, ()
    found = []
    for name, entry in merged.items():
        numbers = [entries[name] for entries in own]
        errors = [_number(each, RELATIVE) for each in numbers]
        layers = gathered((cell.grid.layer, error) for cell, error in zip(cells, errors, strict=True))
        kept = [value for each in numbers if (value := each.number(RECALL)) is not None]
        against, verdict = speedup(reference, entry)
        found.append(
            Judged(
                entry=entry,
                made=own[0][name].settings,
                density=statistics.fmean(each.density for each in numbers),
                kept=statistics.fmean(kept) if kept else None,
                error=statistics.fmean(errors),
                worst_head=max(_number(each, WORST_HEAD) for each in numbers),
                worst_layer=max(((layer, statistics.fmean(each)) for layer, each in layers.items()), key=lambda each: each[1]),
                ratio=against.value if verdict in ("faster", "slower") else 1.0,
                faster=verdict == "faster",
            )
        )
    best = front([each for each in found if each.whole], lambda each: (each.ratio, -20 * math.log10(each.error or 1e-9)))
    found = [replace(each, on_front=each in best) for each in found]
    return reference, tuple(sorted(found, key=lambda each: each.entry.median_ns))


def _merged(entries: Sequence[Any]) -> GridContestant:
    """Return one contestant with the palindromes of several cells, each with a number of its own."""
    first = entries[0]
    rounds = {(1 + max(each.rounds)) * at + key: times for at, each in enumerate(entries) for key, times in each.rounds.items()}
    return GridContestant(
        name=first.name, outcome="measured", reason="", variant=first.variant, gate=first.gate, rounds=rounds, numbers=()
    )


def _number(entry: Any, metric: str) -> float:
    value = entry.number(metric, against="dense", tensor="out")
    return math.inf if value is None else value


def answer(judged: Sequence[Judged], *, on_gpu: bool) -> str:
    """Say which method is the fastest at the least error at which any is faster than dense attention."""
    where = "" if on_gpu else ", on a CPU"
    for limit in LIMITS:
        found = [each for each in judged if each.faster and each.whole and each.error <= limit]
        if found:
            best = max(found, key=lambda each: each.ratio)
            faster = f"{best.words} is {best.ratio:.2f}x as fast as dense attention"
            none = "" if limit == LIMITS[0] else f"; at {100 * LIMITS[0]:g} % none is faster"
            return f"At an error of at most {100 * limit:g} % {faster}{none}{where}"
    return f"No method is faster than dense attention at an error of {100 * LIMITS[-1]:g} % or less{where}"


def _percent(share: float) -> Number:
    return Number(100 * share, 3, "%")


def _table(reference: GridContestant, judged: Sequence[Judged], cells: Sequence[Any]) -> Table:
    rmse = "RMSE of the output against dense attention / root mean square, mean over calls"
    fields: tuple[Field[Judged], ...] = (
        Field("method", lambda row: row.words),
        time("median", lambda row: row.entry.median_ns),
        *timed_fields("fastest dense", lambda row: row.entry, lambda row: reference),
        numeric("computed", lambda row: row.density, "share of all pairs of tokens, mean over calls", show=Share),
        numeric("weight kept", lambda row: row.kept, "share of dense attention's mass on the selected keys", show=Share),
        numeric("error", lambda row: row.error, rmse, show=_percent),
        numeric("worst head", lambda row: row.worst_head, "of any call", show=_percent),
        numeric("worst layer", lambda row: row.worst_layer[1], "mean over its steps", show=_percent),
        Field("which", lambda row: row.worst_layer[0]),
        Field("front", lambda row: Text("yes", "good") if row.on_front else "" if row.whole else "selection not timed"),
    )
    text = max(cell.grid.text_tokens for cell in cells)
    notes = [
        "All methods of a captured call took turns. A contestant that is not on all calls is under: without a number.",
        *([_LEVELS] if any(each.made.level is not None for each in judged) else []),
        "Errors are against float32 (float64 for float32 numbers) on the checked queries of every head, all keys.",
        *([f"Attention among the video's tokens alone: up to {text} text tokens of the calls are left out."] if text else []),
    ]
    caption = f"{cells[0].grid.shape}, blocks of {cells[0].grid.block}: methods."
    return table_of(caption, fields, judged, notes=notes, sortable=True)


def _figure(judged: Sequence[Judged]) -> Figure:
    shown = [each for each in judged if math.isfinite(each.error)]
    kinds = list(dict.fromkeys(each.method for each in shown))
    marks = tuple(
        PlotPoint(
            each.entry.median_ns,
            100 * each.error,
            kinds.index(each.method),
            label=each.words if each.on_front else "",
            hollow=not each.on_front,
        )
        for each in shown
    )
    title = "Relative error of the output against time of a call; the line joins the front"
    joined = tuple(at for at, each in enumerate(shown) if each.on_front)
    x, y = Axis("time of a call", "ms"), Axis("relative error, %", from_zero=True)
    picture = Plane(x=x, y=y, marks=marks, series=tuple(kinds), joined=joined)
    fields: tuple[Field[Judged], ...] = (
        Field("method", lambda row: row.words),
        time("median", lambda row: row.entry.median_ns),
        numeric("error", lambda row: row.error, show=_percent),
    )
    return Figure(title=title, alt=title, picture=picture, table=table_of(f"{title}.", fields, shown))


def judged_sections(cells: Sequence[Any]) -> Iterator[tuple[str, Section, Table]]:
    """Yield answer, section and table of every grid and block size of captured calls."""
    captured = (cell for cell in cells if cell.grid.layer and not cell.serialised)
    for (shape, block), group in groupby(captured, key=lambda cell: (cell.grid.shape, cell.grid.block)):
        own = list(group)
        reference, judged = judge_methods(own)
        if reference is None:
            continue
        said, table = answer(judged, on_gpu=own[0].run.header.machine.on_gpu), _table(reference, judged, own)
        layers, steps = ({getattr(cell.grid, name) for cell in own} for name in ("layer", "step"))
        lead = f"{said}. {len(own)} captured calls: {len(layers)} layers, {len(steps)} steps."
        title = f"{shape}, blocks of {block}: methods"
        yield said, Section(f"methods-{shape}-{block}", title, lead, (_figure(judged), table)), table
