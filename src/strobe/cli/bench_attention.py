"""`strobe bench attention`: a grid of attention calls with every implementation present, and the peers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from strobe.cli.bench import answer_grid
from strobe.cli.console import OUT, Output
from strobe.cli.interrupted import kept_cells, tells_what_is_kept
from strobe.cli.tables import banner_texts, table_text
from strobe.core.errors import ConfigError

if TYPE_CHECKING:
    from strobe.bench.attention.contestant import GridCell
    from strobe.bench.cells import CellsOutcome
    from strobe.perf.analysis.runs.grid import CellRun, GridContestant

FOLDER: Final = Path("attention-bench")
_SHOWN: Final = 200
_KERNELS: Final = 15


@Parameter(name="*", group="Grid")
@dataclass(frozen=True, kw_only=True)
class CellFlags:
    """Flags of the cells to measure; a value that is given replaces the named grid's.

    Args:
        grid: published (three video models at 0.8 and 0.9), full, scenarios (what --advice needs) or quick (half a minute on a
            CPU); or three sizes T H W of a grid of your own; N 32 32 is a plain sequence of
            N x 1,024 tokens in whole tiles.
        shapes: wan-1.3b-480p, wan-14b-720p, hunyuan-video, 16k, 32k, 48k, quick, quick-4k.
        heads: of a grid of your own.
        head_dim: likewise.
        sparsity: shares of the key tiles that are skipped.
        topk: numbers of key tiles that every query tile sees, beside the sparsities.
        blocks: 64, 128, 256.
        backward: measure gradients too.
        captured: file of strobe.capture: its q, k and v instead of a grid, by several methods of selection: at the --sparsity
            shares, and by share of weight at 0.3 to 0.9 of it.
    """

    grid: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    heads: int = 12
    head_dim: int = 128
    sparsity: tuple[float, ...] = ()
    topk: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    backward: Annotated[bool, Parameter(negative="")] = False
    captured: Path | None = None


@Parameter(name="*", group="Measurement")
@dataclass(frozen=True, kw_only=True)
class MeasureFlags:
    """Flags of how to measure a cell. All cells of a folder share them.

    Args:
        impls: implementations (triton, sdpa), kinds (dense, fine, tiled, raster), both (fine:triton), peers, or peer:NAME; all
            that are present by default, reference only by name.
        seconds_per_cell: of timed calls, about; three palindromes at least, whatever they take. By default 4, for the quick grid
            0.5.
        dtype: auto, bfloat16, float16 or float32; auto is bfloat16 on a GPU and float32 on a CPU.
        tile: auto (fewest padding rows) or cube (the usual tile of the block size).
        seed: of all tensors.
        device: auto, cpu, cuda or cuda:N.
        profile: trace some calls of every contestant, and keep torch's memory summary before and after them.
    """

    impls: tuple[str, ...] = ()
    seconds_per_cell: float | None = None
    dtype: str = "auto"
    tile: str = "auto"
    seed: int = 0
    device: str = "auto"
    profile: Annotated[bool, Parameter(negative="")] = False


def attention(
    *,
    grid: CellFlags = CellFlags(),
    how: MeasureFlags = MeasureFlags(),
    out: Annotated[Path, Parameter(alias=OUT)] = FOLDER,
    advice: Annotated[bool, Parameter(negative="")] = False,
    render: Annotated[bool, Parameter(negative="")] = False,
    output: Output = Output(),
) -> int:
    """Check and time attention, and measure its memory, over a grid of shapes, sparsities and block sizes, cell by cell.

    ```
    strobe bench attention --grid quick  # slow
    strobe bench attention --grid published --backward --out h200  # gpu
    strobe bench attention --shapes 32k --sparsity 0.8 0.9 --blocks 64 --impls fine:triton peers  # gpu
    strobe bench attention --captured qkv.safetensors --sparsity 0.8 0.9  # needs-files
    strobe bench attention --out h200 --render --advice  # slow
    ```

    Every finished cell is on disk; the same command continues where it stopped. Exit code 1 if a gate is red or a cell
    could not be measured.

    Args:
        out: folder for the records (`cells/`) and the report.
        advice: also write the page of the three scenarios (`advice/`) from the cells that are there.
        render: measure nothing: write the pages from the cells that are there, on any machine.
    """
    if render:
        return _report(out, None, output, advice=advice)
    with output.progress("attention") as progress:
        from strobe.bench.attention.contestant import SPARSITIES
        from strobe.bench.attention.run import Request, contestants, run_grid
        from strobe.core.device import resolve_device
        from strobe.models.checkpoint import sha256_of

        chosen = _cells(grid)
        device = resolve_device(how.device)
        request = Request(
            contestants=contestants(how.impls, device, () if grid.captured is None else grid.sparsity or SPARSITIES),
            dtype=how.dtype,
            device=str(device),
            tile=how.tile,
            seed=how.seed,
            seconds=_seconds(how, grid),
            traced_calls=3 if how.profile else 0,
            captured="" if grid.captured is None else sha256_of(grid.captured).hex(),
        )
        with tells_what_is_kept(output, lambda: kept_cells(out, f"strobe bench attention --render --out {out}")):
            outcome = run_grid(chosen, request, out, progress)
    return _report(out, outcome, output, advice=advice)


def _seconds(how: MeasureFlags, grid: CellFlags) -> float:
    """Return the time of timed calls in a cell, s."""
    if how.seconds_per_cell is not None:
        return how.seconds_per_cell
    return 0.5 if grid.grid == ("quick",) else 4.0


def _cells(grid: CellFlags) -> tuple[GridCell, ...]:
    """Return the cells that the flags ask for."""
    from strobe.bench.attention.contestant import (
        GRIDS,
        SHAPES,
        SPARSITIES,
        Shape,
        captured_cells,
        cells,
        scenario_cells,
        shape_named,
    )
    from strobe.core.errors import unknown_choice

    if grid.captured is not None:
        if grid.grid or grid.shapes or grid.topk or grid.backward:
            raise ConfigError("--captured: its calls are what is measured; leave out --grid, --shapes, --topk and --backward")
        return captured_cells(grid.captured, grid.sparsity or SPARSITIES, grid.blocks or (64,))
    named = "published"
    shapes = [shape_named(name) for name in grid.shapes]
    if len(grid.grid) == 1:
        named = grid.grid[0]
        if named not in GRIDS:
            raise unknown_choice("grid", named, GRIDS)
    elif grid.grid:
        if len(grid.grid) != 3 or not all(size.isdigit() and int(size) for size in grid.grid):
            raise ConfigError(f"--grid: got {' '.join(grid.grid)}; expected one of {', '.join(GRIDS)}, or three sizes T H W")
        t, h, w = (int(size) for size in grid.grid)
        shapes.append(Shape(name=f"{t}x{h}x{w}", grid=(t, h, w), num_heads=grid.heads, head_dim=grid.head_dim))
    if grid.heads < 1 or grid.head_dim < 8 or grid.head_dim % 2:
        raise ConfigError(f"--heads and --head-dim: got {grid.heads} and {grid.head_dim}, expected 1 or more, and even from 8")
    if named == "scenarios":
        return scenario_cells(shapes or [shape_named("wan-1.3b-480p")])
    quick, full = named == "quick", named == "full"
    shapes = shapes or list(SHAPES[6:] if quick else SHAPES[:6] if full else SHAPES[:3])
    defaults = (0.9,) if quick else SPARSITIES if full else (0.8, 0.9)
    blocks = grid.blocks or ((64,) if quick else (64, 128, 256) if full else (64, 128))
    sparsities = grid.sparsity or (() if grid.topk else defaults)
    directions = (False, True) if grid.backward or quick or full else (False,)
    return cells(shapes, sparsities, blocks, topks=grid.topk, directions=directions)


def _report(out: Path, outcome: CellsOutcome | None, output: Output, *, advice: bool) -> int:
    """Write the pages, show the speed tables, and report what happened."""
    with output.progress("report"):
        from strobe.perf.report.attention_bench import advice_report, advice_tables, bench_report, read_cells, shown_tables
        from strobe.perf.report.write import write_report

        runs = list(read_cells(out)[0])
        report = bench_report(out)
        paths = [str(path) for path in write_report(report, out)]
        shown = shown_tables(runs)
        if advice:
            (out / "advice").mkdir(exist_ok=True)
            page = advice_report(out)
            paths += [str(path) for path in write_report(page, out / "advice")]
            shown += advice_tables(runs)
    answer = (report.title,) if runs[0].grid.layer else ()
    output.show(*answer, *banner_texts(report.banners, ("stop",)), *(table_text(table, _SHOWN) for table in shown))
    _show_traces([cell for cell in runs if outcome is not None and cell.name in outcome.measured], output)
    entries = [(cell, entry) for cell in runs for entry in cell.entries]
    red = [f"{cell.name} {entry.name}: {entry.reason}" for cell, entry in entries if entry.outcome == "red"]
    notes = (*(() if outcome is None else outcome.failed), *red)
    return answer_grid(outcome, [_document(cell) for cell in runs], paths, output, notes=notes, red=bool(red))


def _show_traces(runs: list[CellRun], output: Output) -> None:
    """Show the kernel table of every trace (operators on a CPU), and memory before and after."""
    from strobe.core.files import file_inside
    from strobe.perf.report.study import load_trace_study
    from strobe.perf.report.trace_page.structure import device_kernels, operators_section
    from strobe.perf.table.model import Table

    for cell in runs:
        for trace in cell.run.traces:
            study = load_trace_study([file_inside(cell.run.folder, trace.path)])
            section = device_kernels(study) or operators_section(study)
            tables = [block for block in (section.blocks if section else ()) if isinstance(block, Table)]
            calls = [table for table in tables if table.columns[0].title in ("kernel", "operator")]
            output.show(f"{cell.name} {trace.variant}", *(table_text(table, _KERNELS, notes=False) for table in calls[:1]))
            with suppress(FileNotFoundError):
                summary = file_inside(cell.run.folder, f"memory/{trace.variant.replace(':', '-')}.txt")
                output.write(summary.read_text(encoding="utf-8"))


def _document(cell: CellRun) -> dict[str, Any]:
    """Return the JSON document of one cell."""
    from strobe.perf.analysis.runs.grid import speedup

    def row(entry: GridContestant) -> dict[str, Any]:
        if entry.reason:
            return {"name": entry.name, "reason": entry.reason}
        compared = cell.reference is not None and not cell.serialised
        return {
            "name": entry.name,
            "median_ns": entry.median_ns,
            "calls": len(entry.times_ns),
            "speedup": speedup(cell.reference, entry)[0].value if compared and cell.reference else None,
            "flops": entry.flops,
            "padded_flops": entry.padded_flops,
        }

    return {
        "cell": cell.name,
        "serialised": cell.serialised,
        "reference": None if cell.reference is None else cell.reference.name,
        "measured_peak_flops_per_s": cell.peak_flops_per_s,
        "contestants": [row(entry) for entry in cell.contestants],
    }
