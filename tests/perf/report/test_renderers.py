"""Pages from hostile and heavy records: nothing escapes its place, nothing is fetched, the same records give the same bytes."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import Page, decode_report
from strobe.core.errors import StrobeError
from strobe.core.printable import clean
from strobe.perf.report.build import build_report
from strobe.perf.report.svg import esc, linear_ticks, ratio_bounds, ratio_place, ratio_ticks, tick_text
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
    page_text = render_html(build_report([make_run(cuda=cuda, evil=True)]))
    page = Page(page_text)
    assert page.open == []
    scripts = page.all("script")
    assert scripts == [{"type": "application/json"}, {}]  # the timeline's data and the page's own script
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    shown = "".join(text for tag, text in page.texts if tag in ("code", "td", "figcaption"))
    assert "</script><script>alert(1)</script>|`x`\\n\\x1b[31m\\u202e" in shown
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page_text)


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


def rows_of(markdown: str) -> list[list[str]]:
    """Tables of a Markdown text as lists of rows; a row is its unescaped cell borders."""
    found: list[list[str]] = [[]]
    for line in markdown.splitlines():
        if line.startswith("|"):
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


@pytest.mark.parametrize("cuda", [False, True])
def test_markdown_tables_keep_their_columns(make_run: MakeRun, cuda: bool) -> None:
    report = build_report([make_run(cuda=cuda, evil=True)])
    text = render_markdown(report)
    tables = rows_of(text)
    assert len(tables) > 15
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", re.sub(r"\\\\", "", row))) for row in table}) == 1
        assert set(table[1]) <= set("|-: ")
    assert "<script" not in text and "\x1b" not in text and "://" not in text


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_text_stays_in_its_cell(text: str) -> None:
    escaped = escape(text)
    assert "\n" not in escaped and "<" not in escaped and "\r" not in escaped
    assert not re.search(r"[|`*_\[\]~$#]", re.sub(r"\\[\\`*_\[\]|~$#]", "", escaped.replace("&#47;", "").replace("&#46;", "")))
    assert not set(esc(text)) & set("<>\"'\n\r\0")


def report_of(*blocks: object) -> m.Report:
    part = m.Section("part", "Part", "Lead.", blocks)  # type: ignore[arg-type]
    return m.Report(
        v=1, speedups=(), title="A & B", subtitle="", facts=(m.Fact("Date", m.Text("never")),), banners=(), sections=(part,)
    )


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
    empty = m.Report(v=1, speedups=(), title="t", subtitle="", facts=(), banners=(), sections=())
    assert render_markdown(empty).startswith("# t\n") and Page(render_html(empty)).open == []
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


def test_neighbours_without_a_value_say_their_common_reason_once() -> None:
    missing = m.Missing("no counters", "-")
    row = m.Row((missing, missing, m.Number(1, 0), missing, m.Missing("no clock")))
    columns = tuple(m.Column(name, numeric=True) for name in "abcde")
    section = m.Section("s", "S", "", (m.Table("t", columns, (row,)),))
    page = render_markdown(m.Report(1, (), "T", "", (), (), (section,)))
    assert "| - (no counters) | - | 1 | - (no counters) | not measured (no clock) |" in page


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7200.80759, "7201"), (12.999318, "13.00"), (9.5341, "9.534"), (0.0020004, "0.002000"), (-0.5, "-0.5000"),
     (123456.7, "123457"), (999.96, "1000"), (float("inf"), "inf")],
)  # fmt: skip
def test_four_significant_digits(value: float, text: str) -> None:
    assert m.significant(value) == text


def test_exact_times_add_up_as_printed() -> None:
    assert [m.exact_ms(ns) for ns in (1, -1, 0, 1_446_198_900, -2_751_012)] == [
        "0.000001", "-0.000001", "0.000000", "1446.198900", "-2.751012",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "unit", "text"),
    [
        (m.Time(1_500_000), "", "1.500 ms"),
        (m.Time(1_500_000), "ms", "1.500"),
        (m.Time(1_500), "µs", "1.500"),
        (m.Time(2e9), "s", "2.000"),
        (m.ExactTime(-5), "ms", "-0.000005"),
        (m.Ratio(1.2513), "", "1.25x"),
        (m.Ratio(1.2513, 1.2, 1.3), "", "1.251x [1.200, 1.300]"),
        (m.Share(0.512), "", "51.2 %"),
        (m.Share(-0.0001), "", "0.0 %"),
        (m.Number(3.14159, 2, "dB"), "", "3.14 dB"),
        (m.Count(7), "", "7"),
        (m.Missing("why"), "", "not measured"),
        (m.Missing("why", "-"), "", "-"),
        (m.Text("a\nb"), "", "a\\nb"),
        (m.Code("\x07"), "", "\\x07"),
    ],
)
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
    flame = m.Figure("f", "a", m.Flame(m.Frame("root", 1, 1), False), tables[0])
    sections = (m.Section("a", "A", "", (*tables, flame)),)
    return m.Report(v=1, speedups=(), title="t", subtitle="", facts=(), banners=(), sections=sections)


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


RUN = Path(__file__).parents[3] / "benchmarks" / "presets-h200"


@pytest.mark.parametrize("full_at", [1, 2, 3])
def test_an_earlier_report_outlives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_at: int) -> None:
    report = build_report([shutil.copytree(RUN, tmp_path / "run")])
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
