"""Documents read: Markdown in its many forms, printed output, the JSON report; and nothing at all crashes the linter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.lint.document import lines_table, plain, read_markdown
from strobe.lint.rules import findings

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
    assert (results.section, results.caption, results.line) == (
        ("Setext title", "Results"),
        "Latency of a|b by preset.",
        14,
    )
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
        "| | a | b |\n|---|---|---|\n| step: mean | 5 ms | 6 ms |\n| pixel FPS | 12 FPS | 13 FPS |\n",
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
