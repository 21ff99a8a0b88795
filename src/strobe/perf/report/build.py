"""Choice and construction of the page for run folders. No clock, no randomness: the same folders give the same report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from strobe.core.errors import DataError
from strobe.perf.analysis.runs.compare import is_own_code
from strobe.perf.records.store import RunRecords
from strobe.perf.report.calls_page import calls_report
from strobe.perf.report.findings import Finding
from strobe.perf.report.profile_pages import attention_report, is_attention_run, trace_files
from strobe.perf.report.quality_page import accept_report
from strobe.perf.report.run_page import dit_report, is_dit_run, run_report
from strobe.perf.report.serve_page import serve_report
from strobe.perf.report.study import RunStudy, load_study
from strobe.perf.table.model import Report


def build_report(folders: Sequence[Path], *, into: Path | None = None) -> Report:
    """Build the report of one or several run folders, as `report_and_findings` does."""
    return report_and_findings(folders, into=into)[0]


def report_and_findings(
    folders: Sequence[Path],
    *,
    into: Path | None = None,
    pair: tuple[str, str] | None = None,
    allow_different: tuple[str, ...] = (),
) -> tuple[Report, tuple[Finding, ...]]:
    """Build the report of one or several run folders, with its findings: each candidate against its reference.

    Ratios stay inside a run; the same variant in two runs is compared only as unpaired. Runs of other commands than compare and
    demo give the page of their command; those of single attention calls and servers have no findings.

    Args:
        into: folder the report will be written to, which the clips' paths are relative to; the first run folder if not given.
        pair: only these two variants, the second measured against the first.
        allow_different: facts that are meant to differ between the variants of a run.

    Raises:
        DataError: no folder, a folder without readable records, records of a schema this version does not know, or a run with a
            page of its own among others.
        ConfigError: a run does not have both of the pair.
    """
    study = load_study(folders, into, pair)
    for is_such, words, page in _ALONE:
        own = [run.folder for run in study.runs if is_such(run)]
        if own and len(folders) > 1:
            raise DataError(f"{own[0]} holds {words}: report it without other runs")
        built = page(study, pair, allow_different) if own else None
        if built is not None:
            return built
    return run_report(study, allow_different)


def _attention_page(study: RunStudy, pair: tuple[str, str] | None, _: tuple[str, ...]) -> _Found:
    from strobe.perf.report.study import load_trace_study
    from strobe.perf.report.trace_page.build import build_trace_report

    own = load_study([study.runs[0].folder], pair=pair)
    files = [path for path in trace_files(own).values() if path is not None]
    return attention_report(own, build_trace_report(load_trace_study(files)).sections if files else ()), ()


_Found: TypeAlias = tuple[Report, tuple[Finding, ...]]
_Page: TypeAlias = Callable[[RunStudy, tuple[str, str] | None, tuple[str, ...]], _Found | None]
_ALONE: Final[tuple[tuple[Callable[[RunRecords], bool], str, _Page], ...]] = (
    (is_attention_run, "attention calls by themselves", _attention_page),
    (
        lambda run: run.header.kind == "accept",
        "the acceptance of a model",
        lambda study, *_: (accept_report(study.runs[0].folder), ()),
    ),
    (is_own_code, "functions or programs", lambda study, _, allowed: calls_report(study, allowed)),
    (
        lambda run: run.header.kind == "serve",
        "the viewers of a server",
        lambda study, *_: (serve_report(study.runs[0].folder), ()),
    ),
    (is_dit_run, "forward passes over a whole clip", lambda study, pair, allowed: None if pair else dit_report(study, allowed)),
)
"""Runs with a page of their own: how they are told, what they hold, and their page; None: the page of any run."""
