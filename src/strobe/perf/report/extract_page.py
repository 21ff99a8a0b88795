"""The page of `strobe extract`: the sections asked for, in their order."""

from __future__ import annotations

from collections.abc import Sequence

from strobe.perf.logs.series import Log
from strobe.perf.report.blocks.damage import damage_banners
from strobe.perf.report.blocks.page import page
from strobe.perf.report.model import Report, Section


def extract_report(title: str, subtitle: str, sections: Sequence[Section], logs: Sequence[Log] = ()) -> Report:
    """Build a report of the sections, with a banner for damaged logs before them."""
    return page(
        title=title,
        subtitle=subtitle,
        banners=damage_banners((log.path.name, log.damage) for log in logs),
        sections=sections,
    )
