"""What a page of a comparison begins with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from strobe.perf.report.blocks.answer import answers_of
from strobe.perf.report.build import build_report
from strobe.perf.report.model import Block, Figure, Waterfall

MakeRun = Callable[..., Path]


def test_the_page_begins_with_the_waterfall_of_the_fastest_proven_candidate(make_run: MakeRun) -> None:
    setting = make_run.__globals__["Setting"]
    settings = make_run.__globals__["SETTINGS"]
    step_ms = min(each.step_ms for each in settings) / 2
    folder = make_run(settings=(settings[0], setting("swift", step_ms, 4, 12, 0.3), *settings[1:]))
    report = build_report([folder])
    (fastest,) = (each for each in report.speedups if each.candidate == "swift" and each.level == "e2e")
    assert fastest.ratio.value == max(each.ratio.value for each in report.speedups if each.level == "e2e")
    first, headline, others = report.sections[:3]
    assert (first.id, headline.id, others.id) == ("answer", "headline", "answers")
    assert not (first.folded or headline.folded) and others.folded
    assert first.lead.startswith("swift against baseline: ")
    assert [_waterfall(block) for block in first.blocks] == ["swift"]
    assert [_waterfall(block) for block in others.blocks] == [each.name for each in settings[1:]]
    assert [table.caption.split()[0] for table in answers_of(report)] == [*(each.name for each in settings[1:]), "swift"]
    assert report.title == f"{len(settings)} variants against baseline"


def _waterfall(block: Block) -> str:
    """Where the waterfall of a figure ends."""
    assert isinstance(block, Figure) and isinstance(block.picture, Waterfall)
    return block.picture.bars[-1].label
