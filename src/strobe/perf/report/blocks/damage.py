"""Banners above figures made from damaged records."""

from __future__ import annotations

from collections.abc import Iterable

from strobe.perf.records.store import RunRecords
from strobe.perf.report.model import Banner


def damage_banners(found: Iterable[tuple[str, tuple[str, ...]]]) -> tuple[Banner, ...]:
    """Build the banner of damaged records; none if all are undamaged.

    Args:
        found: name of a run or log in the report, and what is damaged in it.
    """
    banner = damage_banner(tuple(f"{name}: {line}" for name, lines in found for line in lines))
    return (banner,) if banner.items else ()


def damage_banner(items: tuple[str, ...]) -> Banner:
    """Build the banner of damaged records from the lines that describe the damage."""
    return Banner("stop", "Damaged records: the figures are those of what is left.", items)


def end_banners(run: RunRecords, title: str, counts: str) -> tuple[Banner, ...]:
    """Build the banners of damaged records and of a run that did not come to its end.

    Args:
        title: of the banner of such a run.
        counts: what of it counts all the same.
    """
    damage = damage_banners([(run.header.run, run.damage)])
    if run.end is not None and run.end.status == "complete":
        return damage
    why = "the records are cut short" if run.end is None else f"{run.end.status}: {run.end.message}"
    return (*damage, Banner("caution", title, (f"{why}; {counts}.",)))


def unread_banners(unread: tuple[str, ...]) -> tuple[Banner, ...]:
    """Build the banner of grid cells that could not be read; none if all could."""
    return (Banner("caution", "Some cells could not be read and are left out.", unread),) if unread else ()
