"""`strobe ablate`: effect of each setting and each optimisation of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from strobe.cli.compare import ClipFlags
from strobe.cli.console import OUT, Output
from strobe.cli.interrupted import kept_cells, tells_what_is_kept
from strobe.cli.model import at_least
from strobe.cli.report import GATE_FAILED
from strobe.cli.tables import banner_texts, table_text
from strobe.core.errors import ConfigError

if TYPE_CHECKING:
    from strobe.bench.cases.ablate import AblationCell, Job
    from strobe.bench.cells import Outcome
    from strobe.perf.report.model import Report

SECTIONS = 10


@Parameter(name="*", group="Measurement")
@dataclass(frozen=True, kw_only=True)
class How:
    """Flags of an ablation: base, combinations, repetitions, quality samples.

    Args:
        base: the preset that everything is compared with.
        grid: every combination of the values instead of one factor at a time.
        leave_one_out: also turn off each optimisation of the base, alone; what happens if no factor is given.
        rounds: palindromes B C C B of every cell; an interval needs two.
        samples: clips, each with noise of its own, that quality is judged on.
        traced: frame blocks of each side that are traced, for the ledger; 0 for none.
    """

    base: str = "balanced"
    grid: Annotated[bool, Parameter(negative="")] = False
    leave_one_out: Annotated[bool, Parameter(negative="")] = False
    rounds: int = 2
    samples: int = 2
    traced: int = 3


def ablate(
    *factors: Annotated[str, Parameter(name="FACTOR=A,B")],
    how: How = How(),
    out: Annotated[Path, Parameter(alias=OUT)] = Path("ablation"),
    render: Annotated[bool, Parameter(negative="")] = False,
    clip: ClipFlags = ClipFlags(),
    output: Output = Output(),
) -> int:
    """Change one factor at a time around a preset; measure speed and quality of each value, cell by cell.

    ```
    strobe ablate window=6,8,10,12 steps=4,3,2 sink=0,1,3 syncs=on,off batch=1,2,4 switch_at=2,6  # slow
    strobe ablate --leave-one-out  # slow
    strobe ablate window=6,8 sink=0,1 --grid --out grid  # slow
    strobe ablate --out grid --render  # slow
    ```

    A factor is preset, steps, batch, switch_at (a frame block), syncs (the host waits inside every pass), a field of the
    configuration or an optimisation (`strobe presets show` lists both). Every finished cell is on the disk; the same command
    goes on where it stopped. Exit code 1 if a cell failed or its gate was red.

    Args:
        factors: NAME=VALUE,VALUE; none: each optimisation of the base is turned off, alone.
        out: folder for the cells and the page.
        render: measure nothing: write the page from the cells that are there, on any machine.
    """
    if render:
        return _report(out, None, output)
    at_least(1, rounds=how.rounds, samples=how.samples, blocks=clip.blocks)
    at_least(0, traced=how.traced)
    with output.progress("ablate") as progress:
        from strobe.bench.case import Plan
        from strobe.bench.cases import ablate as planned
        from strobe.bench.cases.ablate import Setup, job, parse_factors, run_cells
        from strobe.core.device import resolve_device

        wanted, base = parse_factors(factors), Setup(config=clip.config(how.base))
        if how.grid and len(wanted) < 2:
            raise ConfigError("--grid makes the products of two factors or more; give another factor, or leave it out")
        device, model = resolve_device(clip.device), clip.load()
        found: list[AblationCell] = list(
            (planned.products if how.grid else planned.one_at_a_time)(base, wanted, model.defaults, device)
        )
        if wanted and not found:
            raise ConfigError(f"nothing to measure: every value given is that of {how.base} already; give others")
        if found and all(cell.candidate is None for cell in found):
            found.insert(0, planned.base_alone(base))
        if how.leave_one_out or not wanted:
            found += planned.leave_one_out(base, model.defaults, device)
        if not found:
            raise ConfigError(f"{how.base} has no optimisation that does anything here; name a factor, or another --base")
        work: Job = job(
            base,
            clip.script(model.defaults),
            model,
            str(device),
            Plan(palindromes=how.rounds, traced_blocks=how.traced),
            how.samples,
        )
        with tells_what_is_kept(output, lambda: kept_cells(out, f"strobe ablate --render --out {out}")):
            outcome = run_cells(found, work, out, progress)
    return _report(out, outcome, output)


def _report(folder: Path, outcome: Outcome | None, output: Output) -> int:
    """Write the page, show its first tables, and report what failed."""
    with output.progress("report"):
        from strobe.perf.report.ablation_page import ablation_report
        from strobe.perf.report.write import write_report

        report = ablation_report(folder)
        paths = write_report(report, folder)
    return tell(report, paths, outcome, output)


def tell(report: Report, paths: tuple[Path, ...], outcome: Outcome | None, output: Output) -> int:
    """Show the tables of a page's first sections, report what failed, and return the exit code."""
    from strobe.perf.report.blocks.answer import answers_of
    from strobe.perf.report.model import Table

    blocks = [block for section in report.sections[:SECTIONS] for block in section.blocks if isinstance(block, Table)]
    stops = [banner for banner in report.banners if banner.level == "stop"]
    answers = answers_of(report)[-1:]
    output.show(*banner_texts(stops), *(table_text(table, notes=False) for table in blocks), *map(table_text, answers))
    output.show(" ".join(map(str, paths)))
    failed = outcome.failed if outcome is not None else ()
    for line in failed:
        output.note(f"no numbers of {line}")
    output.emit(
        {
            "report": {path.suffix[1:]: str(path) for path in paths},
            "measured": list(outcome.measured) if outcome else [],
            "kept": list(outcome.kept) if outcome else [],
            "failed": list(failed),
            "stop": {banner.title: list(banner.items) for banner in stops},
            "speedups": [
                {"candidate": each.candidate, "reference": each.reference, "ratio": each.ratio.value, "low": each.ratio.low,
                 "high": each.ratio.high}
                for each in report.speedups
            ],
        }
    )  # fmt: skip
    return GATE_FAILED if failed else 0
