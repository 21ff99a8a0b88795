"""The sections of `strobe trace --section`: the definition, the figures, what was skipped."""

from __future__ import annotations

from made_traces import trace_of
from reports import study_of
from source import ROOT
from strobe.perf.report.study import TraceStudy
from strobe.perf.report.trace_page.device import _MEANING
from strobe.perf.report.trace_page.structure import sections_section
from strobe.perf.table.model import Code, Count, ExactTime, Missing, Number, Table
from strobe.perf.trace import DeviceEvent

ROWS = [
    ("copy", "memcpy", 0, 10), ("flash", "kernel", 20, 50), ("gather", "kernel", 60, 70),
    ("copy", "memcpy", 100, 110), ("flash", "kernel", 112, 150), ("gather", "kernel", 150, 160),
    ("flash", "kernel", 200, 210),
]  # fmt: skip


def study(*sections: str, rows: list[tuple[str, str, int, int]] = ROWS) -> TraceStudy:
    events = [DeviceEvent(name, kind, start, end, 0, 7, 0, None) for name, kind, start, end in rows]
    return study_of(trace_of(events), sections=sections)


def table(*sections: str, rows: list[tuple[str, str, int, int]] = ROWS) -> Table:
    section = sections_section(study(*sections, rows=rows))
    assert section is not None and section.id == "sections"
    (found,) = section.blocks
    assert isinstance(found, Table) and all(len(row.cells) == len(found.columns) == 14 for row in found.rows)
    return found


def test_one_row_for_each_definition_and_device() -> None:
    found = table("memcpy:end -> flash -> gather:end", "flash:start -> gather -> copy:start")
    first = found.rows[0].cells
    assert first[2:] == (
        Code("memcpy:end -> flash -> gather:end"), Count(2), ExactTime(50), ExactTime(60), ExactTime(55), ExactTime(50),
        Missing("", "-"), ExactTime((40 + 48) // 2), ExactTime((20 + 2) // 2), ExactTime(34), Number(2.0, 1), Count(1),
    )  # fmt: skip
    assert found.notes[0].endswith("skipped of 3 focal calls: 1 no gather:end after it")
    assert found.rows[1].cells[3] == Count(1) and found.rows[1].cells[-1] == Count(1)


def test_what_is_not_there_is_said() -> None:
    none = table("memcpy:end -> flush -> gather:end").rows[0].cells
    assert none[3] == Missing("no device event matches 'flush'", "none")
    skipped = table("memset:end -> flash -> gather:end").rows[0].cells
    assert skipped[3] == Missing("3 no memset:end before it", "none") and skipped[-1] == Count(3)
    assert sections_section(study()) is None
    found = sections_section(study("a:end -> b -> c:end", rows=[]))  # a trace of a CPU: what was asked for is answered
    assert found is not None and isinstance(host := found.blocks[0], Table)
    assert host.notes == ("t, a:end -> b -> c:end: no device event matches 'b'",)


def test_the_manual_explains_every_verdict() -> None:
    text = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8").lower()
    assert [name for name in _MEANING if f"| `{name}` |" not in text and f"**{name}** means" not in text] == []
