"""Tables of an attention grid over the cells of one shape and direction."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from strobe.perf.analysis.runs.grid import Outcome, speedup
from strobe.perf.records.grids import (
    COSINE,
    L1,
    LSE,
    MATMUL,
    PEAK,
    RECALL,
    RMSE,
    SAVED,
    TEMPORARY,
)
from strobe.perf.report.attention_bench.cells import AttentionContestant, CellRun
from strobe.perf.report.blocks.ratios import ratio_cell, verdict_cell
from strobe.perf.report.blocks.roofline import rate_number
from strobe.perf.report.model import Cell, Code, Column, Count, Missing, Number, Row, Share, Table, Text, Time
from strobe.perf.report.text import bytes_cell

_NONE: Final = Missing("not measured here", "-")
SERIALISED: Final = "launches were serialised (CUDA_LAUNCH_BLOCKING): never compared"


def head(cell: CellRun, entry: AttentionContestant) -> tuple[Cell, ...]:
    """Return the cells that identify a row: budget, block size, contestant."""
    return Text(cell.grid.budget), Count(cell.grid.block), Code(entry.name)


HEAD: Final = (
    Column("budget", hint="s: share of the key tiles skipped; k: key tiles selected"),
    Column("block", numeric=True, hint="tokens of an attention block"),
    Column("contestant", hint="kind and implementation"),
)


def entries(cells: Iterable[CellRun]) -> Iterator[tuple[CellRun, AttentionContestant]]:
    """Yield every contestant with numbers, with its cell."""
    for cell in cells:
        for entry in cell.measured:
            yield cell, entry


def speed_table(cells: Sequence[CellRun], title: str) -> Table:
    """Build the table of times, speedups, rates and host times."""
    columns = (
        *HEAD,
        Column("median", "ms", True),
        Column("95 % of the median", hint="bootstrap, from 30 calls on; else shortest and longest call"),
        Column("calls", numeric=True),
        Column("speedup", numeric=True, hint="time of the fastest dense contestant / time, same palindromes, 95 % interval"),
        Column("verdict"),
        Column("useful TFLOP/s", numeric=True, hint="of selected pairs of tokens / median"),
        Column("padded TFLOP/s", numeric=True, hint="of whole blocks, padding rows included / median"),
        Column("of measured peak", numeric=True, hint="padded rate / rate of a large matrix product in the same palindromes"),
        Column("host", "µs", True, "median time until a call returned to its caller"),
    )
    rows = tuple(Row((*head(cell, entry), *_speed(cell, entry))) for cell, entry in entries(cells))
    peaks = [cell.peak_flops_per_s for cell in cells if cell.peak_flops_per_s]
    notes = [f"Reference of each cell: its fastest dense contestant ({_references(cells)})."]
    if peaks:
        notes.append(f"Measured peak: {min(peaks) / 1e12:.4g} to {max(peaks) / 1e12:.4g} TFLOP/s, a square product ({MATMUL}).")
    if (small := _too_small(cells)) is not None:
        notes.append(small)
    return Table(f"{title}: speed.", columns, rows, tuple(notes), sortable=True)


def _too_small(cells: Sequence[CellRun]) -> str | None:
    """Return a note that sparsity does not pay at this size; None if a sparse contestant beats dense attention, or none ran."""
    sparse = [
        (cell.reference, entry)
        for cell in cells
        if cell.reference is not None and not cell.serialised
        for entry in cell.measured
        if entry.kind != "dense"
    ]
    if not sparse or any(speedup(reference, entry).verdict == "faster" for reference, entry in sparse):
        return None
    tokens = sparse[0][1].size("tokens")
    return (
        f"Too small for sparsity to pay: at {tokens} tokens no sparse contestant is faster than the fastest dense one, because "
        f"scoring, selecting and gathering cost more than the skipped keys save. Longer sequences show what sparsity gives."
    )


def _references(cells: Sequence[CellRun]) -> str:
    names = dict.fromkeys(cell.reference.name for cell in cells if cell.reference)
    return ", ".join(names) or "none has numbers"


def _speed(cell: CellRun, entry: AttentionContestant) -> tuple[Cell, ...]:
    ns, interval = entry.median_ns, entry.interval
    low, high = (interval.low, interval.high) if interval else (min(entry.times_ns), max(entry.times_ns))
    peak = cell.peak_flops_per_s
    rate = entry.padded_flops / ns * 1e9
    return (
        Time(ns),
        Text(f"{low / 1e6:.4g} to {high / 1e6:.4g}{'' if interval else ' (all)'}"),
        Count(len(entry.times_ns)),
        *_ratio(cell, entry),
        rate_number(entry.flops / ns / 1e3),
        rate_number(rate / 1e12),
        Share(rate / peak) if peak else _NONE,
        Time(statistics.median(entry.hosts_ns)) if entry.hosts_ns else _NONE,
    )


def _ratio(cell: CellRun, entry: AttentionContestant) -> tuple[Cell, Cell]:
    if cell.serialised:
        return Missing(SERIALISED, "serialised"), Text("not compared", "muted")
    if cell.reference is None:
        return Missing("no dense contestant has numbers", "-"), Text("not compared", "muted")
    if cell.reference is entry:
        return Missing("it is the reference", "1"), Text("reference", "muted")
    found = speedup(cell.reference, entry)
    return ratio_cell(found.ratio, found.interval), verdict_cell(found.verdict)


def precision_table(cells: Sequence[CellRun], title: str) -> Table:
    """Build the table of errors against the same selection and against full dense attention."""
    labels = (("sel.", "selection", "the same selection"), ("dense", "dense", "full dense attention"))
    columns = [*HEAD, Column("gate")]
    for short, _, label in labels:
        columns += [
            Column(f"cosine, {short}", numeric=True, hint=f"similarity to {label}"),
            Column(f"L1, {short}", numeric=True, hint=f"relative error to {label}"),
            Column(f"RMSE, {short}", numeric=True, hint=f"to {label}"),
            Column(f"LSE, {short}", numeric=True, hint=f"largest absolute error to {label}"),
        ]
    columns.append(Column("recall", numeric=True, hint="share of full attention's mass on the selected keys"))
    rows = []
    for cell in cells:
        for entry in cell.entries:
            if entry.gate is None:
                continue
            gate = Text("green", "good") if entry.gate.passed else Text("RED", "bad", entry.gate.detail)
            numbers = [_value(entry, metric, against) for _, against, _ in labels for metric in (COSINE, L1, RMSE, LSE)]
            rows.append(Row((*head(cell, entry), gate, *numbers, _value(entry, RECALL, None))))
    notes = [
        "sel.: the kernel's own error, against float32 (float64 for float32 tensors) on the selection that it used. "
        "dense: the approximation, against full attention of the same queries; no kernel can repair it.",
        "Both on the checked queries of every head, all keys. A whole operator's output has the coarse part added, which full "
        "attention has not.",
    ]
    notes += list(dict.fromkeys(entry.gate.rule for cell in cells for entry in cell.entries if entry.gate))[:4]
    return Table(f"{title}: precision.", tuple(columns), tuple(rows), tuple(notes), sortable=True)


def _value(entry: AttentionContestant, metric: str, against: str | None) -> Cell:
    value = entry.number(metric, against=against, tensor="out" if metric in (COSINE, L1, RMSE) else "")
    return _NONE if value is None else Number(value, 6) if value >= 1e-3 else Text(f"{value:.2e}")


def gradient_table(cells: Sequence[CellRun], title: str) -> Table | None:
    """Build the table of gradient errors; None if no gradients were measured."""
    columns = [*HEAD]
    for which in ("dq", "dk", "dv"):
        columns += [Column(f"{name}, {which}", numeric=True) for name in ("cosine", "L1", "RMSE")]
    rows = []
    for cell in cells:
        for entry in cell.entries:
            found = [
                entry.number(metric, against="selection", tensor=which)
                for which in ("dq", "dk", "dv")
                for metric in (COSINE, L1, RMSE)
            ]
            if any(value is not None for value in found):
                shown = (_NONE if value is None else Text(f"{value:.6g}") for value in found)
                rows.append(Row((*head(cell, entry), *shown)))
    note = "Against autograd through the same computation in float32, where only the checked queries have an upstream gradient."
    return Table(f"{title}: gradients.", tuple(columns), tuple(rows), (note,)) if rows else None


def memory_table(cells: Sequence[CellRun]) -> Table:
    """Build the table of one call's memory by number of selected blocks."""
    columns = (
        Column("cell"),
        Column("contestant"),
        Column("selected blocks", numeric=True, hint="over heads and query blocks"),
        Column("temporary", numeric=True, hint="what one call needs above what was there before it, its output included"),
        Column("peak", numeric=True, hint="of everything, during one call"),
        Column("kept for backward", numeric=True, hint="what the forward pass leaves for the backward pass, its output included"),
    )
    rows = []
    for cell, entry in entries(cells):
        cells_ = (Code(cell.name), Code(entry.name), Count(entry.size("selected_blocks")))
        rows.append(Row((*cells_, _megabytes(entry, TEMPORARY), _megabytes(entry, PEAK), _megabytes(entry, SAVED))))
    how = dict.fromkeys(
        line.definition for cell in cells for entry in cell.measured for line in entry.numbers if line.metric in (TEMPORARY, PEAK)
    )
    return Table("Memory of one call.", columns, tuple(rows), tuple(how), sortable=True)


def _megabytes(entry: AttentionContestant, metric: str) -> Cell:
    value = entry.number(metric)
    return _NONE if value is None else bytes_cell(value, "MB", 1)


def absent_table(cells: Sequence[CellRun]) -> Table | None:
    """Build the table of contestants without a number and the reason, cells with the same reason in one row; None if empty."""
    columns = (Column("contestant"), Column("why it has no number"), Column("cells", numeric=True), Column("which"))
    found: dict[tuple[str, str, Outcome], list[str]] = {}
    for cell in cells:
        for entry in cell.contestants:
            if entry.reason:
                found.setdefault((entry.name, entry.reason, entry.outcome), []).append(cell.name)
    rows = []
    for (name, reason, outcome), names in found.items():
        which = Text("all") if len(names) == len(cells) else Code(", ".join(names[:3]) + (" ..." if len(names) > 3 else ""))
        rows.append(Row((Code(name), Text(reason, "plain" if outcome == "refused" else "bad"), Count(len(names)), which)))
    return Table("Entries without a number.", columns, tuple(rows)) if rows else None
