"""Pictures: what is drawn is as large as what it stands for and says what was measured, and no name leaves its place."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace as changed
from itertools import accumulate, pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import Page
from strobe.perf.records.record import Quality
from strobe.perf.report.blocks.breakdown import quality_section
from strobe.perf.report.blocks.kernels import MAX_SLICES, Piece, draw_lanes, merged
from strobe.perf.report.findings import find_latencies
from strobe.perf.report.log_page import _mark
from strobe.perf.report.study import RunStudy, load_study
from strobe.perf.report.svg import MAX_FRAMES, colour, draw_flame, draw_plane, draw_waterfall, linear_ticks
from strobe.perf.table import model as m

EVIL = (
    "</script><script>alert(1)</script>",
    "a|b`c`*d*[e](http://f)",
    "</title></svg><img src=x onerror=alert(1)>",
    "\"' &amp;\x1b\u202e",
    "x" * 5000,
)
WORK, GAP, OTHER = m.Kind("work", "work1"), m.Kind("idle", "gap1"), m.Kind("other", "focal")


def percent(text: str | None) -> float:
    assert text is not None and text.endswith("%")
    return float(text[:-1]) / 100


def frames(levels: int) -> st.SearchStrategy[m.Frame]:
    times = st.integers(0, 10**6)
    inside = st.lists(frames(levels - 1), max_size=3).map(tuple) if levels else st.just(())
    return st.builds(m.Frame, st.sampled_from(["a", "b", "attn"]), times, times, inside)


def width_of(frame: m.Frame) -> int:
    return max(frame.baseline_ns, frame.candidate_ns, sum(width_of(child) for child in frame.children))


def boxes_of(frame: m.Frame, left: int = 0, depth: int = 0) -> list[tuple[str, int, int, int]]:
    found, start = [(frame.label, left, width_of(frame), depth)], left
    for child in frame.children:
        found += boxes_of(child, start, depth + 1)
        start += width_of(child)
    return found


@given(frames(3))
def test_a_flame_draws_every_frame_as_wide_as_its_larger_side(root: m.Frame) -> None:
    wanted = [box for box in boxes_of(root) if box[2] and box[2] >= 0.0005 * width_of(root)]  # half a pixel
    page = Page(draw_flame(m.Flame(root, True), "alt"))
    assert page.open == []
    drawn = [attrs for tag, attrs in page.elements if tag == "svg" and "y" in attrs]
    assert len(drawn) == len(wanted)
    total = width_of(root)
    got = sorted((int(attrs["y"] or "0") // 20, percent(attrs["x"]), percent(attrs["width"])) for attrs in drawn)
    for (depth, x, width), (_, left, ns, wanted_depth) in zip(got, sorted(wanted, key=lambda box: (box[3], box[1])), strict=True):
        assert depth == wanted_depth
        assert x == pytest.approx(left / total, abs=1e-5) and width == pytest.approx(ns / total, abs=1e-5)


@pytest.mark.parametrize(
    ("baseline", "candidate", "style"),
    [(100, 100, "same"), (100, 101, "same"), (100, 95, "less1"), (100, 80, "less2"), (100, 10, "less3"), (100, 0, "less3"),
     (95, 100, "more1"), (80, 100, "more2"), (10, 100, "more3"), (0, 100, "more3")],
)  # fmt: skip
def test_the_colour_of_a_frame_is_its_difference(baseline: int, candidate: int, style: str) -> None:
    page = Page(draw_flame(m.Flame(m.Frame("root", baseline * 10**6, candidate * 10**6), True), "alt"))
    assert page.all("rect")[0]["class"] == style
    (title,) = [text for text in page.titles() if text.startswith("root")]
    assert f"{candidate - baseline:+.3f} ms" in title and ("%" in title) == bool(baseline)


def test_a_large_or_deep_flame_stays_small_and_whole() -> None:
    wide = m.Frame("root", 10**9, 10**9, tuple(m.Frame(f"layer {i}", 10**6 - i, 10**6 - i) for i in range(1000)))
    page = Page(draw_flame(m.Flame(wide, False), "alt"))
    drawn = [text.partition(":")[0] for text in page.titles() if text.startswith(("root", "layer"))]
    assert drawn == ["root", *(f"layer {i}" for i in range(MAX_FRAMES - 1))]  # the widest
    deep = m.Frame("leaf", 1, 1)
    for _ in range(900):
        deep = m.Frame("node", 1, 1, (deep,))
    text = draw_flame(m.Flame(deep, False), "alt")
    assert "501 narrow frames are not drawn" in text
    assert "no time was spent" in draw_flame(m.Flame(m.Frame("nothing", 0, 0), True), "alt")


def test_whiskers_lie_where_the_interval_does() -> None:
    """On an axis from 0 to 100 ms, positions in percent are milliseconds."""
    bars = (
        m.Bar("before", 0, 100_000_000, "plain", True),
        m.Bar("faster", 100_000_000, 40_000_000, "good", False, 35_000_000, 44_000_000),
        m.Bar("other", 40_000_000, 41_000_000, "bad"),
        m.Bar("after", 0, 41_000_000, "plain", True, 36_500_000, 45_000_000),
    )
    text = draw_waterfall(m.Waterfall(bars))
    rows = text.split('<div class="label')[1:-1]
    found = [
        [attrs for tag, attrs in Page(f'<div class="label{row}').elements if tag == "line" and "y2" in attrs] for row in rows
    ]
    drawn = [[(a["x1"], a["x2"]) for a in lines if a["y2"] in ("13", "17")] for lines in found]
    assert drawn == [
        [],
        [("35%", "44%"), ("35%", "35%"), ("44%", "44%")],
        [],
        [("36.5%", "45%"), ("36.5%", "36.5%"), ("45%", "45%")],
    ]
    assert "faster: -60.000 ms, 95 % interval -65.000 to -56.000 ms" in text
    assert "after: 41.00 ms, 95 % interval 36.500 to 45.000 ms" in text and "other: +1.000 ms</title>" in text


def test_whiskers_widen_the_axis_and_totals_still_stand_on_zero() -> None:
    bars = (
        m.Bar("before", 0, 30_000_000, "plain", True),
        m.Bar("unsure", 30_000_000, 10_000_000, "good", False, -20_000_000, 60_000_000),
        m.Bar("after", 0, 10_000_000, "plain", True),
    )
    page = Page(draw_waterfall(m.Waterfall(bars)))
    first = page.all("rect")[0]
    assert (first["x"], first["width"]) == ("25%", "37.5%")  # from 0 to 30 on an axis from -20 to 60
    assert any((attrs.get("x1"), attrs.get("x2")) == ("0%", "100%") for tag, attrs in page.elements if tag == "line")


LANE = st.lists(st.tuples(st.integers(1, 10_000), st.sampled_from([WORK, GAP, OTHER])), min_size=1, max_size=60)


def pieces_of(rows: list[tuple[int, m.Kind]]) -> list[Piece]:
    edges = accumulate((length for length, _ in rows), initial=0)
    return [Piece(start, end, "name", kind) for (start, end), (_, kind) in zip(pairwise(edges), rows, strict=True)]


@given(LANE, st.integers(1, 12))
def test_joined_slices_tile_the_lane_and_keep_the_sum_of_each_class(rows: list[tuple[int, m.Kind]], times: int) -> None:
    pieces = pieces_of(rows * times)
    lanes = [("x", 0, merged(pieces))] * 40
    picture = draw_lanes(lanes, (WORK, GAP, OTHER), OTHER)
    lane = picture.lanes[7]
    assert len(lane.start_ns) <= MAX_SLICES // 40
    assert [start + ns for start, ns in zip(lane.start_ns, lane.duration_ns, strict=True)] == [*lane.start_ns[1:], lane.length_ns]
    sums: Counter[m.Kind] = Counter()
    for ns, kind in zip(lane.duration_ns, lane.kind, strict=True):
        sums[picture.kinds[kind]] += ns
    assert sums == sum((Counter({kind: ns}) for ns, kind in rows * times), Counter())


def test_lanes_of_a_heavy_trace_keep_within_the_limit() -> None:
    pieces = pieces_of([(7 + i % 13, (WORK, GAP, OTHER)[i % 3]) for i in range(20_000)])
    lanes = [(str(n), n, pieces) for n in range(4)]
    picture = draw_lanes(lanes, (WORK, GAP, OTHER), OTHER)
    assert all(MAX_SLICES // 16 < len(lane.start_ns) <= MAX_SLICES // 4 and lane.num_total == 20_000 for lane in picture.lanes)
    assert [sum(lane.duration_ns) for lane in picture.lanes] == [pieces[-1].end_ns] * 4


ROOT = Path(__file__).parents[3]
CSS = (ROOT / "src" / "strobe" / "perf" / "report" / "page.css").read_text()


def test_an_unproven_speedup_is_drawn_where_it_was_measured_and_hollow() -> None:
    unproven = _mark("window=6", m.Ratio(1.49, 0.9, 2.4), 1.0, 30.0, 2)
    assert unproven == m.PlotPoint(1.49, 30.0, 2, "window=6", hollow=True, low=0.9, high=2.4)
    proven = _mark("steps=2", m.Ratio(1.49, 1.4, 1.6), 1.49, 30.0, 2)
    assert proven == m.PlotPoint(1.49, 30.0, 2, "steps=2")
    drawn = draw_plane(
        m.Plane(m.Axis("speedup"), m.Axis("psnr", "dB"), (unproven, msgspec.structs.replace(proven, series=3))), ""
    )
    assert drawn.count("hollow") == 1 and drawn.count('class="whisker thin s2"') == 1


def test_what_equals_the_reference_is_drawn_above_the_axis() -> None:
    equal = _mark("base", m.Ratio(1.0), 1.0, math.inf, 0)
    assert equal.above and not equal.hollow
    drawn = draw_plane(m.Plane(m.Axis("speedup"), m.Axis("psnr", "dB"), (equal, m.PlotPoint(2.0, 25.0, 1, "few"))), "")
    ticks = [float(text) for text in re.findall(r'class="tick" x="2"[^>]*>([\d.]+)<', drawn)]
    assert min(ticks) > 20, "the axis is that of the finite value"
    assert "<path" in drawn and ">base</text>" in drawn


def test_a_metric_in_which_variants_differ_is_drawn() -> None:
    """Every prompt accuracy is 1.000 in these records, where one is changed."""

    def pictured(study: RunStudy) -> list[str]:
        figures = (block for block in quality_section(study, find_latencies(study)).blocks if isinstance(block, m.Figure))
        return [each.picture.y.title for each in figures if isinstance(each.picture, m.Plane)]

    def worse(line: Quality) -> Quality:
        return msgspec.structs.replace(line, value=0.5) if (line.variant, line.metric) == ("ultra", "prompt_accuracy") else line

    study = load_study([ROOT / "benchmarks" / "presets-h200"])
    run = changed(study.runs[0], quality=tuple(map(worse, study.runs[0].quality)))
    other = changed(study, runs=(run,), subjects=tuple(changed(subject, run=run) for subject in study.subjects))
    assert "psnr" in pictured(study) and "prompt_accuracy" not in pictured(study) and "prompt_accuracy" in pictured(other)


def test_whole_numbers_have_whole_ticks() -> None:
    assert linear_ticks(0, 2.2, 6, whole=True) == [0, 1, 2]
    assert linear_ticks(0, 2.2, 6) == [0, 0.5, 1.0, 1.5, 2.0]
    marks = (m.PlotPoint(1, 1.0, 0), m.PlotPoint(2, 1.9, 0))
    drawn = draw_plane(m.Plane(m.Axis("ranks", from_zero=True, whole=True), m.Axis("speedup"), marks), "")
    below = re.findall(r'y="97.5%"[^>]*>([^<]+)<', drawn)
    assert below == ["1", "2"]


def test_nine_variants_have_nine_colours() -> None:
    assert len({colour(series) for series in range(9)}) == 9
    values = dict(re.findall(r"--(s\d): light-dark\((#\w{6}, #\w{6})\)", CSS))
    assert set(values) == {colour(series) for series in range(9)}
    for shown in zip(*(each.split(", ") for each in values.values()), strict=True):
        assert len(set(shown)) == 9


def test_labels_give_way_to_a_legend_where_there_is_no_room() -> None:
    drawn = draw_plane(m.Plane(m.Axis("x"), m.Axis("y"), (m.PlotPoint(1, 1, 0, "one"), m.PlotPoint(2, 2, 1, "two"))), "")
    assert '<ul class="legend narrow"' in drawn and drawn.count("<li>") == 2
    narrow = CSS.partition("@media (max-width: 640px)")[2]
    assert ".plane text.mark { display: none; }" in narrow and ".legend.narrow { display: flex; }" in narrow


def test_a_line_joins_points_in_the_order_that_is_given() -> None:
    marks = (m.PlotPoint(0, 0, 0), m.PlotPoint(10, 5, 0), m.PlotPoint(20, 1, 0))
    drawn = draw_plane(m.Plane(m.Axis("x"), m.Axis("y"), marks, joined=(2, 0)), "")
    dots = re.findall(r'<circle class="dot s0" cx="([^"]+)" cy="([^"]+)"', drawn)
    ((x1, x2, y1, y2),) = re.findall(r'<line class="level [^"]+" x1="([^"]+)" x2="([^"]+)" y1="([^"]+)" y2="([^"]+)"', drawn)
    assert [(x1, y1), (x2, y2)] == [dots[2], dots[0]]
