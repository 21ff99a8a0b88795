"""What stands above the figures of records that are damaged."""

from __future__ import annotations

from collections.abc import Iterable

from strobe.perf.report.model import Banner


def damage_banners(found: Iterable[tuple[str, tuple[str, ...]]]) -> tuple[Banner, ...]:
    """Make the banner of damaged records; none if all are sound.

    Args:
        found: name of a run or log in the report, and what is damaged in it.
    """
    items = tuple(f"{name}: {line}" for name, lines in found for line in lines)
    return (Banner("stop", "Damaged records: the figures are those of what is left.", items),) if items else ()
