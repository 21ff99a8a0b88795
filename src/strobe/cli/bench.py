"""`strobe bench`: benchmarks of the package."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.table import Table

from strobe.cli.console import Output
from strobe.cli.model import LENGTH, frame_blocks, tell_length
from strobe.cli.report import GATE_FAILED

if TYPE_CHECKING:
    from strobe.bench.cases.accuracy import AccuracyFigure
    from strobe.bench.cells import CellsOutcome

bench = App(
    name="bench",
    help="Measure what the package ships.",
    help_epilogue="Next: --render makes the page again from the cells, on any machine.\n",
)
bench.command("strobe.cli.bench_attention:attention", name="attention")  # imported when it is run or described
bench.command("strobe.cli.bench_tree:tree", name="tree")
bench.command("strobe.cli.bench_tree:scaling", name="scaling")
bench.command("strobe.cli.bench_serve:serve", name="serve")


@bench.command
def shapes(
    *presets: str,
    model: str = "shapes",
    streams: int = 128,
    blocks: Annotated[int, Parameter(group=("Parameters", LENGTH))] = 201,
    seconds: Annotated[float | None, Parameter(group=("Parameters", LENGTH))] = None,
    seed: int = 0,
    device: str = "auto",
    output: Output = Output(),
) -> int:
    """Measure the quality of the bundled model: autoencoder, prompts, held-out combinations, switches, long streams.

    ```
    strobe bench shapes  # gpu
    strobe bench shapes quality ultra --streams 16 --blocks 11  # gpu
    ```

    Exit code 1 if a figure misses its target.

    Args:
        presets: what streams; quality, turbo and ultra if none is named.
        model: shapes, or a folder of weights trained like it.
        streams: streams in lockstep.
        blocks: length of the long stream in frame blocks.
        seconds: length of the long stream in seconds of video, instead of --blocks.
        seed: of prompts and noise.
        device: auto, cpu, cuda or cuda:N; made for a GPU, hours on a CPU with the default numbers.
    """
    with output.progress("shapes") as advance:
        from strobe.bench.cases.accuracy import Trial, measure_model
        from strobe.core.device import resolve_device
        from strobe.core.errors import ConfigError
        from strobe.engine.load import load
        from strobe.engine.presets import preset

        if streams < 2 or blocks < 1:
            raise ConfigError(f"{streams} streams of {blocks} frame blocks cannot be measured; the least are 2 and 1")
        presets = presets or ("quality", "turbo", "ultra")
        for name in presets:
            preset(name)  # a wrong one is told before anything is measured
        loaded = load(model)
        length = frame_blocks(blocks, seconds, loaded.defaults)
        tell_length(seconds, length, output)
        place = resolve_device(device)
        trial = Trial(model=loaded, device=place, progress=advance, streams=streams, blocks=length, seed=seed)
        figures = list(measure_model(trial, presets))
    output.show(_table(figures))
    output.emit({"figures": [asdict(figure) for figure in figures]})
    return GATE_FAILED if any(figure.reached is False for figure in figures) else 0


def answer_grid(
    outcome: CellsOutcome | None,
    cells: list[dict[str, Any]],
    paths: list[str],
    output: Output,
    *,
    notes: Iterable[str],
    red: bool,
) -> int:
    """Report what became of the cells of a grid, and its pages; return the exit code.

    Args:
        outcome: of this run; None: nothing was measured, the pages were made again.
        cells: the JSON document of each.
        notes: what is told before.
        red: a gate was red.
    """
    for line in notes:
        output.note(line)
    measured, kept, failed = ((), (), ()) if outcome is None else (outcome.measured, outcome.kept, outcome.failed)
    if outcome is not None:
        output.note(f"{len(measured)} cells measured, {len(kept)} were there, {len(failed)} failed")
    output.show(" ".join(paths))
    output.emit({"cells": cells, "measured": list(measured), "kept": list(kept), "failed": list(failed), "report": paths})
    return GATE_FAILED if red or failed else 0


def _table(figures: list[AccuracyFigure]) -> Table:
    table = Table("figure", "preset", "value", "target", "reached", "n", box=None)
    words = {True: "yes", False: "NO", None: ""}
    for figure in figures:
        row = (figure.name, figure.preset, f"{figure.value:.4g}", figure.target, words[figure.reached], str(figure.n))
        table.add_row(*row)
    return table
