"""The page of a grid of attention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec

from strobe.core.printable import bytes_in
from strobe.core.spans import NAMES
from strobe.perf.analysis.device.roofline import Roofline
from strobe.perf.analysis.runs.grid import CellRun, GridContestant, read_grid, speedup
from strobe.perf.records.record import COSINE, L1, LSE, MATMUL, PEAK, RECALL, RMSE, SAVED, TEMPORARY, WHOLE, Gate
from strobe.perf.report.blocks.fields import gathered, section_of
from strobe.perf.report.blocks.grid import NONE, Entry, absent_table, bars_figure, curves, grid_page, plane_of, timed_fields
from strobe.perf.report.blocks.kernels import AT_CLOCK, NO_CLOCK, device_note, of_cost, ran_at, rate_fields, rate_number
from strobe.perf.report.blocks.referee import judged_sections
from strobe.perf.report.blocks.settings import banners
from strobe.perf.report.study import load_study
from strobe.perf.table.fields import Field, count, heads, numeric, rows_of, table_of, time
from strobe.perf.table.model import (
    Axis,
    Banner,
    Block,
    Cell,
    Code,
    Count,
    Fact,
    Figure,
    LevelName,
    Missing,
    Number,
    Ratio,
    Report,
    Row,
    Section,
    Share,
    Speedup,
    Table,
    Text,
    Whisker,
    Whiskers,
    bytes_cell,
)

SERIALISED: Final = "launches were serialised (CUDA_LAUNCH_BLOCKING): never compared"
_STOP: Final = Banner("stop", "Serialised run: nothing in it is compared.", (SERIALISED,))


def read_cells(folder: Path) -> tuple[tuple[CellRun, ...], tuple[str, ...]]:
    """Read every cell of a run that has records, even one that was cut short.

    Raises:
        DataError: the folder holds none.
    """

    def place(cell: CellRun) -> tuple[str, bool, int, float]:
        return cell.grid.shape, cell.grid.backward, cell.grid.block, 0.0 if cell.grid.layer else cell.sparsity

    return read_grid(folder, "attention", place, "strobe bench attention")


_HEAD: Final[tuple[Field[Entry], ...]] = (
    Field("budget", lambda row: row[0].grid.budget, hint="s: share of the key tiles skipped; k: key tiles selected"),
    count("block", lambda row: row[0].grid.block, "tokens of an attention block"),
    Field("contestant", lambda row: row[1].name, Code, hint="kind and implementation"),
)


def entries(cells: Iterable[CellRun]) -> Iterator[tuple[CellRun, GridContestant]]:
    """Yield every contestant with numbers, with its cell."""
    for cell in cells:
        for entry in cell.measured:
            yield cell, entry


def _compared(cells: Iterable[CellRun]) -> Iterator[tuple[CellRun, GridContestant, Ratio, str]]:
    """Yield every contestant that is not dense, with its cell, its speedup over the reference, and the verdict on it."""
    for cell, entry in entries(cells):
        if not cell.serialised and cell.reference is not None and entry.kind != "dense":
            yield cell, entry, *speedup(cell.reference, entry)


def _speed_table(cells: Sequence[CellRun], title: str) -> Table:
    fields: tuple[Field[Entry], ...] = (
        *_HEAD,
        time("median", lambda row: row[1].median_ns),
        *timed_fields("fastest dense contestant", lambda row: row[1], lambda row: _against(row[0])),
        numeric(
            "useful TFLOP/s",
            lambda row: row[1].flops / row[1].median_ns / 1e3,
            "of selected pairs of tokens / median",
            show=rate_number,
        ),
        numeric(
            "padded TFLOP/s",
            lambda row: row[1].padded_flops / row[1].median_ns * 1e9 / 1e12,
            "of whole blocks, padding rows included / median",
            show=rate_number,
        ),
        numeric(
            "of measured peak",
            lambda row: row[0].peak_flops_per_s and row[1].padded_flops / row[1].median_ns * 1e9 / row[0].peak_flops_per_s,
            "padded rate / rate of a large matrix product in the same palindromes",
            show=Share,
            missing=NONE,
        ),
        *_peak_fields(cells),
        time("host", lambda row: row[1].host_ns, "µs", "median time until a call returned to its caller", missing=NONE),
    )
    peaks = [cell.peak_flops_per_s for cell in cells if cell.peak_flops_per_s]
    references = ", ".join(dict.fromkeys(cell.reference.name for cell in cells if cell.reference)) or "none has numbers"
    notes = [f"Reference of each cell: its fastest dense contestant ({references})."]
    if peaks:
        notes.append(f"Measured peak: {min(peaks) / 1e12:.4g} to {max(peaks) / 1e12:.4g} TFLOP/s, a square product ({MATMUL}).")
    notes += _clock_notes(cells)
    if (small := _too_small(cells)) is not None:
        notes.append(small)
    return table_of(f"{title}: speed.", fields, list(entries(cells)), notes=notes, sortable=True)


def _roof(row: Entry) -> Roofline | None:
    cell, entry = row[0], row[1]
    if entry.variant is None or not entry.variant.costs:
        return None
    cost = msgspec.structs.replace(entry.variant.costs[0], flops=entry.padded_flops)
    return of_cost(cost, entry.median_ns, cell.peaks, entry.variant.dtype, entry.clocks)


def _at_busy_clock(row: Entry) -> float | Missing:
    """Return the time of a call that computes all along at the clock of a busy chip, or why it is not known."""
    (cell, entry), roof = row, _roof(row)
    if entry.clocks is None:
        return Missing(NO_CLOCK, "-")
    if cell.clocks_of_rounds:
        return Missing("the clock was sampled over rounds of all contestants: none has one of its own", "-")
    if cell.busy_mhz is None:
        return Missing("no contestant brought the chip to its power limit: its clock when kept busy is not known", "-")
    if roof is None or roof.bound != "compute":
        why = "it is bound by memory" if roof is not None and roof.bound else "what bounds it is not known"
        return Missing(f"{why}: its time need not go with the SM clock", "-")
    return entry.median_ns * entry.clocks.sm_mhz / cell.busy_mhz


def _peak_fields(cells: Sequence[CellRun]) -> tuple[Field[Entry], ...]:
    """Return the columns of shares of the peak, if one is published, and of the SM clock, if one was sampled."""
    clocked = any(entry.clocks for _, entry in entries(cells))
    shares = rate_fields(cells[0].peaks, _roof, clocked=clocked) if cells[0].peaks is not None else ()
    clock: Field[Entry] = Field(
        "SM clock", lambda row: ran_at(row[1].clocks), hint="median while its calls were timed", missing=NO_CLOCK
    )
    busy: Field[Entry] = time(
        "at the busy clock",
        _at_busy_clock,
        hint="median x own clock / the busy chip's, of a call bound by compute: it is taken to need the same cycles at any clock",
    )
    kept = (field for field in shares if field.head in ("of peak", AT_CLOCK.head))
    return (*kept, clock, busy) if clocked else tuple(kept)


def _clock_notes(cells: Sequence[CellRun]) -> Iterator[str]:
    if not cells[0].run.header.machine.on_gpu:
        return
    if cells[0].peaks is not None:
        yield device_note(cells[0].run.header.machine.device_name, cells[0].peaks)
    if not any(entry.clocks for _, entry in entries(cells)):
        yield "SM clock: not sampled, which needs NVML (strobe-video[nvml]): no share of the peak at that clock."
        return
    if any(cell.clocks_of_rounds for cell in cells):
        yield "SM clock: sampled over whole rounds of all contestants, so that none has one of its own; newer records have it."
        return
    busy = [cell.busy_mhz for cell in cells if cell.busy_mhz is not None]
    if busy:
        yield (
            f"Clock of the busy chip: the lowest of a cell's contestants and of {MATMUL}, {min(busy):,} to {max(busy):,} MHz, "
            "where the power limit held the clock down. A chip that one call keeps busy for longer may fall lower still."
        )
    else:
        yield "No contestant brought the chip to its power limit, so that its clock when kept busy is not known from these cells."


def _too_small(cells: Sequence[CellRun]) -> str | None:
    """Return a note that sparsity does not pay at this size; None if a sparse contestant beats dense attention, or none ran."""
    sparse = list(_compared(cells))
    if not sparse or any(verdict == "faster" for *_, verdict in sparse):
        return None
    tokens = sparse[0][1].size("tokens")
    return (
        f"Too small for sparsity to pay: at {tokens} tokens no sparse contestant is faster than the fastest dense one, because "
        f"scoring, selecting and gathering cost more than the skipped keys save. Longer sequences show what sparsity gives."
    )


def _against(cell: CellRun) -> GridContestant | Missing:
    if cell.serialised:
        return Missing(SERIALISED, "serialised")
    return cell.reference or Missing("no dense contestant has numbers", "-")


def _precision_table(cells: Sequence[CellRun], title: str) -> Table:
    fields: list[Field[Entry]] = [*_HEAD, Field("gate", lambda row: row[1].gate and _gate(row[1].gate))]
    for short, against, label in (("sel.", "selection", "the same selection"), ("dense", "dense", "full dense attention")):
        for name, metric, hint in (
            ("cosine", COSINE, "similarity to"), ("L1", L1, "relative error to"), ("RMSE", RMSE, "to"),
            ("LSE", LSE, "largest absolute error to"),
        ):  # fmt: skip
            fields.append(_number(f"{name}, {short}", metric, against, f"{hint} {label}"))
    fields.append(_number("recall", RECALL, None, "share of full attention's mass on the selected keys"))
    rows = [(cell, entry) for cell in cells for entry in cell.entries if entry.gate is not None]
    notes = [
        "sel.: the kernel's own error, against float32 (float64 for float32 tensors) on the selection that it used. "
        "dense: the approximation, against full attention of the same queries; no kernel can repair it.",
        "Both on the checked queries of every head, all keys. A whole operator's output has the coarse part added, which full "
        "attention has not.",
    ]
    notes += list(dict.fromkeys(entry.gate.rule for _, entry in rows if entry.gate))[:4]
    return table_of(f"{title}: precision.", fields, rows, notes=notes, sortable=True)


def _gate(gate: Gate) -> Text:
    return Text("green", "good") if gate.passed else Text("RED", "bad", gate.detail)


def _number(head: str, metric: str, against: str | None, hint: str, gradient: str = "") -> Field[Entry]:
    """Return the column of one metric, against one reference; of the output where no gradient is named."""
    tensor = gradient or ("out" if metric in (COSINE, L1, RMSE) else "")

    def get(row: Entry) -> Cell | None:
        value = row[1].number(metric, against=against, tensor=tensor)
        if value is None or gradient:
            return value if value is None else Text(f"{value:.6g}")
        return Number(value, 6) if value >= 1e-3 else Text(f"{value:.2e}")

    return numeric(head, get, hint, missing=NONE)


def _gradient_table(cells: Sequence[CellRun], title: str) -> Table | None:
    fields: list[Field[Entry]] = [*_HEAD]
    for of in ("dq", "dk", "dv"):
        named = (("cosine", COSINE), ("L1", L1), ("RMSE", RMSE))
        fields += [_number(f"{name}, {of}", metric, "selection", "", of) for name, metric in named]
    rows = [
        (cell, entry)
        for cell in cells
        for entry in cell.entries
        if any(field.get((cell, entry)) is not None for field in fields[len(_HEAD) :])
    ]
    note = "Against autograd through the same computation in float32, where only the checked queries have an upstream gradient."
    return table_of(f"{title}: gradients.", fields, rows, notes=(note,)) if rows else None


def _memory_table(cells: Sequence[CellRun]) -> Table:

    def memory(head: str, metric: str, hint: str) -> Field[Entry]:
        return numeric(head, lambda row: row[1].number(metric), hint, show=lambda value: bytes_cell(value, "MB", 1), missing=NONE)

    fields: tuple[Field[Entry], ...] = (
        Field("cell", lambda row: row[0].name, Code),
        Field("contestant", lambda row: row[1].name, Code),
        count("selected blocks", lambda row: row[1].size("selected_blocks"), "over heads and query blocks"),
        memory("temporary", TEMPORARY, "what one call needs above what was there before it, its output included"),
        memory("peak", PEAK, "of everything, during one call"),
        memory("kept for backward", SAVED, "what the forward pass leaves for the backward pass, its output included"),
    )
    how = dict.fromkeys(
        line.definition for cell in cells for entry in cell.measured for line in entry.numbers if line.metric in (TEMPORARY, PEAK)
    )
    return table_of("Memory of one call.", fields, list(entries(cells)), notes=how, sortable=True)


# Pictures of an attention grid: speedup and rate against sparsity, memory against selected blocks, stages of the operator.


def _against_sparsity(
    first: CellRun, what: str, unit: str, found: Iterable[tuple[float, GridContestant, float]], whose: str = ""
) -> Figure | None:
    """Plot one number of the contestants of one shape, direction and block size against the share of skipped work."""
    named = gathered((entry.name, (sparsity, value)) for sparsity, entry, value in found)
    title = f"{what}{whose}: {first.grid.shape}, {first.grid.direction}, blocks of {first.grid.block}"
    axes = Axis("share of the pairs of tokens left out"), Axis(what, from_zero=True)
    head = "contestant", lambda place: f"{100 * place:.1f} %"
    return curves(title, named, axes, head, lambda value: Number(value, 2, unit)) if named else None


def speedups(cells: Sequence[CellRun]) -> Figure | None:
    """Plot speedups over the fastest dense contestant of the same cell, with intervals; at each sparsity the fastest first."""
    found = list(_compared(cells))
    points = ((cell.sparsity, entry, ratio.value) for cell, entry, ratio, _ in found)
    figure = _against_sparsity(cells[0], "speedup over dense", "x", points)
    if figure is None:
        return None
    found.sort(key=lambda each: (each[0].sparsity, -each[2].value))
    rows = (Whisker(entry.name, ratio, group=f"{100 * cell.sparsity:.1f} % left out") for cell, entry, ratio, _ in found)
    return msgspec.structs.replace(figure, picture=Whiskers("the fastest dense contestant", tuple(rows)))


def rates(cells: Sequence[CellRun]) -> Iterator[Figure]:
    """Yield a plot of useful TFLOP/s for each group of contestants; one plot of all would have more lines than colours."""
    rated = ((entry.group, (cell.sparsity, entry, entry.flops / entry.median_ns / 1e3)) for cell, entry in entries(cells))
    for group, found in gathered(rated).items():
        figure = _against_sparsity(cells[0], "useful TFLOP/s", "", found, f" of {group}" if group else "")
        if figure is not None:
            yield figure


def memory(cells: Sequence[CellRun]) -> Figure | None:
    """Plot temporary memory of sparse contestants against the number of selected blocks, one colour for each group."""
    found = [(entry, entry.number(TEMPORARY)) for _, entry in entries(cells) if entry.kind != "dense"]
    known = ((each.group, each.size("selected_blocks"), held) for each, held in found if held is not None)
    named = gathered((group, (size, bytes_in(held, "MB"))) for group, size, held in known)
    if not named:
        return None
    picture = plane_of(named, Axis("selected blocks", from_zero=True), Axis("temporary memory, MB", from_zero=True))
    title = f"Temporary memory against the number of selected blocks: {cells[0].grid.direction}"
    return Figure(title=title, alt=title, picture=picture, table=_memory_table(cells))


def _stage_bars(cells: Sequence[CellRun]) -> Iterator[Figure]:
    largest: dict[tuple[str, int], CellRun] = {}
    for cell in cells:
        if any(WHOLE in entry.stages for entry in cell.measured):
            key = (cell.grid.shape, cell.grid.block)
            largest[key] = max((largest.get(key, cell), cell), key=lambda each: each.sparsity)
    for cell, entry in entries(largest.values()):
        if WHOLE in entry.stages:
            title, whole = f"Stages of {entry.name}: {cell.name}", (WHOLE, entry.stages[WHOLE])
            yield bars_figure(title, entry.between_stages, whole, (), _stage_table([cell], entry.name))


def _stage_table(cells: Sequence[CellRun], only: str = "") -> Table:
    own = [(cell, entry) for cell, entry in entries(cells) if WHOLE in entry.stages and only in ("", entry.name)]
    fields: tuple[Field[tuple[CellRun, GridContestant, str, int]], ...] = (
        Field("cell", lambda row: row[0].name, Code),
        Field("contestant", lambda row: row[1].name, Code),
        Field("stage", lambda row: row[2]),
        time("time", lambda row: row[3]),
        numeric("of the whole call", lambda row: row[3] / row[1].stages[WHOLE], show=Share),
    )
    rows: list[Row] = []
    for cell, entry in own:
        stages = [(cell, entry, name, ns) for name, ns in (*entry.between_stages, (WHOLE, entry.stages[WHOLE]))]
        *parts, whole = rows_of(fields, stages)
        rows += [*parts, msgspec.structs.replace(whole, strong=True)]
    names = dict.fromkeys(name for _, entry in own for name in entry.stages)
    caption = f"Stages of {only}." if only else "Stages of the whole operator, every cell."
    notes = () if only else tuple(f"{name}: {NAMES[name]}." for name in names if name in NAMES)
    return Table(caption, heads(fields), tuple(rows), notes, collapsed=not only)


_LEAD = (
    "Every contestant of a cell computes the same call. Its gate was checked before any number was taken; calls of all "
    "contestants and of a large matrix product were taken in palindromes, so that ratios hold within one cell."
)
_COLD = "On a GPU a call lies between two CUDA events, waits in a full queue, and the L2 cache is overwritten before it."


def bench_report(folder: Path) -> Report:
    """Build the page of an attention grid; of captured calls with the answer first.

    Raises:
        DataError: the folder holds no cells.
    """
    cells, unread = read_cells(folder)
    judged = list(judged_sections(cells))
    study = load_study([cell.run.folder for cell in cells], into=folder)
    machine, absent = cells[0].run.header.machine, absent_table(cells)
    serialised = any(cell.serialised for cell in cells)
    lead = "Refused, failed, or wrong, in its own words."
    return grid_page(
        cells,
        unread,
        title="; ".join(dict.fromkeys(answer for answer, *_ in judged)) or "Attention over the grid",
        about=f", CUDA {machine.cuda or 'none'}",
        facts=(
            Fact("numbers", Count(sum(len(cell.measured) for cell in cells))),
            Fact("timing", Text(_COLD if machine.on_gpu else "host clock around each call")),
        ),
        banners=(*((_STOP,) if serialised else ()), *banners(study, gather=True)),
        sections=(
            *(section for _, section, _ in judged),
            *_groups(cells),
            _stages(cells),
            _memory(cells),
            Section("absent", "Without a number", lead, (absent,)) if absent else None,
        ),
        speedups=_speedups(cells),
    )


def shown_tables(cells: Sequence[CellRun]) -> list[Table]:
    """Choose the tables that a terminal shows: speed by shape and direction, or methods of captured calls; what has no number."""
    found = [table for *_, table in judged_sections(cells)]
    found = found or [_speed_table(own, title) for title, own in _by_direction(cells) if any(cell.measured for cell in own)]
    absent = absent_table(cells)
    return [*found, *((absent,) if absent else ())]


def _groups(cells: Sequence[CellRun]) -> Iterator[Section]:
    for title, own in _by_direction(cells):
        blocks: list[Block] = []
        for block in dict.fromkeys(cell.grid.block for cell in own if not cell.grid.layer):  # of captured calls each has several
            same = [cell for cell in own if cell.grid.block == block]
            blocks += [figure for figure in (speedups(same), *rates(same)) if figure is not None]
        gradients = _gradient_table(own, title)
        if any(cell.measured for cell in own):
            blocks.append(_speed_table(own, title))
        blocks += [_precision_table(own, title), *((gradients,) if gradients else ())]
        name = f"{own[0].grid.shape}-{own[0].grid.direction}".replace(".", "-")
        yield Section(name, title, f"{_sizes(own)} {_LEAD}", tuple(blocks))


def _by_direction(cells: Sequence[CellRun]) -> Iterator[tuple[str, tuple[CellRun, ...]]]:
    for (shape, direction), group in groupby(cells, key=lambda cell: (cell.grid.shape, cell.grid.direction)):
        yield f"{shape}, {direction}", tuple(group)


def _sizes(cells: Sequence[CellRun]) -> str:
    entry = min((entry for _, entry in entries(cells)), key=lambda entry: entry.kind == "dense", default=None)
    if entry is None:
        return "No contestant has a number."
    grid, sizes = "x".join(str(entry.size(f"grid_{axis}")) for axis in "thw"), entry.size
    return (
        f"{grid} tokens ({sizes('tokens')}), batch {sizes('batch')}, {sizes('heads')} heads of {sizes('head_dim')}; "
        f"in tiles of {'x'.join(str(sizes(f'tile_{axis}')) for axis in 'thw')} {sizes('rows')} rows."
    )


def _stages(cells: Sequence[CellRun]) -> Section | None:
    figures = tuple(_stage_bars(cells))
    lead = (
        "Where the time of one forward call of the whole operator goes, by its own spans, in calls of their own (median of "
        "several, nothing else between them, the cache as the call before left it)."
    )
    return section_of("stages", "Stages of the whole operator", lead, (*figures, _stage_table(cells)) if figures else ())


def _memory(cells: Sequence[CellRun]) -> Section:
    lead = (
        "What one call needs beside its inputs. Block-sparse attention keeps O(selected blocks) of indices and O(tokens) of "
        "output; whatever grows with blocks squared shows here."
    )
    found = (memory([cell for cell in cells if cell.grid.direction == direction]) for direction in ("forward", "backward"))
    return Section("memory", "Memory", lead, tuple(figure for figure in found if figure is not None))


def _speedups(cells: Sequence[CellRun]) -> Iterator[Speedup]:
    for cell, entry, ratio, _ in _compared(cells):
        assert cell.reference is not None
        saved = cell.reference.median_ns - entry.median_ns
        level: LevelName = "kernel" if entry.kind == "fine" else "section"
        yield Speedup(f"{cell.name} {entry.name}", cell.reference.name, level, ratio, saved)
