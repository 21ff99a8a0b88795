"""`strobe extract`: figures from logs and traces, file by file: rounds of a stage, attention timers, focal kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import App, Parameter

from strobe.cli.console import OUT, Output, banner_texts, megabytes, table_text
from strobe.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from strobe.perf.analysis.structure.sections import TraceEvidence
    from strobe.perf.logs.patterns import Unit
    from strobe.perf.logs.series import Log
    from strobe.perf.report.blocks.logs import InputFile
    from strobe.perf.report.study import TraceStudy
    from strobe.perf.table.model import Section


extract = App(
    name="extract",
    help="Take figures out of text logs and traces: rounds of a stage, attention timers, focal kernels.",
    help_epilogue="Next: strobe speedup compares what two logs say.\n",
)


@Parameter(name="*", group="Logs")
@dataclass(frozen=True, kw_only=True)
class LogFlags:
    """Flags of how to read the lines of a log.

    Args:
        patterns: a TOML file that says what a timing line looks like, tried before the shipped patterns; see docs/logs.md.
        unit: ns, us, ms or s: of the values as written, against label and proof.
        stage: regular expression of the stage's name; denois|diffusion by default.
    """

    patterns: Path | None = None
    unit: str | None = None
    stage: str | None = None


@Parameter(name="*", group="Evidence")
@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Flags of the traces that prove or refute a unit.

    Args:
        baseline_trace: traces of the baseline (files or folders); their focal kernels bound its timer.
        candidate_trace: the same for the candidate.
        focal_baseline: regular expression of the kernel inside the baseline's timer.
        focal_candidate: the same for the candidate.
        range: regular expression of the range in the traces that the timer is around.
        calls_per_stage: attention calls in each round of the stage; counted from the log where its lines say their rank.
    """

    baseline_trace: tuple[Path, ...] = ()
    candidate_trace: tuple[Path, ...] = ()
    focal_baseline: str | None = None
    focal_candidate: str | None = None
    range: str | None = None
    calls_per_stage: int | None = None

    @property
    def calls(self) -> int | None:
        """Calls per stage; None if they are not given."""

        if self.calls_per_stage is not None and self.calls_per_stage < 1:
            raise ConfigError(f"--calls-per-stage {self.calls_per_stage}: a stage has 1 or more; leave it out if nobody counted")
        return self.calls_per_stage


@Parameter(name="*", group="Sides")
@dataclass(frozen=True, kw_only=True)
class Sides:
    """Flags of the two logs; one alone is enough.

    Args:
        baseline_log: log of the baseline, text or .gz, or our records.jsonl.
        candidate_log: log of the candidate.
        names: regular expression of the timer's name, if a log has several: one for both, or two, such as Vanilla VSA.
        between: shortest and longest duration that counts, such as 5ms..50ms, instead of the search for the steady state: one
            for both, or two, the baseline's first.
    """

    baseline_log: Path | None = None
    candidate_log: Path | None = None
    names: tuple[str, ...] = ()
    between: tuple[str, ...] = ()


SIDES: Final[tuple[Literal["baseline", "candidate"], ...]] = ("baseline", "candidate")
LOGS: Final = LogFlags()
NO_EVIDENCE: Final = Evidence()
NO_LOGS: Final = Sides()


@extract.command
def stages(
    *logs: Annotated[Path, Parameter(name="LOG")],
    flags: LogFlags = LOGS,
    out: Annotated[Path | None, Parameter(alias=OUT)] = None,
    output: Output = Output(),
) -> None:
    """Tabulate the rounds of a stage: run_01 to run_N, avg_all_rounds, avg_excl_warmup.

    ```
    strobe extract stages fa.log vsa.log -o denoising_stage_latency.md
    strobe extract stages fa.log.gz --stage . --json
    ```

    Args:
        logs: text logs, plain or .gz, one column each.
        out: the Markdown file to write.
    """

    if not logs:
        raise ConfigError("name at least one log; `strobe extract stages fa.log vsa.log -o table.md`")
    read, unit = _read_logs(logs, flags, output)
    from strobe.perf.analysis.runs.log_times import STAGE, LogRequest, stage_rounds
    from strobe.perf.report.blocks.logs import stages_section
    from strobe.perf.report.documents.speedup import rounds_document

    names = Counter(path.name for path in logs)
    labels = [path.name if names[path.name] == 1 else str(path) for path in logs]
    rounds = [stage_rounds(LogRequest(log=log, unit=unit), flags.stage or STAGE) for log in read]
    found = list(zip(labels, rounds, strict=True))
    document = {"stages": [rounds_document(label, each) for label, group in found for each in group]}
    _finish("Stage latency", stages_section(found), document, (read, read), out, output)


@extract.command
def attention(
    *,
    sides: Sides = NO_LOGS,
    evidence: Evidence = NO_EVIDENCE,
    flags: LogFlags = LOGS,
    out: Annotated[Path | None, Parameter(alias=OUT)] = None,
    output: Output = Output(),
) -> None:
    """Average the attention timers of logs in the steady state, with the unit of the values proven where that can be done.

    ```
    strobe extract attention --baseline-log fa.log --candidate-log vsa.log -o attention.md
    strobe extract attention --candidate-log vsa.log --candidate-trace vsa/ --focal-candidate _attn_fwd_sparse
    strobe extract attention --baseline-log fa.log --between 5ms..50ms --unit s
    ```

    Args:
        out: the Markdown file to write.
    """

    given = [
        (label, path, name, durations(window))
        for label, path, name, window in zip(
            SIDES,
            (sides.baseline_log, sides.candidate_log),
            of_sides("--names", sides.names),
            of_sides("--between", sides.between),
            strict=True,
        )
        if path is not None
    ]
    if not given:
        raise ConfigError("name a log: --baseline-log FILE, --candidate-log FILE, or both")
    calls, (read, unit) = evidence.calls, _read_logs([path for _, path, *_ in given], flags, output)
    from strobe.perf.analysis.runs.log_times import STAGE, LogRequest, attention_summary, unsynchronised
    from strobe.perf.report.blocks.logs import attention_section, input_file
    from strobe.perf.report.documents.speedup import timer_document

    inputs: list[InputFile | Log] = []
    found = []
    for log, (label, _, name, (low, high)) in zip(read, given, strict=True):
        (bounds, span), files = _evidence(label, evidence, output)
        inputs += [log, *map(input_file, files)]
        request = LogRequest(log=log, constraints=bounds, unit=unit, min_ns=low, max_ns=high, calls=calls)
        summaries = attention_summary(request, name, flags.stage or STAGE)
        checked = () if span is None else (unsynchronised(each, *span) for each in summaries)
        found.append((label, summaries, tuple(filter(None, checked))))
    document = {"attention": [timer_document(label, each, remarks) for label, summaries, remarks in found for each in summaries]}
    _finish("Attention end to end", attention_section(found), document, (inputs, read), out, output)


@extract.command
def kernels(
    *traces: Annotated[Path, Parameter(name="TRACE")],
    focal: str,
    out: Annotated[Path | None, Parameter(alias=OUT)] = None,
    output: Output = Output(),
) -> None:
    """Tabulate a kernel in each trace: its calls, their sum, min, p50, mean and max.

    ```
    strobe extract kernels traces/ --focal flash -o kernel_latency_summary.md
    strobe extract kernels fa.json.gz vsa.json.gz --focal "flash|_attn_fwd_sparse"
    ```

    Args:
        traces: traces as torch.profiler writes them (.json or .json.gz), or folders that hold some.
        focal: regular expression that is searched in the names of device events.
        out: the Markdown file to write.
    """

    from strobe.perf.analysis.structure.sections import focal_kernels
    from strobe.perf.report.blocks.kernels import focal_section
    from strobe.perf.report.blocks.logs import input_file
    from strobe.perf.report.documents.speedup import kernels_document

    read = read_traces(traces, output, details=False)
    found = [(label, focal_kernels(trace, focal)) for label, trace in zip(read.labels, read.traces, strict=True)]
    if not any(kernels for _, kernels in found):
        files = ", ".join(str(trace.path) for trace in read.traces)
        raise DataError(f"no device event of {files} has a name with {focal!r}; `strobe trace` lists the names")
    inputs = [input_file(trace.path) for trace in read.traces]
    document = {"focal": focal, "kernels": [kernels_document(*one) for one in found]}
    _finish("Kernel latency", focal_section(found, focal), document, (inputs, []), out, output)


def of_sides(flag: str, values: Sequence[str]) -> tuple[str, str]:
    """Return the values of baseline and candidate: one stands for both; none: empty."""

    if len(values) > 2:
        raise ConfigError(f"{flag} {' '.join(values)}: give one for both sides, or two, the baseline's first")
    return (values[0], values[-1]) if values else ("", "")


def durations(text: str) -> tuple[int | None, int | None]:
    """Return the shortest and longest duration that counts, ns, of `5ms..50ms`; None where not given."""
    from strobe.perf.logs.patterns import parse_duration

    if not text:
        return None, None
    shortest, dots, longest = text.partition("..")
    if not dots:
        raise ConfigError(f"--between {text}: write SHORTEST..LONGEST, such as 5ms..50ms; either may be left out")
    low, high = (parse_duration(each) if each else None for each in (shortest, longest))
    if low is not None and high is not None and low > high:
        raise ConfigError(f"--between {text}: {shortest} is above {longest}; no value lies between them")
    return low, high


def _read_logs(paths: Sequence[Path], flags: LogFlags, output: Output) -> tuple[list[Log], Unit | None]:
    """Read logs, warn on stderr of what may have been missed in them, and return the unit that the flags give their values."""
    from strobe.perf.logs import load_patterns, read_log
    from strobe.perf.logs.patterns import parse_unit
    from strobe.perf.logs.series import compiled

    compiled(flags.stage or "")  # a mistake is told before a long log is read
    patterns, unit = load_patterns(flags.patterns), None if flags.unit is None else parse_unit(flags.unit)
    with output.progress("read") as advance:
        read = [read_log(path, patterns, progress=megabytes(advance)) for path in paths]
    for path, log in zip(paths, read, strict=True):
        if log.counts.similar:
            first = f"line {log.similar[0].line}: {log.similar[0].text.strip()}"
            output.note(f"{path}: {log.counts.similar} lines look like a timing and match no pattern; {first}")
        if log.counts.truncated:
            output.note(f"{path}: the compressed file is cut short; what could be read counts")
    return read, unit


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


def _evidence(side: str, evidence: Evidence, output: Output) -> tuple[TraceEvidence, list[Path]]:
    """Return what a side's traces prove, and their files."""
    from strobe.perf.analysis.structure.sections import trace_evidence

    paths, focal = getattr(evidence, f"{side}_trace"), getattr(evidence, f"focal_{side}")
    if not paths:
        if focal is not None:
            raise ConfigError(f"--focal-{side} needs a trace: --{side}-trace FILE")
        return ((), None), []
    if focal is None and evidence.range is None:
        raise ConfigError(f"--{side}-trace proves nothing alone; add --focal-{side} REGEX or --range REGEX")
    traces = read_traces(paths, output, details=False).traces
    return trace_evidence(traces, focal, evidence.range), [trace.path for trace in traces]


def _finish(
    title: str,
    section: Section,
    document: dict[str, Any],
    read: tuple[Sequence[InputFile | Log], Sequence[Log]],
    out: Path | None,
    output: Output,
) -> None:
    """Write the Markdown, print the tables, and emit the JSON."""
    from strobe.core.files import write_whole
    from strobe.perf.report.blocks.fields import damage_banners, page
    from strobe.perf.report.blocks.logs import inputs_section
    from strobe.perf.report.documents.speedup import log_document
    from strobe.perf.report.write import render_markdown
    from strobe.perf.table.model import Table

    inputs, logs = read
    sections = (section, inputs_section(inputs, logs))
    subtitle = f"From {', '.join(file.path.name for file in inputs)}."
    banners = damage_banners((log.path.name, log.damage) for log in logs)
    report = page(title=title, subtitle=subtitle, banners=banners, sections=sections)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, render_markdown(report))
        document["written"] = str(out)
    tables = [block for each in sections for block in each.blocks if isinstance(block, Table) and not block.collapsed]
    output.show(*banner_texts(report.banners), *map(table_text, tables), *([str(out)] if out else []))
    files = [{"path": str(file.path), "bytes": file.size_bytes, "sha256": file.sha256} for file in inputs]
    output.emit({**document, "inputs": files, "logs": [log_document(log) for log in logs]})
