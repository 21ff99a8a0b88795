"""The pages of runs of a model: of one or several of streams, and of one of forward passes over a whole clip."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final, TypeAlias

import msgspec

from strobe.core.costs import DevicePeaks, device_peaks
from strobe.core.errors import DataError
from strobe.core.printable import bytes_in
from strobe.core.spans import (
    ATTENTION,
    ATTENTION_KERNEL,
    ATTENTION_OPERATOR,
    CROSS_ATTENTION,
    DENOISE_STEP,
    E2E,
    FFN,
    FRAME_BLOCK,
    PIECES,
)
from strobe.perf.analysis.device.roofline import Roofline
from strobe.perf.analysis.ledger.account import LEVEL_WORDS, Ledger, LevelSum, is_attention_kernel
from strobe.perf.analysis.runs.breakdown import Breakdown, breakdown, cost_in_blocks
from strobe.perf.analysis.runs.compare import (
    Comparison,
    LongClip,
    SideClocks,
    compare_unpaired,
    growths_of,
    latencies,
    side_clocks,
    stage_time,
    timed_clips,
)
from strobe.perf.analysis.runs.timeline import GAP, Label, Slice, block_slices
from strobe.perf.measure.stats import FLOOR, percentile
from strobe.perf.records.record import Variant
from strobe.perf.records.store import RunRecords
from strobe.perf.report.blocks.answer import ANSWER, answer_sections, ledger_blocks, level_ratio, no_account, speedups
from strobe.perf.report.blocks.breakdown import (
    LEAD,
    Roofs,
    breakdown_blocks,
    gains_table,
    latency_section,
    quality_section,
    quality_table,
    stages_section,
)
from strobe.perf.report.blocks.fields import (
    clips_section,
    notes_section,
    page,
    pair_fields,
    run_facts,
    section_of,
    speedup_headline,
    verdict_cell,
)
from strobe.perf.report.blocks.kernels import (
    IDLE_KINDS,
    Piece,
    anomaly_notes,
    attention_sections,
    class_table,
    clock_notes,
    device_note,
    draw_lanes,
    extents,
    merged,
    of_cost,
    peaks_section,
    ran_at,
    rate_fields,
    run_kernels,
)
from strobe.perf.report.blocks.settings import banners, differences, settings_section, timed_facts
from strobe.perf.report.findings import Finding, find, find_latencies
from strobe.perf.report.study import Profile, RunStudy, Subject, only_pair, or_reason
from strobe.perf.table.fields import Field, beside, count, numeric, table_of, time
from strobe.perf.table.model import (
    Axis,
    Block,
    Cell,
    Code,
    ExactTime,
    Fact,
    Figure,
    Headline,
    Headlines,
    Kind,
    Missing,
    Notes,
    Number,
    Plane,
    PlotPoint,
    Ratio,
    Report,
    Section,
    Share,
    Table,
    Text,
    Time,
    Whisker,
    Whiskers,
    bytes_cell,
)

_UNITS: Final = {True: "pairs of clips", False: "traced frame blocks"}
_UNJUDGED: Final = Text("not judged", "muted", note="a level inside a pass; its interval says how sure it is")
HEADLINE: Final = "headline"
MAX_REALISED: Final = 10
"""Largest saving of a level, in multiples of the kernel's, that is still attributed to the kernel."""


def _headline_section(study: RunStudy, findings: Sequence[Finding]) -> Section:
    if not findings:
        lead = "These records hold no candidate beside the reference: nothing is compared."
        return Section(HEADLINE, "Headline", lead, ())
    references = list(dict.fromkeys(finding.reference.label for finding in findings))
    lead = (
        "End to end is one clip: from the call to the last pixel frame handed over. The speedup is reference time over candidate "
        "time, the median over mirrored pairs; above 1 the candidate is faster."
    )
    headlines = Headlines(" or ".join(references), tuple(_headline(finding) for finding in findings), _headline_table(findings))
    blocks: list[Block] = [headlines]
    if len(study.runs) > 1 and not differences(study):
        blocks.append(_between_runs(study))
    return Section(HEADLINE, "Headline", lead, tuple(blocks))


def _headline(finding: Finding) -> Headline:
    e2e, candidate = finding.e2e, finding.candidate
    if e2e is None:
        reason = _no_speedup(finding)
        return Headline(candidate.label, candidate.series, Missing(reason), Text("not measured", "muted"), reason)
    return speedup_headline(candidate.label, candidate.series, e2e)


def _headline_table(findings: Sequence[Finding]) -> Table:
    fields: tuple[Field[Finding], ...] = (
        Field("candidate", lambda each: each.candidate.label),
        Field("reference", lambda each: each.reference.label),
        *pair_fields(lambda each: each.e2e or Missing(_no_speedup(each))),
    )
    notes = (
        "Interval: t on the logarithms of the pair ratios. A verdict needs the interval to exclude 1 and the difference to "
        "exceed 1 %.",
    )
    return table_of("End-to-end speedup.", fields, findings, notes=notes)


def _no_speedup(finding: Finding) -> str:
    return finding.stages if isinstance(finding.stages, str) else "no end-to-end times"


def _between_runs(study: RunStudy) -> Table:
    """Build the table of a variant in the first run against later runs; unpaired, so drift is unknown."""
    first, own = study.runs[0], {variant.name for variant in study.runs[0].variants}
    ratio = f"time in {first.header.run} / time in run"
    rows = [
        (variant.name, run.header.run, or_reason(compare_unpaired, first, run, E2E, variant=variant.name))
        for run in study.runs[1:]
        for variant in run.variants
        if variant.name in own
    ]
    fields: tuple[Field[tuple[str, str, Comparison | str]], ...] = (
        Field("variant", lambda row: row[0]),
        Field("run", lambda row: row[1]),
        numeric(ratio, lambda row: Missing(row[2]) if isinstance(row[2], str) else row[2].cell),
        Field("verdict", lambda row: "" if isinstance(row[2], str) else verdict_cell(row[2].verdict)),
    )
    notes = ("Unpaired: taken at different times, drift between the runs is unknown. Welch's t on logarithms.",)
    return table_of("The same variant in different runs, end to end.", fields, rows, notes=notes)


def _account_sections(findings: Sequence[Finding]) -> Iterator[Section]:
    """Yield the section with the chain of levels, and that with the whole accounts."""
    told = [(finding, finding.ledger) for finding in findings if isinstance(finding.ledger, Ledger)]
    lead = (
        "A faster kernel is diluted on the way up: each level contains the one before it. All levels compare the time for the "
        "same frame blocks, so fewer denoise steps count as time saved."
    )
    figure = (_chain_figure(told),) if told else ()
    yield Section("chain", "From the kernel to end to end", lead, (*figure, *no_account(findings, "No chain for {}")))
    lead = (
        "Every line is a place where time was spent, and what happened there. What the candidate saves end to end is the sum of "
        "what each line saves, to the nanosecond."
    )
    blocks = [block for each, ledger in told for block in ledger_blocks(each, ledger)]
    yield Section("ledger", "The whole account, line by line", lead, (*blocks, *no_account(findings, "No ledger for {}")))


_ChainRow: TypeAlias = tuple[Finding, Ledger, LevelSum, tuple[Cell, Comparison | None], Cell]
"""A candidate, its account, one level of it with its speedup and the timed comparison behind that, and how much is realised."""


def _chain_figure(told: Sequence[tuple[Finding, Ledger]]) -> Block:
    lost = Missing("a trace lacks the spans of this level", "-")
    no_time = Missing("no time at this level", "-")

    def ns(head: str, get: Callable[[LevelSum], Fraction]) -> Field[_ChainRow]:
        return Field(head, lambda row: ExactTime(int(get(row[2]))) if row[2].ratio else lost, unit="ms")

    def source(row: _ChainRow) -> str:
        _, ledger, level, (_, timed), _ = row
        return f"{len(timed.ratios)} pairs of clips" if timed else f"{len(level.tiles[0])} {_UNITS[bool(ledger.intervals.lines)]}"

    fields: tuple[Field[_ChainRow], ...] = (
        Field("candidate", lambda row: row[0].candidate.label),
        Field("level", lambda row: LEVEL_WORDS[row[2].level]),
        numeric("speedup", lambda row: row[3][0]),
        Field("verdict", lambda row: verdict_cell(row[3][1].verdict) if row[3][1] else _UNJUDGED),
        Field("from", source),
        ns("reference", lambda level: level.baseline_ns),
        ns("candidate", lambda level: level.candidate_ns),
        ns("saved", lambda level: level.saved_ns),
        numeric("realised", lambda row: row[4], "saving of this level / saving of the attention kernel alone"),
    )
    notes = (
        "Times are the account's: sums over the paired clips. The speedups of step, block and e2e are medians of pair ratios "
        "over whole clips: they need not equal the ratio of the times.",
        "Kernel and section, on a GPU: of steady frame blocks of one traced clip each, traced at different times; the interval "
        "is a t over these frame blocks, and drift between the clips is unknown. On a CPU: of the timed clips, paired.",
        f"Realised: above 100 % more than the attention kernel became faster; negative: it became slower. Not shown where the "
        f"kernel changed by less than {100 * FLOOR:.0f} %, or by less than a tenth of what the level saved: other lines did it.",
    )
    rows: list[_ChainRow] = [
        (finding, ledger, level, level_ratio(finding, level) or (no_time, None), _realised(ledger, level))
        for finding, ledger in told
        for level in ledger.levels
    ]
    table, whiskers = table_of("Speedup and saving by level.", fields, rows, notes=notes), list[Whisker]()
    for finding, _, level, (ratio, _), realised in rows:
        if isinstance(ratio, Ratio):
            share = f"{100 * realised.value:.0f} % realised" if isinstance(realised, Share) and level.level != "kernel" else ""
            group = f"{finding.candidate.label} against {finding.reference.label}"
            whiskers.append(Whisker(LEVEL_WORDS[level.level], ratio, group, share, finding.candidate.series))
    if not whiskers:
        return table
    references = " or ".join(dict.fromkeys(finding.reference.label for finding, _ in told))
    title = "Speedup at each level with its 95 % interval, and how much of the attention kernel's saving is realised there."
    return Figure(title, "Speedups by level; the table says the same.", Whiskers(references, tuple(whiskers)), table)


def _realised(ledger: Ledger, level: LevelSum) -> Cell:
    """Return the level's saving / the kernel's saving in the same frame blocks and passes, or why there is none."""
    inside = level.level in ("kernel", "section", "step")
    kernel = ledger.levels[0].saved_ns if inside else ledger.kernel_saved_ns
    ratio = ledger.levels[0].ratio
    if level.ratio is None or ratio is None:
        return Missing("a trace does not show the attention kernel", "-")
    if kernel <= 0:
        return Missing("the attention kernel saved nothing", "-")
    if abs(ratio - 1) < FLOOR:
        return Missing(f"the attention kernel changed by less than {100 * FLOOR:.0f} %", "-")
    if abs(level.saved_ns) > MAX_REALISED * kernel:
        return Missing(f"the attention kernel saved {100 * float(kernel / abs(level.saved_ns)):.1f} % as much", "-")
    return Share(float(level.saved_ns / kernel))


def breakdown_section(study: RunStudy) -> Section | None:
    """Build the section with the breakdown of every subject whose trace marks pieces; None if there is none."""
    blocks, found = list[Block](), dict[str, Breakdown]()
    for subject in study.subjects:
        label, profile = subject.label, subject.profile
        if not isinstance(profile, Profile) or PIECES.keys().isdisjoint(profile.record.regions):
            continue
        own = or_reason(breakdown, profile.trace, profile.passes)
        if isinstance(own, str):
            blocks.append(Notes((f"{label}: {own}",)))
        else:
            found[label] = own
            blocks += breakdown_blocks(label, own, _roofs(subject))
    for labels in ((reference.label, candidate.label) for reference, candidate in study.pairs):
        if found.keys() >= set(labels):
            blocks.append(gains_table(labels, found[labels[0]], found[labels[1]]))
    return section_of("breakdown", "Breakdown", LEAD, blocks)


def _roofs(subject: Subject) -> Roofs:
    name = subject.run.header.machine.device_name
    assert isinstance(subject.profile, Profile)
    traced = subject.profile.partition.indices
    costs = {cost.span: cost_in_blocks(cost, subject.settings, traced) for cost in subject.settings.costs}
    clocks = side_clocks(subject.run, subject.name)
    return Roofs(costs=costs, peaks=device_peaks(name), device_name=name, dtype=subject.settings.dtype, clocks=clocks)


_POINTS: Final = 100
"""Most points of a picture; each stands for the same number of frame blocks."""
_WORDS: Final = {
    "median": "frame block, median",
    "max": "frame block, max",
    "allocated": "GPU memory in tensors, most",
    "reserved": "GPU memory held by the allocator, most",
    "resident": "resident set on the host, most",
}


def _growth_section(study: RunStudy) -> Section | None:
    blocks: list[Block] = []
    for found in (clip for run in study.runs for clip in growths_of(run)):
        blocks += (_verdict(found), _times_figure(found), *_memory_figure(found))
    lead = "The last frame blocks of a long clip against the first, after the cache was full."
    return section_of("growth", "First against last", lead, blocks)


def _verdict(found: LongClip) -> Table:
    part = len(found.first)
    words = (f"first {part}", f"last {part}", "change", "may grow by")
    holds: Field[Sequence[object]] = Field("holds", lambda row: row[-1])
    rows: list[Sequence[object]] = [
        (_WORDS[each.what], Time(each.first), Time(each.last), Share(each.growth / each.first), Share(each.may_grow / each.first))
        for each in found.times
    ]
    for each in found.held:
        sizes = bytes_cell(each.first, "GiB", 3), bytes_cell(each.last, "GiB", 3)
        rows.append((_WORDS[each.what], *sizes, bytes_cell(each.growth, "MiB", 2), bytes_cell(each.may_grow, "MiB", 0)))
    judged = [Text("yes", "good") if each.holds else Text("NO", "bad") for each in (*found.times, *found.held)]
    rows = [(*row, said) for row, said in zip(rows, judged, strict=True)]
    drift: Cell = Missing("fewer than 100 frame blocks", "-") if found.drift is None else Share(found.drift)
    rows.append(("drift of a frame block over 1,000", "", "", drift, "", Text("told, not judged", "muted")))
    note = (
        f"Frame blocks {found.first[0]} to {found.first[-1]} against {found.last[0]} to {found.last[-1]}, those that a prompt "
        f"switch made longer left out; the {found.settled} before fill the cache, and compile and capture. Drift: median of the "
        "slopes between any two."
    )
    fields = (*beside("figure", words, numeric=True), holds)
    return table_of(f"{found.variant}: the first frame blocks against the last.", fields, rows, notes=(note,))


def _buckets(count: int) -> list[range]:
    size = max(1, -(-count // _POINTS))
    return [range(start, min(count, start + size)) for start in range(0, count, size)]


def _times_figure(found: LongClip) -> Figure:
    whole = len(found.blocks_ns)
    buckets = [bucket for bucket in _buckets(whole) if bucket.stop > found.settled] or [range(whole)]
    timed = (sorted(found.blocks_ns[at] for at in bucket if at >= found.settled) for bucket in buckets)
    values, size = [(percentile(own, 0.5), own[-1]) for own in timed], len(buckets[0])
    marks = [PlotPoint(bucket.stop - 1, ns, at) for bucket, own in zip(buckets, values, strict=True) for at, ns in enumerate(own)]
    shown, series = (marks, ("median", "max")) if size > 1 else (marks[::2], ("frame block",))
    to_a_point = f", {size} to a point" if size > 1 else ""
    title = f"{found.variant}: length of a frame block over the clip{to_a_point}, from number {found.settled} on."
    fields = beside("frame blocks", ("median", "max"), "ms", show=Time)
    return _over_clip(title, Axis("length", "ms", True), shown, series, table_of("The points.", fields, _spans(buckets, values)))


def _over_clip(title: str, y: Axis, marks: Sequence[PlotPoint], series: tuple[str, ...], table: Table) -> Figure:
    plane = Plane(Axis("frame block", whole=True), y, tuple(marks), series=series)
    return Figure(title, "Points over the clip; the table says the same.", plane, table)


def _spans(buckets: Sequence[range], values: Sequence[Sequence[float]]) -> list[tuple[object, ...]]:
    names = (str(each.start) if len(each) == 1 else f"{each.start} to {each.stop - 1}" for each in buckets)
    return [(name, *own) for name, own in zip(names, values, strict=True)]


def _memory_figure(found: LongClip) -> list[Figure]:
    kinds, buckets = [each.what for each in found.held], _buckets(len(found.memory))
    if not kinds:
        return []
    held = [[max(getattr(found.memory[at], f"{kind}_bytes") or 0 for at in bucket) for kind in kinds] for bucket in buckets]
    points = ((bucket.stop - 1, at, most) for bucket, own in zip(buckets, held, strict=True) for at, most in enumerate(own))
    marks = [PlotPoint(x, bytes_in(most, "GiB"), at) for x, at, most in points]
    series = tuple(_WORDS[kind] for kind in kinds)
    most_of = f", the most of {len(buckets[0])}" if len(buckets[0]) > 1 else ""
    title = f"{found.variant}: memory held after a frame block{most_of}."
    fields = beside("frame blocks", series, numeric=True, show=lambda most: bytes_cell(most, "GiB", 3))
    return [_over_clip(title, Axis("GiB", from_zero=True), marks, series, table_of("The points.", fields, _spans(buckets, held)))]


_TRACED = "traced"
_Measured: TypeAlias = tuple[str, int, float, str, Roofline]
"""Stage, its calls, their mean time, how it was measured, and its roofline."""


def _roofline_section(study: RunStudy) -> Section | None:
    blocks: list[Block] = []
    for subject in study.subjects:
        name = subject.run.header.machine.device_name
        peaks, clocks = device_peaks(name), side_clocks(subject.run, subject.name)
        fields: tuple[Field[_Measured], ...] = (
            Field("stage", lambda row: row[0], Code),
            Field("how", lambda row: Text(row[3], "muted")),
            count("n", lambda row: row[1]),
            time("mean", lambda row: row[2]),
            *rate_fields(peaks, lambda row: row[4], clocked=clocks is not None),
        )
        rows = tuple(_rows(subject, peaks, clocks))
        if rows:
            ran = clock_notes(peaks, {subject.label: ran_at(clocks)})
            notes = (device_note(name, peaks), *ran, *anomaly_notes((row[0], row[4]) for row in rows))
            blocks.append(table_of(f"{subject.label}: steady stages, {subject.settings.dtype}.", fields, rows, notes=notes))
    note = "FLOPs and bytes follow from the shapes, not from counters: what a stage must compute, and the least it must move."
    lead = "How far each stage is from the best that the device could do. A rate above a peak is an error in it, and flagged."
    return peaks_section([*blocks, Notes((note,))] if blocks else (), lead)


def _rows(subject: Subject, peaks: DevicePeaks | None, clocks: SideClocks | None) -> Iterator[_Measured]:
    for full in subject.settings.costs:
        cost, measured = full, _measured(subject, full.span)
        if measured is None:
            continue
        calls, mean, where = measured
        if where == _TRACED and isinstance(subject.profile, Profile):
            cost = cost_in_blocks(cost, subject.settings, subject.profile.partition.indices)
        yield cost.span, calls, mean, where, of_cost(cost, mean, peaks, subject.settings.dtype, clocks)


def _measured(subject: Subject, name: str) -> tuple[int, float, str] | None:
    """Return calls and mean time (ns) of a region and how it was measured: timed in steady blocks, or traced inside a pass."""
    times = _steady_ns(subject.run, subject.settings, name)
    if times:
        return len(times), statistics.fmean(times), "timed"
    if name == ATTENTION_KERNEL and isinstance(subject.profile, Profile):
        prompts = () if subject.run.header.workload is None else subject.run.header.workload.prompts
        if any(prompt.frame_block in subject.profile.partition.indices for prompt in prompts if prompt.frame_block):
            return None  # the pass over the whole window after a prompt switch has another cost
        extent = extents(subject.profile).get(name)
        if extent is not None and extent[1]:
            return extent[0].calls, extent[1] / extent[0].calls, _TRACED
    return None


def _steady_ns(run: RunRecords, variant: Variant, name: str) -> list[int]:
    try:
        steady = latencies(run, variant.name).steady.kept
    except DataError:
        return []
    orders = {clip.order for clip in timed_clips(run) if clip.variant == variant.name}
    blocks = {*steady, None}  # None: on another thread
    return [span.value_ns for span in run.spans if span.name == name and span.order in orders and span.parent in blocks]


_KERNEL: Final = Kind("attention kernel", "focal")
_WORK: Final = (
    (ATTENTION, Kind("attention section, other work", "work1")), (FFN, Kind("feed-forward", "work2")),
    (CROSS_ATTENTION, Kind("cross-attention", "work3")),
)  # fmt: skip
_OTHER: Final = Kind("other work", "work4")
_GAPS: Final = {GAP: Kind("no operator runs (Python, framework)", "gap1"), **IDLE_KINDS}
_KINDS: Final = (_KERNEL, *(kind for _, kind in _WORK), _OTHER, *_GAPS.values())


def _kind_of(label: Label) -> Kind:
    if label.activity in _GAPS:
        return _GAPS[label.activity]
    if is_attention_kernel(label):
        return _KERNEL
    return next((kind for name, kind in _WORK if name in label.path), _OTHER)


def _timeline_section(study: RunStudy) -> Section:
    title = "One denoise step, before and after"
    steps = [
        (subject, found)
        for subject in study.subjects
        if isinstance(subject.profile, Profile) and (found := _step(subject.profile)) is not None
    ]
    if not steps:
        return Section("timeline", title, "No picture: no variant has a traced denoise step.", ())
    lead = (
        "The first denoise step of the last traced frame block of each variant, each from its own start. "
        "Traced, so longer than a timed step."
    )
    return Section("timeline", title, lead, (_figure(steps),))


def _step(profile: Profile) -> list[Piece] | None:
    """Return the slices of the first denoise step in the last traced frame block, from 0; None if there is none."""
    block = profile.partition.indices[-1]
    host = next(region for region in profile.trace.regions if region.name == FRAME_BLOCK and region.index == block)
    spans = sorted(
        (region.start_ns, region.end_ns)
        for region in profile.trace.regions
        if region.thread == host.thread and host.start_ns <= region.start_ns < host.end_ns and region.name == DENOISE_STEP
    )
    if not spans:
        return None
    start, end = spans[0]
    slices = list(block_slices(profile.timeline, block))
    if profile.partition.device != "cpu":
        start, end = _on_device(profile, slices, start, end)
    return merged(_cut(slices, start, end))


def _on_device(profile: Profile, slices: Sequence[Slice], start: int, end: int) -> tuple[int, int]:
    """Map a host range to the device: from the first event launched in it to the first one launched after it."""
    events = ((piece, profile.trace.device_events[piece.event].host) for piece in slices if piece.event is not None)
    launched = [(host.start_ns, piece.start_ns) for piece, host in events if host is not None]
    inside = [at for host, at in launched if start <= host < end]
    after = [at for host, at in launched if host >= end]
    first = min(inside, default=slices[0].start_ns)
    return first, max(first + 1, min(after, default=slices[-1].end_ns))


def _cut(slices: Sequence[Slice], start: int, end: int) -> Iterator[Piece]:
    for piece in slices:
        left, right = max(piece.start_ns, start), min(piece.end_ns, end)
        if left < right:
            kind = _kind_of(piece.label)
            yield Piece(left - start, right - start, piece.name or kind.label, kind)


def _figure(steps: Sequence[tuple[Subject, list[Piece]]]) -> Figure:
    lanes = [(subject.label, subject.series, pieces) for subject, pieces in steps]
    assert all(before[1] == after[0] for _, pieces in steps for before, after in pairwise(pieces)), "slices do not tile the step"
    picture = draw_lanes(lanes, _KINDS, _KERNEL)
    title = "What ran in the step (solid) and where nothing did (hatched), on one axis. The attention kernel stands out."
    table = class_table(lanes, picture, "Time of the step by class", "the step")
    return Figure(title, "Timeline of one denoise step per variant; the table gives the sums.", picture, table)


_OPEN: Final = (ANSWER, HEADLINE)
"""Sections that are not folded."""
_NAMED: Final = 3
"""Most candidates that a title names."""


def run_report(study: RunStudy, allow_different: Sequence[str] = ()) -> tuple[Report, tuple[Finding, ...]]:
    """Build the page of streams, and return it with its findings: each candidate against its reference."""
    findings, found_latencies = find(study, allow_different), find_latencies(study)
    first, others = answer_sections(findings)
    sections = (
        first,
        _headline_section(study, findings),
        others,
        clips_section(study),
        latency_section(study, found_latencies),
        quality_section(study, found_latencies),
        *(_account_sections(findings) if findings else ()),
        _timeline_section(study),
        *attention_sections(study),
        breakdown_section(study),
        run_kernels(study),
        stages_section(study, findings),
        _growth_section(study),
        _roofline_section(study),
        settings_section(study),
        notes_section(study),
    )
    head = study.runs[0].header
    commit = f"{head.git.commit[:12]}{', changed files' if head.git.dirty else ''}" if head.git.commit else "not a checkout"
    model = f"{head.model.name}, weights {head.model.weights_sha256[:8]}" if head.model else "the caller's own code"
    timed = sum(clip.phase == "timed" for clip in study.runs[0].clips)
    report = page(
        speedups=speedups(findings),
        title=_title(study),
        subtitle=_subtitle(study),
        facts=timed_facts(head, "Reference", "Timed clips", timed, commit=commit, model=model),
        banners=banners(study),
        sections=tuple(
            msgspec.structs.replace(section, folded=section.id not in _OPEN) for section in sections if section is not None
        ),
    )
    return report, findings


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _title(study: RunStudy) -> str:
    candidates, references = ([each.label for each in study.subjects if each.is_reference == of] for of in (False, True))
    if not candidates or not references:
        return _listed([subject.label for subject in study.subjects]) if study.subjects else study.runs[0].header.run
    named = _listed(candidates) if len(candidates) <= _NAMED else f"{len(candidates)} variants"
    return f"{named} against {_listed(references)}"


def _subtitle(study: RunStudy) -> str:
    head, more = study.runs[0].header, len(study.runs) - 1
    work = head.workload
    parts = (
        head.model.name if head.model else "",
        f"{work.width}x{work.height} pixels, {work.frames} frames" if work else "",
        f"on {head.machine.device_name}",
        f"and {more} more run{'s' if more > 1 else ''}" if more else "",
    )
    return ", ".join(filter(None, parts))


# One transformer with dense and sparse attention, in forward passes over a whole clip: eager with eager, compiled with compiled.

UNIT: Final = "denoise step"
"""Name of the unit that the records of such a run count as a frame block."""


Paired: TypeAlias = tuple[Finding, bool, bool]
"""Second of two variants against the first; whether both or neither are compiled, so that their regions go equally deep; whether
the reference is the first dense variant of its kind, which gates are about."""


def paired(study: RunStudy, allow_different: Sequence[str]) -> tuple[Paired, ...]:
    """Compare every variant with each dense one of its kind (compiled or eager), and every dense kind with the baseline."""
    dense = [subject for subject in study.subjects if not subject.settings.sparsity]
    found = []
    for subject in study.subjects:
        own = [each for each in dense if _compiled(each) == _compiled(subject)]
        for place, reference in enumerate(own):
            if reference is not subject and (subject not in own or own.index(subject) > place):
                found.append(_pair(study, (reference, subject), allow_different, alike=True, first=place == 0))
        if own and subject is own[0] and _compiled(subject) != _compiled(dense[0]):
            found.append(_pair(study, (dense[0], subject), allow_different, alike=False, first=True))
    return tuple(found)


def _compiled(subject: Subject) -> bool:
    return subject.settings.compile_mode is not None


def _pair(study: RunStudy, two: tuple[Subject, Subject], allow: Sequence[str], *, alike: bool, first: bool) -> Paired:
    run = only_pair(two[0].run, (two[0].name, two[1].name))
    both = tuple(replace(subject, run=run) for subject in two)
    (finding,) = find(replace(study, runs=(run,), subjects=both), allow)
    if not alike:
        why = "one side is compiled, which has no regions inside a pass; each is held against its own kind"
        finding = replace(finding, ledger=why, answer=None)
    elif finding.answer is not None:
        finding = replace(finding, answer=replace(finding.answer, unit=UNIT))
    return finding, alike, first


_APART: Final = "blocks that are compiled have no regions but those of the attention operator"


@dataclass(frozen=True, kw_only=True, slots=True)
class PerStep:
    """Time of attention in one denoise step of a variant, ns.

    Args:
        step: untraced, mean over timed clips.
        kernel: the attention kernel, traced.
        operator: the same with tiling, selection and finishing; of dense attention the kernel.
        section: the whole module of self-attention, traced; None where it cannot be told apart.
    """

    step: float
    kernel: float
    operator: float
    section: float | None


_Row: TypeAlias = tuple[Subject, PerStep | str]
_Pair: TypeAlias = tuple[Finding, Sequence[object]]
"""A pair, and what `_bounds` says of it."""


def per_step(subject: Subject) -> PerStep | str:
    """Return the attention times of a variant from its trace and timed clips; a text says why there are none."""
    clips = stage_time(subject.run, subject.name, DENOISE_STEP)
    steps_ns = [ns / calls for clip, ns, calls in clips if clip.phase == "timed" and calls]
    if not steps_ns:
        return "no timed clip"
    if not isinstance(subject.profile, Profile):
        return subject.profile
    owned, steps = subject.profile.partition.owned, len(subject.profile.partition.tiles)
    kernel = sum(ns for label, ns in owned.items() if ATTENTION in label.path and is_attention_kernel(label))
    if not kernel:
        return "the trace shows no attention kernel in a section of self-attention"
    operator = sum(ns for label, ns in owned.items() if ATTENTION in label.path and not ATTENTION_OPERATOR.isdisjoint(label.path))
    section = sum(ns for label, ns in owned.items() if ATTENTION in label.path)
    return PerStep(
        step=statistics.fmean(steps_ns),
        kernel=kernel / steps,
        operator=operator / steps,
        section=None if subject.settings.compile_mode else section / steps,
    )


def attention_table(study: RunStudy) -> Table:
    """Build the table of every variant's attention times per denoise step."""
    kernel = "attention kernel of the video's self-attention, traced"
    section = "the module of self-attention: projections, norms, RoPE, operator, output projection"

    def of(get: Callable[[PerStep], float | None]) -> Callable[[_Row], Any]:
        return lambda row: Text("") if isinstance(row[1], str) else get(row[1])

    fields: tuple[Field[_Row], ...] = (
        Field("variant", lambda row: row[0].label),
        Field("implementation", lambda row: row[0].settings.attention_impl or "not said"),
        Field("sparsity", lambda row: f"{100 * row[0].settings.sparsity:g} %" if row[0].settings.sparsity else "dense"),
        time("kernel", lambda row: Missing(row[1]) if isinstance(row[1], str) else row[1].kernel, "ms", kernel),
        time("operator", of(lambda found: found.operator), "ms", "with tiling, selection and finishing"),
        time("section", of(lambda found: found.section), "ms", section, missing=_APART),
        time("denoise step", of(lambda found: found.step), "ms", "one forward pass, untraced, mean"),
        numeric("kernel / step", of(lambda found: found.kernel / found.step), show=Share),
    )
    rows = [(subject, per_step(subject)) for subject in study.subjects]
    return table_of("Self-attention of the video in one denoise step.", fields, rows)


def bounds_table(pairs: Sequence[Paired]) -> Table:
    """Build the table of speedups (kernel, operator, section, end to end), with the Amdahl bound and the loss outside of it."""
    timed = "forward passes, untraced; median over mirrored pairs, 95 % interval"
    lost = "section / what it were with nothing but the operator changed, - 1"
    none = Missing("no end-to-end times")
    fields: tuple[Field[_Pair], ...] = (
        Field("candidate", lambda row: row[0].candidate.label),
        Field("reference", lambda row: row[0].reference.label),
        numeric("kernel", lambda row: row[1][0], "attention kernel", show=Ratio),
        numeric("operator", lambda row: row[1][1], "with tiling, selection and finishing", show=Ratio),
        numeric("section", lambda row: row[1][2], "the module of self-attention", show=Ratio, missing=_APART),
        numeric("end to end", lambda row: row[0].e2e.cell if row[0].e2e else none, timed),
        Field("verdict", lambda row: verdict_cell(row[0].e2e.verdict) if row[0].e2e else Text("")),
        numeric("Amdahl bound", lambda row: row[1][3], "end to end, if nothing but the operator had changed", show=Ratio),
        numeric("of the bound", lambda row: row[1][4], show=Share),
        numeric(
            "lost outside the operator",
            lambda row: row[1][5],
            lost,
            show=lambda share: Number(100 * share, 1, "%"),
            missing=_APART,
        ),
    )
    notes = (
        "Speedup: time of the reference / time of the candidate. Kernel, operator and section are traced, end to end is not.",
        "Amdahl bound: T / (T - (kernel of the reference - operator of the candidate)), T one denoise step of the reference.",
        "Lost outside the operator: what the section takes beyond that of the reference with the operator for its kernel.",
    )
    rows = [(finding, _bounds(finding)) for finding, *_ in pairs]
    return table_of("Speedups, and what the operator alone allows.", fields, rows, notes=notes)


def _bounds(finding: Finding) -> Sequence[object]:
    """Return the speedups of kernel, operator and section, the bound, the share of it that was reached, and the loss outside."""
    ours, theirs = per_step(finding.candidate), per_step(finding.reference)
    if isinstance(theirs, str) or isinstance(ours, str):
        return (Missing(theirs if isinstance(theirs, str) else str(ours), "-"),) * 6
    saved = theirs.kernel - ours.operator
    bound, section, lost = theirs.step / (theirs.step - saved), None, None
    if theirs.section is not None and ours.section is not None:
        section, lost = theirs.section / ours.section, ours.section / (theirs.section - saved) - 1
    reached = Missing("no end-to-end times") if finding.e2e is None else finding.e2e.ratio / bound
    return theirs.kernel / ours.kernel, theirs.kernel / ours.operator, section, bound, reached, lost


def is_dit_run(run: RunRecords) -> bool:
    """Return whether the records are of forward passes over a whole clip."""
    work = run.header.workload
    return work is not None and work.unit == UNIT


def dit_report(study: RunStudy, allow_different: Sequence[str] = ()) -> tuple[Report, tuple[Finding, ...]]:
    """Build the page of one run of forward passes, and return it with its findings."""
    run = study.runs[0]
    head, work = run.header, run.header.workload
    assert work is not None and head.model is not None, "`is_dit_run` was asked"
    pairs = paired(study, allow_different)
    findings = tuple(finding for finding, _, first in pairs if first)
    _, sections = attention_sections(study)
    lead = (
        "What self-attention of the video takes in one denoise step: the kernel, the operator around it, the module around that."
    )
    attention = Section("attention", "Attention", lead, (attention_table(study),))
    parts = (
        settings_section(study),
        stages_section(study, findings),
        attention,
        run_kernels(study),
        sections,
        _speedups(pairs),
        _notes(study),
    )
    report = page(
        speedups=speedups(findings),
        title=f"{head.model.name}: {', '.join(subject.label for subject in study.subjects)}",
        subtitle=f"one forward pass over {work.width}x{work.height} pixels, {work.frames} frames, on {head.machine.device_name}",
        facts=(
            *run_facts(head),
            Fact("Model", Text(f"{head.model.name}, weights {head.model.weights_sha256[:8]}")),
            Fact("Batch", Text(str(work.batch))),
            Fact("Reference", Text(head.baseline)),
        ),
        banners=banners(study),
        sections=parts,
    )
    return report, findings


def _speedups(pairs: Sequence[Paired]) -> Section:
    blocks: list[Block] = [bounds_table(pairs)]
    alike = [finding for finding, alike, _ in pairs if alike]
    blocks += (block for answered in answer_sections(alike) if answered is not None for block in answered.blocks)
    for finding in alike:
        if isinstance(finding.ledger, Ledger):
            blocks += ledger_blocks(finding, finding.ledger)
    lead = (
        "Kernel, section and end to end, each against a dense variant that is compiled or not as the candidate is. In accounts "
        "a frame block is one denoise step; their lines add up exactly."
    )
    return Section(ANSWER, "Speedups", lead, tuple(blocks))


def _notes(study: RunStudy) -> Section:
    found = notes_section(study)
    own = (
        "One denoise step is one forward pass over the latents of the whole clip; every step has the same latents. Records and "
        "accounts count it as one frame block. Text encoder, scheduler and decoder do not run.",
        "The section of self-attention is its module in diffusers: projections of queries, keys and values, their norms, RoPE, "
        "the operator, the output projection. Norm, modulation and gate around the module are outside.",
        "Inside blocks that are compiled only the kernels of the attention operator are told apart, by their order in the same "
        "pass uncompiled, all other kernels by what their names say they compute.",
    )
    first, *rest = found.blocks
    assert isinstance(first, Notes)
    lines = [line for line in study.runs[0].quality if line.n]
    values = {(line.variant, line.metric): line for line in lines}
    labels = [subject.label for subject in study.subjects]
    quality = [quality_table(labels, values, "How far one forward pass moved.")] if lines else []
    return msgspec.structs.replace(found, blocks=(Notes((*own, *first.items)), *quality, *rest))
