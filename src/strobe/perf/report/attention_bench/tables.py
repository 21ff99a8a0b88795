"""Tables of an attention grid over the cells of one shape and direction."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from strobe.perf.analysis.runs.grid import Outcome, speedup
from strobe.perf.records.grids import COSINE, L1, LSE, MATMUL, PEAK, RECALL, RMSE, SAVED, TEMPORARY
from strobe.perf.records.record import Gate
from strobe.perf.report.attention_bench.cells import AttentionContestant, CellRun
from strobe.perf.report.blocks.contestants import NONE, Entry, Timed, compared, reason_cell, timed_fields
from strobe.perf.report.blocks.fields import Field, count, numeric, table_of, time
from strobe.perf.report.blocks.roofline import rate_number
from strobe.perf.report.model import Cell, Code, Missing, Number, Share, Table, Text
from strobe.perf.report.text import bytes_cell

SERIALISED: Final = "launches were serialised (CUDA_LAUNCH_BLOCKING): never compared"
_HEAD: Final[tuple[Field[Any], ...]] = (
    Field("budget", lambda row: row[0].grid.budget, hint="s: share of the key tiles skipped; k: key tiles selected"),
    count("block", lambda row: row[0].grid.block, "tokens of an attention block"),
    Field("contestant", lambda row: row[1].name, Code, hint="kind and implementation"),
)


def entries(cells: Iterable[CellRun]) -> Iterator[tuple[CellRun, AttentionContestant]]:
    """Yield every contestant with numbers, with its cell."""
    for cell in cells:
        for entry in cell.measured:
            yield cell, entry


def speed_table(cells: Sequence[CellRun], title: str) -> Table:
    """Build the table of times, speedups, rates and host times."""
    fields: tuple[Field[Timed], ...] = (
        *_HEAD,
        time("median", lambda row: row[1].median_ns),
        *timed_fields("fastest dense contestant"),
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
        time(
            "host",
            lambda row: statistics.median(row[1].hosts_ns) if row[1].hosts_ns else None,
            "µs",
            "median time until a call returned to its caller",
            missing=NONE,
        ),
    )
    rows = [(cell, entry, _ratio(cell, entry)) for cell, entry in entries(cells)]
    peaks = [cell.peak_flops_per_s for cell in cells if cell.peak_flops_per_s]
    references = ", ".join(dict.fromkeys(cell.reference.name for cell in cells if cell.reference)) or "none has numbers"
    notes = [f"Reference of each cell: its fastest dense contestant ({references})."]
    if peaks:
        notes.append(f"Measured peak: {min(peaks) / 1e12:.4g} to {max(peaks) / 1e12:.4g} TFLOP/s, a square product ({MATMUL}).")
    if (small := _too_small(cells)) is not None:
        notes.append(small)
    return table_of(f"{title}: speed.", fields, rows, notes=notes, sortable=True)


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


def _ratio(cell: CellRun, entry: AttentionContestant) -> tuple[Cell, Cell]:
    if cell.serialised:
        return Missing(SERIALISED, "serialised"), Text("not compared", "muted")
    if cell.reference is None:
        return Missing("no dense contestant has numbers", "-"), Text("not compared", "muted")
    return compared(cell.reference, entry)


def precision_table(cells: Sequence[CellRun], title: str) -> Table:
    """Build the table of errors against the same selection and against full dense attention."""
    fields: list[Field[Entry]] = [*_HEAD, Field("gate", lambda row: _gate(row[1].gate))]
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


def _number(head: str, metric: str, against: str | None, hint: str) -> Field[Entry]:
    """Return the column of one metric, against one reference."""
    tensor = "out" if metric in (COSINE, L1, RMSE) else ""

    def get(row: Entry) -> Cell | None:
        value = row[1].number(metric, against=against, tensor=tensor)
        return None if value is None else Number(value, 6) if value >= 1e-3 else Text(f"{value:.2e}")

    return numeric(head, get, hint, missing=NONE)


def gradient_table(cells: Sequence[CellRun], title: str) -> Table | None:
    """Build the table of gradient errors; None if no gradients were measured."""
    fields: list[Field[Entry]] = [*_HEAD]
    for of in ("dq", "dk", "dv"):
        fields += [_gradient(f"{name}, {of}", metric, of) for name, metric in (("cosine", COSINE), ("L1", L1), ("RMSE", RMSE))]
    rows = [
        (cell, entry)
        for cell in cells
        for entry in cell.entries
        if any(field.get((cell, entry)) is not None for field in fields[len(_HEAD) :])
    ]
    note = "Against autograd through the same computation in float32, where only the checked queries have an upstream gradient."
    return table_of(f"{title}: gradients.", fields, rows, notes=(note,)) if rows else None


def _gradient(head: str, metric: str, of: str) -> Field[Entry]:
    def get(row: Entry) -> str | None:
        value = row[1].number(metric, against="selection", tensor=of)
        return None if value is None else f"{value:.6g}"

    return numeric(head, get, missing=NONE)


def memory_table(cells: Sequence[CellRun]) -> Table:
    """Build the table of one call's memory by number of selected blocks."""

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


def absent_table(cells: Sequence[CellRun]) -> Table | None:
    """Build the table of contestants without a number and the reason, cells with the same reason in one row; None if empty."""
    found: dict[tuple[str, str, Outcome], tuple[AttentionContestant, list[str]]] = {}
    for cell in cells:
        for entry in cell.contestants:
            if entry.reason:
                found.setdefault((entry.name, entry.reason, entry.outcome), (entry, []))[1].append(cell.name)
    fields: tuple[Field[tuple[AttentionContestant, list[str]]], ...] = (
        Field("contestant", lambda row: row[0].name, Code),
        Field("why it has no number", lambda row: reason_cell(row[0])),
        count("cells", lambda row: len(row[1])),
        Field("which", lambda row: Text("all") if len(row[1]) == len(cells) else _first_names(row[1])),
    )
    return table_of("Entries without a number.", fields, list(found.values())) if found else None


def _first_names(names: Sequence[str]) -> Code:
    return Code(", ".join(names[:3]) + (" ..." if len(names) > 3 else ""))
