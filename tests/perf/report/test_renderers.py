"""Pages and pictures from hostile records: nothing escapes its place, what is drawn is as large as what it stands for."""

from __future__ import annotations

import errno
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace as changed
from itertools import accumulate, groupby, pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import Page, decode_report
from source import ROOT
from strobe.core.errors import StrobeError
from strobe.core.printable import clean
from strobe.perf.records.record import Quality
from strobe.perf.report.blocks.breakdown import quality_section
from strobe.perf.report.blocks.kernels import MAX_SLICES, Piece, draw_lanes, merged
from strobe.perf.report.build import build_report
from strobe.perf.report.findings import find_latencies
from strobe.perf.report.log_page import _mark
from strobe.perf.report.study import RunStudy, load_study
from strobe.perf.report.svg import (
    MAX_FRAMES,
    colour,
    draw_flame,
    draw_plane,
    draw_waterfall,
    esc,
    linear_ticks,
    ratio_bounds,
    ratio_place,
    ratio_ticks,
    tick_text,
)
from strobe.perf.report.write import (
    FORMATS,
    MAX_PAGE_BYTES,
    escape,
    least_bytes,
    render,
    render_html,
    render_markdown,
    write_report,
)
from strobe.perf.table import model as m

MakeRun = Callable[..., Path]


@pytest.mark.parametrize("cuda", [False, True])
def test_hostile_names_and_prompts_stay_text(make_run: MakeRun, cuda: bool) -> None:
    report = build_report([make_run(cuda=cuda, evil=True)])
    page_text, text = render_html(report), render_markdown(report)
    page = Page(page_text)
    tables = [[*lines] for is_table, lines in groupby(text.splitlines(), lambda line: line.startswith("|")) if is_table]
    assert page.open == []
    scripts = page.all("script")
    assert scripts == [{"type": "application/json"}, {}]  # the timeline's data and the page's own script
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    shown = "".join(text for tag, text in page.texts if tag in ("code", "td", "figcaption"))
    assert "</script><script>alert(1)</script>|`x`\\n\\x1b[31m\\u202e" in shown
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page_text)
    assert len(tables) > 15
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", re.sub(r"\\\\", "", row))) for row in table}) == 1
        assert set(table[1]) <= set("|-: ")
    assert "<script" not in text and "\x1b" not in text and "://" not in text


def test_page_needs_nothing_from_elsewhere(make_run: MakeRun) -> None:
    page_text = render_html(build_report([make_run(evil=True)]))
    page = Page(page_text)
    links = [attrs[name] for _, attrs in page.elements for name in ("src", "href", "poster", "srcset", "action") if name in attrs]
    assert links and all(link and not re.match(r"(?i)[a-z]+:(?!,$)|//", link) for link in links)
    style = page_text[page_text.index("<style>") : page_text.index("</style>")]
    assert "@import" not in style and not re.search(r"url\((?!#)", style)
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|eval\(", page_text[page_text.rindex("<script>") :])
    assert [attrs["src"] for attrs in page.all("video")] == [
        f"clips/{name}.mp4" for name in ("baseline", "balanced", "turbo", "ultra")
    ]


def test_page_is_accessible(make_run: MakeRun) -> None:
    page = Page(render_html(build_report([make_run()])))
    assert page.all("html")[0]["lang"] == "en" and page.all("title") and len(page.all("main")) == 1 and len(page.all("h1")) == 1
    pictures = [attrs for attrs in page.all("svg") if "aria-hidden" not in attrs and "zoom" not in (attrs.get("class") or "")]
    titles = page.titles()
    assert pictures and all(attrs.get("role") == "img" for attrs in pictures) and len(titles) >= len(pictures) and all(titles)
    anchors = {attrs["href"] for attrs in page.all("a") if (attrs["href"] or "").startswith("#")}
    assert anchors == {f"#{attrs['id']}" for attrs in page.all("section")}
    assert all(attrs.get("tabindex") == "0" for attrs in page.all("div") if attrs.get("class") == "scroll")
    assert len(page.all("caption")) == len(page.all("table")) and all(attrs.get("scope") == "col" for attrs in page.all("th"))


def test_the_same_records_give_the_same_bytes_wherever_they_lie(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(evil=True)
    first = [path.read_bytes() for path in write_report(build_report([folder]), folder)]
    moved = tmp_path / "moved" / folder.name
    shutil.copytree(folder, moved)
    again = [path.read_bytes() for path in write_report(build_report([moved]), moved)]
    assert first == again and all(first)


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_text_stays_in_its_cell(text: str) -> None:
    escaped = escape(text)
    assert "\n" not in escaped and "<" not in escaped and "\r" not in escaped
    assert not re.search(r"[|`*_\[\]~$#]", re.sub(r"\\[\\`*_\[\]|~$#]", "", escaped.replace("&#47;", "").replace("&#46;", "")))
    assert not set(esc(text)) & set("<>\"'\n\r\0")


EMPTY = m.Report(v=1, speedups=(), title="A & B", subtitle="", facts=(), banners=(), sections=())


def report_of(*blocks: object) -> m.Report:
    return msgspec.structs.replace(EMPTY, sections=(m.Section("part", "Part", "Lead.", blocks),))  # type: ignore[arg-type]


def test_cells_render_in_both(make_run: MakeRun) -> None:
    columns = (m.Column("what", hint="a hint"), m.Column("value", numeric=True))
    table = m.Table(
        "Cap|tion",
        columns,
        (m.Row((m.Code("a|b"), m.Number(1.5, 2, "dB", "against x"))), m.Row((m.Text("t"), m.Missing("no weights")))),
    )
    markdown, page = render_markdown(report_of(table)), render_html(report_of(table))
    assert r"**Cap\|tion**" in markdown and r"| a\|b | 1.50 dB (against x) |" in markdown
    assert "| t | not measured (no weights) |" in markdown
    assert '<th scope="col" title="a hint">what</th>' in page and "<code>a|b</code>" in page
    assert "<td class=n>1.50 dB<small class=s>against x</small></td>" in page
    assert '<td class="n missing">not measured<small class=s>no weights</small></td>' in page


def test_video_paths_cannot_leave_their_attribute(make_run: MakeRun) -> None:
    block = m.Videos((m.VideoLink("x", 'clips/a "b" (c)>.mp4'),))
    assert 'src="clips/a%20%22b%22%20%28c%29%3E.mp4"' in render_html(report_of(block))
    assert "](<clips/a%20%22b%22%20%28c%29%3E.mp4>)" in render_markdown(report_of(block))


def test_timeline_data_cannot_close_its_script() -> None:
    lane = m.Lane("l", 0, 10, (0,), (10,), (0,), (0,), 1, 0)
    picture = m.Timeline(10, ("</script><!--",), (m.Kind("k", "focal"),), (lane,))
    figure = m.Figure("t", "a", picture, m.Table("c", (m.Column("x"),), (m.Row((m.Text("y"),)),)))
    page = render_html(report_of(figure))
    data = re.search(r'<script type="application/json">(.*?)</script>', page)
    assert data and json.loads(data[1])["names"] == ["</script><!--"] and "<" not in data[1]


def test_renderers_take_an_empty_report() -> None:
    assert render_markdown(EMPTY).startswith("# A &amp; B\n") and Page(render_html(EMPTY)).open == []
    assert "- one" not in render_markdown(report_of(m.Notes(("one",)), m.Notes(("two",))))


def test_three_cautions_stand_below_the_answer_and_the_others_are_folded() -> None:
    said = [f"doubt {number}" for number in range(5)]
    report = report_of(m.Notes(("the answer",)), m.Notes(("much more",)))
    banners = (
        m.Banner("caution", "Mind.", tuple(said[:2])),
        m.Banner("stop", "Halt.", ("void",)),
        m.Banner("caution", "Note.", tuple(said[2:])),
    )
    doubted = msgspec.structs.replace(report, banners=banners)
    for text, fold in ((render_html(doubted), '<details class="fold">'), (render_markdown(doubted), "<details>")):
        below = ["Mind.", *said[:2], "Note.", said[2]]
        order = ["Halt.", "void", "the answer", *below, fold, "Note.", *said[3:], "</details>", "much more"]
        at = 0
        for words in order:
            at = text.index(words, at) + len(words)
    alone = msgspec.structs.replace(doubted, sections=())
    assert said[4] in render_html(alone) and said[4] in render_markdown(alone), "a page without a section has them too"


def test_cells_without_a_value_say_their_common_reason_once_below_the_table() -> None:
    missing = m.Missing("no counters", "-")
    row = m.Row((missing, missing, m.Number(1, 0), missing, m.Missing("no clock")))
    columns = tuple(m.Column(name, numeric=True) for name in "abcde")
    report = report_of(m.Table("t", columns, (row,), notes=("More.",)))
    page = render_markdown(report)
    assert "| - | - | 1 | - | not measured (no clock) |" in page
    assert '* "-" under "a", "b", "d": no counters\n* More.\n' in page
    assert render_html(report).count("no counters") == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7200.80759, "7201"), (12.999318, "13.00"), (9.5341, "9.534"), (0.0020004, "0.002000"), (-0.5, "-0.5000"),
     (123456.7, "123457"), (999.96, "1000"), (float("inf"), "inf")],
)  # fmt: skip
def test_four_significant_digits(value: float, text: str) -> None:
    assert m.significant(value) == text


@pytest.mark.parametrize(
    ("cell", "unit", "text"),
    [
        (m.Time(1_500_000), "", "1.500 ms"), (m.Time(1_500_000), "ms", "1.500"), (m.Time(1_500), "µs", "1.500"),
        (m.Time(2e9), "s", "2.000"), (m.ExactTime(-5), "ms", "-0.000005"), (m.Ratio(1.2513), "", "1.25x"),
        (m.Ratio(1.2513, 1.2, 1.3), "", "1.251x [1.200, 1.300]"), (m.Share(0.512), "", "51.2 %"),
        (m.Share(-0.0001), "", "0.0 %"), (m.Number(3.14159, 2, "dB"), "", "3.14 dB"), (m.Count(7), "", "7"),
        (m.Missing("why"), "", "not measured"), (m.Missing("why", "-"), "", "-"), (m.Text("a\nb"), "", "a\\nb"),
        (m.Code("\x07"), "", "\\x07"),
    ],
)  # fmt: skip
def test_cells(cell: object, unit: str, text: str) -> None:
    assert m.cell_text(cell, m.Column("c", unit)) == text  # type: ignore[arg-type]


def test_marks_that_change_how_text_is_read_are_made_visible() -> None:
    assert clean("a\u202eb\u2066c\u200bd\ufeffe\x85f\udc80g") == "a\\u202eb\\u2066c\\u200bd\\ufeffe\\x85f\\udc80g"
    assert clean("naïve — 中文 😀") == "naïve — 中文 😀"


def test_long_names_keep_both_ends() -> None:
    name = "begin" + "x" * 5000 + "end"
    assert m.shorten("void at::native::f<c10::BFloat16>(" + "at::T, " * 20 + ")") == "f<BFloat16>(" + "T, " * 20 + ")"
    assert m.shorten("at::short") == "at::short"
    assert len(m.shorten(name)) <= m.MAX_NAME and m.shorten(name).startswith("begin") and m.shorten(name).endswith("end")
    assert clean(name) == name


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 7200), (-3, 3), (0.0001, 0.0009), (0.97, 0.98), (5, 5)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    ticks = linear_ticks(low, high, 5)
    assert 1 <= len(ticks) <= 7 and all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)
    labels = [tick_text(tick, ticks[1] - ticks[0]) for tick in ticks] if len(ticks) > 1 else []
    assert len(set(labels)) == len(labels) and [float(label) for label in labels] == pytest.approx(ticks[: len(labels)], abs=1e-9)


def test_ratio_axis_holds_every_bound_and_one() -> None:
    bounds = ratio_bounds([m.Ratio(2.0, 1.5, 3.0), m.Ratio(0.8)])
    places = [ratio_place(value, bounds) for value in (0.8, 1.0, 1.5, 2.0, 3.0)]
    assert places == sorted(places) and places[0] > 0 and places[-1] < 1 and 1.0 in ratio_ticks(bounds)
    assert ratio_ticks(ratio_bounds([])) == [1.0]


def long_table(rows: int) -> m.Table:
    names = (f"void some::name::kernel_{row}<{'float, ' * 12}>(int)" for row in range(rows))
    plain = (m.Row((m.Code(name), m.Count(number))) for number, name in enumerate(names))
    return m.Table(
        "long", (m.Column("name"), m.Column("n", numeric=True)), (*plain, m.Row((m.Text("in all"), m.Count(-1)), strong=True))
    )


def wide_report(*tables: m.Table) -> m.Report:
    return report_of(*tables, m.Figure("f", "a", m.Flame(m.Frame("root", 1, 1), False), tables[0]))


def test_a_large_page_keeps_the_first_rows_and_the_totals_and_says_so() -> None:
    report = wide_report(long_table(3000), long_table(10), long_table(700))
    page = render(report, "html")
    assert 50_000 < len(page.encode()) <= MAX_PAGE_BYTES
    assert page.count("of 3000 rows, so that the page stays small") == 2  # the table and the twin of the picture
    assert page.count("of 700 rows") == 1 and page.count("in all") == 4
    assert decode_report(render(report, "json").encode()) == report
    assert "kernel\\_2999" in render(report, "md")


def test_only_the_formats_that_are_asked_for_are_written(tmp_path: Path) -> None:
    report = wide_report(long_table(3))
    assert [path.name for path in write_report(report, tmp_path)] == [f"report.{format}" for format in FORMATS]
    for format in FORMATS:
        assert (tmp_path / f"report.{format}").read_text(encoding="utf-8") == render(report, format)
    (tmp_path / "one").mkdir()
    assert [path.name for path in write_report(report, tmp_path / "one", ["json"])] == ["report.json"]
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["report.json"]


def test_what_a_page_is_said_to_take_at_least_is_less_than_it_takes() -> None:
    for rows in (1, 50, 2000):
        report = wide_report(long_table(rows), m.Table("plain", (m.Column("n"),), (m.Row((m.Count(1),)),) * rows))
        assert rows * 40 < least_bytes(report) < len(render_html(report).encode())


def test_a_page_that_is_far_too_large_is_not_rendered_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = []

    def counted(report: m.Report, **how: bool) -> str:
        rendered.append(least_bytes(report))
        return render_html(report, **how)

    monkeypatch.setattr("strobe.perf.report.write.render_html", counted)
    report = wide_report(
        *(m.Table("t", (m.Column("n"), m.Column("m")), (m.Row((m.Count(i), m.Count(-i))),)) for i in range(30_000))
    )
    assert len(render(report, "html").encode()) <= MAX_PAGE_BYTES
    assert max(rendered) <= MAX_PAGE_BYTES


@pytest.mark.parametrize("full_at", [1, 2, 3])
def test_an_earlier_report_outlives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: int) -> None:
    report = build_report([shutil.copytree(ROOT / "benchmarks" / "presets-h200", tmp_path / "run")])
    into = tmp_path / "page"
    into.mkdir()
    for name in ("report.html", "report.md", "report.json"):
        (into / name).write_text("good")
    calls = iter(range(1, 10))

    def full(descriptor: int) -> None:
        if next(calls) == full_at:
            raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StrobeError, match="the disk is full"):
        write_report(report, into)
    assert {path.name: path.read_text() for path in into.iterdir()} == dict.fromkeys(
        ("report.html", "report.md", "report.json"), "good"
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
