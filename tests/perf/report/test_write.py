"""The page stays below its limit whatever the tables are; the other formats keep everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from strobe.perf.report.model import Code, Column, Count, Figure, Flame, Frame, Report, Row, Section, Table, Text, decode_report
from strobe.perf.report.write import FORMATS, MAX_PAGE_BYTES, least_bytes, render, render_html, write_report


def long_table(rows: int) -> Table:
    names = (f"void some::name::kernel_{row}<{'float, ' * 12}>(int)" for row in range(rows))
    plain = (Row((Code(name), Count(number))) for number, name in enumerate(names))
    return Table("long", (Column("name"), Column("n", numeric=True)), (*plain, Row((Text("in all"), Count(-1)), strong=True)))


def report_of(*tables: Table) -> Report:
    flame = Figure("f", "a", Flame(Frame("root", 1, 1), False), tables[0])
    sections = (Section("a", "A", "", (*tables, flame)),)
    return Report(v=1, speedups=(), title="t", subtitle="", facts=(), banners=(), sections=sections)


def test_a_small_page_is_whole() -> None:
    page = render(report_of(long_table(20)), "html")
    assert "kernel_19" in page and "The first" not in page


def test_a_large_page_keeps_the_first_rows_and_the_totals_and_says_so() -> None:
    report = report_of(long_table(3000), long_table(10), long_table(700))
    page = render(report, "html")
    assert 50_000 < len(page.encode()) <= MAX_PAGE_BYTES
    assert page.count("of 3000 rows, so that the page stays small") == 2  # the table and the twin of the picture
    assert page.count("of 700 rows") == 1 and page.count("in all") == 4
    assert decode_report(render(report, "json").encode()) == report
    assert "kernel\\_2999" in render(report, "md")


def test_only_the_formats_that_are_asked_for_are_written(tmp_path: Path) -> None:
    report = report_of(long_table(3))
    assert [path.name for path in write_report(report, tmp_path)] == [f"report.{format}" for format in FORMATS]
    for format in FORMATS:
        assert (tmp_path / f"report.{format}").read_text(encoding="utf-8") == render(report, format)
    (tmp_path / "one").mkdir()
    assert [path.name for path in write_report(report, tmp_path / "one", ["json"])] == ["report.json"]
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["report.json"]


def test_what_a_page_is_said_to_take_at_least_is_less_than_it_takes() -> None:
    for rows in (1, 50, 2000):
        report = report_of(long_table(rows), Table("plain", (Column("n"),), (Row((Count(1),)),) * rows))
        assert rows * 40 < least_bytes(report) < len(render_html(report).encode())


def test_a_page_that_is_far_too_large_is_not_rendered_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = []

    def counted(report: Report, **how: bool) -> str:
        rendered.append(least_bytes(report))
        return render_html(report, **how)

    monkeypatch.setattr("strobe.perf.report.write.render_html", counted)
    report = report_of(*(Table("t", (Column("n"), Column("m")), (Row((Count(i), Count(-i))),)) for i in range(30_000)))
    assert len(render(report, "html").encode()) <= MAX_PAGE_BYTES
    assert max(rendered) <= MAX_PAGE_BYTES
