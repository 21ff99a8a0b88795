"""Report sections from logs and traces: rounds of a stage, attention timers, focal kernels, and the files read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

from strobe.core.printable import counted, first_of
from strobe.perf.analysis.runs.log_times import OUTLIER, SeriesSummary, StageRounds
from strobe.perf.logs.reader import sha256_of
from strobe.perf.logs.series import Log, Resolved, Sample, Series, short
from strobe.perf.report.blocks.fields import damage_banners, page, spread, stretches
from strobe.perf.table.fields import Field, beside, count, exact_cell, table_of
from strobe.perf.table.model import Block, Code, ExactTime, Missing, Report, Section, Table, Text

T = TypeVar("T")
_RANGES: Final = 6
_METHODS: Final = {
    "steady": "the longest suffix without a trend",
    "window": "what the window lets through",
    "cause": "all but what has a known cause to differ",
}


TimerLog: TypeAlias = tuple[str, tuple[SeriesSummary, ...], tuple[str, ...]]
"""Label of a log, the timers found in it, and further remarks, such as a timer that did not wait for the device."""


class InputFile(NamedTuple):
    """Path, size and hash of a file as it was read; a log has them too."""

    path: Path
    size_bytes: int
    sha256: str


def input_file(path: Path) -> InputFile:
    """Return size and SHA-256 of a file."""
    digest = sha256_of(path)
    return InputFile(path, path.stat().st_size, digest)


def stages_section(logs: Sequence[tuple[str, Sequence[StageRounds]]]) -> Section:
    """Build the section with one table per stage: its rounds in each log, and averages with and without warm-up."""
    names = dict.fromkeys(rounds.name for _, stages in logs for rounds in stages)
    blocks: list[Block] = []
    for name in names:
        found = [(label, rounds) for label, stages in logs for rounds in stages if rounds.name == name]
        blocks.append(_rounds_table(name, found))
        blocks += [_ranks_table(label, rounds) for label, rounds in found if len(rounds.resolved) > 1]
    lead = "Wall time of each round as the log says it. The average without warm-up is the one to compare."
    return Section("stages", "Stages", lead, tuple(blocks))


def round_label(index: int) -> str:
    """Return the label of a round: `run_01` for index 0."""
    return f"run_{index + 1:02d}"


def _rounds_table(name: str, found: Sequence[tuple[str, StageRounds]]) -> Table:
    fields = beside("round", (label for label, _ in found), "ms", show=exact_cell)
    own, steady = [rounds.rounds_ns for _, rounds in found], [rounds.avg_excl_warmup_ns for _, rounds in found]
    rows: list[Sequence[object]] = [(round_label(index), *each) for index, each in enumerate(zip_longest(*own))]
    averages = (
        ("avg_all_rounds", *(rounds.avg_all_rounds_ns for _, rounds in found)),
        ("avg_excl_warmup", *(Missing("every round is left out") if mean is None else mean for mean in steady)),
    )
    notes = tuple(f"{label}: {note}" for label, rounds in found for note in _rounds_notes(rounds))
    return table_of(f"{name}, by round.", fields, [*rows, *averages], strong=lambda row: row in averages, notes=notes)


def _rounds_notes(rounds: StageRounds) -> Iterator[str]:
    yield from unit_notes(rounds.resolved)
    if len(rounds.resolved) > 1:
        ranks = sum(each.series.rank is not None for each in rounds.resolved)
        others = " and of the lines that name none" if ranks < len(rounds.resolved) else ""
        yield f"a round lasts as long as the slowest of {counted(ranks, 'rank')}{others}"
    for cause in dict.fromkeys(rounds.excluded.values()):
        left_out = [round_label(index) for index in sorted(rounds.excluded) if rounds.excluded[index] == cause]
        yield f"not in avg_excl_warmup: {', '.join(left_out)} ({cause})"
    if rounds.note:
        yield rounds.note
    if rounds.incomplete:
        yield f"left out, because not every rank has them: {counted(rounds.incomplete, 'round')} at the end"
    yield from (f"{each.series.title}, in no figure: {each.series.left_out}" for each in rounds.resolved if each.series.rejected)


def _ranks_table(label: str, rounds: StageRounds) -> Table:
    ranks = (each.series.rank for each in rounds.resolved)
    fields = beside("round", ("no rank" if rank is None else f"rank {rank}" for rank in ranks), "ms", show=ExactTime)
    rows = [(round_label(index), *(each.values_ns[index] for each in rounds.resolved)) for index in range(len(rounds.rounds_ns))]
    caption = f"{rounds.name} of {label}, by round and rank."
    return table_of(caption, fields, rows, notes=unit_notes(rounds.resolved), collapsed=True)


def attention_section(logs: Sequence[TimerLog]) -> Section:
    """Build the section with one row per log, timer and rank: steady values and the source of their unit."""
    fields: tuple[Field[tuple[str, SeriesSummary]], ...] = (
        Field("log", lambda row: row[0]),
        Field("timer", lambda row: row[1].series.name, Code),
        count("rank", lambda row: Text("-") if row[1].series.rank is None else row[1].series.rank),
        Field(
            "unit",
            lambda row: ", ".join(
                f"{each.unit} ({each.source}{'' if each.proven else ', unproven'})" for each in row[1].resolved.choices
            ),
            hint="of the values as written, and where it comes from",
        ),
        count("values", lambda row: len(row[1].resolved.values_ns), "that are a time"),
        count("kept", lambda row: row[1].calls.n),
        *spread(lambda row: row[1].calls, "ms", ("mean", "p50", "min", "p99", "max"), exact=True, what="values", quiet=True),
    )
    rows = [(label, summary) for label, summaries, _ in logs for summary in summaries]
    notes = (f"{label}: {note}" for label, found, remarks in logs for note in (*_timer_notes(found), *remarks))
    lead = "Time of one attention call from end to end as the log says it, in the steady state."
    return Section("attention", "Attention end to end", lead, (table_of("Attention timers.", fields, rows, notes=notes),))


def unit_notes(resolved: Iterable[Resolved]) -> Iterator[str]:
    """Yield notes on the source of a table's units; units that differ from the label come first, in capitals."""
    seen: dict[tuple[bool, str], list[str]] = {}
    for each in resolved:
        for choice in each.choices:
            head = "UNIT NOT AS LABELLED" if choice.differs else "UNIT CONTRADICTED" if choice.violated else "unit"
            as_labelled = not (choice.differs or choice.violated)
            seen.setdefault((as_labelled, f"{head}: {choice.text}"), []).append(each.series.title)
    for (_, text), titles in sorted(seen.items(), key=lambda item: item[0][0]):
        yield f"{'; '.join(dict.fromkeys(titles))}: {text}"


def _timer_notes(summaries: Sequence[SeriesSummary]) -> Iterator[str]:
    yield from unit_notes(summary.resolved for summary in summaries)
    for summary in summaries:
        title = summary.series.title
        yield f"{title}: kept is {_METHODS[summary.method]}{f'; {summary.note}' if summary.note else ''}"
        for cause, indices in summary.excluded.items():
            yield f"{title}: {len(indices)} left out (values {ranges(indices)}): {cause}"
        if summary.outliers:
            many, without = summary.outliers["n"], short(round(summary.outliers["mean_without_ns"]))
            yield (
                f"{title}: {many} of the kept lie more than {OUTLIER} interquartile ranges above the third "
                f"quartile; the mean without them is {without}"
            )
        if summary.series.rejected:
            yield f"{title}, in no figure: {summary.series.left_out}"


def ranges(indices: Sequence[int]) -> str:
    """Format indices as ranges of numbers counted from 1: `1-48, 60`."""
    return first_of(stretches(index + 1 for index in sorted(indices)), _RANGES, "stretches")


def inputs_section(files: Sequence[InputFile | Log], logs: Sequence[Log] = ()) -> Section:
    """Build the section on the input: every file with its SHA-256, and the counts of the logs' lines."""
    fields: tuple[Field[InputFile | Log], ...] = (
        Field("file", lambda file: str(file.path), Code),
        count("bytes", lambda file: file.size_bytes),
        Field("SHA-256", lambda file: file.sha256, Code),
    )
    blocks: list[Block] = [table_of("Files as they were read.", fields, files)]
    if logs:
        blocks += [_lines_table(logs), *_examples(logs)]
    return Section("inputs", "What was read", "", tuple(blocks))


def files_report(title: str, section: Section, files: Sequence[InputFile | Log]) -> Report:
    """Build the page with a section of figures from files, and what was read."""
    logs = [file for file in files if isinstance(file, Log)]
    banners = damage_banners((log.path.name, log.damage) for log in logs)
    subtitle = f"From {', '.join(file.path.name for file in files)}."
    return page(title=title, subtitle=subtitle, banners=banners, sections=(section, inputs_section(files, logs)))


def _lines_table(logs: Sequence[Log]) -> Table:
    rejected = "NaN, infinite, negative or ambiguous values, in no figure"
    fields: tuple[Field[Log], ...] = (
        Field("log", lambda log: log.path.name, Code),
        count("lines", lambda log: log.counts.lines, "matched + ignored + similar; each part of a progress line is one"),
        count("matched", lambda log: log.counts.matched),
        count("ignored", lambda log: log.counts.ignored),
        count("progress", lambda log: log.counts.progress, "of the ignored"),
        count("similar", lambda log: log.counts.similar, "looks like a timing of a pattern and does not match it"),
        count("joined", lambda log: log.counts.joined, "wrapped lines put together"),
        count("bad bytes", lambda log: log.counts.mended, "lines with bytes that are no text"),
        count("cut", lambda log: log.counts.cut, "lines so long that only their start was read"),
        count("values", lambda log: sum(map(len, log.series))),
        count("no time", lambda log: sum(sum(each.rejected.values()) for each in log.series), rejected),
        Field("end", lambda log: Text("cut short", "bad") if log.counts.truncated else Text("complete")),
    )
    return table_of("What became of the lines.", fields, logs)


def _examples(logs: Sequence[Log]) -> Iterator[Table]:
    similar = [(log, pattern, each) for log in logs for pattern, lines in log.similar.items() for each in lines]
    if similar:
        of_similar: tuple[Field[tuple[Log, str, Sample]], ...] = (
            Field("log", lambda row: row[0].path.name, Code),
            count("line", lambda row: row[2].line),
            Field("pattern", lambda row: row[1]),
            Field("text", lambda row: row[2].text, Code),
        )
        yield table_of("Lines that look like a timing and match no pattern, the first of each pattern.", of_similar, similar)
    rejected = [(log, series, each) for log in logs for series in log.series for each in series.examples]
    if rejected:
        of_rejected: tuple[Field[tuple[Log, Series, Sample]], ...] = (
            Field("log", lambda row: row[0].path.name, Code),
            count("line", lambda row: row[2].line),
            Field("series", lambda row: row[1].title, Code),
            Field("value", lambda row: row[2].text, Code),
            Field("why", lambda row: row[2].cause),
        )
        yield table_of("Values that are in no figure, the first of each series.", of_rejected, rejected)
