"""Documents and numbers read: Markdown, printed output, our own pages; and nothing at all crashes the linter."""

from __future__ import annotations

import gzip
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.core.errors import DataError
from strobe.lint.document import lines_table, plain, read_markdown
from strobe.lint.quantity import UNITS, Bounds, exactly, head_unit, printed, quantities
from strobe.lint.rules import findings, lint_file
from strobe.perf.report.speedup_page.build import build_speedup_report
from strobe.perf.report.speedup_page.study import SideRequest, SpeedupRequest, load_speedup
from strobe.perf.report.write import render_markdown

PAGE = r"""---
title: ignored
---
Setext title
============

Intro over
two lines with 3 frames. And another sentence.

## Results ##

**Latency of `a|b` by preset.**

Preset | Mean (ms) | Note \| more
:--- | ---: | ---
**[Fast](x.md)** | *12.5* | <b>bold</b> &lt;24 GB&gt;
&nbsp;&nbsp;child | 3 | `x_y*z`

* A remark under it.

1. **Lead**: first: 5 ms
   goes on
   - inner: 7 ms
   - other: 8 ms

> | Quoted | s |
> |---|---|
> | q | 9 |

```text
COMPUTE:
  load : 1.50 ms
  run  : 2.50 ms
```
"""


def test_markdown() -> None:
    document = read_markdown(PAGE)
    results, items, quoted, printed = sorted(document.tables, key=lambda table: table.line)
    assert (results.section, results.caption, results.line) == (("Setext title", "Results"), "Latency of a|b by preset.", 14)
    assert results.header == ("Preset", "Mean (ms)", "Note | more")
    assert [(row.label, row.depth, row.line) for row in results.rows] == [("Fast", 0, 16), ("child", 2, 17)]
    assert [cell.text for cell in results.rows[0].cells] == ["Fast", "12.5", "bold <24 GB>"]
    assert results.rows[1].cells[2].text == "x_y*z" and results.notes[0] == "* A remark under it."
    assert [(row.label, row.line) for row in items.rows] == [("inner", 23), ("other", 24)]
    assert (quoted.header, quoted.line, quoted.rows[0].cells[1].quantity is not None) == (("Quoted", "s"), 26, True)
    assert [(row.group, row.label, row.line) for row in printed.rows] == [("COMPUTE", "load", 32), ("COMPUTE", "run", 33)]
    assert [(sentence.line, sentence.lead, sentence.text) for sentence in document.sentences if sentence.found] == [
        (7, "", "Intro over two lines with 3 frames."),
        (21, "Lead", "Lead: first: 5 ms goes on"),
        (23, "inner", "inner: 7 ms"),
        (24, "other", "other: 8 ms"),
    ]
    assert [sentence.line for sentence in document.sentences if sentence.text == "And another sentence."] == [8]


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("**bold** and *it* and __b__ _i_", "bold and it and b i"),
        ('`a*b_c|d` [link](http://x.y "t") ![i](z)', "a*b_c|d link i"),
        (r"\*not\* a\_b 2 * 3 * 4", "*not* a_b 2 * 3 * 4"),
        ("snake_case_name ~~old~~ ~5", "snake_case_name old ~5"),
        ("&lt;24&nbsp;GB<br>x[^1]", "<24 GB x"),
        ("4*B*H*D = 2*3*4", "4*B*H*D = 2*3*4"),
        ("*a* b**c**d `x*y*z`", "a bcd x*y*z"),
    ],
)
def test_markup_is_what_a_reader_sees(markup: str, text: str) -> None:
    assert plain(markup) == text


def test_markup_may_span_lines_and_each_sentence_keeps_its_own() -> None:
    document = read_markdown("Lead **bold\nand on**. It takes `a\nb` 5 ms.\n\nTwo: 3 ms\n    indented, not code: 4 ms\n")
    assert [(sentence.line, sentence.text) for sentence in document.sentences] == [
        (1, "Lead bold and on."),
        (2, "It takes a b 5 ms."),
        (5, "Two: 3 ms indented, not code: 4 ms"),
    ]


def test_a_row_without_pipes_is_a_row_and_what_follows_a_blank_line_is_not() -> None:
    (table,) = read_markdown("| a | ms |\n|---|---|\n| p | 3 |\nq\n\nA note | with a pipe\n").tables
    assert [(row.label, row.line, len(row.cells)) for row in table.rows] == [("p", 3, 2), ("q", 4, 2)]


def test_orientation() -> None:
    document = read_markdown(
        "| Preset | Mean | FPS |\n|---|---|---|\n| a | 5 ms | 3 |\n\n"
        "| Metric | Old | New | Change |\n|---|---|---|---|\n| Mean | 5 ms | 4 ms | -20% |\n| FPS | 3 | 4 | +33% |\n\n"
        "| | a | b |\n|---|---|---|\n| step: mean | 5 ms | 6 ms |\n| pixel FPS | 12 FPS | 13 FPS |\n"
    )
    columns, rows, mixed = document.tables
    assert columns.by_columns and [series.metric.kind for series in columns.series] == ["time", "rate"]
    assert not rows.by_columns and [series.metric.title for series in rows.computed] == ["Change"]
    assert not mixed.by_columns and [series.metric.kind for series in mixed.series] == ["time", "rate"]


def test_printed_lines() -> None:
    lines = [
        "Timers (all times in us):",
        "A:",
        "  x : 1.5 ± 0.2 (total: 4.5)",
        "  y : 2.5 (total: 7.5, 12.0%)",
        "no numbers here",
        "z = 3 calls",
    ]
    table = lines_table(list(enumerate(lines, 1)), ())
    assert table is not None and table.header == ("", "value", "±", "total", "%", "count")
    assert [(row.label, row.group, row.line) for row in table.rows] == [("x", "A", 3), ("y", "A", 4), ("z", "A", 6)]
    assert table.rows[1].cells[3].quantity is not None and float(table.rows[1].cells[3].quantity.value) == pytest.approx(7.5e-6)
    assert lines_table([(1, "x : 1")], ()) is None


_pieces = st.sampled_from(
    [
        "| a | b |", "|---|---|", "| Total | 5 ms |", "12.5 ms", "```", "# Head", "- x: 3 ms", "**b**", "4 x 5 = 21", "P99",
        "FPS", "%", "n = 5", "", "|", "\\|", "> q", "~~", "∞ NaN 1e999", "--", "===", "<!--", "-->", "0 ms", "0 FPS", "-1 s",
    ]
)  # fmt: skip


_lines = st.lists(st.one_of(_pieces, st.text(max_size=8)), max_size=4).map(" ".join)


@given(st.one_of(st.text(), st.lists(_lines, max_size=14).map("\n".join)))
def test_any_text_is_a_document_and_crashes_nothing(text: str) -> None:
    for finding in findings(read_markdown(text)):
        assert 0 < finding.place.line <= text.count("\n") + 1 and finding.said and finding.corrected


HUGE = ["1e400", "1e-400", "1e999999999", "1-1e400", "9" * 5000, "0." + "9" * 5000, "1e" + "9" * 5000]


@pytest.mark.parametrize("number", HUGE)
def test_a_number_beyond_all_measure_leaves_the_other_claims_checked(number: str) -> None:
    text = (
        f"The step takes {number} ms, 5 % less than {number} ms: {number} x 2 = {number}, at {number} FPS over {number} runs.\n\n"
        f"| a | ms | note |\n|--|--|--|\n| p | {number} | {number}x |\n| q | 3.0 ± {number} | 2x |\n\n"
        f"```\nfirst : {number} ± {number} ms\nsecond : {number} (total: {number})\n```\n\n"
        "The log prints ms, but the values behave as seconds."
    )
    assert [each.rule for each in findings(read_markdown(text))] == ["label-admitted"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("735.6 ms", [("0.7356", "time")]),
        ("12-frame window", [("12", "count")]),
        ("about 24 GB", [("24e9", "bytes")]),
        ("24 GiB", [(str(24 * 2**30), "bytes")]),
        ("1,001 blocks", [("1001", "count")]),
        ("9.1 FPS (302ms)", [("9.1", "rate"), ("0.302", "time")]),
        ("1e-03 ms", [("1e-6", "time")]),
        ("−21.8%", [("-21.8", "percent")]),
        ("2.40x, 3×", [("2.4", "ratio"), ("3", "ratio")]),
        ("4 × 144.5ms", [("4", "none"), ("0.1445", "time")]),
        ("3.35 TB/s HBM3", [("3.35e12", "bandwidth")]),
        ("538 GFLOP at 2.4 PF/s", [("538e9", "work"), ("2.4e15", "compute")]),
        ("1.3B parameters, 256K", []),
        ("run_01 gpt-4 H100 v2.7.0 2025-12-20 12:30 480x832 FlashAttention-2 3fa9c1d2", []),
        ("profile_results_02-16/latency.md", []),
        ("172.97 ms/frame", [("0.17297", "time")]),
        (
            "von 9,53 ms auf 2,7 ms und 1.234,56 ms, in 1,234.5 ms, 12,000, 7 ms",
            [("1.2345", "time"), ("12000", "none"), ("0.007", "time")],
        ),
    ],
)
def test_what_is_read(text: str, expected: list[tuple[str, str]]) -> None:
    assert [(each.value, each.dimension) for each in quantities(text)] == [(Fraction(value), kind) for value, kind in expected]


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("9.1", "9.05", "9.15"), ("9.10", "9.095", "9.105"), ("302 ms", "0.3015", "0.3025"), ("302", "302", "302"),
        ("30 blocks", "30", "30"), ("~575 ms", "0.54625", "0.60375"), ("about 20 %", "15", "25"), ("< 24 GB", "0", "24e9"),
        ("under 24 GB", "0", "24e9"), ("110-120ms", "0.1095", "0.1205"),
    ],
)  # fmt: skip
def test_the_interval_of_printed_digits(text: str, low: str, high: str) -> None:
    (found,) = quantities(text)
    assert found.bounds == Bounds(Fraction(low), Fraction(high))


@given(
    value=st.decimals(min_value="0.001", max_value="99999", places=6),
    digits=st.integers(0, 5),
    unit=st.sampled_from(["ns", "µs", "ms", "s", "GB", "FPS", "%", "x", "TB/s"]),
)
def test_the_interval_holds_the_value_that_was_printed(value: Fraction, digits: int, unit: str) -> None:
    text = f"{value:.{digits}f} {unit}" if unit not in ("%", "x") else f"{value:.{digits}f}{unit}"
    (found,) = quantities(f"it is {text} long")
    true = Fraction(value) * UNITS[unit].scale
    assert found.bounds.low <= true <= found.bounds.high and found.unit == UNITS[unit]
    assert found.bounds.width == UNITS[unit].scale / 10**digits


_sides = st.tuples(st.integers(1, 500), st.integers(0, 40))


@given(one=_sides, two=_sides, inside=st.tuples(st.integers(0, 10), st.integers(0, 10)))
def test_interval_arithmetic_holds_every_result(one: tuple[int, int], two: tuple[int, int], inside: tuple[int, int]) -> None:
    a, b = (Bounds(Fraction(low), Fraction(low + width)) for low, width in (one, two))
    x, y = (bounds.low + bounds.width * part / 10 for bounds, part in zip((a, b), inside, strict=True))
    for bounds, value in ((a + b, x + y), (a - b, x - y), (a * b, x * y), (a / b, x / y)):
        assert bounds.low <= value <= bounds.high
    assert a.overlaps(exactly(x)) and (a.overlaps(b) == (max(a.low, b.low) <= min(a.high, b.high)))


@pytest.mark.parametrize(
    ("head", "unit"),
    [
        ("Mean (ms)", "ms"), ("latency_ms", "ms"), ("Memory [GB]", "GB"), ("pixel FPS", "FPS"), ("% of step", "%"),
        ("Share %", "%"), ("TFLOP/s", "TFLOP/s"), ("PSNR (dB)", "dB"), ("times in µs", "µs"), ("Mean", None),
        ("Experiment (s) and more", None),
    ],
)  # fmt: skip
def test_the_unit_of_a_head(head: str, unit: str | None) -> None:
    assert head_unit(head) == (UNITS[unit] if unit else None)


def test_printing_keeps_the_unit_and_adds_a_digit() -> None:
    (fps, change, calls) = quantities("9.1 FPS, +12.0%, 3 calls")
    assert printed(Fraction(3000, 302), fps) == "9.93 FPS"
    assert printed(Fraction(25, 2), change, more=0) == "+12.5%"
    assert printed(Fraction(150), calls, more=0) == "150 calls"


ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "benchmarks" / "README.md",
    ROOT / "src" / "strobe" / "models" / "shapes" / "bundle" / "MODEL_CARD.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("path", PAGES, ids=[path.relative_to(ROOT).as_posix() for path in PAGES])
def test_our_pages_are_clean(path: Path) -> None:
    assert lint_file(path) == ()


def test_our_report_is_clean(tmp_path: Path) -> None:
    page = tmp_path / "report.md"
    page.write_bytes(gzip.decompress((ROOT / "benchmarks" / "presets-h200" / "report.md.gz").read_bytes()))
    assert lint_file(page) == ()


@pytest.mark.parametrize("logs", [False, True], ids=["traces", "logs"])
def test_our_account_of_a_speedup_is_clean(tmp_path: Path, logs: bool) -> None:
    case = ROOT / "examples" / "vsa_case"
    fa, vsa = (
        SideRequest(name=name, log=case / f"{side}.log", traces=() if logs else (case / f"{side}.pt.trace.json.gz",))
        for name, side in (("baseline", "fa"), ("candidate", "vsa"))
    )
    page = tmp_path / "report.md"
    page.write_text(render_markdown(build_speedup_report(load_speedup(SpeedupRequest(baseline=fa, candidate=vsa, calls=432)))))
    assert lint_file(page) == ()


def test_what_cannot_be_linted(tmp_path: Path) -> None:
    (tmp_path / "wide.md").write_text("| part | ms |", "utf-16-le")
    for name, words in {"none.md": "cannot be read", "page.html": "Markdown", "wide.md": "without a byte order mark"}.items():
        with pytest.raises(DataError, match=words):
            lint_file(tmp_path / name)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_hides_no_claim(encoding: str, tmp_path: Path) -> None:
    (page := tmp_path / "page.md").write_text("| part | ms |\n|---|---|\n| x | 1.5 |\n| y | 2.5 |\n| total | 5.0 |\n", encoding)
    assert [(found.rule, found.place.line) for found in lint_file(page)] == [("total-sum", 5)]
