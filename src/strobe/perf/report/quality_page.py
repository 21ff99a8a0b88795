"""The page of clips that were scored against a reference."""

from __future__ import annotations

from collections.abc import Sequence

from strobe.perf.records.record import Quality
from strobe.perf.report.blocks.quality import quality_table
from strobe.perf.report.model import SCHEMA_VERSION, Column, Count, Fact, Report, Row, Section, Table, Text

_LEAD = (
    "Fidelity numbers compare pixels, frame by frame, with the reference. They say how far a clip moved from it, not "
    "whether it looks worse."
)


def quality_report(reference: str, lines: Sequence[Quality]) -> Report:
    """Build the page of clips that were scored against a reference.

    Args:
        reference: what they were compared with.
        lines: what was found, variant by variant.
    """
    variants, missing = list(dict.fromkeys(line.variant for line in lines)), missing_table(lines)
    return Report(
        v=SCHEMA_VERSION,
        speedups=(),
        title=f"Quality against {reference}",
        subtitle=", ".join(variants),
        facts=(Fact("Reference", Text(reference)), Fact("Clips compared", Count(len(variants)))),
        banners=(),
        sections=(Section("quality", "Quality", _LEAD, (table_of(lines), *((missing,) if missing else ()))),),
    )


def table_of(lines: Sequence[Quality]) -> Table:
    """Build the table with one row per metric and one column per clip."""
    variants = list(dict.fromkeys(line.variant for line in lines))
    return quality_table(variants, {(line.variant, line.metric): line for line in lines}, "Quality of each clip.")


def missing_table(lines: Sequence[Quality]) -> Table | None:
    """Build the table of metrics that were not measured, with reason and remedy; None if all were."""
    reasons = dict.fromkeys((line.metric, line.note) for line in lines if line.value is None and not line.n)
    columns = (Column("not measured"), Column("why, and what to do"))
    rows = tuple(Row((Text(metric), Text(note))) for metric, note in reasons)
    return Table("What was not measured.", columns, rows) if rows else None
