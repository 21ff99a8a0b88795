"""Row classes: one description gives the columns of a page, the keys of a document and the hints of its terms."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Annotated

import msgspec
import numpy as np
import pytest
from msgspec import inspect

from strobe.perf.analysis.device.intervals import distribution
from strobe.perf.measure.stats import P99_SAMPLES
from strobe.perf.report.blocks.fields import spread
from strobe.perf.table.fields import Field, count, exact_time, numeric, rows_of, share_of, table_of, time
from strobe.perf.table.model import Code, Column, Count, ExactTime, Missing, Row, Share, Text, Time
from strobe.perf.table.rows import OnDevice, col, columns, micros, part_of, term


class Work(OnDevice, frozen=True, kw_only=True):
    """Work of one kind."""

    name: Annotated[str, col("name of `it`", "kind", Code)]
    path: Annotated[str, col("where it is")]
    calls: Annotated[int, col("number of calls", "calls", Count, total=sum)]
    busy_ns: Annotated[int, col("time of it", "busy", ExactTime, where="calls", total=sum, of={"of all": "all_ns"})]
    wait_ns: Annotated[float | None, term("mean wait", "wait", micros, missing=lambda row: f"{row.name} never waited")]
    note: Annotated[str | None, col("why", "because", partial(Text, tone="muted"))]


ROWS = [
    Work(trace="t", device=0, name="a", path="x", calls=2, busy_ns=30, wait_ns=4.0, note="n"),
    Work(trace="t", device=0, name="b", path="y", calls=0, busy_ns=0, wait_ns=None, note=""),
]


def test_columns_are_the_fields_with_a_head_in_order_and_what_a_row_does_not_have_is_missing_with_its_reason() -> None:
    table = table_of("", columns(Work, of=SimpleNamespace(all_ns=60)), ROWS, top=1)
    assert table.columns == (
        Column("kind"),
        Column("calls", numeric=True),
        Column("busy", "ms", True),
        Column("of all", numeric=True),
        Column("wait", "µs", True, "mean wait"),
        Column("because"),
    )
    assert table.rows[0] == Row((Code("a"), Count(2), ExactTime(30), Share(0.5), Time(4.0), Text("n", "muted")))
    assert table.rows[1].cells[1:3] == (Count(0), Missing("", "-"))
    cells = table_of("", columns(Work, of=SimpleNamespace(all_ns=60)), ROWS).rows[1].cells
    assert cells[2:5] == (Missing("", "-"), Missing("", "-"), Missing("b never waited", "-"))


def test_named_columns_and_shares_of_each_row() -> None:
    fields: tuple[Field[Work], ...] = columns(Work, "busy_ns", "name", of=lambda row: SimpleNamespace(all_ns=10 * row.calls))
    assert [field.head for field in fields] == ["busy", "of all", "kind"]
    assert [field.cell(ROWS[0]) for field in fields] == [ExactTime(30), Share(1.5), Code("a")]


def test_the_document_has_every_field_and_none_of_the_page() -> None:
    assert msgspec.structs.asdict(ROWS[0]) == {
        "trace": "t", "device": 0, "name": "a", "path": "x", "calls": 2, "busy_ns": 30, "wait_ns": 4.0, "note": "n",
    }  # fmt: skip
    info = inspect.type_info(Work)
    types = {field.name: field.type for field in info.fields}
    assert types["name"] == inspect.Metadata(
        inspect.StrType(), extra_json_schema={"description": "name of `it`"}, extra=types["name"].extra
    )


def test_a_part_takes_from_the_first_source_that_has_it() -> None:
    one, other = SimpleNamespace(name="one", calls=1, device=3), SimpleNamespace(name="other", trace="t", busy_ns=5, note="")
    made = part_of(Work, one, other, path="p", wait_ns=None)
    assert made == Work(trace="t", device=3, name="one", path="p", calls=1, busy_ns=5, wait_ns=None, note="")


# Tables from described columns: cells, what is missing, and what the rows left out come to.


Kernel = tuple[str, int, int | None]


PARTS: list[Kernel] = [("a", 1, 10), ("b", 2, None), ("c", 4, 30), ("d", 8, 50)]


def fields() -> tuple[Field[Kernel], ...]:
    return (
        Field("kernel", lambda row: row[0], Code),
        count("calls", lambda row: row[1], "of it", total=sum),
        exact_time("time", lambda row: row[2], total=sum, missing="it never ran"),
        numeric("of all", lambda row: row[2], "of 90", show=share_of(90), total=sum),
        time("longest", lambda row: row[2], "µs", total=max),
        Field("note", lambda row: "x"),
    )


def test_a_column_is_described_once_and_a_strong_row_is_one_that_the_table_names() -> None:
    table = table_of("Kernels.", fields(), PARTS, notes=["n"], sortable=True, collapsed=True)
    assert table.columns[:3] == (Column("kernel"), Column("calls", numeric=True, hint="of it"), Column("time", "ms", True))
    assert table.columns[3:5] == (Column("of all", numeric=True, hint="of 90"), Column("longest", "µs", True))
    assert table.rows[0] == Row((Code("a"), Count(1), ExactTime(10), Share(10 / 90), Time(10), Text("x")))
    assert table.rows[1].cells[2:5] == (Missing("it never ran", "-"), Missing("", "-"), Missing("", "-"))
    assert len(table.rows) == 4 and table.notes == ("n",) and table.sortable and table.collapsed
    rows = rows_of(fields(), PARTS, strong=lambda row: row[0] == "c")
    assert [row.strong for row in rows] == [False, False, True, False]


def test_rows_left_out_come_to_what_their_columns_say() -> None:
    rest, every = rows_of(fields(), PARTS, top=1, left="kernels", totals=[("all", PARTS)])[1:]
    assert rest == Row((Text("3 more kernels"), Count(14), ExactTime(80), Share(80 / 90), Time(50), Text("")), strong=True)
    assert every.cells == (Text("all"), Count(15), ExactTime(90), Share(1.0), Time(50), Text(""))
    unknown = table_of("", fields(), PARTS[:2], top=1).rows[1]
    assert unknown.cells[2:5] == (Missing("it never ran", "-"), Missing("", "-"), Missing("", "-"))
    assert rows_of(fields(), PARTS, top=4, totals=[("none", [])]) == table_of("", fields(), PARTS).rows
    assert rows_of(fields(), PARTS, top=1, words_in=5)[1].cells[::5] == (Text(""), Text("3 more rows"))


def test_a_cell_stands_for_itself_and_adds_nothing() -> None:
    silent = Text("0", "muted", "launched nothing")
    (column,) = described = (count("n", lambda row: row or silent, total=sum),)
    assert column.cell(0) is silent and column.total_cell([0, 2, 3]) == Count(5)
    assert [row.cells for row in table_of("", described, [0, 2, 3], top=1).rows] == [(silent,), (Text("2 more rows"),)]


@pytest.mark.parametrize("n", [1, P99_SAMPLES - 1, P99_SAMPLES])
def test_a_p99_needs_enough_calls(n: int) -> None:
    found = distribution(np.arange(1, n + 1))
    cells = {field.head: field.cell(found) for field in spread(lambda row: row, "µs", ("min", "mean", "p99", "max"))}
    assert cells["min"] == Time(1) and cells["mean"] == Time((n + 1) / 2) and cells["max"] == Time(n)
    assert cells["p99"] == (Time(-(-99 * n // 100)) if n >= P99_SAMPLES else Missing(f"max of {n}", "-"))
    (quiet,) = spread(lambda row: row, "ms", ("p99",), exact=True, quiet=True, what="steps")
    assert quiet.cell(found) == (ExactTime(-(-99 * n // 100)) if n >= P99_SAMPLES else Missing("", "-"))
    assert quiet.column.hint.startswith(f"from {P99_SAMPLES} steps on")
    assert quiet.cell(None) == Missing("", "-") and quiet.cell(Missing("no steps", "none")) == Missing("no steps", "none")
