"""The JSON documents of runs, and the values that every document shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from typing import Annotated as A
from typing import Any, ClassVar, Final

from msgspec import inspect

from strobe.core.errors import unknown_choice
from strobe.core.notebook import html_table, text_table
from strobe.core.printable import clean
from strobe.perf.analysis.comparable import compare_variants, refusal
from strobe.perf.analysis.ledger.account import Ledger, LedgerLine
from strobe.perf.analysis.ledger.speedup import PartLine
from strobe.perf.analysis.runs.compare import CallsRow, is_own_code, own_code
from strobe.perf.records.store import RunRecords
from strobe.perf.report.blocks.fields import level_word, line_word
from strobe.perf.report.findings import Finding
from strobe.perf.table.model import Report
from strobe.perf.table.rows import DocumentPart, as_row, col, part_of, struct_of

SCHEMA_VERSION: Final = 1
"""Schema version of documents. Adding a key keeps it; removing, renaming or redefining one raises it."""

BRIEF_ROWS: Final = 5
"""Rows of each table that `print` shows."""


class Document(DocumentPart, frozen=True, kw_only=True):
    """Result of a verb, with tables of flat rows."""

    MAIN: ClassVar[str] = ""
    SHOWN: ClassVar[tuple[str, ...]] = ()
    BRIEF: ClassVar[dict[str, tuple[str, ...]]] = {}

    v: A[int, col("schema version of the document")] = SCHEMA_VERSION

    def rows(self, table: str = "") -> list[dict[str, Any]]:
        """Return a table as one dictionary per row: `pandas.DataFrame(found.rows())`.

        Args:
            table: name of a field that is a table; by default the main one.

        Raises:
            ConfigError: there is no such table.
        """
        tables, chosen = self._tables(), table or self.MAIN
        if chosen not in tables:
            raise unknown_choice("table", chosen, tables)
        return list(tables[chosen]())

    def _tables(self) -> Mapping[str, Callable[[], Iterable[dict[str, Any]]]]:
        return {name: partial(map, as_row, getattr(self, name)) for name in table_kinds(type(self))}

    def brief(self) -> Mapping[str, tuple[str, ...]]:
        """Return the tables that `print` shows, with their columns."""
        return self.BRIEF

    def title(self) -> str:
        """Return a one-line summary of the document."""
        return type(self).__name__

    def __str__(self) -> str:
        """Return a few lines: the title and the first rows of the tables that say most, and where the rest is."""
        lines = [clean(self.title())]
        for name, columns in self.brief().items():
            if rows := self.rows(name):
                lines += ["", *map(clean, text_table(rows, columns, BRIEF_ROWS))]
        return "\n".join((*lines, "", "rows() and rows(TABLE) have all rows; docs/json.md lists the tables."))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        tables = (html_table(name, self.rows(name)) for name in self.SHOWN)
        return f"<h4>{escape(self.title())}</h4>{''.join(tables)}"


def table_kinds(kind: type[Document]) -> dict[str, type[Any]]:
    """Return the classes of the rows of a document's tables, by the names of its fields."""
    info = inspect.type_info(struct_of(kind))
    assert isinstance(info, inspect.StructType)
    plain = ((each.name, each.type.type if isinstance(each.type, inspect.Metadata) else each.type) for each in info.fields)
    items = ((name, each.item_type) for name, each in plain if isinstance(each, inspect.VarTupleType))
    return {name: item.cls for name, item in items if isinstance(item, inspect.StructType)}


class RatioRow(DocumentPart, frozen=True, kw_only=True):
    """Speedup of one candidate at one level."""

    candidate: A[str, col("name of the candidate")]
    reference: A[str, col("name of the variant that the candidate is compared with")]
    level: A[str, col("level of the comparison: `kernel`, `section`, `step`, `block` or `e2e` (end to end)")]
    ratio: A[float, col("time of the reference / time of the candidate")]
    low: A[float | None, col("lower end of the 95 % interval of the ratio; null: no interval")]
    high: A[float | None, col("upper end of the interval; null: no interval")]
    saved_ns: A[
        float | None,
        col(
            "mean time saved per clip, or per call of a function, or per traced frame block at levels that only a "
            "trace shows; null: not known"
        ),
    ]


class QualityRow(DocumentPart, frozen=True, kw_only=True):
    """One quality score of one variant."""

    candidate: A[str, col("name of the variant")]
    metric: A[str, col("name of the metric, e.g. `psnr` (in dB)")]
    value: A[float | None, col("score; null: infinite (equal frames) or not computed")]
    n: A[int, col("number of samples behind the score")]


class AccountRow(DocumentPart, frozen=True, kw_only=True):
    """Summary of one candidate's account (ledger) of the time difference, or the reason why there is none."""

    candidate: A[str, col("name of the candidate")]
    reference: A[str, col("name of the variant that the candidate is compared with")]
    missing: A[str, col("reason why there is no account; empty if there is one")]
    steady_blocks: A[
        int | None, col("number of steady frame blocks in a clip; 0: `parts` covers all frame blocks; null without an account")
    ]
    explained_time_share: A[
        float | None, col("share of the time in named parts, 0 to 1, of the side where it is less; null: no account")
    ]
    explained_saving_share: A[float | None, col("share of the saving in named parts, 0 to 1; null: no saving, or no account")]


class PartRow(DocumentPart, frozen=True, kw_only=True):
    """One part of a steady frame block; the parts of a candidate add up to the frame block."""

    candidate: A[str, col("name of the candidate")]
    part: A[str, col("part, e.g. `attention kernel`; several small parts share a row, joined by commas")]
    baseline_ns: A[float, col("mean time of the part in a steady frame block of the reference")]
    candidate_ns: A[float, col("mean time of the part in a steady frame block of the candidate")]
    saved_ns: A[float, col("`baseline_ns` - `candidate_ns`")]
    share: A[float | None, col("`saved_ns` / time saved in a steady frame block; null if nothing is saved")]
    elsewhere_saved_ns: A[float, col("time that a clip saves on the part outside steady frame blocks")]


class BlocksRow(DocumentPart, frozen=True, kw_only=True):
    """Frame blocks of one kind in a clip; the kinds of a candidate add up to the clip."""

    candidate: A[str, col("name of the candidate")]
    kind: A[str, col("`first`, `filling`, `steady` or `switch`; `start and end`: time of the clip around its frame blocks")]
    frame_blocks: A[int, col("number of frame blocks of this kind in a clip")]
    baseline_ns: A[float, col("total time of these frame blocks in a clip of the reference")]
    candidate_ns: A[float, col("total time of these frame blocks in a clip of the candidate")]


class LineRow(DocumentPart, frozen=True, kw_only=True):
    """One line of a candidate's account (ledger); its lines add up to the time of a whole clip, or of one call of a function."""

    candidate: A[str, col("name of the candidate")]
    level: A[
        str,
        col(
            "lowest level that contains the time, e.g. `kernel`, `denoise step`, `frame block`, `e2e`; of functions "
            "`kernel`, `call` or `sample`"
        ),
    ]
    line: A[str, col("region where the time was spent, and the activity there")]
    baseline_ns: A[float, col("mean time of the line in a clip, or in one call, of the reference")]
    candidate_ns: A[float, col("mean time of the line in a clip, or in one call, of the candidate")]
    saved_ns: A[float, col("`baseline_ns` - `candidate_ns`")]
    share: A[float | None, col("`saved_ns` / time saved in a clip, or in one call; null if nothing is saved")]


class RunDocument(Document, frozen=True, kw_only=True):
    """Speedups of a run's candidates over its reference, with quality scores and the account (ledger) of each difference.

    `rows()` returns the speedups; `rows("parts")`, `rows("quality")` and the like return the other tables.
    """

    MAIN: ClassVar[str] = "speedups"
    SHOWN: ClassVar[tuple[str, ...]] = ("speedups", "parts", "quality")
    BRIEF: ClassVar[dict[str, tuple[str, ...]]] = {
        "speedups": ("candidate", "reference", "level", "ratio", "low", "high"),
        "parts": ("candidate", "part", "baseline_ns", "candidate_ns", "saved_ns"),
    }
    OF_CALLS: ClassVar[dict[str, tuple[str, ...]]] = {
        "calls": ("name", "samples", "mean_ns", "ratio", "ratio_low", "ratio_high", "verdict"),
        "lines": ("candidate", "line", "baseline_ns", "candidate_ns", "saved_ns"),
    }

    runs: A[tuple[str, ...], col("paths of the run folders")]
    comparable: A[
        dict[str, bool],
        col("by candidate: true if it is comparable with the reference; only comparable candidates have speedups"),
    ]
    obstacles: A[dict[str, str], col("by candidate that is not comparable: the differences that prevent the comparison")]
    absent: A[dict[str, str], col("by variant that could not run on the machine: the reason")]
    speedups: A[tuple[RatioRow, ...], col("speedups, one row per comparable candidate and level")]
    quality: A[tuple[QualityRow, ...], col("quality scores, one row per variant and metric")]
    accounts: A[tuple[AccountRow, ...], col("summary of the account, one row per candidate")]
    parts: A[
        tuple[PartRow, ...], col("time of a steady frame block, one row per candidate and part; empty for functions and programs")
    ]
    kinds: A[
        tuple[BlocksRow, ...],
        col("time of a clip, one row per candidate and kind of frame block; empty for functions and programs"),
    ]
    lines: A[tuple[LineRow, ...], col("full account of a clip, or of one call of a function, one row per candidate and line")]
    calls: A[tuple[CallsRow, ...], col("the caller's own functions or programs, one row each; empty for a run of clips")]

    def brief(self) -> Mapping[str, tuple[str, ...]]:
        """Return the tables that `print` shows: those of clips, or those of calls."""
        return self.OF_CALLS if self.calls else self.BRIEF

    def title(self) -> str:
        """Return one line with the end-to-end speedups."""
        if self.calls:
            return f"time of one call, against {self.calls[0].reference}"
        found = (in_title(row.candidate, row.ratio, row.low, row.high) for row in self.speedups if row.level == "e2e")
        return f"end to end: {', '.join(found) or 'no candidate was measured'}"


def in_title(name: str, ratio: float, low: float | None, high: float | None) -> str:
    """Return a speedup for a title, with the interval where that holds 1, so that nothing is proven."""
    doubt = low is not None and high is not None and low <= 1 <= high
    return f"{name} {ratio:.4g}x{f' [{low:.4g}, {high:.4g}] (not proven, the interval holds 1)' if doubt else ''}"


def run_document(
    runs: Sequence[RunRecords], report: Report, findings: Sequence[Finding], allow_different: Sequence[str] = ()
) -> RunDocument:
    """Return what the report of some runs found."""
    measured = {each.candidate for each in report.speedups}
    refusals = {_label(run, name, measured): refusal for run in runs for name, refusal in _refusals(run, allow_different)}
    calls = {_label(run, own.name, measured): own.calls_per_sample for run in runs if is_own_code(run) for own in own_code(run)}
    return RunDocument(
        runs=tuple(str(run.folder) for run in runs),
        comparable={name: not refusal for name, refusal in refusals.items()},
        obstacles={name: refusal for name, refusal in refusals.items() if refusal},
        absent={each.variant: each.reason for run in runs for each in run.header.absent},
        speedups=tuple(
            part_of(
                RatioRow,
                each,
                each.ratio,
                ratio=each.ratio.value,
                saved_ns=None if each.saved_ns is None else each.saved_ns / calls.get(each.candidate, 1),
            )
            for each in report.speedups
            if not refusals.get(each.candidate)
        ),
        quality=tuple(
            part_of(
                QualityRow,
                each,
                candidate=_label(run, each.variant, measured),
                value=each.value if each.value is not None and math.isfinite(each.value) else None,
            )
            for run in runs
            for each in run.quality
        ),
        accounts=tuple(_account(each, of_clips=each.candidate.label not in calls) for each in findings),
        parts=tuple(row for each in findings if each.candidate.label not in calls for row in _parts(each)),
        kinds=tuple(row for each in findings if each.candidate.label not in calls for row in _kinds(each)),
        lines=tuple(row for each in findings for row in _lines(each, calls.get(each.candidate.label))),
        calls=tuple(row for run in runs if is_own_code(run) for row in own_code(run)),
    )


def _label(run: RunRecords, name: str, measured: set[str]) -> str:
    own = f"{name} ({run.header.run})"
    return own if own in measured else name


def _refusals(run: RunRecords, allow_different: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each candidate and the reason why it is not comparable with the reference; empty if it is."""
    settings = {variant.name: variant for variant in run.variants}
    reference = settings.get(run.header.baseline)
    for name, own in settings.items():
        if reference is not None and own is not reference:
            yield name, refusal(compare_variants(run.header, reference, own, allow_different))


def _account(finding: Finding, *, of_clips: bool) -> AccountRow:
    found = finding.answer if of_clips else None  # the spans of a function are its caller's, and no parts that we name
    return AccountRow(
        candidate=finding.candidate.label,
        reference=finding.reference.label,
        missing=finding.ledger if isinstance(finding.ledger, str) else "",
        steady_blocks=None if found is None else found.num_steady,
        explained_time_share=None if found is None else found.explained_time_share,
        explained_saving_share=None if found is None else found.explained_saving_share,
    )


def _times(line: PartLine | LedgerLine, units: int = 1) -> dict[str, Any]:
    """Return the times of a line as numbers, of one of so many units, and its share."""
    times = {name: float(getattr(line, name) / units) for name in ("baseline_ns", "candidate_ns", "saved_ns")}
    return {**times, "share": line.share}


def _parts(finding: Finding) -> Iterator[PartRow]:
    for line in finding.answer.lines if finding.answer is not None else ():
        elsewhere_ns = float(line.elsewhere_ns)
        yield PartRow(candidate=finding.candidate.label, part=line.part, elsewhere_saved_ns=elsewhere_ns, **_times(line))


def _kinds(finding: Finding) -> Iterator[BlocksRow]:
    for kind, num_blocks, (before, after) in finding.answer.kinds if finding.answer is not None else ():
        yield BlocksRow(
            candidate=finding.candidate.label,
            kind=kind,
            frame_blocks=num_blocks,
            baseline_ns=float(before),
            candidate_ns=float(after),
        )


def _lines(finding: Finding, calls: int | None) -> Iterator[LineRow]:
    ledger = finding.ledger
    if not isinstance(ledger, Ledger):
        return
    for line in ledger.lines:
        level, name = level_word(line.level, calls is not None), line_word(line.name) if calls else line.name
        times = _times(line, ledger.num_units * (calls or 1))
        yield LineRow(candidate=finding.candidate.label, level=level, line=name, **times)
