"""Figures say what was measured: unproven differences, pictures that equal the reference, whole ticks, colours apart."""

from __future__ import annotations

import math
import re
from dataclasses import replace as changed
from pathlib import Path

import msgspec
import pytest

from strobe.perf.records.record import Quality
from strobe.perf.report.blocks.breakdown import quality_section
from strobe.perf.report.blocks.referee import FrontPoint
from strobe.perf.report.findings import find_latencies
from strobe.perf.report.log_page import _mark
from strobe.perf.report.study import RunStudy, load_study
from strobe.perf.report.svg import colour, draw_plane, linear_ticks
from strobe.perf.table.model import Axis, Figure, Plane, PlotPoint, Ratio

ROOT = Path(__file__).parents[3]
CSS = (ROOT / "src" / "strobe" / "perf" / "report" / "page.css").read_text()


def test_an_unproven_speedup_is_drawn_where_it_was_measured_and_hollow() -> None:
    unproven = FrontPoint(label="window=6", speed=1.0, score=30.0, measured=Ratio(1.49, 0.9, 2.4))
    assert _mark(unproven, 2) == PlotPoint(1.49, 30.0, 2, "window=6", hollow=True, low=0.9, high=2.4)
    proven = FrontPoint(label="steps=2", speed=1.49, score=30.0, measured=Ratio(1.49, 1.4, 1.6))
    assert _mark(proven, 2) == PlotPoint(1.49, 30.0, 2, "steps=2")
    drawn = draw_plane(Plane(Axis("speedup"), Axis("psnr", "dB"), (_mark(unproven, 2), _mark(proven, 3))), "")
    assert drawn.count("hollow") == 1 and drawn.count('class="whisker thin s2"') == 1


def test_what_equals_the_reference_is_drawn_above_the_axis() -> None:
    equal = _mark(FrontPoint(label="base", speed=1.0, score=math.inf), 0)
    assert equal.above and not equal.hollow
    drawn = draw_plane(Plane(Axis("speedup"), Axis("psnr", "dB"), (equal, PlotPoint(2.0, 25.0, 1, "few"))), "")
    ticks = [float(text) for text in re.findall(r'class="tick" x="2"[^>]*>([\d.]+)<', drawn)]
    assert min(ticks) > 20, "the axis is that of the finite value"
    assert "<path" in drawn and ">base</text>" in drawn


@pytest.fixture(scope="module")
def study() -> RunStudy:
    return load_study([ROOT / "benchmarks" / "presets-h200"])


def pictures(study: RunStudy) -> dict[str, Plane]:
    blocks = quality_section(study, find_latencies(study)).blocks
    return {
        block.picture.y.title: block.picture for block in blocks if isinstance(block, Figure) and isinstance(block.picture, Plane)
    }


def test_quality_pictures_have_every_variant_and_say_something(study: RunStudy) -> None:
    """Every prompt accuracy is 1.000 there, and one preset is the reference of its own PSNR."""
    found = pictures(study)
    assert "psnr" in found and "prompt_accuracy" not in found
    assert {mark.label: mark.above for mark in found["psnr"].marks} == {
        "baseline": False, "quality": True, "balanced": False, "turbo": False, "ultra": False,
    }  # fmt: skip


def test_a_metric_in_which_variants_differ_is_drawn(study: RunStudy) -> None:
    def worse(line: Quality) -> Quality:
        return msgspec.structs.replace(line, value=0.5) if (line.variant, line.metric) == ("ultra", "prompt_accuracy") else line

    run = changed(study.runs[0], quality=tuple(map(worse, study.runs[0].quality)))
    other = changed(study, runs=(run,), subjects=tuple(changed(subject, run=run) for subject in study.subjects))
    assert "prompt_accuracy" in pictures(other)


def test_whole_numbers_have_whole_ticks() -> None:
    assert linear_ticks(0, 2.2, 6, whole=True) == [0, 1, 2]
    assert linear_ticks(0, 2.2, 6) == [0, 0.5, 1.0, 1.5, 2.0]
    marks = (PlotPoint(1, 1.0, 0), PlotPoint(2, 1.9, 0))
    drawn = draw_plane(Plane(Axis("ranks", from_zero=True, whole=True), Axis("speedup"), marks), "")
    below = re.findall(r'y="97.5%"[^>]*>([^<]+)<', drawn)
    assert below == ["1", "2"]


def test_nine_variants_have_nine_colours() -> None:
    assert len({colour(series) for series in range(9)}) == 9
    values = dict(re.findall(r"--(s\d): light-dark\((#\w{6}, #\w{6})\)", CSS))
    assert set(values) == {colour(series) for series in range(9)}
    for shown in zip(*(each.split(", ") for each in values.values()), strict=True):
        assert len(set(shown)) == 9


def test_labels_give_way_to_a_legend_where_there_is_no_room() -> None:
    drawn = draw_plane(Plane(Axis("x"), Axis("y"), (PlotPoint(1, 1, 0, "one"), PlotPoint(2, 2, 1, "two"))), "")
    assert '<ul class="legend narrow"' in drawn and drawn.count("<li>") == 2
    narrow = CSS.partition("@media (max-width: 640px)")[2]
    assert ".plane text.mark { display: none; }" in narrow and ".legend.narrow { display: flex; }" in narrow


def test_a_line_joins_points_in_the_order_that_is_given() -> None:
    marks = (PlotPoint(0, 0, 0), PlotPoint(10, 5, 0), PlotPoint(20, 1, 0))
    drawn = draw_plane(Plane(Axis("x"), Axis("y"), marks, joined=(2, 0)), "")
    dots = re.findall(r'<circle class="dot s0" cx="([^"]+)" cy="([^"]+)"', drawn)
    ((x1, x2, y1, y2),) = re.findall(r'<line class="level [^"]+" x1="([^"]+)" x2="([^"]+)" y1="([^"]+)" y2="([^"]+)"', drawn)
    assert [(x1, y1), (x2, y2)] == [dots[2], dots[0]]
