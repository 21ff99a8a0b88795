"""Sections that other packages add to the report of runs."""

from __future__ import annotations

from functools import partial

from strobe.core.plugins import REPORT, Plugin, plugins, tell_broken, tried
from strobe.perf.report.model import Section
from strobe.perf.report.study import RunStudy


def registered() -> tuple[Plugin, ...]:
    """Return what other packages register."""
    return plugins(REPORT, lambda found: "" if callable(found) else f"it is a {type(found).__name__}, not a function")


def _sections(plugin: Plugin, study: RunStudy) -> tuple[object, ...]:
    return tuple(plugin.found(study))


def plugged_sections(study: RunStudy) -> tuple[Section, ...]:
    """The sections of every package that registers a function in the group `strobe.report`: a `RunStudy` to sections.

    One that is broken is left out, and said so in a warning of one line.
    """
    found: list[Section] = []
    for plugin in registered():
        made, why = (None, plugin.broken) if plugin.broken else tried(partial(_sections, plugin, study))
        wrong = [each for each in made or () if not isinstance(each, Section)]
        if wrong:
            why = f"it returned a {type(wrong[0]).__name__}, not sections of strobe.perf.report.model"
        if why:
            tell_broken(plugin, why)
        else:
            found += made or ()
    return tuple(found)
