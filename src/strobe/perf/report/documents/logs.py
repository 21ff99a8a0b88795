"""JSON documents of logs and traces: exact integers in nanoseconds, averages as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from strobe.perf.analysis.device.distribution import Distribution
from strobe.perf.analysis.runs.log_metrics import SeriesSummary
from strobe.perf.analysis.runs.log_rounds import StageRounds
from strobe.perf.analysis.structure.focal import FocalKernels
from strobe.perf.logs.series import Log
from strobe.perf.logs.units import Resolved
from strobe.perf.report.blocks.logs import round_label


def log_document(log: Log) -> dict[str, Any]:
    """Return the line counts, damage and rejected values of a log."""
    return {
        "path": str(log.path),
        "counts": asdict(log.counts),
        "damage": list(log.damage),
        "similar": [example._asdict() for example in log.similar],
        "rejected": {series.title: dict(series.rejected.counts) for series in log.series if series.rejected.total},
    }


def units_document(resolved: Resolved) -> list[dict[str, Any]]:
    """Return the unit of each label and the reason for it."""
    return [asdict(choice) for choice in resolved.choices]


def rounds_document(label: str, rounds: StageRounds) -> dict[str, Any]:
    """Return the rounds of one stage in one log."""
    steady = rounds.avg_excl_warmup_ns
    return {
        "log": label,
        "stage": rounds.name,
        "rounds_ns": [each.value_ns for each in rounds.rounds],
        "avg_all_rounds_ns": float(rounds.avg_all_rounds_ns),
        "avg_excl_warmup_ns": None if steady is None else float(steady),
        "excluded": {round_label(index): cause for index, cause in rounds.excluded.items()},
        "ranks": [{"rank": each.series.rank, "units": units_document(each)} for each in rounds.resolved],
        "note": rounds.note,
    }


def timer_document(label: str, summary: SeriesSummary, remarks: Sequence[str]) -> dict[str, Any]:
    """Return the values of one timer of one log."""
    return {
        "log": label,
        "timer": summary.series.name,
        "rank": summary.series.rank,
        "units": units_document(summary.resolved),
        "values": len(summary.resolved.values_ns),
        "calls": calls_document(summary.calls),
        "method": summary.method,
        "note": summary.note,
        "excluded": {cause: len(indices) for cause, indices in summary.excluded.items()},
        "outliers": None if summary.outliers is None else asdict(summary.outliers),
        "remarks": list(remarks),
    }


def calls_document(calls: Distribution) -> dict[str, Any]:
    """Return the distribution of call times, ns."""
    return asdict(calls) | {"mean_ns": calls.mean_ns}


def kernels_document(label: str, found: Sequence[FocalKernels]) -> dict[str, Any]:
    """Return the focal kernels of one trace."""
    return {
        "trace": label,
        "devices": [{"device": each.device, "names": list(each.names), "calls": calls_document(each.calls)} for each in found],
    }
