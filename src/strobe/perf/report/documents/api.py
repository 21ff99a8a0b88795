"""Functions for scripts and notebooks: they read traces and runs, and return documents; and what `strobe.compare` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, TypeAlias

from strobe.core.errors import ConfigError, unknown_choice
from strobe.core.files import write_whole
from strobe.core.notebook import html_table
from strobe.perf.analysis.comparable import given_facts
from strobe.perf.analysis.runs.compare import CallsRow
from strobe.perf.analysis.structure.sections import parse_section
from strobe.perf.records.store import read_run
from strobe.perf.report.build import build_report, report_and_findings
from strobe.perf.report.documents.runs import RunDocument, run_document
from strobe.perf.report.documents.speedup import SpeedupDocument, TraceDocument, speedup_document, trace_document
from strobe.perf.report.speedup_page.study import SideName, SideRequest, SpeedupRequest, load_speedup
from strobe.perf.report.study import TraceOptions, load_trace_study, only_pair
from strobe.perf.report.write import FORMATS, render
from strobe.perf.table.model import Ratio, significant, speedup_words

Paths: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]
"""One path, or several."""
NAMES: Final[tuple[SideName, SideName]] = ("baseline", "candidate")


def read_trace(
    paths: Paths,
    *,
    by: Literal["name", "shape"] = "name",
    window: str | None = None,
    steps: str | None = None,
    sections: Sequence[str] = (),
    details: bool | None = None,
) -> TraceDocument:
    """Read profiler traces and return how their time was spent.

    ```python
    trace = strobe.read_trace("trace.json.gz")
    trace.devices[0].busy_ns
    pandas.DataFrame(trace.rows())  # every kernel
    trace.rows("idle")  # why the device was idle
    ```

    Args:
        paths: files of `torch.profiler`, JAX or Ascend (.json, .json.gz) or exports of Nsight Systems (.sqlite), or folders that
            hold some; one file per rank.
        by: group kernels by name, or by name and shape.
        window: the part that is analysed: a range or module (`ProfilerStep#3`), steps (`3..7`) or a time (`100ms..200ms`).
        steps: regular expression of the range or kernel that starts a step; found by itself if not given.
        sections: device time around a focal event, such as `memcpy:end -> flash_fwd -> gather:end`.
        details: read every operator and synchronisation too, for the tables of operators and the critical path; by default for
            files of up to 16 MB as they lie on disk.

    Raises:
        DataError: a file that is no trace, or holds no such window.
        ConfigError: a window, step or section that is not written as one.
    """
    if by not in ("name", "shape"):
        raise unknown_choice("by", by, ("name", "shape"))
    cuts = (sections,) if isinstance(sections, str) else tuple(sections)
    options = TraceOptions(by=by, window=window, steps=steps, sections=cuts, details=details)
    return trace_document(load_trace_study(_listed(paths), options))


def compare_traces(
    baseline: Paths,
    candidate: Paths,
    *,
    focal: str | tuple[str, str] | None = None,
    section: str | None = None,
    steps: str | None = None,
    allow_different: Sequence[str] = (),
    facts: Mapping[str, str] | None = None,
) -> SpeedupDocument:
    """Compare the traces of two sides, and return the speedup and where the difference comes from.

    ```python
    found = strobe.compare_traces("dense.json.gz", "sparse.json.gz", focal=("flash", "sparse_fwd"))
    found.comparable, found.levels["step"].ratio
    pandas.DataFrame(found.rows())  # the ledger: its lines add up
    ```

    Args:
        baseline: files or folders of the side that the other is measured against.
        candidate: of the side that is measured.
        focal: regular expression of the kernel that the change is about, or one for each side.
        section: device time around it, such as `memcpy:end -> gather:end`.
        steps: regular expression of the range or kernel that starts a step; found by itself if not given.
        allow_different: facts that are meant to differ, such as `device`; any other obstacle leaves no ratio.
        facts: what neither trace says and holds for both sides, such as `{"frames": "121"}`.

    Raises:
        DataError: a file that is no trace, or has no such kernel.
        ConfigError: a fact, step or section that is not written as one.
    """
    patterns = focal if isinstance(focal, tuple) else (focal, focal)
    stated = given_facts(f"{name}={value}" for name, value in (facts or {}).items())
    definitions = [None if section is None else parse_section(section, pattern) for pattern in patterns]
    sides = [
        SideRequest(
            name=name,
            traces=_listed(paths),
            focal=pattern if definition is None else definition.focal,
            section=definition,
            facts=stated,
        )
        for name, paths, pattern, definition in zip(NAMES, (baseline, candidate), patterns, definitions, strict=True)
    ]
    allowed = (allow_different,) if isinstance(allow_different, str) else tuple(allow_different)
    request = SpeedupRequest(baseline=sides[0], candidate=sides[1], steps=steps, allow_different=allowed)
    return speedup_document(load_speedup(request))


def compare_runs(folders: Paths, *, pair: tuple[str, str] | None = None, allow_different: Sequence[str] = ()) -> RunDocument:
    """Compare the candidates of measured runs with the baseline of their run.

    ```python
    found = strobe.compare_runs("runs/20260101T120000Z-compare-1a2b3c")
    pandas.DataFrame(found.rows())  # one row per candidate and level
    ```

    Args:
        folders: run folders, as `strobe compare` leaves them.
        pair: only these two variants, the second measured against the first.
        allow_different: facts that are meant to differ between the variants of a run.

    Raises:
        DataError: a folder without readable records.
        ConfigError: a run does not have both of the pair, or there is no such fact.
    """
    listed, allowed = _listed(folders), (allow_different,) if isinstance(allow_different, str) else tuple(allow_different)
    report, findings = report_and_findings(listed, pair=pair, allow_different=allowed)
    runs = [read_run(folder) if pair is None else only_pair(read_run(folder), pair) for folder in listed]
    return run_document(runs, report, findings, allowed)


def _listed(paths: Paths) -> tuple[Path, ...]:
    listed = tuple(Path(path) for path in ([paths] if isinstance(paths, str | PathLike) else paths))
    if not listed:
        raise ConfigError("no path was given: name a file or a folder")
    return listed


_SHOWN: Final = (
    "name", "mean_ns", "low_ns", "high_ns", "ratio", "ratio_low", "ratio_high", "verdict", "peak_bytes", "equal_output",
)  # fmt: skip


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
        file = Path(path)
        kind = file.suffix.removeprefix(".").lower()
        if kind not in FORMATS:
            raise ConfigError(f"{file}: the ending says the format: {', '.join(f'.{each}' for each in FORMATS)}")
        file.parent.mkdir(parents=True, exist_ok=True)
        built = build_report([self.folder], into=file.parent)
        return write_whole(file, render(built, kind, alone=True))

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
