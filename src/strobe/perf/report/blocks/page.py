"""A page of any kind: its title, facts, banners and sections."""

from __future__ import annotations

from collections.abc import Iterable

from strobe.perf.records.record import Header
from strobe.perf.report.model import SCHEMA_VERSION, Banner, Fact, Report, Section, Speedup, Text


def page(
    *,
    title: str,
    subtitle: str,
    sections: Iterable[Section | None],
    facts: Iterable[Fact] = (),
    banners: Iterable[Banner] = (),
    speedups: Iterable[Speedup] = (),
) -> Report:
    """Return a page.

    Args:
        title: of the page; `subtitle` says what it is about.
        sections: in order; None is one that has nothing to say.
        facts: of the line below the title.
        banners: warnings above the numbers.
        speedups: for scripts and gates.
    """
    return Report(
        v=SCHEMA_VERSION,
        speedups=tuple(speedups),
        title=title,
        subtitle=subtitle,
        facts=tuple(facts),
        banners=tuple(banners),
        sections=tuple(section for section in sections if section is not None),
    )


def date_fact(date: str, name: str = "Date") -> Fact:
    """Return the fact of a date that was recorded as ISO 8601 in UTC."""
    return Fact(name, Text(date.replace("T", " ").replace("Z", " UTC")))


def run_facts(header: Header) -> tuple[Fact, Fact]:
    """Return the facts that name a run: its date and its number."""
    return date_fact(header.date), Fact("Run", Text(header.run))
