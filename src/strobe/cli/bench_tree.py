"""`strobe bench tree` and `strobe bench scaling`: strategies of tree attention side by side, on their own ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter

from strobe.bench.tree.request import RankedCall, TreeSettings
from strobe.cli.bench import answer_grid
from strobe.cli.console import OUT, Output, named
from strobe.cli.interrupted import kept_cells, tells_what_is_kept
from strobe.cli.tables import table_text
from strobe.core.errors import ConfigError

if TYPE_CHECKING:
    from strobe.perf.analysis.runs.grid import CellRun, GridContestant

_SHOWN: Final = 200


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


def tree(
    *,
    world_size: int = 2,
    seq_len: int = 2048,
    dtype: str = "float32",
    call: CallFlags = CallFlags(),
    how: Annotated[TreeSettings, HOW] = TreeSettings(),
    out: Annotated[Path, Parameter(alias=OUT)] = Path("tree-bench"),
    render: Annotated[bool, Parameter(negative="")] = False,
    output: Output = Output(),
) -> int:
    """Check and time every strategy of tree attention on its own ranks, and show parts of the time and verdicts.

    ```
    strobe bench tree --world-size 4 --seq-len 1024 --profile  # slow
    strobe bench tree --world-size 4 --seq-len 2048 --device cuda --profile --iterations 20 -o gpu  # gpus
    strobe bench tree --world-size 2 --seq-len 65536 --strategies allgather peer:ring-attention-pytorch -o peer  # slow
    ```

    The command starts each rank as a process of its own and ends all of them. Exit code 1 if a gate is red or the cell failed.

    Args:
        world_size: ranks.
        seq_len: keys of all ranks together.
        dtype: float32, bfloat16, float16 or float64.
        out: folder for the records (`cells/`) and the report; what is finished there is not measured again.
        render: measure nothing: write the pages from the cells that are there, on any machine.
    """
    shapes = [] if render else [_shape(call, world_size, seq_len, dtype)]
    return _grid(shapes, how, out, output, scaling=False)


def scaling(
    *,
    world_size: tuple[int, ...] = (1, 2, 4),
    seq_len: tuple[int, ...] = (1024, 2048, 4096, 8192),
    dtype: tuple[str, ...] = ("float32",),
    call: CallFlags = CallFlags(),
    how: Annotated[TreeSettings, HOW] = TreeSettings(),
    out: Annotated[Path, Parameter(alias=OUT)] = Path("tree-scaling"),
    render: Annotated[bool, Parameter(negative="")] = False,
    output: Output = Output(),
) -> int:
    """Measure a grid of ranks x keys x dtypes, cell by cell: strong and weak scaling, efficiency, crossovers, what-if.

    ```
    strobe bench scaling --world-size 1 2 4 8 16 --seq-len 512 1024 2048 4096  # slow
    strobe bench scaling --out h200-scaling --render
    ```

    Every finished cell is on disk; the same command continues where it stopped. Exit code 1 if a gate is red or
    a cell failed.

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
    return _grid(shapes, how, out, output, scaling=True)


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


def _grid(shapes: list[RankedCall], how: TreeSettings, out: Path, output: Output, *, scaling: bool) -> int:
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
        from strobe.perf.report.tree_bench import bound, read_cells, shown_tables, tree_report
        from strobe.perf.report.write import write_report

        runs = read_cells(out)[0]
        report = tree_report(out, scaling=scaling)
        paths = [str(path) for path in write_report(report, out)]
    output.show(*(table_text(table, _SHOWN) for table in shown_tables(runs, scaling=scaling)))
    for run, entry in ((cell, entry) for cell in runs for entry in cell.measured if not scaling):
        if (found := bound(run, entry)) is not None:  # as lines, since they are too long for the columns of a terminal
            label, evidence, remedy = found
            output.show(f"{entry.name}: {label}. {evidence}. Remedy: {remedy}.")
    notes = (item for banner in report.banners for item in banner.items)
    red = any(entry.outcome == "red" for cell in runs for entry in cell.entries)
    return answer_grid(outcome, [_document(cell) for cell in runs], paths, output, notes=notes, red=red)


def _document(cell: CellRun) -> dict[str, Any]:
    """Return the JSON document of one cell."""
    from strobe.perf.report.tree_bench import bound, collectives_of, parts_of, straggler, warnings

    def row(entry: GridContestant) -> dict[str, Any]:
        if entry.reason:
            return {"name": entry.name, "reason": entry.reason}
        found, verdict, who = parts_of(entry), bound(cell, entry), straggler(collectives_of(entry))
        return {
            "name": entry.name,
            "median_ns": entry.median_ns,
            "calls": len(entry.times_ns),
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
        "strategies": [row(entry) for entry in cell.entries],
    }
