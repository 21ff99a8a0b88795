"""Result of `strobe.compare`: a run of the caller's own functions, its tables and its page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast, get_args

from strobe.core.errors import ConfigError, unknown_choice
from strobe.core.files import write_whole
from strobe.core.notebook import html_table
from strobe.perf.analysis.runs.compare import CallsRow
from strobe.perf.report.build import build_report
from strobe.perf.report.documents.api import compare_runs
from strobe.perf.report.documents.runs import RunDocument
from strobe.perf.report.write import FORMATS, Format, render
from strobe.perf.table.model import Ratio, significant, speedup_words

_SHOWN: Final = (
    "name",
    "mean_ns",
    "low_ns",
    "high_ns",
    "ratio",
    "ratio_low",
    "ratio_high",
    "verdict",
    "peak_bytes",
    "equal_output",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedCalls:
    """Result of `strobe.compare`.

    Args:
        folder: the run folder; `strobe report` renders it again. Without `out=` it is removed with this value.
        document: everything as tables, as `strobe.compare_runs(folder)` returns it.
        scratch: what removes the folder when nobody has this value any more; None: the folder stays.
    """

    folder: Path
    document: RunDocument
    scratch: TemporaryDirectory[str] | None = field(default=None, repr=False, compare=False)

    def rows(self, table: str = "calls") -> list[dict[str, Any]]:
        """Return a table as one dictionary per row: `pandas.DataFrame(found.rows())`.

        Args:
            table: calls, with one row per function; lines, with the account of each candidate; or another of `RunDocument`.

        Raises:
            ConfigError: there is no such table.
        """
        return self.document.rows(table)

    def __getitem__(self, name: str) -> CallsRow:
        """Return what was found of one function: `found["compiled"].ratio`."""
        for row in self.document.calls:
            if row.name == name:
                return row
        raise unknown_choice("function", name, [row.name for row in self.document.calls])

    def __iter__(self) -> Iterator[CallsRow]:
        return iter(self.document.calls)

    def between(self, baseline: str, candidate: str) -> RunDocument:
        """Compare any two of the functions, with the account where samples were traced or have regions.

        Raises:
            ConfigError: there is no such function, it was not timed, or they are the same.
        """
        return compare_runs(self.folder, pair=(baseline, candidate))

    def report(self, path: str | PathLike[str]) -> Path:
        """Write the page, one file that needs no other, and return its path.

        Args:
            path: the file; its ending says the format: .html, .md or .json.

        Raises:
            ConfigError: another ending.
            StrobeError: the file cannot be written.
        """
        file = Path(fspath(path))
        kind = file.suffix.removeprefix(".").lower()
        if kind not in get_args(Format):
            raise ConfigError(f"{file}: the ending says the format: {', '.join(f'.{each}' for each in FORMATS)}")
        file.parent.mkdir(parents=True, exist_ok=True)
        built = build_report([self.folder], into=file.parent)
        return write_whole(file, render(built, cast("Format", kind), alone=True))

    def __str__(self) -> str:
        return "\n".join(map(_line, self.document.calls))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [{key: row[key] for key in _SHOWN} for row in self.rows()]
        return html_table("time of one call, against " + self.document.calls[0].reference, rows)


def _line(row: CallsRow) -> str:
    if row.mean_ns is None:
        return f"{row.name}: not timed, {row.output or 'nothing is left to compare it with'}"
    if row.ratio is None or row.pair_baseline_ns is None or row.pair_candidate_ns is None:
        return f"{row.name}: {significant(row.mean_ns / 1e6)} ms, the mean of {row.samples} samples"
    said = speedup_words(Ratio(row.ratio, row.ratio_low, row.ratio_high), row.verdict, row.reference)
    both = " -> ".join(significant(ns / 1e6) for ns in (row.pair_baseline_ns, row.pair_candidate_ns))
    return f"{row.name}: {said}, {both} ms in the median pair"
