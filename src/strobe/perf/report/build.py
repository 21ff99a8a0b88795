"""Choice and construction of the page for run folders. No clock, no randomness: the same folders give the same report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from strobe.core.errors import DataError
from strobe.perf.analysis.runs.acceptance import is_acceptance
from strobe.perf.analysis.runs.calls import is_own_code
from strobe.perf.analysis.runs.soak import is_soak
from strobe.perf.analysis.runs.viewers import is_load
from strobe.perf.report.accept_page import accept_report
from strobe.perf.report.attention_profile import attention_report, is_attention_run, trace_files
from strobe.perf.report.calls_page import calls_report
from strobe.perf.report.dit_page.build import dit_report, is_dit_run
from strobe.perf.report.findings import Finding
from strobe.perf.report.model import Report
from strobe.perf.report.plugged import plugged_sections
from strobe.perf.report.run_page.build import run_report
from strobe.perf.report.serve_page import serve_report
from strobe.perf.report.soak_page import soak_report
from strobe.perf.report.study import load_study


def build_report(
    folders: Sequence[Path],
    *,
    into: Path | None = None,
    pair: tuple[str, str] | None = None,
    allow_different: tuple[str, ...] = (),
) -> Report:
    """Build the report of one or several run folders.

    Ratios stay inside a run; the same variant in two runs is compared only as unpaired.

    Args:
        folders: run folders.
        into: folder the report will be written to, which the clips' paths are relative to; the first run folder if not given.
        pair: only these two variants, the second measured against the first.
        allow_different: facts that are meant to differ between the variants of a run.

    A run of attention calls by themselves, as `strobe profile attention` leaves it, one of `strobe profile dit`, a soak, the
    acceptance of a model, the viewers of a server, and functions or programs give the page of their command.

    Raises:
        DataError: no folder, a folder without readable records, or a run with a page of its own among others.
        ConfigError: a run does not have both of the pair.
        RecordVersionError: records of a schema this version does not know.
    """
    return report_and_findings(folders, into=into, pair=pair, allow_different=allow_different)[0]


def report_and_findings(
    folders: Sequence[Path],
    *,
    into: Path | None = None,
    pair: tuple[str, str] | None = None,
    allow_different: tuple[str, ...] = (),
) -> tuple[Report, tuple[Finding, ...]]:
    """Build the same report, and return it with its findings: each candidate against its reference.

    Runs of single attention calls, soaks and loaded servers have no findings.
    """
    study = load_study(folders, into, pair)
    alone = [run.folder for run in study.runs if is_attention_run(run)]
    if alone and len(folders) > 1:
        raise DataError(f"{alone[0]} holds attention calls by themselves: report it without other runs")
    if alone:
        return _attention_page(alone[0], pair), ()
    accepted = [run.folder for run in study.runs if is_acceptance(run)]
    if accepted and len(folders) > 1:
        raise DataError(f"{accepted[0]} holds the acceptance of a model: report it without other runs")
    if accepted:
        return accept_report(accepted[0]), ()
    soaks = [run.folder for run in study.runs if is_soak(run)]
    if soaks and len(folders) > 1:
        raise DataError(f"{soaks[0]} holds a soak: report it without other runs")
    if soaks:
        return soak_report(soaks[0]), ()
    own = [run.folder for run in study.runs if is_own_code(run)]
    if own and len(folders) > 1:
        raise DataError(f"{own[0]} holds functions or programs: report it without other runs")
    if own:
        return calls_report(study, allow_different)
    loads = [run.folder for run in study.runs if is_load(run)]
    if loads and len(folders) > 1:
        raise DataError(f"{loads[0]} holds the viewers of a server: report it without other runs")
    if loads:
        return serve_report(loads[0]), ()
    steps = [run.folder for run in study.runs if is_dit_run(run)]
    if steps and len(folders) > 1:
        raise DataError(f"{steps[0]} holds forward passes over a whole clip: report it without other runs")
    if steps and pair is None:
        return dit_report(study, allow_different)
    report, found = run_report(study, allow_different)
    return replace(report, sections=(*report.sections, *plugged_sections(study))), found


def _attention_page(folder: Path, pair: tuple[str, str] | None) -> Report:
    """Build the page of attention calls, followed by the sections of their traces' page."""
    from strobe.perf.report.trace_page.build import build_trace_report
    from strobe.perf.report.trace_study import load_trace_study

    study = load_study([folder], pair=pair)
    files = [path for path in trace_files(study).values() if path is not None]
    return attention_report(study, build_trace_report(load_trace_study(files)).sections if files else ())
