"""`strobe bench`: benchmarks of the package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import App, Parameter

from strobe.bench.cases.visits import Load
from strobe.bench.tree.request import RankedCall, TreeSettings
from strobe.cli.console import OUT, Output, banner_texts, named, table_text
from strobe.cli.model import ModelFlags
from strobe.cli.report import GATE_FAILED
from strobe.cli.require import check_names, failures, parse_requirement
from strobe.cli.run_folder import kept_cells, kept_runs, rotating, tell_kept, tells_what_is_kept
from strobe.cli.serve import check_installed
from strobe.core.errors import ConfigError, unknown_choice

if TYPE_CHECKING:
    from strobe.bench.attention.contestant import GridCell
    from strobe.bench.cells import CellsOutcome
    from strobe.perf.analysis.runs.grid import CellRun, GridContestant

bench = App(
    name="bench",
    help="Measure what the package ships.",
    help_epilogue="Next: --render makes the page again from the cells, on any machine.\n",
)


def _answer(
    outcome: CellsOutcome | None,
    cells: list[dict[str, Any]],
    paths: list[str],
    output: Output,
    *,
    notes: Iterable[str],
    red: bool,
) -> int:
    """Report what became of the cells of a grid, if any was measured, and its pages; return the exit code."""
    for line in notes:
        output.note(line)
    measured, kept, failed = ((), (), ()) if outcome is None else (outcome.measured, outcome.kept, outcome.failed)
    if outcome is not None:
        output.note(f"{len(measured)} cells measured, {len(kept)} were there, {len(failed)} failed")
    output.show(" ".join(paths))
    output.emit({"cells": cells, "measured": list(measured), "kept": list(kept), "failed": list(failed), "report": paths})
    return GATE_FAILED if red or failed else 0


_SHOWN: Final = 200
_KERNELS: Final = 15


@Parameter(name="*", group="Grid")
@dataclass(frozen=True, kw_only=True)
class CellFlags:
    """Flags of the cells to measure; a value that is given replaces the named grid's.

    Args:
        grid: published (three video models at 0.8 and 0.9), full or quick (half a minute on a CPU); or three sizes T H W of a
            grid of your own; N 32 32 is a plain sequence of N x 1,024 tokens in whole tiles.
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
        profile: trace some calls of every contestant.
    """

    impls: tuple[str, ...] = ()
    seconds_per_cell: float | None = None
    dtype: str = "auto"
    tile: str = "auto"
    seed: int = 0
    device: str = "auto"
    profile: Annotated[bool, Parameter(negative="")] = False


@bench.command
def attention(
    *,
    grid: CellFlags = CellFlags(),
    how: MeasureFlags = MeasureFlags(),
    out: Annotated[Path, Parameter(alias=OUT)] = Path("attention-bench"),
    render: Annotated[bool, Parameter(negative="")] = False,
    output: Output = Output(),
) -> int:
    """Check and time attention, and measure its memory, over a grid of shapes, sparsities and block sizes, cell by cell.

    ```
    strobe bench attention --grid quick  # slow
    strobe bench attention --grid published --backward --out h200  # gpu
    strobe bench attention --shapes 32k --sparsity 0.8 0.9 --blocks 64 --impls fine:triton peers  # gpu
    strobe bench attention --captured qkv.safetensors --sparsity 0.8 0.9  # needs-files
    strobe bench attention --out h200 --render  # slow
    ```

    Every finished cell is on disk; the same command continues where it stopped. Exit code 1 if a gate is red or a cell
    could not be measured.

    Args:
        out: folder for the records (`cells/`) and the report.
        render: measure nothing: write the pages from the cells that are there, on any machine.
    """
    if render:
        return _report(out, None, output)
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
            seconds=(0.5 if grid.grid == ("quick",) else 4.0) if how.seconds_per_cell is None else how.seconds_per_cell,
            traced_calls=3 if how.profile else 0,
            captured="" if grid.captured is None else sha256_of(grid.captured).hex(),
        )
        with tells_what_is_kept(output, lambda: kept_cells(out, f"strobe bench attention --render --out {out}")):
            outcome = run_grid(chosen, request, out, progress)
    return _report(out, outcome, output)


def _cells(grid: CellFlags) -> tuple[GridCell, ...]:
    from strobe.bench.attention.contestant import GRIDS, SHAPES, SPARSITIES, Shape, captured_cells, cells, shape_named

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
    quick, full = named == "quick", named == "full"
    shapes = shapes or list(SHAPES[6:] if quick else SHAPES[:6] if full else SHAPES[:3])
    defaults = (0.9,) if quick else SPARSITIES if full else (0.8, 0.9)
    blocks = grid.blocks or ((64,) if quick else (64, 128, 256) if full else (64, 128))
    sparsities = grid.sparsity or (() if grid.topk else defaults)
    directions = (False, True) if grid.backward or quick or full else (False,)
    return cells(shapes, sparsities, blocks, topks=grid.topk, directions=directions)


def _report(out: Path, outcome: CellsOutcome | None, output: Output) -> int:
    """Write the pages, show the speed tables, and report what happened."""
    with output.progress("report"):
        from strobe.perf.report.bench_pages import bench_report, read_cells, shown_tables
        from strobe.perf.report.write import write_report

        runs = list(read_cells(out, "attention")[0])
        report = bench_report(out)
        paths = [str(path) for path in write_report(report, out)]
        shown = shown_tables(runs)
    answer = (report.title,) if runs[0].grid.layer else ()
    output.show(*answer, *banner_texts(report.banners, ("stop",)), *(table_text(table, _SHOWN) for table in shown))
    _show_traces([cell for cell in runs if outcome is not None and cell.name in outcome.measured], output)
    entries = [(cell, entry) for cell in runs for entry in cell.entries]
    red = [f"{cell.name} {entry.name}: {entry.reason}" for cell, entry in entries if entry.outcome == "red"]
    notes = (*(() if outcome is None else outcome.failed), *red)
    return _answer(outcome, [_document(cell) for cell in runs], paths, output, notes=notes, red=bool(red))


def _show_traces(runs: list[CellRun], output: Output) -> None:
    """Show the kernel table of every trace (operators on a CPU)."""
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


def _document(cell: CellRun) -> dict[str, Any]:
    from strobe.perf.analysis.runs.grid import speedup

    compared = None if cell.serialised else cell.reference

    def figures(entry: GridContestant) -> dict[str, Any]:
        ratio = None if compared is None else speedup(compared, entry)[0].value
        return {"speedup": ratio, "flops": entry.flops, "padded_flops": entry.padded_flops}

    return {
        "cell": cell.name,
        "serialised": cell.serialised,
        "reference": None if cell.reference is None else cell.reference.name,
        "measured_peak_flops_per_s": cell.peak_flops_per_s,
        "contestants": _rows(cell.contestants, figures),
    }


def _rows(entries: Iterable[GridContestant], figures: Callable[[GridContestant], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the JSON documents of the contestants of a cell: the reason of one that has no figures, else its figures."""
    return [
        {"name": entry.name, "reason": entry.reason}
        if entry.reason
        else {"name": entry.name, "median_ns": entry.median_ns, "calls": len(entry.times_ns), **figures(entry)}
        for entry in entries
    ]


@Parameter(name="*", group="Call")
@dataclass(frozen=True, kw_only=True)
class CallFlags:
    """Flags of the attention call: sizes, device and placement of the queries.

    Args:
        heads: of the queries.
        kv_heads: of the keys; as many if not given.
        head_dim: channels of a head.
        batch: calls at once.
        seq_q: queries.
        spread: each rank has a run of the queries and keeps their results; else all ranks have all of them.
        device: cuda: one GPU a rank, over NCCL; cpu: processes of this machine, over gloo.
    """

    heads: int = 8
    kv_heads: int | None = None
    head_dim: int = 64
    batch: int = 1
    seq_q: int = 1
    spread: Annotated[bool, Parameter(negative="")] = False
    device: Literal["cpu", "cuda"] = "cpu"


HOW: Final = named("Measurement", contestants="strategies")


@bench.command
def tree(
    *,
    world_size: tuple[int, ...] = (2,),
    seq_len: tuple[int, ...] = (2048,),
    dtype: tuple[str, ...] = ("float32",),
    call: CallFlags = CallFlags(),
    how: Annotated[TreeSettings, HOW] = TreeSettings(),
    out: Annotated[Path, Parameter(alias=OUT)] = Path("tree-bench"),
    render: Annotated[bool, Parameter(negative="")] = False,
    output: Output = Output(),
) -> int:
    """Check and time every strategy of tree attention on its own ranks, and show parts of the time, verdicts and scaling.

    ```
    strobe bench tree --world-size 4 --seq-len 1024 --profile  # slow
    strobe bench tree --world-size 4 --seq-len 2048 --device cuda --profile --iterations 20 -o gpu  # gpus
    strobe bench tree --world-size 2 --seq-len 65536 --strategies allgather peer:ring-attention-pytorch -o peer  # slow
    strobe bench tree --world-size 1 2 4 8 16 --seq-len 512 1024 2048 4096 -o scaling  # slow
    strobe bench tree --out h200-scaling --render
    ```

    Several values make a grid of ranks x keys x dtypes, measured cell by cell: several numbers of ranks show strong and weak
    scaling and efficiency. Every finished cell is on disk; the same command continues where it stopped. The command starts each
    rank as a process of its own and ends all of them. Exit code 1 if a gate is red or a cell failed.

    Args:
        world_size: numbers of ranks.
        seq_len: keys of all ranks together.
        dtype: float32, bfloat16, float16 or float64.
        out: folder for the records (`cells/`) and the report.
        render: measure nothing: write the pages from the cells that are there, on any machine.
    """
    if not render and not (world_size and seq_len and dtype):
        raise ConfigError("--world-size, --seq-len and --dtype: got none of one of them, expected at least one value each")
    shapes = [_shape(call, ranks, keys, kind) for kind in dtype for keys in seq_len for ranks in world_size if not render]
    return _tree_grid(shapes, how, out, output)


def _shape(call: CallFlags, world_size: int, seq_len: int, dtype: str) -> RankedCall:
    return RankedCall(
        world_size=world_size,
        seq_len=seq_len,
        q_len=call.seq_q,
        heads=call.heads,
        kv_heads=call.heads if call.kv_heads is None else call.kv_heads,
        dim=call.head_dim,
        batch=call.batch,
        dtype=dtype,
        device=call.device,
        placement="sequence" if call.spread else "replicated",
    )


def _tree_grid(shapes: list[RankedCall], how: TreeSettings, out: Path, output: Output) -> int:
    """Measure cells, write the pages of all that are there, show the tables, and report what happened; without cells render."""
    most, outcome = max((shape.world_size for shape in shapes), default=0), None
    if most and how.delay is not None and how.delay[0] not in range(most):
        raise ConfigError(f"--delay {how.delay[0]}: no such rank; give 0 to {most - 1}")
    if shapes:
        with output.progress("tree") as progress:
            from strobe.bench.tree.run import run_cells

            with tells_what_is_kept(output, lambda: kept_cells(out, "with --render it")):
                outcome = run_cells(shapes, how, out, progress)
    with output.progress("report"):
        from strobe.perf.report.bench_pages import bound, read_cells, scales, shown_strategies, tree_report
        from strobe.perf.report.write import write_report

        runs = read_cells(out, "tree")[0]
        report = tree_report(out)
        paths = [str(path) for path in write_report(report, out)]
    output.show(*(table_text(table, _SHOWN) for table in shown_strategies(runs)))
    for run, entry in ((cell, entry) for cell in runs for entry in cell.measured if not scales(runs)):
        if (found := bound(run, entry)) is not None:  # as lines, since they are too long for the columns of a terminal
            label, evidence, remedy = found
            output.show(f"{entry.name}: {label}. {evidence}. Remedy: {remedy}.")
    notes = (item for banner in report.banners for item in banner.items)
    red = any(entry.outcome == "red" for cell in runs for entry in cell.entries)
    return _answer(outcome, [_tree_document(cell) for cell in runs], paths, output, notes=notes, red=red)


def _tree_document(cell: CellRun) -> dict[str, Any]:
    from strobe.perf.report.bench_pages import bound, collectives_of, parts_of, straggler, warnings

    def figures(entry: GridContestant) -> dict[str, Any]:
        found, verdict, who = parts_of(entry), bound(cell, entry), straggler(collectives_of(entry))
        return {
            "predicted_ns": entry.predicted_ns,
            "exposed_ns": None if found is None else found.wait + found.transfer,
            "hidden_ns": None if found is None else found.hidden,
            "verdict": None if verdict is None else verdict[0],
            "straggler": None if who is None else who[0],
        }

    return {
        "cell": cell.name,
        "world_size": cell.run.header.world_size,
        "failure": cell.failure,
        "warnings": list(warnings(cell)),
        "strategies": _rows(cell.entries, figures),
    }


VIEWERS: Final = named("Viewers", levels="sessions", stay_s="stay", prompt_every_s="prompt-every")
FIGURES: Final = ("on_time", "play_ratio", "stalls", "refused", "failed")
"""What `--require` may name of a load."""
_OF_A_LOAD: Final = (
    "load", "at_once", "came", "refused", "failed", "on_time", "play_ratio", "stalls", "stall_ns", "first_picture_ns",
    "prompt_to_pixel_ns", "held",
)  # fmt: skip


@bench.command
def serve(
    *,
    device: str = "auto",
    require: tuple[str, ...] = (),
    out: Annotated[Path, Parameter(alias=OUT)] = Path("serve-load"),
    model: ModelFlags = ModelFlags(),
    load: Annotated[Load, VIEWERS] = Load(),
    output: Output = Output(),
) -> int:
    """Load a server of live streams with viewers: first picture, prompt to pixel, pictures on time, stalls, refusals.

    ```
    strobe bench serve --sessions 1 2 --seconds 60  # slow
    strobe bench serve --model wan-1.3b --random-weights --preset ultra --sessions 4 8 --arrivals together --seconds 180  # gpu
    strobe bench serve --url http://127.0.0.1:7860 --sessions 2  # needs-files
    ```

    Without `--url` it starts `strobe serve` in a process of its own, and ends it. A viewer is a client that plays with a start
    buffer and a clock; it decodes nothing. The load is the rate at which viewers come, and no viewer waits for another.

    Args:
        device: of the server that is started: auto, cpu, cuda or cuda:N.
        require: a condition that every load must meet, such as on_time>=0.99 (share of the pictures) or refused<=0; also
            play_ratio, stalls and failed. Exit code 1 if one does not.
        out: folder for records and page; one that holds something is kept as serve-load.1, serve-load.2 and so on.
    """
    check_installed()
    requirements = [parse_requirement(text) for text in require]
    check_names(requirements, [f"load-{level:g}" for level in load.levels], FIGURES)
    kept: list[Path] = []
    told = tells_what_is_kept(output, lambda: kept_runs([out]))
    with told, _server(load, device, model) as (address, where), output.progress("load") as advance:
        from strobe.bench.cases.live import run_load

        folder = run_load(
            load, url=address, own=not load.url, device=where, root=out, progress=advance,
            open_run=rotating(kept),
        )  # fmt: skip
    tell_kept(kept, output)
    with output.progress("report"):
        from strobe.perf.analysis.runs.compare import figures_of
        from strobe.perf.records.store import read_run
        from strobe.perf.report.serve_page import load_table, serve_report
        from strobe.perf.report.write import write_report

        found, report = figures_of(read_run(folder)), serve_report(folder)
        paths = write_report(report, folder)
    figures = {f"load-{each.load:g}": {name: getattr(each, name) for name in FIGURES} for each in found}
    failed = [line for each in requirements for line in failures(each, figures)]
    output.show(*banner_texts(report.banners, ("stop",)), report.subtitle, table_text(load_table(found)))
    output.show(*(f"not met: {line}" for line in failed), " ".join(map(str, paths)))
    output.emit(
        {
            "run": str(folder),
            "loads": [{name: getattr(each, name) for name in _OF_A_LOAD} for each in found],
            "report": {path.suffix[1:]: str(path) for path in paths},
            "not_met": failed,
        }
    )
    return GATE_FAILED if failed else 0


@contextmanager
def _server(load: Load, device: str, model: ModelFlags) -> Iterator[tuple[str, str]]:
    """Address and device of the server that is loaded; one that is started here ends with the body."""
    if load.url:
        yield load.url, ""
        return
    from strobe.bench.cases.live import own_server

    with own_server(["--preset", load.preset, "--device", device, *model.arguments()]) as started:
        yield started
