"""`strobe report`: the page of run folders, and the requirements that scripts put on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from cyclopts import Parameter
from rich.table import Column, Table

from strobe.cli.console import OUT, Output, banner_texts, section_texts, styled, table_text
from strobe.cli.require import JOULES, Figures, Requirement, failures, parse_requirement, score_of, value_of
from strobe.core.errors import ConfigError
from strobe.core.printable import clean

if TYPE_CHECKING:
    from strobe.bench.cells import CellsOutcome
    from strobe.perf.records.store import RunRecords
    from strobe.perf.report.findings import Finding
    from strobe.perf.table.model import Speedup
    from strobe.perf.table.model import Table as Answer

GATE_FAILED = 1
SECTIONS = 10
"""First sections of a page of many runs whose tables a terminal shows."""
LINES = 30
"""Most lines of the tables of a grid or a log without --details; the first is printed whole, and the answer."""
MOST_TOLD = 1
"""Most candidates beside the last whose account is told in a sentence each; of more only the table has the times."""


def report(
    *folders: Annotated[Path, Parameter(name="RUN_DIR")],
    log: Annotated[bool, Parameter(negative="")] = False,
    require: tuple[str, ...] = (),
    allow_different: tuple[str, ...] = (),
    out: Annotated[Path | None, Parameter(alias=OUT)] = None,
    output: Output = Output(),
) -> int:
    """Write report.html, report.md and report.json of one or several runs.

    ```
    strobe report runs/20260101T120000Z-compare-1a2b3c
    strobe report runs/* --require "e2e>=1.5" --require "turbo:psnr>30" -o pages
    strobe report runs grid --log -o log
    ```

    Args:
        folders: run folders, as `strobe compare` and `strobe demo` leave them; what an interrupted run finished counts. Or the
            folder of one preset with settings changed (`strobe compare --vary`), by itself.
        log: the optimisation log instead: every run at any depth of the folders is an entry, kept or dropped by a stated rule,
            also one that failed or whose gate was red.
        require: a condition that must hold for every candidate, such as e2e>=1.5, or for one, such as turbo:psnr>30,
            one or several. It names a level (kernel, section, step, block, e2e), a quality metric, or joules, the GPU's energy
            for a frame block. A speedup holds it only if its whole 95 % interval does; e2e~>=1.5 asks for the point estimate
            alone, for a smoke test of one round. Exit code 1 if it does not hold.
        allow_different: what is meant to differ between the variants of a run, such as tokens; anything else that differs and
            must not leaves a candidate without a speedup, and no --require holds for it.
        out: the folder to write to, made if absent; by default the first run's own.
    """
    from strobe.perf.records.record import PLAN

    if not folders:
        raise ConfigError("name at least one run folder; `strobe compare` and `strobe demo` make them")
    requirements = [parse_requirement(text) for text in require]
    if log or (len(folders) == 1 and (folders[0] / PLAN).is_file()):
        if require or allow_different:
            raise ConfigError(
                "--require and --allow-different hold for the runs of one comparison; name their folders, without --log"
            )
        return page_of_many(folders, out or folders[0], output, log=log)
    code, document = write(folders, out or folders[0], requirements, output, allow_different=allow_different)
    output.emit(document)
    return code


def page_of_many(
    folders: Sequence[Path], into: Path, output: Output, outcome: CellsOutcome | None = None, *, log: bool = False
) -> int:
    """Write the page of a preset with settings changed, or the optimisation log, and show its tables.

    Args:
        outcome: what was measured just now.

    Returns:
        the exit code: 1 if a run of the outcome failed.
    """
    measured, there, failed = ((), (), ()) if outcome is None else (outcome.measured, outcome.kept, outcome.failed)
    for line in failed:
        output.note(f"no numbers of {line}")
    with output.progress("report"):
        from strobe.perf.report.blocks.answer import answers_of
        from strobe.perf.report.log_page import log_report, run_folders, vary_report
        from strobe.perf.report.write import write_report

        report = log_report(run_folders(folders), into) if log else vary_report(folders[0])
        into.mkdir(parents=True, exist_ok=True)
        paths = write_report(report, into)
    stops = [banner for banner in report.banners if banner.level == "stop"]
    texts = list(section_texts(report.sections[:SECTIONS], notes=False))
    answer = [table_text(table) for table in answers_of(report)[-1:]]
    kept = len(texts)
    if not output.details:
        room = LINES - sum(len(text.plain.splitlines()) for text in answer)
        ends = accumulate(len(text.plain.splitlines()) for text in texts)
        kept = max(1, sum(end <= room for end in ends))
    output.show(*banner_texts(stops), *texts[:kept], *answer)
    if kept < len(texts):
        output.show(f"{len(texts) - kept} more tables: --details prints them, and the page has them.")
    output.show(" ".join(map(str, paths)))
    output.emit(
        {
            "report": {path.suffix[1:]: str(path) for path in paths},
            "measured": list(measured),
            "kept": list(there),
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


def _show_answers(answers: Sequence[Answer], findings: Sequence[Finding], output: Output) -> None:
    """Print what each candidate saves and what bounds it now, and the parts of the last; with details everything."""
    from strobe.perf.report.blocks.answer import answer_table, bound_of, told_last

    told = [(answer_table(each, each.answer), bound_of(each)) for each in told_last(findings) if each.answer]
    if output.details or not told:
        output.show(*map(table_text, answers))
        return
    *others, last = told
    if len(others) <= MOST_TOLD:
        output.show(*(text for table, bound in others for text in (table.caption, bound, "")))
    output.show(table_text(last[0], notes=False), last[1], "")
    output.show("All parts and notes: --details prints them, and the page has them.")


def write(
    folders: Sequence[Path],
    into: Path,
    requirements: Sequence[Requirement],
    output: Output,
    allow_different: tuple[str, ...] = (),
) -> tuple[int, dict[str, Any]]:
    """Write the report of some runs, print its findings, and check the requirements.

    Returns:
        exit code, and what was found.
    """
    with output.progress("report"):
        from strobe.perf.analysis.runs.compare import is_own_code, own_code
        from strobe.perf.records.store import read_run
        from strobe.perf.report.blocks.answer import answers_of
        from strobe.perf.report.build import report_and_findings
        from strobe.perf.report.calls_page import times_table
        from strobe.perf.report.documents.runs import run_document
        from strobe.perf.report.study import damage_of
        from strobe.perf.report.write import write_report
        from strobe.perf.table.rows import to_json

        runs = [read_run(folder) for folder in folders]
        built, findings = report_and_findings(folders, into=into, allow_different=allow_different)
        found = run_document(runs, built, findings, allow_different)
        into.mkdir(parents=True, exist_ok=True)
        paths = write_report(built, into)
        answers = answers_of(built)
    for run in runs:
        _warn(run, output)
    figures = _figures(built.speedups, runs)
    cut = any(run.end is None or run.end.status != "complete" for run in runs)
    failed = [
        line for each in requirements for line in failures(each, figures, cut=cut, obstacles=found.obstacles, absent=found.absent)
    ]
    shown = [each for each in built.speedups if each.candidate not in found.obstacles]
    output.show(*banner_texts(built.banners, ("stop",)))
    own = [run for run in runs if is_own_code(run)]
    if own:
        output.show(*(table_text(times_table(run.header, own_code(run))) for run in own))
    elif any(run.header.kind == "operator" for run in runs):
        sections = [section for section in built.sections if section.id in ("times", "speedups", "roofline")]
        output.show(*([_table(shown)] if shown else []), *section_texts(sections))
    elif shown:
        output.show(_clip_table(findings, found.obstacles), *([_table(shown)] if output.details else [""]))
    _show_answers(answers, () if own else findings, output)
    output.show(*(styled(("not met", "red"), " ", line) for line in failed), " ".join(map(str, paths)))
    return GATE_FAILED if failed else 0, {
        **to_json(found),
        "report": {path.suffix[1:]: str(path) for path in paths},
        "figures": {
            name: {key: None if (value := value_of(each)) == math.inf else value for key, each in row.items()}
            for name, row in figures.items()
        },
        "not_met": failed,
        "damaged": {str(run.folder): lines for run in runs if (lines := list(damage_of(run)))},
    }


def _warn(run: RunRecords, output: Output) -> None:
    if run.end is None or run.end.status != "complete":
        status = run.end.status if run.end else "cut short"
        output.note(f"{run.folder}: the run was {status}: the report is of {run.made}, and what came after them is missing")
    if run.truncated:
        output.note(f"{run.folder}: the last line of the records is cut short and left out: 1")


def _figures(speedups: Sequence[Speedup], runs: Sequence[RunRecords]) -> Figures:
    """Return every figure that a requirement may name: speedups by level, joules of a frame block, then quality by metric. Every
    candidate that a run was to measure is here; a level that it never came to is None."""
    from strobe.perf.analysis.runs.compare import block_joules
    from strobe.perf.table.model import LevelName

    found = {(each.candidate, each.level): each for each in speedups}
    labels = {candidate for candidate, _ in found}
    figures: dict[str, dict[str, Speedup | float | None]] = {}
    for run in runs:
        for name in dict.fromkeys(name for name in run.header.order if name != run.header.baseline):
            own = f"{name} ({run.header.run})"  # as the report names it where several runs have the variant
            label = own if own in labels else name
            figures[label] = {level: found.get((label, level)) for level in get_args(LevelName)}
            figures[label][JOULES] = block_joules(run, name)
            for quality in (quality for quality in run.quality if quality.variant == name):
                figures[label][quality.metric] = score_of(quality)
    return figures


def _clip_table(findings: Sequence[Finding], refused: Mapping[str, str]) -> Table:
    """Return the table of variants: end-to-end time of a clip, pixel frames per second, speedup."""
    from strobe.perf.table.model import ratio_text, significant

    names = ("clip ms", "FPS", "speedup [95 %]", "steady block ms")
    table = _empty("end to end", names)
    shown: set[str] = set()
    for each in findings:
        sides = () if each.e2e is None else zip((each.reference, each.candidate), each.e2e.mean_ns, strict=True)
        for subject, mean_ns in sides:
            work = subject.run.header.workload
            if subject.label in shown or subject.label in refused:
                continue
            shown.add(subject.label)
            rate = "-" if work is None else f"{work.frames * work.batch * 1e9 / mean_ns:.1f}"
            found = None if subject is each.reference else each.e2e
            ratio = "1" if found is None else ratio_text(found.cell, 2)
            answer = each.answer
            block_ns = None if answer is None else answer.baseline_ns if subject is each.reference else answer.candidate_ns
            block = "-" if block_ns is None else significant(float(block_ns) / 1e6)
            table.add_row(clean(subject.label), f"{mean_ns / 1e6:.1f}", rate, ratio, block)
    return table


def _table(speedups: Sequence[Speedup]) -> Table:
    """Return the table of speedups by candidate and level, each with its interval."""
    from strobe.perf.table.model import ratio_text

    levels = list(dict.fromkeys(each.level for each in speedups))
    table = _empty("speedup", levels)
    for names in dict.fromkeys((each.candidate, each.reference) for each in speedups):
        ratios = {each.level: each.ratio for each in speedups if (each.candidate, each.reference) == names}
        shown = {level: ratio_text(each, 2, "\n") for level, each in ratios.items()}
        cells = (shown.get(level, "-") for level in levels)
        table.add_row(f"{clean(names[0])}\nto {clean(names[1])}", *cells)
    return table


def _empty(title: str, names: Iterable[str]) -> Table:
    columns = (Column(name, no_wrap=True, justify="right") for name in names)
    return Table(title, *columns, box=None, header_style="bold", padding=(0, 1, 0, 0))
