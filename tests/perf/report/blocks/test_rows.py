"""Row classes: one description gives the columns of a page, the keys of a document and the hints of its terms."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Annotated

import msgspec
from msgspec import inspect

from strobe.perf.report.blocks.fields import Field, table_of
from strobe.perf.report.blocks.rows import OnDevice, col, columns, micros, part_of, term
from strobe.perf.report.model import Code, Column, Count, ExactTime, Missing, Row, Share, Text, Time


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


def test_columns_are_the_fields_with_a_head_in_the_order_of_the_class() -> None:
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


def test_what_a_row_does_not_have_is_missing_with_its_reason() -> None:
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
    assert isinstance(info, inspect.StructType)
    types = {field.name: field.type for field in info.fields}
    assert types["name"] == inspect.Metadata(
        inspect.StrType(), extra_json_schema={"description": "name of `it`"}, extra=types["name"].extra
    )


def test_a_part_takes_from_the_first_source_that_has_it() -> None:
    one, other = SimpleNamespace(name="one", calls=1, device=3), SimpleNamespace(name="other", trace="t", busy_ns=5, note="")
    made = part_of(Work, one, other, path="p", wait_ns=None)
    assert made == Work(trace="t", device=3, name="one", path="p", calls=1, busy_ns=5, wait_ns=None, note="")
