"""`strobe extract`: figures from logs and traces, file by file: rounds of a stage, attention timers, focal kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from strobe.cli.console import OUT, Output, banner_texts, megabytes, table_text
from strobe.cli.speedup import LOGS, NO_SIDES, LogFlags, Sides, requests
from strobe.cli.trace import read_traces
from strobe.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from strobe.perf.logs.series import Log
    from strobe.perf.report.blocks.logs import InputFile
    from strobe.perf.table.model import Section

extract = App(
    name="extract",
    help="Take figures out of text logs and traces: rounds of a stage, attention timers, focal kernels.",
    help_epilogue="Next: strobe speedup compares what two logs say.\n",
)
Out = Annotated[Path | None, Parameter(alias=OUT, help="the Markdown file to write.")]


@extract.command
def stages(
    *logs: Annotated[Path, Parameter(name="LOG")], flags: LogFlags = LOGS, out: Out = None, output: Output = Output()
) -> None:
    """Tabulate the rounds of a stage: run_01 to run_N, avg_all_rounds, avg_excl_warmup.

    ```
    strobe extract stages fa.log vsa.log -o denoising_stage_latency.md
    strobe extract stages fa.log.gz --stage . --json
    ```

    Args:
        logs: text logs, plain or .gz, one column each.
    """
    if not logs:
        raise ConfigError("name at least one log; `strobe extract stages fa.log vsa.log -o table.md`")
    read = [_read_log(path, flags, output) for path in logs]
    from strobe.perf.analysis.runs.log_times import STAGE, LogRequest, stage_rounds
    from strobe.perf.report.blocks.logs import stages_section
    from strobe.perf.report.documents.speedup import rounds_document

    alike = len({path.name for path in logs}) < len(logs)
    labels = [str(path) if alike else path.name for path in logs]
    rounds = [stage_rounds(LogRequest(log=log, unit=flags.known_unit), flags.stage or STAGE) for log in read]
    found = list(zip(labels, rounds, strict=True))
    document = {"stages": [rounds_document(label, each) for label, group in found for each in group]}
    _finish("Stage latency", stages_section(found), document, read, out, output)


@extract.command
def attention(*, sides: Sides = NO_SIDES, flags: LogFlags = LOGS, out: Out = None, output: Output = Output()) -> None:
    """Average the attention timers of logs in the steady state, with the unit of the values proven where that can be done.

    ```
    strobe extract attention --baseline-log fa.log --candidate-log vsa.log -o attention.md
    strobe extract attention --candidate-log vsa.log --candidate-trace vsa/ --focal-candidate _attn_fwd_sparse
    strobe extract attention --baseline-log fa.log --between 5ms..50ms --unit s
    ```
    """
    from strobe.perf.analysis.runs.log_times import STAGE, LogRequest, attention_summary, unsynchronised
    from strobe.perf.analysis.structure.sections import trace_evidence
    from strobe.perf.report.blocks.logs import attention_section, input_file
    from strobe.perf.report.documents.speedup import timer_document

    found = []
    files: list[InputFile | Log] = []
    for side in requests(sides):
        if side.log is None:
            continue
        if side.traces and side.focal is None and sides.range is None:
            raise ConfigError(f"--{side.name}-trace proves nothing alone; add --focal-{side.name} REGEX or --range REGEX")
        log = _read_log(side.log, flags, output)
        traces = read_traces(side.traces, output, details=False).traces if side.traces else ()
        bounds, span = trace_evidence(traces, side.focal, sides.range) if traces else ((), None)
        request = LogRequest(
            log=log, constraints=bounds, unit=flags.known_unit, min_ns=side.min_ns, max_ns=side.max_ns, calls=sides.calls
        )
        summaries = attention_summary(request, side.timer, flags.stage or STAGE)
        checked = () if span is None else (unsynchronised(each, *span) for each in summaries)
        found.append((side.name, summaries, tuple(filter(None, checked))))
        files += [log, *(input_file(trace.path) for trace in traces)]
    if not found:
        raise ConfigError("name a log: --baseline-log FILE, --candidate-log FILE, or both")
    document = {"attention": [timer_document(label, each, remarks) for label, summaries, remarks in found for each in summaries]}
    _finish("Attention end to end", attention_section(found), document, files, out, output)


@extract.command
def kernels(*traces: Annotated[Path, Parameter(name="TRACE")], focal: str, out: Out = None, output: Output = Output()) -> None:
    """Tabulate a kernel in each trace: its calls, their sum, min, p50, mean and max.

    ```
    strobe extract kernels traces/ --focal flash -o kernel_latency_summary.md
    strobe extract kernels fa.json.gz vsa.json.gz --focal "flash|_attn_fwd_sparse"
    ```

    Args:
        traces: traces as torch.profiler writes them (.json or .json.gz), or folders that hold some.
        focal: regular expression that is searched in the names of device events.
    """
    from strobe.perf.analysis.structure.sections import focal_kernels
    from strobe.perf.report.blocks.kernels import focal_section
    from strobe.perf.report.blocks.logs import input_file
    from strobe.perf.report.documents.speedup import kernels_document

    read = read_traces(traces, output, details=False)
    files = [input_file(trace.path) for trace in read.traces]
    found = [(label, focal_kernels(trace, focal)) for label, trace in zip(read.labels, read.traces, strict=True)]
    if not any(kernels for _, kernels in found):
        named = ", ".join(str(file.path) for file in files)
        raise DataError(f"no device event of {named} has a name with {focal!r}; `strobe trace` lists the names")
    document = {"focal": focal, "kernels": [kernels_document(*one) for one in found]}
    _finish("Kernel latency", focal_section(found, focal), document, files, out, output)


def _read_log(path: Path, flags: LogFlags, output: Output) -> Log:
    """Read a log, and warn on stderr of what may have been missed in it."""
    from strobe.perf.logs import load_patterns, read_log

    with output.progress("read") as advance:
        log = read_log(path, load_patterns(flags.patterns), progress=megabytes(advance))
    if log.counts.similar:
        (first, *_), *_ = log.similar.values()
        output.note(f"{path}: like a timing, but of no pattern: {log.counts.similar}; line {first.line}: {first.text.strip()}")
    return log


def _finish(
    title: str, section: Section, document: dict[str, Any], files: Sequence[InputFile | Log], out: Path | None, output: Output
) -> None:
    """Write the Markdown, print the tables, and emit the JSON."""
    from strobe.core.files import write_whole
    from strobe.perf.report.blocks.logs import files_report
    from strobe.perf.report.documents.speedup import files_document
    from strobe.perf.report.write import render_markdown
    from strobe.perf.table.model import Table

    report = files_report(title, section, files)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, render_markdown(report))
        document["written"] = str(out)
    tables = [block for each in report.sections for block in each.blocks if isinstance(block, Table) and not block.collapsed]
    output.show(*banner_texts(report.banners), *map(table_text, tables), *([str(out)] if out else []))
    output.emit({**document, **files_document(files)})
