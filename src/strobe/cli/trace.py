"""`strobe trace`: tables, a page and a Perfetto file from profiler traces of any framework."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter
from rich.text import Text

from strobe.cli.console import OUT, Output, banner_texts, joined_lines, megabytes, table_text
from strobe.cli.model import at_least
from strobe.core.errors import ConfigError

if TYPE_CHECKING:
    from strobe.perf.report.study import TraceStudy
    from strobe.perf.table import model

Format = Literal["html", "md", "json"]
_SHOWN: Final = {
    "overview": (0,), "activity": (1,), "kernels": (0,), "operator-times": (0,), "roofline": (0,), "operators": (0, 1),
    "steps": (0,), "sections": (0,), "breakdown": (0,), "collectives": (0, 2), "queue": (0,), "critical-path": (0,),
    "what-if": (0,),
}  # fmt: skip
"""Positions of the printed tables of each section."""
_NOTED: Final = ("steps", "sections", "collectives", "roofline", "critical-path", "what-if")
"""Sections whose remarks are printed too, since they name what could not be found."""
_ROWS: Final = 15
_LONG: Final = {"breakdown": 60}
"""Most printed rows of a table by section, where it is not `_ROWS`."""


@Parameter(name="*", group="Analysis")
@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Flags of the analysis: window, steps, sections, grouping.

    Args:
        top: rows of a long table.
        by: group kernels by name, or by name and shape (the operator's input sizes, else grid and block).
        window: this part only: a range or module (ProfilerStep#3, "attention[2]"), steps (3..7) or a time (100ms..200ms).
        steps: regular expression of the range or kernel that starts a step; without it, steps are found.
        section: device time around a focal event, "LEFT -> FOCAL -> RIGHT" with edges such as memcpy:end, one or several.
    """

    top: int = 30
    by: Literal["name", "shape"] = "name"
    window: str | None = None
    steps: str | None = None
    section: tuple[str, ...] = ()


_DEFAULTS: Final = Analysis()


def trace(
    *files: Annotated[Path, Parameter(name="FILE")],
    analysis: Analysis = _DEFAULTS,
    out: Annotated[Path | None, Parameter(alias=OUT)] = None,
    format: tuple[Format, ...] = (),
    perfetto: Path | None = None,
    output: Output = Output(),
) -> None:
    """Analyse profiler traces: kernels, busy and idle time, launches, gaps, steps, regions, communication.

    ```
    strobe trace trace.json.gz
    strobe trace rank0.json.gz rank1.json.gz --window ProfilerStep#3 -o pages
    strobe trace traces/ --section "memcpy:end -> flash_fwd -> gather:end" --perfetto out.pftrace
    ```

    With --details every operator and synchronisation is read too, for GPU time by operator, the device's peaks and the
    critical path: reading then takes up to twice as long, and some 40 bytes for each operator. Files of up to 16 MB are
    read so by default.

    Args:
        files: traces of torch.profiler, JAX or Ascend (.json or .json.gz) or exports of Nsight Systems (.sqlite), or
            folders that hold some; one per rank, and those of the captures of graphs, which name kernels in replays.
        out: folder for report.html, report.md, report.json, trace.json (every row of every table) and events.csv.gz (every
            event, exactly), made if absent; without it, the report is only printed.
        format: html, md or json: what to write into the folder, by default all of them; without a folder, what to print.
        perfetto: also write a Perfetto file (TrackEvent) of the window; needs the extra perfetto.
    """
    if out is None and len(format) + (output.json and bool(format)) > 1:
        raise ConfigError(f"--format {' '.join(format)}{' --json' * output.json}: one can be printed; -o FOLDER writes several")
    at_least(1, top=analysis.top)
    study = read_traces(
        files, output, top=analysis.top, by=analysis.by, window=analysis.window, sections=analysis.section, steps=analysis.steps,
        details=output.details or None,
    )  # fmt: skip
    for one in study.traces:
        bad = [f"events {how}: {n}" for n, how in ((one.counts.lost, "lost"), (one.counts.mended, "mended")) if n]
        bad += ["it ends before its JSON does"] if one.counts.truncated else []
        if bad:
            output.note(f"{one.path}: {', '.join(bad)}")
    with output.progress("analyse"):
        from strobe.perf.report.trace_page.build import build_trace_report

        report = build_trace_report(study)
    written = _write(study, report, out, format, output) if out else {}
    if perfetto is not None:
        with output.progress("perfetto"):
            from strobe.perf.report.export import write_perfetto

            write_perfetto(study, perfetto)
        written["perfetto"] = str(perfetto)
    if out is None and format:
        from strobe.perf.report.write import render

        output.write(render(report, format[0]))
    else:
        output.show(*_summary(report, analysis, output), *([" ".join(written.values())] if written else []))
    if output.json:
        output.emit({**_data(study), "written": written})


def read_traces(paths: Sequence[Path], output: Output, **options: Any) -> TraceStudy:
    """Read every trace that is named or lies in a folder; other files of a folder are left out with a note.

    Args:
        options: fields of `TraceOptions`.
    """
    if not paths:
        raise ConfigError("name at least one trace: a .json or .json.gz file of torch.profiler, or a folder that holds some")
    with output.progress("read") as advance:
        from strobe.perf.report.study import TraceOptions, load_trace_study

        study = load_trace_study(paths, TraceOptions(**options), megabytes(advance))
    for reason in study.skipped:
        output.note(f"skipped {reason}")
    return study


def _write(study: TraceStudy, report: model.Report, folder: Path, formats: Sequence[Format], output: Output) -> dict[str, str]:
    """Write the report and the CSV of every event; return the paths by kind."""
    with output.progress("write"):
        from strobe.core.files import write_whole
        from strobe.perf.report.export import write_events
        from strobe.perf.report.write import FORMATS, write_report

        folder.mkdir(parents=True, exist_ok=True)
        paths = {path.suffix[1:]: str(path) for path in write_report(report, folder, formats or FORMATS)}
        events = folder / "events.csv.gz"
        write_events(study, events)
        if not formats or "json" in formats:
            data = folder / "trace.json"
            write_whole(data, json.dumps(_data(study), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
            paths["data"] = str(data)
    return {**paths, "events": str(events)}


def _data(study: TraceStudy) -> dict[str, Any]:
    """Return every row of every table as the JSON document."""
    from strobe.perf.report.documents.speedup import trace_document
    from strobe.perf.table.rows import to_json

    found: dict[str, Any] = to_json(trace_document(study))
    return found


def _summary(report: model.Report, analysis: Analysis, output: Output) -> Iterator[Text | str]:
    """Yield what fits a screen: what voids figures, the answer, other warnings, what was asked for; with details the tables."""
    from strobe.perf.report.trace_page.build import ANSWER
    from strobe.perf.table.model import Notes, Table

    first = [section for section in report.sections if section.id == ANSWER]
    yield from banner_texts(report.banners, ("stop",))
    yield from (item for section in first for block in section.blocks if isinstance(block, Notes) for item in (*block.items, ""))
    yield from banner_texts(report.banners, ("caution",))
    asked = {name for name, given in (("sections", analysis.section), ("steps", analysis.steps)) if given}
    rest = [section for section in report.sections if section.id != ANSWER]
    shown = rest if output.details or not first else [section for section in rest if section.id in asked]
    for section in shown:
        tables = [block for block in section.blocks if isinstance(block, Table)]
        yield from (
            table_text(tables[at], _LONG.get(section.id, _ROWS), notes=section.id in _NOTED)
            for at in _SHOWN.get(section.id, ())
            if at < len(tables)
        )
        if section.id in _NOTED:
            said = [f"* {item}" for block in section.blocks if isinstance(block, Notes) for item in block.items]
            yield from [joined_lines((*said, ""))] if said else []
        more = sum(table.sortable for table in tables) - 1
        if section.id == "kernels" and more > 0:
            yield f"Kernels of {more} more device{'s' if more > 1 else ''}: in the report, which -o FOLDER writes.\n"
        if section.id == "operators" and len(tables) > 2:
            yield f"Not shown: {len(tables) - 2} of the tables of operators and ranges; -o FOLDER writes them.\n"
    if len(shown) < len(rest):
        yield "Tables: --details prints them, -o FOLDER writes them as a page."
