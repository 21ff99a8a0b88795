"""Tables of a breakdown: shares of pieces, stages, layers, gaps between pieces, and two runs compared piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from strobe.core.costs import DevicePeaks
from strobe.core.spans import COMMIT, DENOISE_STEP, FRAME_BLOCK, NAMES, RECACHE
from strobe.perf.analysis.device.roofline import Roofline
from strobe.perf.analysis.runs.breakdown import Amount, Breakdown, Place, layers_of, order
from strobe.perf.analysis.runs.timeline import Path
from strobe.perf.records.record import SpanCost
from strobe.perf.report.blocks.fields import share_cell
from strobe.perf.report.blocks.roofline import anomaly_notes, device_note, of_cost, rate_cells, rate_columns
from strobe.perf.report.model import Block, Cell, Column, Count, Missing, Notes, Ratio, Row, Share, Table, Text, Time

PASSES: Final = (DENOISE_STEP, COMMIT, RECACHE)
"""Passes that go through the transformer's layers."""
LEAD: Final = (
    "The traced frame blocks, taken apart by the innermost region that was open when work was launched (on a CPU: as time "
    "passed). Each nanosecond belongs to one piece, so they add up."
)
_GAPS: Final = 15
_NOT_FOUND: Final = Missing("no such piece here", "-")
_part: Final = partial(share_cell, reason=_NOT_FOUND.reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class Roofs:
    """Cost of one call of each region, and the peaks of the device.

    Args:
        costs: by region; empty: not known, and nothing is said of rates.
        peaks: of the device; None: rates only.
        device_name: as it reports itself.
        dtype: of matrix products, where a cost names none.
    """

    costs: Mapping[str, SpanCost] = field(default_factory=dict)
    peaks: DevicePeaks | None = None
    device_name: str = ""
    dtype: str = ""

    def columns(self) -> tuple[Column, ...]:
        """Return the columns for the cells of `cells`; empty if no costs are known."""
        return rate_columns(self.peaks) if self.costs else ()

    def cells(self, name: str, each_ns: float) -> tuple[Cell, ...]:
        """Return the cells of one call of a region against its roofline."""
        found = self.of(name, each_ns)
        if found is None:
            return tuple(Missing("its cost does not follow from the shapes", "-") for _ in self.columns())
        return rate_cells(found)

    def of(self, name: str, each_ns: float) -> Roofline | None:
        """Return the roofline of one call of a region; None if its cost is not known."""
        cost = self.costs.get(name)
        if cost is None or each_ns <= 0:
            return None
        return of_cost(cost, each_ns, self.peaks, self.dtype)


def breakdown_blocks(label: str, found: Breakdown, roofs: Roofs = Roofs()) -> Iterator[Block]:
    """Yield all tables of one trace's breakdown."""
    yield shares_table(label, found)
    yield stages_table(label, found, roofs)
    if layers_of(found):
        yield layers_table(label, found, roofs)
    yield gaps_table(label, found)
    notes = tuple(_notes(label, found, roofs))
    if notes:
        yield Notes(notes)


def _notes(label: str, found: Breakdown, roofs: Roofs) -> Iterator[str]:
    replays = found.replays
    if replays is not None:
        how = (
            f"{replays.attributed} of {replays.launches} were taken apart, {replays.matched} of {replays.kernels} kernels matched"
        )
        yield f"{label}: passes ran as graphs; by the order of their kernels in a run without graphs {how}." + (
            f" The others are one piece: {replays.reason}." if replays.reason else ""
        )
    for stage, busy_ns in found.beside_ns.items():
        share = 100 * busy_ns / found.total_ns
        yield f"{label}: beside, on another thread, {stage}: busy for {share:.1f} % of the time; no part of these tables."
    against = ((f"{label}, {name}", roofs.of(name, each_ns)) for name, each_ns in _each_ns(found).items())
    yield from anomaly_notes((name, each) for name, each in against if each is not None)


def _each_ns(found: Breakdown) -> dict[str, float]:
    """Return the mean time of one call by name of the cost, ns: stages, and pieces of the denoise steps."""
    times = {stage: _stage(found, stage).total_ns / found.stages[stage] for stage in found.stages if found.stages[stage]}
    for path in _paths(found, (DENOISE_STEP,)):
        own = found.of((DENOISE_STEP,), path, deep=True)
        if own.calls:
            times[path[-1]] = own.sum_ns / own.calls
    return times


def _stage(found: Breakdown, stage: str) -> Amount:
    return found.of((stage,), (), deep=True)


def _paths(found: Breakdown, stages: Iterable[str]) -> list[Path]:
    """Return the paths of all pieces of some stages and of their enclosing pieces, in the order of a pass, each once."""
    chosen = frozenset(stages)
    paths: dict[Path, None] = {}
    for place in found.pieces:
        if place.stage in chosen and place.path:
            paths |= dict.fromkeys(place.path[:size] for size in range(1, len(place.path) + 1))
    return sorted(paths, key=order)


def _rows(found: Breakdown, stages: Sequence[str]) -> Iterator[tuple[str, Path, bool]]:
    """Yield name, path, and whether the row includes nested pieces; a piece with nested ones has a second row for its rest."""
    paths = _paths(found, stages)
    for path in paths:
        parent = any(len(other) > len(path) and other[: len(path)] == path for other in paths)
        yield " / ".join(path), path, True
        if parent and found.of(stages, path).total_ns:
            yield f"{' / '.join(path)} / rest", path, False


# --------------------------------------------------------------------------------------------------------------- tables


def shares_table(label: str, found: Breakdown) -> Table:
    """Build the table of each piece's share of the frame blocks, by kind of pass."""
    passes = [stage for stage in PASSES if found.stages.get(stage)]
    columns = (
        Column("piece"),
        *(Column(stage, numeric=True, hint="of the whole frame block") for stage in passes),
        Column("of the frame block", numeric=True),
        Column("idle in it", numeric=True, hint="nothing ran, before its work could; of the frame block"),
        Column("first layer / later", numeric=True, hint="time of the first layer / mean of the others, denoise steps"),
    )
    rows = []
    for words, path, deep in _rows(found, passes):
        parts = [found.of((stage,), path, deep=deep) for stage in passes]
        whole = sum(parts, Amount())
        shares = (_part(part.total_ns, found.total_ns) for part in (*parts, whole))
        cells = (*shares, _part(whole.idle_ns, found.total_ns), _first_ratio(found, path, deep))
        rows.append(Row((Text(words, note=NAMES.get(path[-1], "")), *cells), strong=len(path) == 1 and deep))
    rest = [found.of((stage,), ()) for stage in passes]
    rows.append(_total_row("passes / rest", rest, found))
    rows.append(_total_row("all passes", [_stage(found, stage) for stage in passes], found))
    for stage in dict.fromkeys(place.stage for place in found.pieces if place.stage not in passes):
        own = _stage(found, stage)
        cells = (*(Text("") for _ in passes), _part(own.total_ns, found.total_ns), _part(own.idle_ns, found.total_ns))
        rows.append(Row((Text(_stage_words(stage), note=NAMES.get(stage, "")), *cells, Text(""))))
    caption = f"Shares of {label}: {found.blocks} traced frame block{'s' if found.blocks > 1 else ''} on {found.device} = 100 %."
    note = "A row with parts is their sum; `rest` is what lies in none of them. Shares of rows without parts, and rests, add up."
    return Table(caption, columns, tuple(rows), (note,))


def _total_row(words: str, parts: Sequence[Amount], found: Breakdown) -> Row:
    whole = sum(parts, Amount())
    shares = (_part(part.total_ns, found.total_ns) for part in (*parts, whole))
    return Row((Text(words), *shares, _part(whole.idle_ns, found.total_ns), Text("")), strong=words == "all passes")


def _stage_words(stage: str) -> str:
    return "frame block / rest" if stage == FRAME_BLOCK else stage


def _layers(found: Breakdown, path: Path, deep: bool) -> tuple[Amount, Amount, int] | None:
    """Return a piece's time in the first layer and in later ones, and the number of later layers with it; None: not in both."""
    numbers = layers_of(found)
    if len(numbers) < 2:
        return None
    first, *later = (found.of((DENOISE_STEP,), path, deep=deep, layers=range(number, number + 1)) for number in numbers)
    own = [amount for amount in later if amount.total_ns]
    return (first, sum(own, Amount()), len(own)) if first.total_ns and own else None


def _first_ratio(found: Breakdown, path: Path, deep: bool) -> Cell:
    both = _layers(found, path, deep)
    if both is None:
        return Missing("not in several layers", "-")
    first, later, number = both
    return Ratio(first.total_ns * number / later.total_ns)


def stages_table(label: str, found: Breakdown, roofs: Roofs) -> Table:
    """Build the table of each kind of pass and every other stage: calls, busy and idle time, and roofline."""
    columns = (
        Column("stage"),
        Column("calls in a frame block", numeric=True),
        Column("one call", "ms", True, "busy and idle"),
        Column("busy", "ms", True),
        Column("idle", "ms", True),
        Column("of the frame block", numeric=True),
        *roofs.columns(),
    )
    rows = []
    for stage in dict.fromkeys(place.stage for place in found.pieces):
        own, calls = _stage(found, stage), found.stages.get(stage, 0)
        often: Cell = Count(calls // found.blocks) if calls % found.blocks == 0 else Text(f"{calls} in {found.blocks}")
        times = [Time(ns / (calls or found.blocks)) for ns in (own.total_ns, own.busy_ns, own.idle_ns)]
        head = Text(_stage_words(stage), note=NAMES.get(stage, ""))
        rates = roofs.cells(stage, own.total_ns / (calls or found.blocks))
        rows.append(Row((head, often if calls else Text(""), *times, _part(own.total_ns, found.total_ns), *rates)))
    whole = [Time(ns / found.blocks) for ns in (found.total_ns, _busy(found), found.total_ns - _busy(found))]
    blank = (Text("") for _ in roofs.columns())
    rows.append(Row((Text("frame block"), Count(1), *whole, Share(1.0), *blank), strong=True))
    notes = (device_note(roofs.device_name, roofs.peaks),) if roofs.costs else ()
    return Table(f"Passes and stages of {label}, mean of one call.", columns, tuple(rows), notes)


def _busy(found: Breakdown) -> int:
    return sum(amount.busy_ns for amount in found.amounts.values())


def layers_table(label: str, found: Breakdown, roofs: Roofs) -> Table:
    """Build the table of a layer's pieces in the denoise steps: first layer, later layers, and roofline of one call."""
    columns = (
        Column("piece"),
        Column("calls in a layer", numeric=True),
        Column("kernels" if found.device != "cpu" else "operators", numeric=True, hint="in a layer, mean"),
        Column("first layer", "µs", True, "busy and idle, mean over the denoise steps"),
        Column("later layers", "µs", True, "mean of one"),
        Column("first / later", numeric=True),
        Column("idle, first", "µs", True),
        Column("idle, later", "µs", True),
        *roofs.columns(),
    )
    steps = found.stages.get(DENOISE_STEP, 0)
    rows = [
        row
        for words, path, deep in _rows(found, (DENOISE_STEP,))
        if (row := _layer_row(words, (path, deep), found, roofs, steps)) is not None
    ]
    rows.append(_layer_total(found, steps, len(roofs.columns())))
    note = (
        "Rates are of one call of the piece over all layers: FLOPs and least bytes follow from the shapes; on a GPU its time is "
        "the sum of its kernels, without gaps."
    )
    return Table(f"A layer of {label}, in the denoise steps.", columns, tuple(rows), (note,) if roofs.costs else ())


def _layer_row(words: str, where: tuple[Path, bool], found: Breakdown, roofs: Roofs, steps: int) -> Row | None:
    path, deep = where
    both = _layers(found, path, deep)
    if both is None or not steps:
        return None
    first, later, number = both
    own = found.of((DENOISE_STEP,), path, deep=deep)
    layers = steps * (number + 1)
    calls: Cell = (
        Count(own.calls // layers) if deep and own.calls % layers == 0 else Text("" if not deep else f"{own.calls / layers:.2f}")
    )
    times = (Time(first.total_ns / steps), Time(later.total_ns / steps / number), Ratio(first.total_ns * number / later.total_ns))
    idle = (Time(first.idle_ns / steps), Time(later.idle_ns / steps / number))
    rates = roofs.cells(path[-1] if deep else "", own.sum_ns / own.calls if own.calls else 0.0)
    head = Text(words, note=NAMES.get(path[-1], ""))
    return Row((head, calls, Count(round(own.events / layers)), *times, *idle, *rates), strong=deep and len(path) == 1)


def _layer_total(found: Breakdown, steps: int, num_rates: int) -> Row:
    numbers = layers_of(found)
    first, *later = (found.of((DENOISE_STEP,), (), deep=True, layers=range(number, number + 1)) for number in numbers)
    rest = sum(later, Amount())
    number = max(1, len(later))
    events = (first.events + rest.events) / max(1, steps) / (len(later) + 1)
    times = (Time(first.total_ns / max(1, steps)), Time(rest.total_ns / max(1, steps) / number))
    ratio: Cell = Ratio(first.total_ns * number / rest.total_ns) if rest.total_ns and first.total_ns else _NOT_FOUND
    idle = (Time(first.idle_ns / max(1, steps)), Time(rest.idle_ns / max(1, steps) / number))
    cells = (Text("a layer"), Text(""), Count(round(events)), *times, ratio, *idle)
    return Row((*cells, *(Text("") for _ in range(num_rates))), strong=True)


def gaps_table(label: str, found: Breakdown) -> Table:
    """Build the table of idle gaps between pieces: number, length and cause."""
    causes = sorted({cause for gap in found.gaps for cause in gap.causes})
    columns = (
        Column("after"),
        Column("before"),
        Column("gaps in a frame block", numeric=True),
        Column("of the frame block", numeric=True),
        Column("in a frame block", "ms", True),
        Column("p50", "µs", True),
        Column("max", "µs", True),
        *(Column(cause, numeric=True, hint="of these gaps") for cause in causes if len(causes) > 1),
    )
    rows = []
    for gap in found.gaps[:_GAPS]:
        why = (_part(gap.causes.get(cause, 0), gap.sum_ns) for cause in causes if len(causes) > 1)
        ends = Text(_words(gap.before)), Text("the same" if gap.before == gap.after else _words(gap.after))
        often = Count(gap.n // found.blocks) if gap.n % found.blocks == 0 else Text(f"{gap.n / found.blocks:.1f}")
        times = (Time(gap.sum_ns / found.blocks), Time(gap.p50_ns), Time(gap.max_ns))
        rows.append(Row((*ends, often, _part(gap.sum_ns, found.total_ns), *times, *why)))
    left = found.gaps[_GAPS:]
    whole = sum(gap.sum_ns for gap in found.gaps)
    if left:
        rest = sum(gap.sum_ns for gap in left)
        blank = tuple(Text("") for _ in range(len(columns) - 5))
        cells = (Text(f"{len(left)} more pairs"), Text(""), Text(""), _part(rest, found.total_ns), Time(rest / found.blocks))
        rows.append(Row((*cells, *blank)))
    number, share = sum(gap.n for gap in found.gaps) / found.blocks, whole / found.total_ns if found.total_ns else 0.0
    caption = f"Launch gaps of {label}: {number:.0f} in a frame block, {100 * share:.1f} % of it."
    meaning = (
        "On a CPU a gap is time of Python and framework between two operators."
        if found.device == "cpu"
        else "A gap lasts from the end of the last event on the device to the start of the next one; causes as in docs/traces.md."
    )
    return Table(caption, columns, tuple(rows), (meaning,))


def _words(place: Place) -> str:
    return f"{_stage_words(place.stage)}: {place.name}" if place.path else _stage_words(place.stage)


def gains_table(labels: tuple[str, str], theirs: Breakdown, ours: Breakdown) -> Table:
    """Build the table of every piece on both sides: time per call in the denoise steps, and saving in a frame block.

    Args:
        labels: of the reference and of the candidate.
        theirs: the reference's.
        ours: the candidate's.
    """
    columns = (
        Column("piece"),
        Column(labels[0], "µs", True, "mean of one call in the denoise steps, gaps left out"),
        Column(labels[1], "µs", True, "mean of one call in the denoise steps, gaps left out"),
        Column("speedup of a call", numeric=True),
        Column("calls in a frame block", numeric=True),
        Column("saved in a frame block", "ms", True, "all passes, gaps included"),
    )
    rows = []
    for path in sorted({*_paths(theirs, PASSES), *_paths(ours, PASSES)}, key=order):
        sides = [(side, side.of((DENOISE_STEP,), path, deep=True), side.of(PASSES, path, deep=True)) for side in (theirs, ours)]
        each = [steps.sum_ns / steps.calls if steps.calls else None for _, steps, _ in sides]
        times: list[Cell] = [_NOT_FOUND if ns is None else Time(ns) for ns in each]
        ratio: Cell = Ratio(each[0] / each[1]) if each[0] and each[1] else _NOT_FOUND
        often = " → ".join(dict.fromkeys(f"{whole.calls / side.blocks:g}" for side, _, whole in sides))
        saved = sides[0][2].total_ns / theirs.blocks - sides[1][2].total_ns / ours.blocks
        head = Text(" / ".join(path), note=NAMES.get(path[-1], ""))
        rows.append(Row((head, *times, ratio, Text(often), Time(saved)), strong=len(path) == 1))
    whole = theirs.total_ns / theirs.blocks, ours.total_ns / ours.blocks
    total: tuple[Cell, ...] = (
        Text("frame block"),
        *(Time(ns) for ns in whole),
        Ratio(whole[0] / whole[1]),
        Count(1),
        Time(whole[0] - whole[1]),
    )
    rows.append(Row(total, strong=True))
    note = "Traced, so both sides carry the profiler's cost, and once each: no interval. `strobe compare` times and repeats."
    return Table(f"{labels[1]} against {labels[0]}, piece by piece.", columns, tuple(rows), (note,))
