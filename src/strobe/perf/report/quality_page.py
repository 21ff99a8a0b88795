"""The page of clips that were scored against a reference."""

from __future__ import annotations

from collections.abc import Sequence

from strobe.perf.records.record import Quality
from strobe.perf.report.blocks.breakdown import quality_table
from strobe.perf.report.blocks.fields import page
from strobe.perf.table.fields import beside, table_of
from strobe.perf.table.model import Count, Fact, Report, Section, Table, Text

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
    return page(
        title=f"Quality against {reference}",
        subtitle=", ".join(variants),
        facts=(Fact("Reference", Text(reference)), Fact("Clips compared", Count(len(variants)))),
        sections=(Section("quality", "Quality", _LEAD, (scores_table(lines), *((missing,) if missing else ()))),),
    )


def scores_table(lines: Sequence[Quality]) -> Table:
    """Build the table with one row per metric and one column per clip."""
    variants = list(dict.fromkeys(line.variant for line in lines))
    return quality_table(variants, {(line.variant, line.metric): line for line in lines}, "Quality of each clip.")


def missing_table(lines: Sequence[Quality]) -> Table | None:
    """Build the table of metrics that were not measured, with reason and remedy; None if all were."""
    reasons = dict.fromkeys((line.metric, line.note) for line in lines if line.value is None and not line.n)
    return table_of("What was not measured.", beside("not measured", ("why, and what to do",)), [*reasons]) if reasons else None
