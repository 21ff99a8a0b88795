"""Tables of kernels and attention, the lanes of a timeline, and rooflines."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from strobe.core.costs import Cost, DevicePeaks
from strobe.core.printable import counted
from strobe.core.spans import ATTENTION, ATTENTION_KERNEL, FRAME_BLOCK, NAMES
from strobe.perf.analysis.device.activity import HOST_LATE, LAUNCH_LATENCY, PROFILER_OVERHEAD, QUEUED, UNLINKED
from strobe.perf.analysis.device.intervals import Distribution, distribution
from strobe.perf.analysis.device.kernels import KernelNameRow, KernelRow, kernel_row
from strobe.perf.analysis.device.roofline import Roofline, roofline
from strobe.perf.analysis.ledger.account import is_attention_kernel
from strobe.perf.analysis.runs.breakdown import Amount, region_kernels
from strobe.perf.analysis.runs.compare import SideClocks
from strobe.perf.analysis.structure.sections import FocalKernels, Sections, skipped_text
from strobe.perf.records.record import SpanCost
from strobe.perf.report.blocks.fields import line_word, spread
from strobe.perf.report.study import Profile, RunStudy
from strobe.perf.table.fields import Field, count, exact_cell, exact_time, heads, numeric, padded, rows_of, table_of, time
from strobe.perf.table.model import (
    GAPS,
    Block,
    Cell,
    Code,
    Count,
    ExactTime,
    Kind,
    Lane,
    Missing,
    Notes,
    Number,
    Ratio,
    Row,
    Section,
    Share,
    Table,
    Text,
    Timeline,
    time_text,
)
from strobe.perf.table.rows import columns, gathered

# Columns and cells of rates against the peaks of a device.

T = TypeVar("T")
_UNKNOWN = "the peak of this dtype is not known"
NO_CLOCK = "the SM clock was not sampled while it ran"
_NO_PRODUCTS = Missing("no matrix products", "-")
_ACHIEVED: tuple[Field[Roofline], ...] = (
    numeric(
        "TFLOP/s",
        lambda found: rate_number(found.flops_per_s / 1e12) if found.flops_per_s else _NO_PRODUCTS,
        "FLOPs of matrix products / time",
    ),
    numeric(
        "GB/s",
        lambda found: rate_number(found.bytes_per_s / 1e9) if found.bytes_per_s else Missing("no bytes", "-"),
        "bytes that must be moved at least / time",
    ),
)


def _share_of_peak(get: Callable[[Roofline], float | None]) -> Callable[[Roofline], Cell | None]:
    def cell(found: Roofline) -> Cell | None:
        share = get(found)
        return (None if found.flops_per_s else _NO_PRODUCTS) if share is None else Share(share)

    return cell


_FLOORS = "the higher of the two floors: FLOPs / peak, or bytes / bandwidth"
_AGAINST: tuple[Field[Roofline], ...] = (
    numeric("of peak", _share_of_peak(lambda found: found.compute_share), "of the dtype's dense matrix peak", missing=_UNKNOWN),
    numeric("of bandwidth", lambda found: found.memory_share, "of the device memory's bandwidth", show=Share, missing=_UNKNOWN),
    Field("bound", lambda found: found.bound, hint=_FLOORS, missing=_UNKNOWN),
    time("floor", lambda found: found.floor_ns, "ms", "least time that this device could take", missing=_UNKNOWN),
    numeric("floor / time", lambda found: found.share, show=Share, missing=_UNKNOWN),
)

AT_CLOCK: Final[Field[Roofline]] = numeric(
    "of peak at its clock",
    _share_of_peak(lambda found: found.clock_share),
    "of the matrix peak at the SM clock that ran",
    missing=NO_CLOCK,
)


def rate_fields(
    peaks: DevicePeaks | None, found: Callable[[T], Roofline | Cell | None], missing: str = "", *, clocked: bool = False
) -> tuple[Field[T], ...]:
    """Return the columns of achieved rates, and of their shares of the device's peaks if those are known.

    Args:
        found: roofline of a row, or the cell that stands in its place in every column.
    """
    against = () if peaks is None else (_AGAINST[0], *((AT_CLOCK,) if clocked and peaks.clock_mhz else ()), *_AGAINST[1:])
    return tuple(field.of(found, missing) for field in (*_ACHIEVED, *against))


def peaks_section(blocks: Sequence[Block], lead: str = "", *, folded: bool = False) -> Section | None:
    """Build the section of any page on rates against the device's peaks; None without blocks."""
    return Section("roofline", "Against the device's peaks", lead, tuple(blocks), folded) if blocks else None


def rate_number(value: float) -> Number:
    """Return the cell of a rate with four significant digits and at most six decimals."""
    return Number(value, min(6, max(0, 3 - math.floor(math.log10(value)))))


def device_note(name: str, peaks: DevicePeaks | None) -> str:
    """Return a note on the peaks that the shares refer to, or on why there are none."""
    if peaks is None:
        return f"No published peaks are known for {name}: rates only, nothing is held against a roofline."
    bandwidth = f"{peaks.bandwidth_bytes_per_s / 1e9:,.0f} GB/s"
    return f"{peaks.name}: peaks at boost clock, dense, {bandwidth} of memory bandwidth ({peaks.source})."


def clock_words(sm_mhz: int | None, max_mhz: int | None) -> str | None:
    """Return an SM clock in words, with the highest that the GPU supports where that is known; None: it was not sampled."""
    if sm_mhz is None:
        return None
    return f"at {sm_mhz:,} MHz" if max_mhz is None else f"at {sm_mhz:,} of {max_mhz:,} MHz"


def ran_at(clocks: SideClocks | None) -> str | None:
    """Return the SM clock of a side in words; None: it was not sampled."""
    return None if clocks is None else clock_words(clocks.sm_mhz, clocks.max_mhz)


def clock_notes(peaks: DevicePeaks | None, ran: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return a note on the SM clock of each that `ran`, beside that at which a device's peaks hold; none if not known."""
    if peaks is None or not peaks.clock_mhz:
        return ()
    known = [f"{name} {words}" for name, words in ran.items() if words]
    if not known:
        return ("The SM clock was not sampled while it ran, which needs NVML (strobe-video[nvml]): no share at that clock.",)
    return (f"SM clock: {'; '.join(known)}. The peaks hold at {peaks.clock_mhz:,} MHz; at the clock that ran they go with it.",)


def of_cost(cost: SpanCost, time_ns: float, peaks: DevicePeaks | None, dtype: str, clocks: SideClocks | None = None) -> Roofline:
    """Compute the roofline of a call from its recorded cost and its time; `dtype`: of products, where the cost names none."""
    spent = Cost(flops=cost.flops, read_bytes=cost.read_bytes, write_bytes=cost.write_bytes)
    dense = None if cost.dense_flops is None else Cost(flops=cost.dense_flops)
    return roofline(time_ns, spent, peaks, cost.dtype or dtype, dense=dense, sm_mhz=None if clocks is None else clocks.sm_mhz)


def anomaly_notes(found: Iterable[tuple[str, Roofline]]) -> tuple[str, ...]:
    """Return a note for each rate that is impossible, with its name."""
    return tuple(f"ANOMALY, {name}: {each.anomaly}." for name, each in found if each.anomaly)


# Sections with their boundaries: their table, and the notes under it.


SectionCells: TypeAlias = tuple[Sequence[Any], Sections | Sequence[Cell]]
"""Values that say which sections a row is of, and the sections, or the cells that say why there are none."""


def sections_table(which: Sequence[Field[Sequence[Any]]], rows: Iterable[SectionCells], notes: Iterable[str]) -> Table:
    """Build the table of sections; `which` are the columns of the values that say which a row is of."""

    def mean(total: Callable[[Sections], int], cell: Callable[[float], Cell] = exact_cell) -> Callable[[Sections], Cell]:
        return lambda each: cell(total(each) / len(each.found)) if each.found else Text("")

    def lengths(each: Sections) -> Distribution | Text:
        return distribution(np.array([section.length_ns for section in each.found], np.int64)) or Text("")

    fields: tuple[Field[Sections], ...] = (
        Field("definition", lambda each: str(each.definition), Code),
        count("sections", lambda each: len(each.found) or Missing(skipped_text(each), "none")),
        *spread(lengths, "ms", ("min", "max", "mean", "p50", "p99"), exact=True, what="sections", quiet=True),
        Field("busy inside", mean(lambda each: each.busy_ns), unit="ms", hint="mean"),
        Field("idle inside", mean(lambda each: each.length_ns - each.busy_ns), unit="ms", hint="mean"),
        Field("focal inside", mean(lambda each: sum(one.focal_ns for one in each.found)), unit="ms", hint="mean"),
        numeric(
            "members",
            mean(lambda each: sum(len(one.members) for one in each.found), lambda n: Number(n, 1)),
            "device events in a section, mean",
        ),
        count("skipped", lambda each: sum(each.skipped.values()), "focal calls without a section"),
    )

    def row(names: Sequence[Any], own: Sections | Sequence[Cell]) -> Row:
        cells = [field.cell(own) for field in fields] if isinstance(own, Sections) else own
        return padded(len(which) + len(fields), *(field.cell(names) for field in which), *cells)

    shown = tuple(row(*each) for each in rows)
    return Table("Sections with their boundaries.", (*heads(which), *heads(fields)), shown, tuple(notes))


def section_notes(sections: Sections) -> Iterator[str]:
    """Yield notes on focal calls that were skipped or share a section, and on sections that overlap."""
    if sections.skipped:
        yield f"skipped of {sections.num_focal} focal calls: {skipped_text(sections)}"
    if sections.merged:
        yield f"{sections.merged} focal calls share the section of an earlier one, which counts once"
    if sections.overlapping:
        yield f"{sections.overlapping} sections start before an earlier one ends: their lengths do not add up to time"


Word: TypeAlias = Literal["kernel", "operator"]
MAX_ROWS: Final = 20
MAX_CANDIDATE_ROWS: Final = 12
MAX_MEMBERS: Final = 8
"""Most full names listed for one group."""


_OPTIONAL: Final = ("shape", "kind")
"""Columns of kernels that a table has if one of its rows does."""


FOCAL: Final = ("exclusive_ns", "unlinked_calls")
"""Columns that rows of `focal_row` do not know."""


class Listed(NamedTuple):
    """One row: calls of a kernel, or why there are none, with its full names, and where they ran if rows differ in that."""

    kernel: KernelRow | Missing
    names: Sequence[KernelNameRow] = ()
    region: str = ""
    side: str = ""
    trace: str = ""
    device: int | None = None


def kernels_section(tables: Sequence[Table], *, exclusive: bool, missing: Sequence[str] = ()) -> Section:
    """Build the section from what `kernel_tables` gave; `exclusive`: rows have the time that they own."""
    blocks: list[Block] = [*tables, *([Notes(tuple(missing))] if missing else ())]
    lead = "Calls by name. Sums count each call in full, overlap or not; an operator's include the operators it calls."
    if exclusive:
        lead += (
            " Only the exclusive column adds up (to the busy time, exactly): where events overlap, the one that ranks higher "
            "owns the time."
        )
    return Section("kernels", "Kernels", lead, tuple(blocks))


def kernel_tables(
    opening: str,
    rows: Sequence[Listed],
    *,
    top: int | None = None,
    word: Word = "kernel",
    hidden: Sequence[str] = (),
    notes: Iterable[str] = (),
    collapsed: bool = False,
) -> Iterator[Table]:
    """Yield the table of the rows, with the columns that they hold, and that of the full names of groups, if there are any.

    Args:
        opening: of the caption: what the calls are of, and where.
        top: rows that are shown; the others are one row together.
        hidden: names of columns that the rows do not know.
    """
    known = [row.kernel for row in rows if not isinstance(row.kernel, Missing)]
    busy_ns = sum(row.exclusive_ns for row in known)
    whole = f", busy {busy_ns / 1e6:.6f} ms" if known and "exclusive_ns" not in hidden else ""
    caption = f"{opening}: {counted(sum(row.calls for row in known), 'call')} in {counted(len(known), 'row')}{whole}."
    empty = {*(hidden if known else FOCAL), *(name for name in _OPTIONAL if not any(getattr(row, name) for row in known))}
    fields = tuple(_fields(rows, empty, word, busy_ns))
    yield table_of(caption, fields, rows, top=top, notes=notes, sortable=True, collapsed=collapsed)
    yield from _full_names(f"{opening}: full names of the groups above.", rows[:top], word)


def run_kernels(study: RunStudy, calls: bool = False) -> Section:
    """Build the section with one table per variant of a run, of calls or of frame blocks."""
    tables: list[Table] = []
    missing = [f"{each.label}: {each.profile}" for each in study.subjects if not isinstance(each.profile, Profile)]
    for subject in study.subjects:
        if not isinstance(subject.profile, Profile):
            continue
        found = subject.profile.partition
        word: Word = "operator" if found.device == "cpu" else "kernel"
        where = "traced samples" if calls else f"frame blocks {found.indices[0]} to {found.indices[-1]}"
        tables.extend(
            kernel_tables(
                f"{word.capitalize()}s of {subject.label}, {where}, on {found.device}",
                [Listed(row, region=line_word(region, calls)) for region, row in region_kernels(found)],
                top=MAX_ROWS if subject.is_reference else MAX_CANDIDATE_ROWS,
                word=word,
                hidden=("unlinked_calls",),
                notes=[
                    f"Beside, thread {thread}, {' / '.join(path) or 'no section'}: {time_text(busy_ns)} ms busy, not counted."
                    for thread, path, busy_ns in found.overlap
                ],
                collapsed=not subject.is_reference,
            )
        )
    return kernels_section(tables, exclusive=bool(tables), missing=missing)


def focal_row(names: Sequence[str], calls: Distribution | Missing) -> KernelRow | Missing:
    """Return the row of the kernels that a pattern found, all calls together."""
    return calls if isinstance(calls, Missing) else kernel_row(calls, kernel=", ".join(names))


def focal_section(traces: Sequence[tuple[str, Sequence[FocalKernels]]], pattern: str) -> Section:
    """Build the section with one row per trace and device: calls and times of the kernels that the pattern found."""
    none = Missing("no device event has such a name", "none")
    rows: list[Listed] = []
    for label, found in traces:
        own = [Listed(focal_row(each.names, each.calls), trace=label, device=each.device) for each in found]
        rows += own or [Listed(none, trace=label)]
    tables = [*kernel_tables(f"Focal kernels, {pattern}, over the whole traces", rows, hidden=FOCAL)]
    return kernels_section(tables, exclusive=False)


def _fields(rows: Sequence[Listed], hidden: Container[str], word: Word, busy_ns: int) -> Iterator[Field[Listed]]:
    for name in ("side", "trace"):
        if any(getattr(row, name) for row in rows):
            yield Field(name, attrgetter(name))
    if any(row.device is not None for row in rows):
        yield count("device", lambda row: Text("") if row.device is None else row.device)
    if any(row.region for row in rows):
        yield Field("section", lambda row: row.region)

    def own(row: Listed) -> KernelRow | Cell:
        return Text("") if isinstance(row.kernel, Missing) else row.kernel

    names = [name for name in KernelRow.__struct_fields__[3:] if name not in hidden]
    first, *others = columns(KernelRow, "kernel", *names, of=SimpleNamespace(busy_ns=busy_ns))
    yield replace(first.of(lambda row: row.kernel), head=word)
    yield from (field.of(own) for field in others)
    if any(row.names for row in rows):
        yield count("names", lambda row: len(row.names) or Text(""), "different full names in the group")


def _full_names(caption: str, shown: Sequence[Listed], word: Word) -> Iterator[Table]:
    """Yield the table of full names in the groups shown whose own name is not the full one."""
    groups: dict[str, Sequence[KernelNameRow]] = {}
    for row in shown:
        if any(each.name != each.kernel for each in row.names):
            groups.setdefault(row.names[0].kernel, row.names)
    first, *others = columns(KernelNameRow)
    fields = (replace(first, head=word), *others)
    cells = [cell for names in groups.values() for cell in rows_of(fields, names, top=MAX_MEMBERS, left="names", words_in=1)]
    if cells:
        yield Table(caption, heads(fields), tuple(cells), collapsed=True)


# Traced time per call of the attention kernel, the section around it, and every other section with its boundaries.

_ORDER: Final = tuple(name for name in NAMES if name != "e2e")


_Extent: TypeAlias = tuple[Amount, int]
"""One section over the traced frame blocks with everything inside it, and what the attention kernel owns of that, ns."""


def extents(profile: Profile) -> dict[str, _Extent]:
    """Return the sections of a traced window by span name; the attention kernel's section holds only the kernel's own time."""
    regions, indices = profile.trace.regions, profile.partition.indices
    blocks = [(each.start_ns, each.end_ns) for each in regions if each.name == FRAME_BLOCK and each.index in indices]
    calls = Counter(each.name for each in regions if any(start <= each.start_ns < end for start, end in blocks))
    busy, idle, kernel = Counter[str](), Counter[str](), Counter[str]()
    for label, ns in profile.partition.owned.items():
        for name in {FRAME_BLOCK, *label.path}:
            (busy if label.busy else idle)[name] += ns
            kernel[name] += ns if is_attention_kernel(label) else 0
    return {
        name: (Amount(calls=calls[name], busy_ns=busy[name], idle_ns=idle[name]), kernel[name])
        for name in sorted(calls, key=lambda name: (_rank(name), name))
        if busy[name] + idle[name]
    }


def _rank(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def attention_sections(study: RunStudy) -> tuple[Section, Section]:
    """Build the attention summary, and the section with all sections and their boundaries."""
    found = {subject.label: extents(subject.profile) for subject in study.subjects if isinstance(subject.profile, Profile)}
    lead = (
        "Traced time of the attention kernel alone and of the whole attention section around it, per call. "
        "What the section takes beyond the kernel is what the kernel's speedup has to carry."
    )
    attention = Section("attention", "Attention", lead, (_summary(study, found),))
    if not found:
        return attention, Section("sections", "Sections and their boundaries", "No variant was traced.", ())
    on_device = any(
        isinstance(subject.profile, Profile) and subject.profile.partition.device != "cpu" for subject in study.subjects
    )
    rule = "A section lasts from entering its span to leaving it, on the thread that runs the frame blocks."
    if on_device:
        rule = "A section is the device time owned by what was launched between entering its span and leaving it."
    lead = f"{rule} The same rule for every variant: sections are compared with sections."
    return attention, Section("sections", "Sections and their boundaries", lead, (_detail(study, found),))


def _summary(study: RunStudy, found: dict[str, dict[str, _Extent]]) -> Table:
    fields: tuple[Field[Sequence[Any]], ...] = (
        Field("variant", lambda row: row[0].label),
        Field("implementation", lambda row: row[0].settings.attention_impl or "not said"),
        count("calls", lambda row: row[1]),
        time("kernel", lambda row: row[2], hint="attention kernel (operator on a CPU), mean per call"),
        numeric("speedup", lambda row: row[3]),
        time("section", lambda row: row[4], hint="whole attention section, mean per call"),
        numeric("speedup", lambda row: row[5]),
        numeric("kernel / section", lambda row: row[6], show=Share),
        numeric("section / frame block", lambda row: row[7], "over the traced frame blocks, every pass", show=Share),
    )
    rows: list[Sequence[Any]] = []
    for subject in study.subjects:
        own, reference = found.get(subject.label, {}), study.reference_of(subject)
        if ATTENTION_KERNEL not in own or ATTENTION not in own:
            why = subject.profile if isinstance(subject.profile, str) else "the trace has no attention regions"
            rows.append((subject, Missing(why), *(Text(""),) * 6))
            continue
        theirs = found.get(reference.label, {}) if reference and reference is not subject else {}
        (kernel, kernel_ns), (section, inside_ns) = own[ATTENTION_KERNEL], own[ATTENTION]
        kernel_ratio = _speedup(theirs, own, ATTENTION_KERNEL, lambda extent: extent[1])
        section_ratio = _speedup(theirs, own, ATTENTION, lambda extent: extent[0].total_ns)
        times = kernel_ns / kernel.calls, kernel_ratio, section.total_ns / section.calls, section_ratio
        shares = inside_ns / section.total_ns, section.total_ns / own[FRAME_BLOCK][0].total_ns
        rows.append((subject, kernel.calls, *times, *shares))
    notes = ("Speedup: reference time per call over the variant's. Both are traced, so both carry the profiler's cost.",)
    return table_of("Attention, per call, from the traced clips.", fields, rows, notes=notes)


def _speedup(reference: Mapping[str, _Extent], own: Mapping[str, _Extent], name: str, ns: Callable[[_Extent], int]) -> Cell:
    if not reference:
        return Text("reference", "muted")
    if name not in reference:
        return Missing("not traced", "-")
    before, after = reference[name], own[name]
    if not ns(after) or not ns(before):
        return Missing("no such time", "-")
    return Ratio(ns(before) / before[0].calls / (ns(after) / after[0].calls))


def _detail(study: RunStudy, found: dict[str, dict[str, _Extent]]) -> Table:
    first, own_span = study.subjects[0].label, "a span of the caller's own"
    fields: tuple[Field[tuple[str, str, _Extent]], ...] = (
        Field("section", lambda row: Text(row[0], note=NAMES.get(row[0], own_span) if row[1] == first else "")),
        Field("variant", lambda row: row[1]),
        count("calls", lambda row: row[2][0].calls),
        time("mean", lambda row: row[2][0].total_ns / row[2][0].calls, hint="of a call"),
        time("total", lambda row: row[2][0].total_ns),
        time("busy", lambda row: row[2][0].busy_ns),
        time("idle inside", lambda row: row[2][0].idle_ns),
        time("attention kernel inside", lambda row: row[2][1]),
    )
    rows = [
        (name, subject.label, own)
        for name in sorted({name for own in found.values() for name in own}, key=lambda name: (_rank(name), name))
        for subject in study.subjects
        if (own := found.get(subject.label, {}).get(name)) is not None
    ]
    return table_of("Every section of the traced frame blocks.", fields, rows, sortable=True)


# Lanes of a `Timeline` from the slices of steps, with as many rectangles as a page can hold and no hole in a step.

IDLE_KINDS: Final = {
    HOST_LATE: Kind("idle: host late", "gap1"), LAUNCH_LATENCY: Kind("idle: launch latency", "gap2"),
    QUEUED: Kind("idle: queued, not started", "gap3"), UNLINKED: Kind("idle: cause unknown", "gap4"),
    PROFILER_OVERHEAD: Kind("idle: profiler overhead", "gap5"),
}  # fmt: skip
"""Label and style of idle time by its cause."""
MAX_SLICES: Final = 450
"""Most slices drawn in all lanes together: the file stays small, and the classes of joined slices can be told apart."""


class Piece(NamedTuple):
    """One slice of a lane, ns from the lane's start; `joined`: it stands for several short ones."""

    start_ns: int
    end_ns: int
    name: str
    kind: Kind
    joined: bool = False


LaneSlices: TypeAlias = tuple[str, int, Sequence[Piece]]
"""Label and series of a lane, and all its slices: in order, disjoint, without a hole, from 0."""


def merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Join neighbouring slices that look the same."""
    found: list[Piece] = []
    for piece in pieces:
        if found and found[-1][1:] == (piece.start_ns, *piece[2:]):
            found[-1] = found[-1]._replace(end_ns=piece.end_ns)
        else:
            found.append(piece)
    return found


def draw_lanes(lanes: Sequence[LaneSlices], kinds: Sequence[Kind], apart: Kind) -> Timeline:
    """Lay out the lanes on one axis; joined slices are drawn one class after the other, each as long as its slices, work first.

    Args:
        kinds: the order of the classes; those that do not occur are left out.
        apart: the class whose slices are not joined with others, unless they alone would be too many.
    """
    present = {piece.kind for *_, pieces in lanes for piece in pieces}
    shown = tuple(kind for kind in kinds if kind in present)
    limit = MAX_SLICES // len(lanes)
    drawn = [_joined(pieces, limit, apart) for *_, pieces in lanes]
    names = tuple(sorted({piece.name for pieces in drawn for piece in pieces}))
    rows = tuple(
        Lane(
            label=label,
            series=series,
            length_ns=own[-1].end_ns,
            start_ns=tuple(piece.start_ns for piece in own),
            duration_ns=tuple(piece.end_ns - piece.start_ns for piece in own),
            name=tuple(bisect_left(names, piece.name) for piece in own),
            kind=tuple(shown.index(piece.kind) for piece in own),
            num_total=len(pieces),
            num_joined=len(pieces) - sum(not piece.joined for piece in own),
        )
        for (label, series, pieces), own in zip(lanes, drawn, strict=True)
    )
    return Timeline(max(row.length_ns for row in rows), names, shown, rows)


def _joined(pieces: Sequence[Piece], limit: int, apart: Kind) -> Sequence[Piece]:
    """Join short neighbours until at most `limit` slices remain; together they still tile the step."""
    between = len({piece.kind for piece in pieces})  # rectangles of the slices joined between two of them
    alone = apart if (1 + between) * sum(piece.kind == apart for piece in pieces) < limit else None
    drawn, length = pieces, pieces[-1].end_ns
    shortest = length // limit
    while len(drawn) > limit and shortest <= length:
        drawn = [piece for group in _groups(pieces, shortest, alone) for piece in _drawn(group)]
        shortest = max(shortest + 1, shortest * len(drawn) // limit)  # their number falls about as the length rises
    return drawn


def _groups(pieces: Sequence[Piece], shortest: int, apart: Kind | None) -> Iterator[list[Piece]]:
    """Yield slices one by one, and runs of neighbours that are too short to be drawn alone as one group."""
    group: list[Piece] = []
    for piece in pieces:
        whole = piece.end_ns - piece.start_ns >= shortest or apart in (piece.kind, group[-1].kind if group else piece.kind)
        if group and (whole or piece.end_ns - group[0].start_ns > shortest):
            yield group
            group = []
        group.append(piece)
    yield group


def _drawn(group: Sequence[Piece]) -> list[Piece]:
    if len(group) == 1:
        return [group[0]]
    owned, counts = Counter[Kind](), Counter[Kind]()
    for piece in group:
        owned[piece.kind] += piece.end_ns - piece.start_ns
        counts[piece.kind] += 1
    start = group[0].start_ns
    drawn = []
    for kind in sorted(owned, key=lambda kind: (kind.style in GAPS, kind.style)):
        drawn.append(Piece(start, start + owned[kind], f"{counts[kind]} short slices", kind, joined=True))
        start += owned[kind]
    return drawn


def class_table(lanes: Sequence[LaneSlices], picture: Timeline, caption: str, whole: str) -> Table:
    """Build the table of each lane's time by class of slices, to stand under the picture."""
    lengths = (gathered((piece.kind, piece.end_ns - piece.start_ns) for piece in pieces) for *_, pieces in lanes)
    sums = [{kind: sum(own) for kind, own in each.items() if any(own)} for each in lengths]
    fields: tuple[Field[Kind], ...] = (
        Field("class", lambda kind: kind.label if kind.style != "focal" else Code(kind.label)),
        *(exact_time(label, own.get) for (label, *_), own in zip(lanes, sums, strict=True)),
    )
    rows = [
        *rows_of(fields, picture.kinds),
        Row((Text(whole), *(ExactTime(lane.length_ns) for lane in picture.lanes)), strong=True),
        Row((Text("slices"), *(Count(lane.num_total) for lane in picture.lanes))),
    ]
    return Table(f"{caption}; every nanosecond is in one class.", heads(fields), tuple(rows))
