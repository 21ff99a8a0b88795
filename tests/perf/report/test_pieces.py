"""Tables of a breakdown on traces whose every length is known, and the section in the page of a run."""

from __future__ import annotations

import pytest

from passes import LAYER, LAYERS, STEP_NS, STEPS, Recorder, stream
from reports import by_title
from strobe.core.costs import device_peaks
from strobe.perf.analysis.runs.breakdown import breakdown
from strobe.perf.analysis.runs.timeline import passes_of
from strobe.perf.records.record import SpanCost
from strobe.perf.report.blocks.breakdown import Roofs, breakdown_blocks, gains_table, layers_table, stages_table
from strobe.perf.table.model import Cell, Missing, Notes, Number, Ratio, Share, Table, Text, Time
from strobe.perf.trace import Trace

H200 = device_peaks("NVIDIA H200")
COST = SpanCost(span="attention_kernel", flops=80_000_000, read_bytes=100_000, write_bytes=20_000)
ROOFS = Roofs(costs={COST.span: COST}, peaks=H200, device_name="NVIDIA H200", dtype="bfloat16")


def cells(table: Table) -> dict[str, dict[str, Cell]]:
    """Cells by the words of the first column and the title of theirs."""
    return {row.cells[0].text: cells for row, cells in zip(table.rows, by_title(table), strict=True)}


@pytest.fixture(scope="module")
def trace() -> Trace:
    return stream(Recorder(pause=500), blocks=2)


def test_the_first_layer_takes_twice_as_long() -> None:
    """The host is fast, so that no gap lies between the kernels: the first of all waits alone."""
    found = breakdown(stream(Recorder(pause=0, delay=0, scale=10), blocks=2))
    table = cells(layers_table("mine", found, ROOFS))
    row = table["attention / attention_kernel"]
    assert row["first / later"] == Ratio(2.0)
    assert (row["first layer"], row["later layers"]) == (Time(2000.0), Time(1000.0))
    assert (row["calls in a layer"].value, row["kernels"].value) == (1, 1)  # type: ignore[union-attr]
    rate = COST.flops / (1000 * (LAYERS + 1) / LAYERS * 1e-9)
    assert isinstance(row["TFLOP/s"], Number) and row["TFLOP/s"].value == pytest.approx(rate / 1e12)
    assert isinstance(row["of peak"], Share) and row["of peak"].value == pytest.approx(rate / 989.5e12)
    assert isinstance(table["ffn / ffn_up"]["TFLOP/s"], Missing)
    assert table["a layer"]["first / later"] == Ratio(2.0)
    assert table["a layer"]["kernels"].value == len(LAYER)  # type: ignore[union-attr]


def test_a_rate_above_the_peak_is_flagged(trace: Trace) -> None:
    fast = Roofs(
        costs={COST.span: SpanCost(span=COST.span, flops=10**12, read_bytes=0, write_bytes=0)}, peaks=H200, dtype="bfloat16"
    )
    notes = [
        line for block in breakdown_blocks("mine", breakdown(trace), fast) if isinstance(block, Notes) for line in block.items
    ]
    assert [line.partition(":")[0] for line in notes] == ["ANOMALY, mine, attention_kernel"]


def test_stages(trace: Trace) -> None:
    found = breakdown(trace)
    table = cells(stages_table("mine", found, Roofs()))
    assert table["denoise_step"]["calls in a frame block"].value == STEPS  # type: ignore[union-attr]
    assert table["commit"]["busy"] == Time(float(STEP_NS))
    assert table["frame block"]["one call"] == Time(found.total_ns / 2)


def test_gains_piece_by_piece(trace: Trace) -> None:
    """The candidate's kernels take half the time; the commit pass counts in what is saved."""
    slow, fast = breakdown(stream(Recorder(scale=2), blocks=2)), breakdown(stream(Recorder(scale=1), blocks=2))
    table = cells(gains_table(("native", "fp8"), slow, fast))
    row = table["ffn / ffn_up"]
    assert row["speedup of a call"] == Ratio(2.0)
    assert row["fp8"] == Time(70 * (LAYERS + 1) / LAYERS) and row["calls in a frame block"] == Text(str((STEPS + 1) * LAYERS))
    saved = [side.of(None, ("ffn", "ffn_up"), deep=True).total_ns / 2 for side in (slow, fast)]
    assert row["saved in a frame block"] == Time(saved[0] - saved[1])
    assert table["frame block"]["saved in a frame block"] == Time((slow.total_ns - fast.total_ns) / 2)


def test_graphs_are_told() -> None:
    found = breakdown(stream(Recorder(), graphs=True), passes_of(stream(Recorder())))
    (notes,) = [block for block in breakdown_blocks("mine", found) if isinstance(block, Notes)]
    kernels = (STEPS + 1) * LAYERS * len(LAYER)
    assert f"{STEPS + 1} of {STEPS + 1} were taken apart, {kernels} of {kernels} kernels matched" in notes.items[0]
