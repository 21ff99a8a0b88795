"""Breakdown, stages, latencies and quality of runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice, zip_longest
from typing import Final, TypeAlias, TypeVar

from strobe.core.costs import DevicePeaks
from strobe.core.spans import COMMIT, DENOISE_STEP, E2E, FRAME_BLOCK, NAMES, RECACHE
from strobe.perf.analysis.device.roofline import Roofline
from strobe.perf.analysis.runs.breakdown import Amount, Breakdown, Gap, Place, layers_of, order
from strobe.perf.analysis.runs.compare import STAGES, Comparison, Latencies, SideClocks, StageClips, stage_time
from strobe.perf.analysis.runs.timeline import Path
from strobe.perf.measure.stats import outliers, percentile
from strobe.perf.records.record import Clip, Quality, SpanCost
from strobe.perf.report.blocks.fields import stretches, tail_cell, verdict_cell
from strobe.perf.report.blocks.kernels import anomaly_notes, clock_notes, device_note, of_cost, ran_at, rate_fields
from strobe.perf.report.findings import Finding
from strobe.perf.report.study import RunStudy, Subject
from strobe.perf.table.fields import Field, beside, count, heads, numeric, rows_of, share_cell, share_of, table_of, time
from strobe.perf.table.model import (
    Axis,
    Block,
    Cell,
    Count,
    Figure,
    Missing,
    Notes,
    Number,
    Plane,
    PlotPoint,
    Ratio,
    Section,
    Table,
    Text,
    Time,
    time_text,
)
from strobe.perf.table.rows import gathered

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
        dtype: of matrix products, where a cost names none.
        clocks: while the trace was taken; None: not sampled.
    """

    costs: Mapping[str, SpanCost] = field(default_factory=dict)
    peaks: DevicePeaks | None = None
    device_name: str = ""
    dtype: str = ""
    clocks: SideClocks | None = None

    def fields(self, found: Callable[[T], Roofline | Cell | None]) -> tuple[Field[T], ...]:
        if not self.costs:
            return ()
        return rate_fields(self.peaks, found, "its cost does not follow from the shapes", clocked=self.clocks is not None)

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.costs:
            return ()
        return device_note(self.device_name, self.peaks), *clock_notes(self.peaks, {"traced clip": ran_at(self.clocks)})

    def of(self, name: str, each_ns: float) -> Roofline | None:
        cost = self.costs.get(name)
        if cost is None or each_ns <= 0:
            return None
        return of_cost(cost, each_ns, self.peaks, self.dtype, self.clocks)


def breakdown_blocks(label: str, found: Breakdown, roofs: Roofs = Roofs()) -> Iterator[Block]:
    """Yield all tables of one trace's breakdown."""
    yield _shares_table(label, found)
    yield stages_table(label, found, roofs)
    if layers_of(found):
        yield layers_table(label, found, roofs)
    yield _gaps_table(label, found)
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
    times = {stage: _stage(found, stage).total_ns / found.stages[stage] for stage in found.stages if found.stages[stage]}
    steps = ((path, found.of((DENOISE_STEP,), path, deep=True)) for path in _paths(found, (DENOISE_STEP,)))
    times |= {path[-1]: own.sum_ns / own.calls for path, own in steps if own.calls}
    against = ((f"{label}, {name}", roofs.of(name, each_ns)) for name, each_ns in times.items())
    yield from anomaly_notes((name, each) for name, each in against if each is not None)


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


def _shares_table(label: str, found: Breakdown) -> Table:
    passes = [stage for stage in PASSES if found.stages.get(stage)]

    def of_pass(at: int) -> Callable[[_Shared], Cell]:
        return lambda row: share(row[1][at].total_ns) if row[1] else Text("")

    share = share_of(found.total_ns, _NOT_FOUND.reason)
    later = "time of the first layer / mean of the others, denoise steps"
    fields: tuple[Field[_Shared], ...] = (
        Field("piece", lambda row: row[0]),
        *(numeric(stage, of_pass(at), "of the whole frame block") for at, stage in enumerate(passes)),
        numeric("of the frame block", lambda row: row[2].total_ns, show=share),
        numeric("idle in it", lambda row: row[2].idle_ns, "nothing ran, before its work could; of the frame block", show=share),
        numeric("first layer / later", lambda row: row[3], later),
    )
    rows: list[_Shared] = []
    for words, path, deep in _rows(found, passes):
        parts = [found.of((stage,), path, deep=deep) for stage in passes]
        name = Text(words, note=NAMES.get(path[-1], ""))
        ratio = _ratio(layers) if (layers := _layers(found, path, deep)) else Missing("not in several layers", "-")
        rows.append((name, parts, sum(parts, Amount()), ratio, len(path) == 1 and deep))
    rest, whole = ([found.of((stage,), (), deep=deep) for stage in passes] for deep in (False, True))
    rows.append((Text("passes / rest"), rest, sum(rest, Amount()), Text(""), False))
    rows.append((Text("all passes"), whole, sum(whole, Amount()), Text(""), True))
    for stage in dict.fromkeys(place.stage for place in found.pieces if place.stage not in passes):
        rows.append((_stage_cell(stage), (), _stage(found, stage), Text(""), False))
    caption = f"Shares of {label}: {found.blocks} traced frame block{'s' if found.blocks > 1 else ''} on {found.device} = 100 %."
    note = "A row with parts is their sum; `rest` is what lies in none of them. Shares of rows without parts, and rests, add up."
    return table_of(caption, fields, rows, strong=lambda row: row[4], notes=(note,))


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


def _ratio(layers: tuple[Amount, Amount, int]) -> Ratio:
    first, later, number = layers
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
    caption = f"Passes and stages of {label}, mean of one call."
    return table_of(caption, fields, rows, strong=lambda row: row[2] is whole, notes=roofs.notes)


def layers_table(label: str, found: Breakdown, roofs: Roofs) -> Table:
    """Build the table of a layer's pieces in the denoise steps: first layer, later layers, and roofline of one call."""
    steps = max(1, found.stages.get(DENOISE_STEP, 0))

    fields: tuple[Field[_Layered], ...] = (
        Field("piece", lambda row: row[0]),
        numeric("calls in a layer", lambda row: row[1]),
        count("kernels" if found.device != "cpu" else "operators", lambda row: round(row[2]), "in a layer, mean"),
        time("first layer", lambda row: row[3][0].total_ns / steps, "µs", "busy and idle, mean over the denoise steps"),
        time("later layers", lambda row: row[3][1].total_ns / steps / row[3][2], "µs", "mean of one"),
        numeric("first / later", lambda row: _ratio(row[3]) if row[3][0].total_ns and row[3][1].total_ns else _NOT_FOUND),
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
    caption, notes = f"A layer of {label}, in the denoise steps.", (note,) if roofs.costs else ()
    return table_of(caption, fields, rows, strong=lambda row: row[5], notes=notes)


def _gaps_table(label: str, found: Breakdown) -> Table:
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
    """Build the table of every piece on both sides: time per call in the denoise steps, and saving in a frame block."""
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
    return table_of(caption, fields, rows, strong=lambda row: row[5], notes=(note,))


_SHOWN: Final = ((E2E, "End to end"), (DENOISE_STEP, "Denoising stage (all denoise steps of a clip)"))


def stages_section(study: RunStudy, findings: Sequence[Finding]) -> Section:
    """Build the section with a figure of every clip, the table of every run, stage averages, and exclusions."""
    blocks: list[Block] = []
    for stage, title in _SHOWN:
        totals = [stage_time(subject.run, subject.name, stage) for subject in study.subjects]
        if not any(ns for own in totals for _, ns, _ in own):
            continue
        table = _runs_table(study, totals, title)
        blocks.append(_runs_figure(study, totals, title, table) if stage == E2E else table)
    rows: list[Sequence[object]] = []
    for stage in STAGES:
        cells = [_average_cell(subject, stage) for subject in study.subjects]
        if not all(isinstance(cell, Missing) for cell in cells):
            rows.append((stage, *cells))
    fields = beside("stage", (subject.label for subject in study.subjects), "ms")
    notes = ("Stages nest: frame_block contains every stage above it but the first text, and e2e contains all of them.",)
    blocks.append(table_of("Stages of a clip, mean over timed clips.", fields, rows, notes=notes))
    blocks += [_speedups(finding) for finding in findings if not isinstance(finding.stages, str)]
    blocks.append(_exclusions(study))
    lead = (
        "Timed clips: no profiler, no synchronisation inside. Variants ran interleaved, so drift of the machine meets them all."
    )
    return Section("stages", "Stages", lead, tuple(blocks))


def _runs_figure(study: RunStudy, totals: Sequence[StageClips], title: str, table: Table) -> Figure:
    marks = [
        PlotPoint(clip.order, ns, subject.series, hollow=clip.phase == "warmup")
        for subject, own in zip(study.subjects, totals, strict=True)
        for clip, ns, _ in own
    ]
    names = tuple(subject.label for subject in study.subjects)
    plane = Plane(Axis("position in the run", whole=True), Axis(title, "ms", True), tuple(marks), series=names)
    text = f"{title}: every clip in the order it ran. Hollow: warm-up."
    return Figure(text, f"{title} of every clip; the table lists the values.", plane, table, table_open=True)


def _runs_table(study: RunStudy, totals: Sequence[StageClips], title: str) -> Table:
    none, digits = Missing("", "-"), max(2, len(str(max(map(len, totals)))))
    every = ((Time(ns, "warm-up" if clip.phase == "warmup" else "") if ns else none for clip, ns, _ in own) for own in totals)
    runs = enumerate(zip_longest(*every, fillvalue=none), start=1)
    rows: list[Sequence[object]] = [(f"run_{number:0{digits}d}", *cells) for number, cells in runs]
    averages = (
        ("avg_all_rounds", *map(_mean, totals)),
        ("avg_excl_warmup", *(_mean(each for each in own if each[0].phase != "warmup") for own in totals)),
    )
    fields = beside("run", (subject.label for subject in study.subjects), "ms")
    caption = f"{title}, every clip of every variant in the order it ran."
    return table_of(caption, fields, [*rows, *averages], strong=lambda row: row in averages)


def _mean(own: Iterable[tuple[Clip, int, int]]) -> Cell:
    measured = [ns for _, ns, _ in own if ns]
    return Time(statistics.fmean(measured)) if measured else Missing("no finished clip", "-")


def _average_cell(subject: Subject, stage: str) -> Cell:
    timed = [each for each in stage_time(subject.run, subject.name, stage) if each[2] and each[0].phase != "warmup"]
    if not timed:
        return Missing("", "-")
    ns, calls = statistics.fmean(ns for _, ns, _ in timed), statistics.fmean(calls for *_, calls in timed)
    return Time(ns, f"{calls:g} calls" if calls != 1 else "1 call")


def _speedups(finding: Finding) -> Table:
    assert not isinstance(finding.stages, str)
    labels = (finding.reference.label, finding.candidate.label)

    fields: tuple[Field[Comparison], ...] = (
        Field("stage", lambda item: f"{item.stage}, one call" if item.per_call else item.stage),
        time(labels[0], lambda item: item.mean_ns[0]),
        time(labels[1], lambda item: item.mean_ns[1]),
        numeric("speedup", lambda item: item.cell),
        Field("verdict", lambda item: verdict_cell(item.verdict)),
    )
    caption = f"{labels[1]} against {labels[0]}, stage by stage, per clip unless one call is said."
    return table_of(caption, fields, finding.stages, collapsed=True)


def _exclusions(study: RunStudy) -> Block:
    said = list[tuple[str, str]]()
    for subject in study.subjects:
        warm = (clip for clip in subject.run.clips if clip.variant == subject.name and clip.phase == "warmup")
        left_out = [("clip", (clip.clip, "warm-up")) for clip in warm]
        for line in (each for each in subject.run.excluded if each.variant == subject.name):
            where = line.span if line.clip is None else f"{line.span} in clip {line.clip}"
            left_out += [(where, (index, line.cause)) for index in line.indices]
        for where, causes in gathered(left_out).items():
            said.append((f"{where} {excluded_text(sorted(set(causes)))}", subject.label))
    notes = tuple(
        f"Excluded from averages and ratios, {', '.join(labels)}: {text}. Clips count from 0: clip 0 is run_01."
        for text, labels in gathered(said).items()
    )
    return Notes(notes or ("Nothing was excluded.",))


def excluded_text(causes: Sequence[tuple[int, str]]) -> str:
    """Format exclusions as `0 (first block), 1-2 (cache not full)`; neighbours with the same cause become one range."""
    alike = ((cause, stretches(index for index, _ in group)) for cause, group in groupby(causes, key=lambda each: each[1]))
    return ", ".join(f"{each} ({cause})" for cause, found in alike for each in found) or "none"


_NO_STEADY: Final = Missing("no steady frame blocks")


def _time(ns: float | None) -> Cell:
    """Return the time of a frame block or of a part of it; 0 of a part that was not timed by itself: none takes no time."""
    return _NO_STEADY if ns is None else Time(ns) if ns else Missing("not timed by itself in these clips")


def _rate(value: float | None) -> Cell:
    return _NO_STEADY if value is None else Number(value, 2, "FPS")


def _joules(value: float | None) -> Cell:
    return Missing("no GPU whose power was read") if value is None else Number(value, 1, "J")


_ROWS: Final[tuple[tuple[str, Callable[[Latencies], Cell]], ...]] = (
    ("first frames handed over, from the call (median)", lambda found: Time(found.first_frame_ns)),
    ("steady frame block, streamed with VAE: mean", lambda found: _time(found.mean_ns)),
    (
        "steady frame block, streamed with VAE: p50",
        lambda found: _time(percentile(found.blocks_ns, 0.5) if found.blocks_ns else None),
    ),
    (
        "steady frame block, streamed with VAE: slow end",
        lambda found: tail_cell(found.blocks_ns) if found.blocks_ns else _time(None),
    ),
    ("denoise steps and commit alone, in a steady block", lambda found: _time(found.dit_block_ns)),
    ("VAE decode alone, in a steady block", lambda found: _time(found.decode_block_ns)),
    ("between latent frames (steady block / latent frames in it)", lambda found: _time(found.inter_latent_ns)),
    ("between pixel frames (steady block / pixel frames in it)", lambda found: _time(found.inter_frame_ns)),
    ("pixel FPS, steady, with VAE", lambda found: _rate(found.pixel_fps)),
    ("latent FPS, steady, with VAE", lambda found: _rate(found.latent_fps)),
    ("frames stalled at the playback rate, one frame block ahead", lambda found: Number(found.stalled_frames, 0, "frames")),
    ("pixel FPS of the whole clip, start and switches included", lambda found: _rate(found.clip_pixel_fps)),
)
_ENERGY: Final[tuple[tuple[str, Callable[[Latencies], Cell]], ...]] = (
    ("energy of the GPU, a frame block (clip / frame blocks)", lambda found: _joules(found.block_joules)),
    ("energy of the GPU, a second of video", lambda found: _joules(found.video_second_joules)),
)
"""Rows of runs that read the power of a GPU."""


def latency_section(study: RunStudy, found: Mapping[str, Latencies | str]) -> Section:
    """Build the section with latencies, prompt switches, and the frame blocks left out."""
    lead = (
        "A frame block lasts from the delivery of the one before to its own, decoding included. Pixel frames and latent frames "
        "are counted apart; both are named."
    )
    kinds = dict.fromkeys(
        (switch.frame_block, switch.mode) for value in found.values() if not isinstance(value, str) for switch in value.switches
    )
    fields = beside("", (subject.label for subject in study.subjects), numeric=True)
    rows = [(f"switch at frame block {at} ({mode})", *_cells(study, found, partial(_switch, at))) for at, mode in kinds]
    note = "First frame block under the new prompt minus the block before it, median over clips."
    switches = table_of("Extra time of a prompt switch.", fields, rows, notes=(note,))
    values = ((subject.label, found[subject.label]) for subject in study.subjects)
    kept = gathered(("; ".join(_steady(value)), label) for label, value in values if not isinstance(value, str))
    notes = Notes(tuple(f"{', '.join(labels)}: {text}." for text, labels in kept.items()))
    blocks = (_table(study, found), *((switches,) if rows else ()), notes)
    return Section("latency", "Latencies as a user means them", lead, blocks)


def _cells(study: RunStudy, found: Mapping[str, Latencies | str], cell: Callable[[Latencies], Cell]) -> tuple[Cell, ...]:
    values = (found[subject.label] for subject in study.subjects)
    return tuple(Missing(value) if isinstance(value, str) else cell(value) for value in values)


def _table(study: RunStudy, found: Mapping[str, Latencies | str]) -> Table:
    fields = beside("", (subject.label for subject in study.subjects), numeric=True)
    known = any(not isinstance(each, str) and each.block_joules is not None for each in found.values())
    rows = [(name, *_cells(study, found, cell)) for name, cell in (*_ROWS, *(_ENERGY if known else ()))]
    rates = sorted({run.header.workload.fps for run in study.runs if run.header.workload})
    stalls = "A frame block stalls it that takes longer than the one before plays; the clip that stalls most counts."
    notes = tuple(f"Playback needs {rate} pixel frames per second. {stalls}" for rate in rates)
    return table_of("Latencies and rates over the timed clips.", fields, rows, notes=notes)


def _switch(at: int, found: Latencies) -> Cell:
    for switch in found.switches:
        if switch.frame_block == at:
            return Time(switch.extra_ns, f"{time_text(switch.after_ns)} after, {time_text(switch.before_ns)} before")
    return Missing("no such switch", "-")


def _steady(found: Latencies) -> Iterator[str]:
    steady = found.steady
    yield f"{len(steady.kept)} frame blocks of {found.num_clips} clips {'are steady' if steady.tested else 'are kept'}"
    yield f"excluded frame blocks: {excluded_text([*steady.excluded.items()])}"
    yield from (*filter(None, (steady.note,)), *outliers(found.blocks_ns, "frame blocks"))


_PICTURES: Final = 2
_FIRST: Final = ("prompt_accuracy", "psnr")
_SAME: Final = 0.005
"""Relative difference below which values count as equal in a picture."""
_NO_REFERENCE: Final = "no reference needed"
_Point: TypeAlias = tuple[Subject, float, Quality]
"""A variant, the time of its steady frame block (ns), and its score; no value: its pictures equal the reference's."""


def quality_section(study: RunStudy, found: Mapping[str, Latencies | str]) -> Section:
    """Build the section with the table of all metrics, and a plot of those that at least two variants have."""
    if not any(run.quality for run in study.runs):
        return Section("quality", "Quality against latency", "Not measured: these records hold no quality numbers.", ())
    every = ((subject, line) for subject in study.subjects for line in subject.run.quality)
    values = {(subject.label, line.metric): line for subject, line in every if line.variant == subject.name}
    labels = [subject.label for subject in study.subjects]
    blocks: list[Block] = [quality_table(labels, values, "Quality of each variant.")]
    metrics = dict.fromkeys(metric for _, metric in values)
    ranked = sorted(metrics, key=lambda metric: _FIRST.index(metric) if metric in _FIRST else len(_FIRST))
    pictures = (_picture(metric, list(_points(study, metric, values, found))) for metric in ranked)
    blocks += islice(filter(None, pictures), _PICTURES)
    lead = (
        "Fidelity numbers compare pixels with a named reference made from the same noise. They say how far a variant moved, not "
        "whether it looks worse."
    )
    return Section("quality", "Quality against latency", lead, tuple(blocks))


def _digits(values: list[float]) -> int:
    """Return the decimals that show a row's largest value with four significant digits: at least two, at most six."""
    largest = max((abs(value) for value in values), default=1.0)
    return min(6, max(2, 3 - math.floor(math.log10(largest)))) if largest else 2


def _cell(line: Quality | None, digits: int) -> Cell:
    if line is None:
        return Missing("not in the records")
    against = f"against {line.reference}" if line.reference else _NO_REFERENCE
    if line.value is None:
        return Missing(f"{line.note or 'no reason given'}; {against}", "no value" if line.n else "not measured")
    return Number(line.value, digits, line.unit, f"{against}, n = {line.n}{'; ' + line.note if line.note else ''}")


def quality_table(labels: Sequence[str], values: Mapping[tuple[str, str], Quality], caption: str) -> Table:
    """Build the table with one row per metric and one column per variant, of values by label and metric."""
    rows: list[Sequence[object]] = []
    notes: list[str] = []
    for metric in dict.fromkeys(metric for _, metric in values):
        lines = [values.get((label, metric)) for label in labels]
        known = [line for line in lines if line is not None]
        digits = _digits([line.value for line in known if line.value is not None])
        rows.append((metric, *(_cell(line, digits) for line in lines), known[0].better))
        notes += [f"{metric}: {definition}" for definition in dict.fromkeys(line.definition for line in known)]
    name, *columns = beside("metric", labels, numeric=True)
    return table_of(caption, (name, Field("better", lambda row: row[-1]), *columns), rows, notes=notes)


def _points(
    study: RunStudy, metric: str, values: Mapping[tuple[str, str], Quality], found: Mapping[str, Latencies | str]
) -> Iterator[_Point]:
    for subject in study.subjects:
        line, own = values.get((subject.label, metric)), found[subject.label]
        told = line is not None and (line.value is not None or (line.n > 0 and line.reference))
        if line is not None and told and not isinstance(own, str) and own.mean_ns is not None:
            yield subject, own.mean_ns, line


def _picture(metric: str, points: Sequence[_Point]) -> Figure | None:
    """Plot one metric against latency; None if it is the same everywhere."""
    lines = [line for *_, line in points]
    finite = [line.value for line in lines if line.value is not None]
    if not finite or (len(finite) == len(lines) and max(finite) - min(finite) <= _SAME * max(map(abs, finite))):
        return None
    digits = _digits(finite)
    fields: tuple[Field[_Point], ...] = (
        Field("variant", lambda row: row[0].label),
        numeric("steady frame block, mean", lambda row: Number(row[1] / 1e6, 2, "ms")),
        numeric(metric, lambda row: _cell(row[2], digits)),
    )
    direction = {"higher": "up", "lower": "down", "neither": "neither way"}[lines[0].better]
    y = Axis(metric, "dB") if lines[0].unit == "dB" else Axis(metric)
    title = f"{metric} against the time of a steady frame block. Faster is left, better is {direction}."
    if any(line.value is None for line in lines):
        title += " An arrow at the upper edge: the frames equal the reference's, and the metric has no finite value."
    marks = tuple(
        PlotPoint(latency, line.value or 0.0, subject.series, subject.label, above=line.value is None)
        for subject, latency, line in points
    )
    plane = Plane(Axis("steady frame block, mean", "ms", True), y, marks)
    table = table_of(f"{metric} and latency.", fields, points)
    return Figure(title, f"{metric} against latency, one point per variant.", plane, table)
