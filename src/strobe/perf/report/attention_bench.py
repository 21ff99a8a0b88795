"""The page of a grid of attention."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec

from strobe.core.spans import NAMES
from strobe.perf.analysis.device.roofline import Roofline
from strobe.perf.analysis.runs.grid import CellRun, GridContestant, read_grid, speedup
from strobe.perf.records.record import COSINE, L1, LSE, MATMUL, PEAK, RECALL, RMSE, SAVED, TEMPORARY, WHOLE, Gate
from strobe.perf.report.blocks.fields import gathered, section_of
from strobe.perf.report.blocks.grid import NONE, Entry, absent_table, across, grid_page, judged_sections, timed_fields
from strobe.perf.report.blocks.kernels import AT_CLOCK, NO_CLOCK, device_note, of_cost, ran_at, rate_fields, rate_number
from strobe.perf.report.blocks.settings import banners
from strobe.perf.report.study import load_study
from strobe.perf.table.fields import Field, count, numeric, table_of, time
from strobe.perf.table.model import (
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
    return table_of(f"{title}: speed.", fields, list(entries(cells)), notes=notes, sortable=True)


def _roof(row: Entry) -> Roofline | None:
    cell, entry = row[0], row[1]
    if entry.variant is None or not entry.variant.costs:
        return None
    cost = msgspec.structs.replace(entry.variant.costs[0], flops=entry.padded_flops)
    return of_cost(cost, entry.median_ns, cell.peaks, entry.variant.dtype, entry.clocks)


def _peak_fields(cells: Sequence[CellRun]) -> tuple[Field[Entry], ...]:
    """Return the columns of shares of the peak, if one is published, and of the SM clock, if one was sampled."""
    clocked = any(entry.clocks for _, entry in entries(cells))
    shares = rate_fields(cells[0].peaks, _roof, clocked=clocked) if cells[0].peaks is not None else ()
    clock: Field[Entry] = Field(
        "SM clock", lambda row: ran_at(row[1].clocks), hint="median while its calls were timed", missing=NO_CLOCK
    )
    kept = (field for field in shares if field.head in ("of peak", AT_CLOCK.head))
    return (*kept, clock) if clocked else tuple(kept)


def _clock_notes(cells: Sequence[CellRun]) -> Iterator[str]:
    if not cells[0].run.header.machine.on_gpu:
        return
    if cells[0].peaks is not None:
        yield device_note(cells[0].run.header.machine.device_name, cells[0].peaks)
    if not any(entry.clocks for _, entry in entries(cells)):
        yield "SM clock: not sampled, which needs NVML (strobe-video[nvml]): no share of the peak at that clock."
    elif any(cell.clocks_of_rounds for cell in cells):
        yield "SM clock: sampled over whole rounds of all contestants, so that none has one of its own; newer records have it."


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


def _speedup_figure(cells: Sequence[CellRun]) -> Iterator[Figure]:
    """Plot the speedups of one shape, direction and block size with their intervals; at each sparsity the fastest first."""
    found = list(_compared(cells))
    if not found:
        return
    grid = cells[0].grid
    named = gathered((entry.name, (cell.sparsity, ratio.value)) for cell, entry, ratio, _ in found)
    title = f"speedup over dense: {grid.shape}, {grid.direction}, blocks of {grid.block}"
    table = across(title, named, ("contestant", lambda place: f"{100 * place:.1f} %"), lambda value: Number(value, 2, "x"))
    found.sort(key=lambda each: (each[0].sparsity, -each[2].value))
    rows = (Whisker(entry.name, ratio, group=f"{100 * cell.sparsity:.1f} % left out") for cell, entry, ratio, _ in found)
    yield Figure(title, title, Whiskers("the fastest dense contestant", tuple(rows)), table)


def _stage_table(cells: Sequence[CellRun]) -> Table | None:
    own = [(cell, entry) for cell, entry in entries(cells) if WHOLE in entry.stages]
    fields: tuple[Field[tuple[CellRun, GridContestant, str, int]], ...] = (
        Field("cell", lambda row: row[0].name, Code),
        Field("contestant", lambda row: row[1].name, Code),
        Field("stage", lambda row: row[2]),
        time("time", lambda row: row[3]),
        numeric("of the whole call", lambda row: row[3] / row[1].stages[WHOLE], show=Share),
    )
    stages = [
        (cell, entry, name, ns) for cell, entry in own for name, ns in (*entry.between_stages, (WHOLE, entry.stages[WHOLE]))
    ]
    names = dict.fromkeys(name for _, entry in own for name in entry.stages)
    notes = tuple(f"{name}: {NAMES[name]}." for name in names if name in NAMES)
    caption = "Stages of the whole operator, every cell."
    return table_of(caption, fields, stages, strong=lambda row: row[2] == WHOLE, notes=notes) if own else None


_LEAD = (
    "Every contestant of a cell computes the same call. Its gate was checked before any number was taken; calls of all "
    "contestants and of a large matrix product were taken in palindromes, so that ratios hold within one cell."
)
_STAGES_LEAD = (
    "Where the time of one forward call of the whole operator goes, by its own spans, in calls of their own (median of several, "
    "nothing else between them, the cache as the call before left it)."
)
_MEMORY_LEAD = (
    "What one call needs beside its inputs. Block-sparse attention keeps O(selected blocks) of indices and O(tokens) of output; "
    "whatever grows with blocks squared shows here."
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
            section_of("stages", "Stages of the whole operator", _STAGES_LEAD, (_stage_table(cells),)),
            Section("memory", "Memory", _MEMORY_LEAD, (_memory_table(cells),)),
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
            blocks += _speedup_figure(same)
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


def _speedups(cells: Sequence[CellRun]) -> Iterator[Speedup]:
    for cell, entry, ratio, _ in _compared(cells):
        assert cell.reference is not None
        saved = cell.reference.median_ns - entry.median_ns
        level: LevelName = "kernel" if entry.kind == "fine" else "section"
        yield Speedup(f"{cell.name} {entry.name}", cell.reference.name, level, ratio, saved)
