"""Tables of a breakdown: shares of pieces, stages, layers, gaps between pieces, and two runs compared piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from strobe.core.costs import DevicePeaks
from strobe.core.spans import COMMIT, DENOISE_STEP, FRAME_BLOCK, NAMES, RECACHE
from strobe.perf.analysis.device.roofline import Roofline
from strobe.perf.analysis.runs.breakdown import Amount, Breakdown, Gap, Place, layers_of, order
from strobe.perf.analysis.runs.timeline import Path
from strobe.perf.records.record import SpanCost
from strobe.perf.report.blocks.fields import Field, count, heads, numeric, rows_of, share_cell, share_of, time
from strobe.perf.report.blocks.roofline import anomaly_notes, device_note, of_cost, rate_fields
from strobe.perf.report.model import Block, Cell, Count, Missing, Notes, Ratio, Table, Text, Time

PASSES: Final = (DENOISE_STEP, COMMIT, RECACHE)
"""Passes that go through the transformer's layers."""
LEAD: Final = (
    "The traced frame blocks, taken apart by the innermost region that was open when work was launched (on a CPU: as time "
    "passed). Each nanosecond belongs to one piece, so they add up."
)
_GAPS: Final = 15
_NOT_FOUND: Final = Missing("no such piece here", "-")

T = TypeVar("T")
_Shared: TypeAlias = tuple[Text, Sequence[Amount], Amount, Cell, bool]
"""Name of a piece, its time by kind of pass, in all of them, first layer / later, and whether the row is strong."""
_Called: TypeAlias = tuple[Text, Cell, Amount, int, Roofline | Cell | None]
"""Name of a stage, its calls in a frame block, their time, their number, and the roofline of one."""
_Layered: TypeAlias = tuple[Text, Cell, float, tuple[Amount, Amount, int], Roofline | Cell | None, bool]
"""Name of a piece, its calls and events in a layer, what `_layers` says of it, its roofline, and whether the row is strong."""
_Gained: TypeAlias = tuple[Text, float | None, float | None, Cell, float, bool]
"""Name of a piece, times of one call on both sides, calls, time saved in a frame block, and whether the row is strong."""


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

    def fields(self, found: Callable[[T], Roofline | Cell | None]) -> tuple[Field[T], ...]:
        """Return the columns of the roofline of each row; none if no costs are known."""
        return rate_fields(self.peaks, found, "its cost does not follow from the shapes") if self.costs else ()

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

    def of_pass(at: int) -> Callable[[_Shared], Cell]:
        return lambda row: share(row[1][at].total_ns) if row[1] else Text("")

    share = share_of(found.total_ns, _NOT_FOUND.reason)
    ratio = "time of the first layer / mean of the others, denoise steps"
    fields: tuple[Field[_Shared], ...] = (
        Field("piece", lambda row: row[0]),
        *(numeric(stage, of_pass(at), "of the whole frame block") for at, stage in enumerate(passes)),
        numeric("of the frame block", lambda row: row[2].total_ns, show=share),
        numeric("idle in it", lambda row: row[2].idle_ns, "nothing ran, before its work could; of the frame block", show=share),
        numeric("first layer / later", lambda row: row[3], ratio),
    )
    rows: list[_Shared] = []
    for words, path, deep in _rows(found, passes):
        parts = [found.of((stage,), path, deep=deep) for stage in passes]
        name = Text(words, note=NAMES.get(path[-1], ""))
        rows.append((name, parts, sum(parts, Amount()), _first_ratio(found, path, deep), len(path) == 1 and deep))
    rest, whole = ([found.of((stage,), (), deep=deep) for stage in passes] for deep in (False, True))
    rows.append((Text("passes / rest"), rest, sum(rest, Amount()), Text(""), False))
    rows.append((Text("all passes"), whole, sum(whole, Amount()), Text(""), True))
    for stage in dict.fromkeys(place.stage for place in found.pieces if place.stage not in passes):
        rows.append((_stage_cell(stage), (), _stage(found, stage), Text(""), False))
    caption = f"Shares of {label}: {found.blocks} traced frame block{'s' if found.blocks > 1 else ''} on {found.device} = 100 %."
    note = "A row with parts is their sum; `rest` is what lies in none of them. Shares of rows without parts, and rests, add up."
    return Table(caption, heads(fields), rows_of(fields, rows, strong=lambda row: row[4]), (note,))


def _stage_cell(stage: str) -> Text:
    return Text(_stage_words(stage), note=NAMES.get(stage, ""))


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
    fields: tuple[Field[_Called], ...] = (
        Field("stage", lambda row: row[0]),
        numeric("calls in a frame block", lambda row: row[1]),
        time("one call", lambda row: row[2].total_ns / row[3], hint="busy and idle"),
        time("busy", lambda row: row[2].busy_ns / row[3]),
        time("idle", lambda row: row[2].idle_ns / row[3]),
        numeric("of the frame block", lambda row: row[2].total_ns, show=share_of(found.total_ns, _NOT_FOUND.reason)),
        *roofs.fields(lambda row: row[4]),
    )
    rows: list[_Called] = []
    for stage in dict.fromkeys(place.stage for place in found.pieces):
        own, calls = _stage(found, stage), found.stages.get(stage, 0)
        many = calls or found.blocks
        often: Cell = Count(calls // found.blocks) if calls % found.blocks == 0 else Text(f"{calls} in {found.blocks}")
        rows.append((_stage_cell(stage), often if calls else Text(""), own, many, roofs.of(stage, own.total_ns / many)))
    busy = sum(amount.busy_ns for amount in found.amounts.values())
    whole = Amount(busy_ns=busy, idle_ns=found.total_ns - busy)
    rows.append((Text("frame block"), Count(1), whole, found.blocks, Text("")))
    notes = (device_note(roofs.device_name, roofs.peaks),) if roofs.costs else ()
    shown = rows_of(fields, rows, strong=lambda row: row[2] is whole)
    return Table(f"Passes and stages of {label}, mean of one call.", heads(fields), shown, notes)


def layers_table(label: str, found: Breakdown, roofs: Roofs) -> Table:
    """Build the table of a layer's pieces in the denoise steps: first layer, later layers, and roofline of one call."""
    steps = max(1, found.stages.get(DENOISE_STEP, 0))

    def ratio(row: _Layered) -> Cell:
        first, later, number = row[3]
        return Ratio(first.total_ns * number / later.total_ns) if first.total_ns and later.total_ns else _NOT_FOUND

    fields: tuple[Field[_Layered], ...] = (
        Field("piece", lambda row: row[0]),
        numeric("calls in a layer", lambda row: row[1]),
        count("kernels" if found.device != "cpu" else "operators", lambda row: round(row[2]), "in a layer, mean"),
        time("first layer", lambda row: row[3][0].total_ns / steps, "µs", "busy and idle, mean over the denoise steps"),
        time("later layers", lambda row: row[3][1].total_ns / steps / row[3][2], "µs", "mean of one"),
        numeric("first / later", ratio),
        time("idle, first", lambda row: row[3][0].idle_ns / steps, "µs"),
        time("idle, later", lambda row: row[3][1].idle_ns / steps / row[3][2], "µs"),
        *roofs.fields(lambda row: row[4]),
    )
    rows: list[_Layered] = []
    for words, path, deep in _rows(found, (DENOISE_STEP,)) if found.stages.get(DENOISE_STEP) else ():
        both = _layers(found, path, deep)
        if both is None:
            continue
        own, layers = found.of((DENOISE_STEP,), path, deep=deep), steps * (both[2] + 1)
        often = Count(own.calls // layers) if own.calls % layers == 0 else Text(f"{own.calls / layers:.2f}")
        roof = roofs.of(path[-1] if deep else "", own.sum_ns / own.calls if own.calls else 0.0)
        name = Text(words, note=NAMES.get(path[-1], ""))
        rows.append((name, often if deep else Text(""), own.events / layers, both, roof, deep and len(path) == 1))
    first, *later = (found.of((DENOISE_STEP,), (), deep=True, layers=range(number, number + 1)) for number in layers_of(found))
    rest = sum(later, Amount())
    events = (first.events + rest.events) / steps / (len(later) + 1)
    rows.append((Text("a layer"), Text(""), events, (first, rest, max(1, len(later))), Text(""), True))
    note = (
        "Rates are of one call of the piece over all layers: FLOPs and least bytes follow from the shapes; on a GPU its time is "
        "the sum of its kernels, without gaps."
    )
    shown = rows_of(fields, rows, strong=lambda row: row[5])
    return Table(f"A layer of {label}, in the denoise steps.", heads(fields), shown, (note,) if roofs.costs else ())


def gaps_table(label: str, found: Breakdown) -> Table:
    """Build the table of idle gaps between pieces: number, length and cause."""
    causes = sorted({cause for gap in found.gaps for cause in gap.causes})

    def often(gap: Gap) -> Cell:
        return Count(gap.n // found.blocks) if gap.n % found.blocks == 0 else Text(f"{gap.n / found.blocks:.1f}")

    def because(cause: str) -> Callable[[Gap], Cell]:
        return lambda gap: share_cell(gap.causes.get(cause, 0), gap.sum_ns, _NOT_FOUND.reason)

    fields: tuple[Field[Gap], ...] = (
        Field("after", lambda gap: _words(gap.before)),
        Field("before", lambda gap: "the same" if gap.before == gap.after else _words(gap.after)),
        numeric("gaps in a frame block", often),
        numeric("of the frame block", lambda gap: gap.sum_ns, show=share_of(found.total_ns, _NOT_FOUND.reason), total=sum),
        Field("in a frame block", lambda gap: gap.sum_ns, lambda ns: Time(ns / found.blocks), "ms", total=sum),
        time("p50", lambda gap: gap.p50_ns, "µs"),
        time("max", lambda gap: gap.max_ns, "µs"),
        *(numeric(cause, because(cause), "of these gaps") for cause in causes if len(causes) > 1),
    )
    rows = rows_of(fields, found.gaps, top=_GAPS, left="pairs", strong_rest=False)
    whole = sum(gap.sum_ns for gap in found.gaps)
    number, share = sum(gap.n for gap in found.gaps) / found.blocks, whole / found.total_ns if found.total_ns else 0.0
    caption = f"Launch gaps of {label}: {number:.0f} in a frame block, {100 * share:.1f} % of it."
    meaning = (
        "On a CPU a gap is time of Python and framework between two operators."
        if found.device == "cpu"
        else "A gap lasts from the end of the last event on the device to the start of the next one; causes as in docs/traces.md."
    )
    return Table(caption, heads(fields), rows, (meaning,))


def _words(place: Place) -> str:
    return f"{_stage_words(place.stage)}: {place.name}" if place.path else _stage_words(place.stage)


def gains_table(labels: tuple[str, str], theirs: Breakdown, ours: Breakdown) -> Table:
    """Build the table of every piece on both sides: time per call in the denoise steps, and saving in a frame block.

    Args:
        labels: of the reference and of the candidate.
        theirs: the reference's.
        ours: the candidate's.
    """
    mean = "mean of one call in the denoise steps, gaps left out"
    fields: tuple[Field[_Gained], ...] = (
        Field("piece", lambda row: row[0]),
        time(labels[0], lambda row: row[1], "µs", mean, missing=_NOT_FOUND.reason),
        time(labels[1], lambda row: row[2], "µs", mean, missing=_NOT_FOUND.reason),
        numeric("speedup of a call", lambda row: Ratio(row[1] / row[2]) if row[1] and row[2] else _NOT_FOUND),
        numeric("calls in a frame block", lambda row: row[3]),
        time("saved in a frame block", lambda row: row[4], hint="all passes, gaps included"),
    )
    rows: list[_Gained] = []
    for path in sorted({*_paths(theirs, PASSES), *_paths(ours, PASSES)}, key=order):
        sides = [(side, side.of((DENOISE_STEP,), path, deep=True), side.of(PASSES, path, deep=True)) for side in (theirs, ours)]
        before, after = (steps.sum_ns / steps.calls if steps.calls else None for _, steps, _ in sides)
        often = " → ".join(dict.fromkeys(f"{whole.calls / side.blocks:g}" for side, _, whole in sides))
        saved = sides[0][2].total_ns / theirs.blocks - sides[1][2].total_ns / ours.blocks
        name = Text(" / ".join(path), note=NAMES.get(path[-1], ""))
        rows.append((name, before, after, Text(often), saved, len(path) == 1))
    whole = theirs.total_ns / theirs.blocks, ours.total_ns / ours.blocks
    rows.append((Text("frame block"), *whole, Count(1), whole[0] - whole[1], True))
    note = "Traced, so both sides carry the profiler's cost, and once each: no interval. `strobe compare` times and repeats."
    caption = f"{labels[1]} against {labels[0]}, piece by piece."
    return Table(caption, heads(fields), rows_of(fields, rows, strong=lambda row: row[5]), (note,))
