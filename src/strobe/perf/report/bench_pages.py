"""The pages of grids of attention and of tree attention."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from strobe.core.spans import NAMES
from strobe.perf.analysis.device.roofline import Roofline
from strobe.perf.analysis.runs.grid import (
    CallCollective,
    CellRun,
    GridContestant,
    Parts,
    collectives,
    parts,
    read_grid,
    speedup,
    typical,
)
from strobe.perf.measure.stats import percentile
from strobe.perf.records import record
from strobe.perf.records.record import COSINE, L1, LSE, MATMUL, PEAK, RECALL, RMSE, TEMPORARY, WHOLE, Mode
from strobe.perf.report.blocks.fields import damage_banners, section_of
from strobe.perf.report.blocks.grid import NONE, Entry, absent_table, across, grid_page, judged_sections, plane_of, timed_fields
from strobe.perf.report.blocks.kernels import AT_CLOCK, NO_CLOCK, device_note, of_cost, ran_at, rate_fields, rate_number
from strobe.perf.report.blocks.settings import banners
from strobe.perf.report.study import load_study
from strobe.perf.table.fields import Field, beside, count, numeric, share_of, table_of, time
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
    Section,
    Share,
    Speedup,
    Table,
    Text,
    Whisker,
    Whiskers,
    bytes_cell,
)
from strobe.perf.table.rows import columns, gathered

SERIALISED: Final = "launches were serialised (CUDA_LAUNCH_BLOCKING): never compared"
_STOP: Final = Banner("stop", "Serialised run: nothing in it is compared.", (SERIALISED,))


def read_cells(folder: Path, kind: Literal["attention", "tree"]) -> tuple[tuple[CellRun, ...], tuple[str, ...]]:
    """Read every cell of a grid that has records, even one that failed or was cut short; of several attempts the last."""

    def place(cell: CellRun) -> tuple[str | float, ...]:
        if kind == "tree":
            return cell.dtype, cell.sizes.get("tokens", 0), cell.run.header.world_size
        return cell.grid.shape, cell.grid.backward, cell.grid.block, 0.0 if cell.grid.layer else cell.sparsity

    return read_grid(folder, kind, place, f"strobe bench {kind}")


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


def _gate(gate: record.Gate) -> Text:
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
        memory("kept for backward", record.SAVED, "what the forward pass leaves for the backward pass, its output included"),
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
    """Build the page of an attention grid; of captured calls with the answer first."""
    cells, unread = read_cells(folder, "attention")
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


# Tree attention: strategies side by side, and scaling over ranks.

_MODES: Final[tuple[Mode, ...]] = ("free-running", "serialised")


def _spread_of(entry: GridContestant) -> float:
    return (percentile(entry.times_ns, 0.9) - percentile(entry.times_ns, 0.1)) / entry.median_ns


def split_calls(entry: GridContestant, mode: Mode) -> tuple[tuple[record.RankCall, ...], ...]:
    """Return the calls of one mode that were split, each with all of its ranks."""
    own = (span for span in entry.spans if span.mode == mode)
    calls = gathered(((span.index or 0, span.rank), span) for span in own if span.rank is not None)
    ranks = range(1 + max((rank for _, rank in calls), default=-1))
    return tuple(tuple(calls[index, rank] for rank in ranks) for index in sorted({index for index, _ in calls}))


def parts_of(entry: GridContestant, mode: Mode = "free-running") -> Parts | None:
    """Return the parts of a typical call; None if calls were not split in this mode."""
    calls = split_calls(entry, mode)
    return typical([parts(ranks) for ranks in calls]) if calls else None


def collectives_of(entry: GridContestant, mode: Mode = "free-running") -> tuple[CallCollective, ...]:
    """Return every collective of a call, over all calls of one mode."""
    return collectives(split_calls(entry, mode))


# Blocks of the guide's timers over all ranks: leaves by kind, enclosing blocks separately, both modes.

_Block: TypeAlias = tuple[str, str, float, list[int], list[float]]
"""Block, kind, mean over the ranks of all of its time, every time, and the median of each rank, ns."""


def _guide_table(cell: CellRun, mode: Mode) -> Table | None:
    own = (span for span in cell.run.spans if span.variant == record.GUIDE and span.mode == mode and span.rank is not None)
    timed = gathered(((span.name, span.part), (span.rank, span.value_ns)) for span in own)
    blocks: list[_Block] = []
    for (name, kind), times in timed.items():
        ranks = list(gathered(times).values())
        every, medians = [ns for _, ns in times], [statistics.median(each) for each in ranks]
        blocks.append((name, kind, statistics.fmean(map(sum, ranks)), every, medians))
    if not blocks:
        return None
    leaves = gathered((kind, mean) for name, kind, mean, *_ in blocks if name != record.TOTAL)
    sums = {kind: sum(means) for kind, means in leaves.items()}
    share = share_of(sum(sums.values()))
    fields: tuple[Field[_Block], ...] = (
        Field("block", lambda row: row[0], Code),
        Field("kind", lambda row: "around the others, not summed" if row[0] == record.TOTAL else row[1]),
        time("mean", lambda row: statistics.fmean(row[3])),
        time("p50", lambda row: statistics.median(row[3])),
        time("p90", lambda row: percentile(row[3], 0.9)),
        time("spread", lambda row: max(row[3]) - min(row[3]), hint="max - min"),
        numeric("of the leaves", lambda row: None if row[0] == record.TOTAL else share(row[2]), missing="it holds the leaves"),
        time("fastest rank", lambda row: min(row[4]), hint="p50"),
        time("slowest rank", lambda row: max(row[4]), hint="p50"),
    )
    blocks.sort(key=lambda row: (row[0] == record.TOTAL, row[1] != "computation", row[1]))
    shares = ", ".join(f"{kind} {100 * value / sum(sums.values()):.1f} %" for kind, value in sums.items())
    words = {
        "free-running": "Free-running: nothing waits inside; a comm block holds the wait for the other ranks too.",
        "serialised": "Serialised: the ranks meet before each collective (wait_*), so comm_* is transfer alone.",
    }[mode]
    caption, notes = f"{cell.name}: blocks of the guide, {mode}.", (f"Leaves: {shares}.", words)
    return table_of(caption, fields, blocks, strong=lambda row: row[0] == record.TOTAL, notes=notes)


# Scaling over the cells of a grid: strong and weak, with efficiency.

_ALONE: Final = "one rank was not measured there"
_Scaled: TypeAlias = tuple[CellRun, GridContestant, float | None]
"""A cell, one contestant of it, and the time of one rank alone (ns): on the same keys, or in weak scaling on its own share."""


def _ranks(row: _Scaled) -> int:
    return row[0].run.header.world_size


def _ratio(row: _Scaled) -> float | None:
    return None if row[2] is None else row[2] / row[1].median_ns


def _efficiency(row: _Scaled, weak: bool) -> float | None:
    """Return the share of the ideal, which is a speedup of the number of ranks, or in weak scaling the time of one rank."""
    ratio = _ratio(row)
    return ratio if ratio is None or weak else ratio / _ranks(row)


def _serial(row: _Scaled) -> float | None:
    ratio, ranks = _ratio(row), _ranks(row)
    return None if ratio is None else (1 / ratio - 1 / ranks) / (1 - 1 / ranks)


def _alone(cells: Sequence[CellRun]) -> dict[int, float]:
    alone = (cell for cell in cells if cell.run.header.world_size == 1)
    ours = ((cell, entry) for cell in alone for entry in cell.measured if entry.settings is None or not entry.settings.peer)
    own = gathered((cell.sizes["tokens"], entry.median_ns) for cell, entry in ours)
    return {tokens: min(times) for tokens, times in own.items()}


def _scaled(cells: Sequence[CellRun], *, weak: bool) -> list[_Scaled]:
    """Return the points of strong scaling (the same keys on more ranks), or of weak scaling (the same keys per rank)."""
    alone, found = _alone(cells), list[_Scaled]()
    for cell in cells:
        ranks, tokens = cell.run.header.world_size, cell.sizes["tokens"]
        base_ns = alone.get(tokens // ranks if weak else tokens)
        if ranks > 1 and not (weak and (tokens % ranks or base_ns is None)):
            found += [(cell, entry, base_ns) for entry in cell.measured]
    return found


def _scaling_sections(cells: Sequence[CellRun]) -> Iterator[Section]:
    for title, own in gathered((_title(cell), cell) for cell in cells if cell.measured).items():
        blocks: list[Block] = []
        for weak in (False, True):
            points = _scaled(own, weak=weak)
            blocks += [_curve_table(title, weak, points), *_curves(title, weak, points)] if points else []
        if not blocks and (alone := _alone(own)):  # measured on one rank only: no curve to stand in
            fields: tuple[Field[tuple[int, float]], ...] = (count("keys", lambda row: row[0]), time("median", lambda row: row[1]))
            blocks.append(table_of(f"{title}: one rank.", fields, sorted(alone.items())))
        if blocks:
            lead = "Every time is the median over calls of the slowest rank."
            yield Section(title.replace(" ", "-").replace(",", ""), title, lead, tuple(blocks))


def _title(cell: CellRun) -> str:
    size, device = cell.sizes, cell.run.header.machine.device_type
    heads = f"{size['heads']} heads of {size['head_dim']}, {size['kv_heads']} of keys"
    return f"{device}, {cell.dtype}, {size['q_tokens']} queries, {heads}, batch {size['batch']}"


def _curve_table(title: str, weak: bool, points: Sequence[_Scaled]) -> Table:
    hundredths, serial = partial(Number, digits=2), "Karp and Flatt: (1/S - 1/P) / (1 - 1/P)"
    scaled: tuple[Field[_Scaled], ...] = (
        numeric("speedup", _ratio, show=hundredths, missing=_ALONE),
        numeric("efficiency", lambda row: _efficiency(row, weak), "1 is ideal", show=Share, missing=_ALONE),
        numeric("serial share", _serial, serial, show=hundredths, missing=_ALONE),
    )
    fields: tuple[Field[_Scaled], ...] = (
        Field("strategy", lambda row: row[1].name, Code),
        count("ranks", _ranks),
        count("keys", lambda row: row[0].sizes["tokens"]),
        time("median", lambda row: row[1].median_ns),
        time("one rank", lambda row: row[2], hint="the keys of one rank" if weak else "the same keys", missing=_ALONE),
        *(scaled[1:2] if weak else scaled),
        time("predicted", lambda row: row[1].predicted_ns, missing="no plan for a peer"),
    )
    return table_of(f"{title}: {'weak' if weak else 'strong'} scaling.", fields, points, sortable=True)


def _curves(title: str, weak: bool, points: Sequence[_Scaled]) -> Iterator[Figure]:
    placed = [(_ranks(row), row[0].sizes["tokens"], row) for row in points]
    efficiency = gathered(
        (keys // ranks if weak else keys, (row[1].name, (ranks, share)))
        for ranks, keys, row in placed
        if (share := _efficiency(row, weak)) is not None
    )
    for keys, reached in sorted(efficiency.items()):
        words = f"weak scaling of {keys} keys a rank" if weak else f"strong scaling of {keys} keys"
        yield _plot(f"{title}: {words}", "ranks", "efficiency", gathered(reached))
    times = gathered((ranks, (row[1].name, (keys, row[1].median_ns / 1e6))) for ranks, keys, row in placed)
    for ranks, took in sorted(times.items() if not weak else ()):
        yield _plot(f"{title}: {ranks} ranks", "keys", "time, ms", gathered(took))


def _plot(title: str, x: str, y: str, named: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    axes = Axis(x, from_zero=True, whole=True), Axis(y, from_zero=True)
    title = f"{title}: {y}"
    table = across(title, named, ("strategy", lambda at: f"{at} {x}"), lambda value: Number(value, 3))
    return Figure(title, title, plane_of(named, *axes), table)


# Verdicts on the limit of each strategy, with evidence and one remedy.

HIGH_SPREAD: Final = 0.5
"""Spread `(p90 - p10) / median` from which a warning is given."""
NAMED: Final = 0.6
"""Share of the calls in which a straggler must have been last; with two ranks chance alone gives 0.5."""
Bound: TypeAlias = tuple[str, str, str]
"""Verdict on one strategy of one cell, its evidence, and one remedy."""
_REMEDIES: Final = {
    "flop-bound": "fewer pairs (a window, block-sparse attention), or more ranks while each keeps enough to do",
    "memory-bound": "fewer bytes of keys a rank: more ranks, grouped heads, or a 16-bit cache",
    "skew-bound": "look at the straggler: more keys than the others, a slower device, another process on its cores; without one "
    "the ranks take turns: give each cores of its own",
    "latency-bound": "fewer collectives: another strategy, or several layers in one call",
    "bandwidth-bound": "fewer bytes: another strategy, 16-bit tensors, or a result that stays spread",
    "launch-bound": "more work in a call (more queries or keys a rank, fewer ranks); on a GPU capture a CUDA graph",
}


def bound(cell: CellRun, entry: GridContestant) -> Bound | None:
    """Return the verdict from the largest of attention, wait, transfer and host time; None if calls were not split."""
    found = parts_of(entry)
    if found is None:
        return None
    ranks = cell.run.header.world_size
    wait = found.wait * ranks / max(1, ranks - 1)  # in every call one rank waits for nobody: its lateness is the others' wait
    alpha, beta = sum(each.alpha_ns for each in entry.sent), sum(each.beta_ns for each in entry.sent)
    work = "flop-bound" if entry.prediction is not None and entry.prediction.bound == "flop" else "memory-bound"
    _, verdict, took, what = max(
        (found.local + found.merge, work, found.local + found.merge, f"attention and merge{_reached(cell, entry, found)}"),
        (wait, "skew-bound", found.wait, "waiting for other ranks"),
        (found.transfer, "latency-bound" if alpha >= beta else "bandwidth-bound", found.transfer,
         f"exposed transfer in {_sent(entry)}; predicted {alpha / 1e6:.3g} ms of latency and {beta / 1e6:.3g} of bandwidth"),
        (found.host, "launch-bound", found.host, "neither attention nor communication: checks, packing, launching"),
        key=lambda each: each[0],
    )  # fmt: skip
    evidence = f"{100 * took / found.total:.0f} % ({took / 1e6:.3g} of {found.total / 1e6:.3g} ms) is {what}"
    sending = [each for each in cell.measured if each.sent] or [entry]
    least = min(sending, key=lambda each: len(each.sent) if verdict == "latency-bound" else _bytes(each))
    other = f"; {least.name} has {_sent(least)}" if verdict in ("latency-bound", "bandwidth-bound") and least is not entry else ""
    return verdict, evidence, _REMEDIES[verdict] + other


def _bytes(entry: GridContestant) -> float:
    return sum(each.sent_bytes for each in entry.sent)


def _sent(entry: GridContestant) -> str:
    return f"{len(entry.sent)} collectives of {_bytes(entry) / 1e6:.3g} MB"


def _reached(cell: CellRun, entry: GridContestant, found: Parts) -> str:
    links = cell.run.links or record.Links()
    if entry.prediction is None or entry.variant is None or not found.local:
        return ""
    cost, ranks = entry.variant.costs[0], cell.run.header.world_size
    roof, amount, unit = links.memory_bytes_per_s, cost.read_bytes / (1 if entry.name == "ring" else ranks), "GB/s"
    if entry.prediction.bound == "flop":
        roof, amount, unit = links.flops_per_s, cost.flops / ranks, "GFLOP/s"
    return f"; a rank reached {amount / found.local:.3g} {unit} of {roof / 1e9:.3g} measured on these ranks" if roof else ""


def straggler(found: Sequence[CallCollective]) -> tuple[int, float] | None:
    """Return the rank that the others waited for most and the share of calls in which it was last; None if no rank stands out."""
    weights: Counter[int] = Counter()
    for each in found:
        weights[each.last] += round(sum(each.waits_ns))
    if not weights:
        return None
    rank = weights.most_common(1)[0][0]
    share = max(each.last_share for each in found if each.last == rank)
    return (rank, share) if share >= NAMED else None


def warnings(cell: CellRun) -> tuple[str, ...]:
    """Return warnings on what makes the times of a cell doubtful."""
    found = []
    header, ranks = cell.run.header, cell.run.header.world_size
    if header.machine.device == "cpu" and ranks * header.machine.threads > header.machine.cores:
        found.append(f"{ranks} ranks share {header.machine.cores} cores: read ratios, not times; they wait for each other's turn")
    wide = [entry for entry in cell.measured if _spread_of(entry) > HIGH_SPREAD]
    if wide:
        which = ", ".join(f"{entry.name} {100 * _spread_of(entry):.0f} %" for entry in wide)
        found.append(f"high variance, (p90 - p10) / median: {which}; run more --iterations and look for other load")
    busy = cell.surroundings.busy_cores
    if busy is not None and busy > 0.2:
        found.append(f"other processes kept {busy:.1f} of {header.machine.cores} cores busy before the ranks began")
    return tuple(found)


_Sent: TypeAlias = tuple[GridContestant, CallCollective, record.SentMessage | None, float | None]
"""A collective of a strategy: as measured, as planned, and its transfer in the serialised call, ns."""
PARTS: Final = ("local", "merge", "wait", "transfer", "host")


def _strategy_table(cell: CellRun) -> Table:
    fields: tuple[Field[Entry], ...] = (
        Field("strategy", lambda row: row[1].name, Code),
        time("median", lambda row: row[1].median_ns, "ms", "of the slowest rank of each call"),
        *timed_fields("first strategy", lambda row: row[1], lambda row: cell.measured[0]),
        time(
            "predicted",
            lambda row: row[1].predicted_ns or None,
            "ms",
            "by the plan, with links measured on these ranks",
            missing=NONE,
        ),
        numeric(
            "measured / predicted",
            lambda row: row[1].median_ns / row[1].predicted_ns if row[1].predicted_ns else None,
            show=lambda value: Number(value, 2),
            missing=NONE,
        ),
        numeric("spread", lambda row: _spread_of(row[1]), "(p90 - p10) / median", show=Share),
        Field("gate", lambda row: Text(row[1].gate.detail if row[1].gate else "", "good"), hint="every rank against float64"),
    )
    choice = cell.run.links.auto if cell.run.links else ""
    notes = [f"auto takes {choice} with these links."] if choice else []
    rows = [(cell, entry) for entry in cell.measured]
    return table_of(f"{cell.name}: strategies.", fields, rows, notes=notes, sortable=True)


def _parts_table(cell: CellRun) -> Table | None:
    fields: tuple[Field[tuple[str, Parts, Parts | None]], ...] = (
        Field("strategy", lambda row: row[0], Code),
        *(field.of(lambda row: row[1]) for field in columns(Parts, *PARTS, "total")),
        numeric(
            "exposed", lambda row: (row[1].wait + row[1].transfer) / row[1].total, "wait and transfer, of the whole", show=Share
        ),
        *(field.of(lambda row: row[1]) for field in columns(Parts, "hidden")),
        time(
            "serialised",
            lambda row: row[2] and row[2].total,
            "ms",
            "the same call where the ranks meet before each collective",
            missing=NONE,
        ),
        numeric(
            "perturbation",
            lambda row: row[2] and row[2].total / row[1].total - 1,
            "serialised / free-running - 1",
            show=Share,
            missing=NONE,
        ),
    )
    rows = [
        (entry.name, found, parts_of(entry, "serialised")) for entry in cell.measured if (found := parts_of(entry)) is not None
    ]
    notes = (
        "Free-running: nothing waits but what must. exposed = |union(messages, work)| - |union(work)|, rank by rank; a message "
        "is under way from the moment it is posted, so the transfer holds the time of posting.",
        "Mean over the half of the calls around the median; the parts add up to the whole.",
    )
    return table_of(f"{cell.name}: where a call went.", fields, rows, notes=notes) if rows else None


def _collective_table(cell: CellRun) -> Table | None:
    rows: list[_Sent] = []
    for entry in cell.measured:
        meeting, names = collectives_of(entry, "serialised"), iter(entry.sent)
        for each in collectives_of(entry):
            sent = None if each.kind == "agreement" else next(names, None)
            rows.append((entry, each, sent, meeting[each.place].transfer_ns if each.place < len(meeting) else None))

    def wait_of(rank: int) -> Field[_Sent]:
        return time(f"wait of rank {rank}", lambda row: row[1].waits_ns[rank])

    fields: tuple[Field[_Sent], ...] = (
        Field("strategy", lambda row: row[0].name, Code),
        Field("collective", lambda row: row[1].kind if row[2] is None else f"{row[2].kind}: {row[2].payload}"),
        time("transfer", lambda row: row[1].transfer_ns, "ms", "the shortest time that a rank was held up, median"),
        *map(wait_of, range(cell.run.header.world_size)),
        Field("last", lambda row: f"rank {row[1].last}, {100 * row[1].last_share:.0f} % of the calls"),
        time(
            "predicted",
            lambda row: row[2] and row[2].alpha_ns + row[2].beta_ns,
            "ms",
            "latency and bandwidth",
            missing="not in the plan",
        ),
        time("serialised", lambda row: row[3], "ms", "transfer where the ranks had met just before", missing=NONE),
    )
    notes = (
        "wait + transfer is how long a rank was held up; the last to come waits for nobody. In a ring it waits for one.",
        "agreement: ranks tell each other what they are called with, while attention runs; no part of the plan.",
    )
    return table_of(f"{cell.name}: collectives.", fields, rows, notes=notes) if rows else None


def _verdict_table(cell: CellRun) -> Table | None:
    fields: tuple[Field[tuple[GridContestant, Bound]], ...] = (
        Field("strategy", lambda row: row[0].name, Code),
        Field("verdict", lambda row: row[1][0]),
        Field("evidence", lambda row: row[1][1]),
        Field("remedy", lambda row: row[1][2]),
        Field("straggler", lambda row: _late(straggler(collectives_of(row[0])))),
    )
    rows = [(entry, found) for entry in cell.measured if (found := bound(cell, entry)) is not None]
    return table_of(f"{cell.name}: verdicts.", fields, rows) if rows else None


def _late(who: tuple[int, float] | None) -> Text:
    return Text("none", "muted") if who is None else Text(f"rank {who[0]}, {100 * who[1]:.0f} % of the calls", "bad")


_TREE_LEAD = (
    "All strategies compute the same call on the same ranks, each rank with its own run of the keys. Every rank's result was "
    "held against float64 before any number was taken. Calls begin when all ranks are there and count by the slowest rank; "
    "strategies take turns in palindromes, so that ratios hold within one cell."
)


def scales(cells: Sequence[CellRun]) -> bool:
    """Return whether cells have several numbers of ranks, so that scaling comes first."""
    return len({cell.run.header.world_size for cell in cells}) > 1


def tree_report(folder: Path) -> Report:
    """Build the page of a tree-attention run: scaling if it has several numbers of ranks, and its cells."""
    cells, unread = read_cells(folder, "tree")
    ranks = sorted({cell.run.header.world_size for cell in cells})
    return grid_page(
        cells,
        unread,
        title="Tree attention: scaling" if scales(cells) else "Tree attention: strategies side by side",
        about="",
        facts=(
            Fact("ranks", Text(", ".join(map(str, ranks)))),
            Fact("timing", Text("host clock around each call, ranks aligned by a barrier, slowest rank")),
        ),
        banners=_banners(cells),
        sections=(*(_scaling_sections(cells) if scales(cells) else ()), *map(_cell_section, cells)),
    )


def shown_strategies(cells: Sequence[CellRun]) -> tuple[Table, ...]:
    """Choose the tables that a terminal shows, in the page's order: those of scaling, or those of each cell."""
    if scales(cells):
        blocks = [block for section in _scaling_sections(cells) for block in section.blocks]
        return tuple(block for block in blocks if isinstance(block, Table))
    found: list[Table | None] = []
    for cell in cells:
        if cell.measured:
            guide = (_guide_table(cell, mode) for mode in _MODES)
            found += [_strategy_table(cell), _parts_table(cell), _collective_table(cell), *guide]
        found.append(absent_table([cell]))
    return tuple(table for table in found if table is not None)


def _banners(cells: Sequence[CellRun]) -> list[Banner]:
    failed = tuple(f"{cell.name}: {cell.failure}" for cell in cells if cell.failure)
    red = tuple(f"{cell.name} {e.name}: {e.reason}" for cell in cells for e in cell.entries if e.outcome == "red")
    delayed = ((cell.name, cell.surroundings.delayed_rank) for cell in cells)
    held = tuple(f"{name}: rank {rank} was held back" for name, rank in delayed if rank is not None)
    doubts = tuple(f"{cell.name}: {text}" for cell in cells for text in warnings(cell))
    found = (
        *damage_banners((cell.name, cell.run.damage) for cell in cells),
        Banner("stop", "Some of it has no numbers.", (*failed, *red)),
        Banner("stop", "A rank was held back on purpose: these are not times of the code.", held),
        Banner("caution", "Before you read the numbers.", doubts),
    )
    return [banner for banner in found if banner.items]


def _cell_section(cell: CellRun) -> Section:
    title, absent = cell.name, absent_table([cell])
    place = title.replace(".", "-").replace("_", "-")
    if not cell.measured:
        return Section(place, title, f"No numbers: {cell.failure or 'no strategy passed'}.", (absent,) if absent else ())
    guide = (_guide_table(cell, mode) for mode in _MODES)
    tables = (_verdict_table(cell), _parts_table(cell), _collective_table(cell), *guide, absent, _links(cell))
    blocks: list[Block] = [_strategy_table(cell), *(table for table in tables if table is not None)]
    return Section(place, title, _TREE_LEAD, tuple(blocks))


def _links(cell: CellRun) -> Table | None:
    found = cell.run.links or record.Links()
    named = [("flops per", found.flops_per_s, "GFLOP/s"), ("memory bytes per", found.memory_bytes_per_s, "GB/s")]
    named.append(("launch", found.launch_s, "us"))
    for rate in found.rates:
        named += [(f"{rate.kind} alpha", rate.alpha_s, "us"), (f"{rate.kind} bytes per", rate.bytes_per_s, "GB/s")]
        named.append((f"{rate.kind} host", rate.host_s, "us"))
    fields = beside("of these ranks", ("measured",), numeric=True)
    rows = [(name, Number(value * (1e6 if unit == "us" else 1e-9), 2, unit)) for name, value, unit in named if value is not None]
    return table_of(f"{cell.name}: links and roofs.", fields, rows, collapsed=True) if rows else None
