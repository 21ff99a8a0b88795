"""Extract sections: every table says where its units come from, what was left out and which files were read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from strobe.perf.analysis.runs.log_times import LogRequest, attention_summary, stage_rounds
from strobe.perf.logs import Constraint, read_log
from strobe.perf.report.blocks.fields import page
from strobe.perf.report.blocks.kernels import focal_section
from strobe.perf.report.blocks.logs import (
    attention_section,
    input_file,
    inputs_section,
    ranges,
    stages_section,
)
from strobe.perf.report.model import ExactTime, Table, decode_report, encode_report
from strobe.perf.report.write import render_markdown

DATA = Path(__file__).parents[2] / "data" / "logs"
KERNEL = Constraint(rule="at_least", bound_ns=2_762_085, what="the 2.76 ms kernel inside it")


def test_the_stage_table_has_every_round_and_both_averages() -> None:
    paths = (DATA / "mislabelled_seconds.log", DATA / "interleaved_ranks.log")
    logs = [(path.name, stage_rounds(LogRequest(log=read_log(path)))) for path in paths]
    first, second, by_rank = stages_section(logs).blocks
    assert isinstance(first, Table) and isinstance(second, Table) and isinstance(by_rank, Table)
    heads = [row.cells[0].text for row in first.rows]  # type: ignore[union-attr]
    assert heads == [*(f"run_{n:02d}" for n in range(1, 8)), "avg_all_rounds", "avg_excl_warmup"]
    assert first.rows[1].cells[1] == ExactTime(5_754_608_690)
    assert first.rows[-1].cells[1] == ExactTime(5_754_609_167)  # 5754.6091666.. ms
    notes = "\n".join(second.notes)
    for words in (
        "slowest of 2 ranks",
        "not in avg_excl_warmup: run_01 (first round: a fixed rule",
        "the last 1 rounds are left out",
    ):
        assert words in notes
    assert by_rank.collapsed and [column.title for column in by_rank.columns] == ["round", "rank 1", "rank 0"]


def test_an_inferred_unit_is_said_under_every_table_that_uses_it() -> None:
    log = read_log(DATA / "mislabelled_seconds.log")
    found = attention_summary(LogRequest(log=log, constraints=(KERNEL,)))
    (table,) = attention_section([("candidate", found, ("a remark",))]).blocks
    assert isinstance(table, Table)
    assert table.notes[0].startswith(
        "candidate: VSA: UNIT NOT AS LABELLED: labelled ms, but only s fits (9.53 ms): 9.53 µs would be shorter than the 2.76 ms"
    )
    assert any("8 left out (values 1-8): in round 1" in note for note in table.notes) and table.notes[-1] == "candidate: a remark"
    stages = stage_rounds(LogRequest(log=log, constraints=(Constraint(rule="at_least", bound_ns=10**10, what="a lower bound"),)))
    (table,) = stages_section([("a", stages)]).blocks
    assert isinstance(table, Table) and "UNIT NOT AS LABELLED" in table.notes[0]


def test_every_line_and_every_file_is_accounted_for() -> None:
    names = ("similar.log", "no_times.log")
    logs = [read_log(DATA / name) for name in names]
    section = inputs_section([input_file(DATA / name) for name in names], logs)
    text = render_markdown(page(title="title", subtitle="subtitle", sections=[section]))
    for name in names:
        assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() in text
    assert "| similar.log | 11 | 4 | 2 | 0 | 5 | 0 | 0 | 0 | 4 | 0 | complete |" in text
    assert "| no\\_times.log | 9 | 9 | 0 | 0 | 0 | 0 | 0 | 0 | 2 | 7 | complete |" in text
    assert "| similar.log | 3 | attention | &gt;&gt;&gt;&gt; VSA time: unknown |" in text
    assert "| no\\_times.log | 5 | VSA | -0.5 ms | negative |" in text


def test_foreign_names_are_escaped_and_the_report_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "a|b`<script>.log"
    path.write_text("[<b>EvilStage] finished in 1 s\n[<b>EvilStage] finished in 2 s\n>>>> a|b time: x|y ms\n")
    log = read_log(path)
    section = stages_section([(path.name, stage_rounds(LogRequest(log=log), "evil"))])
    report = page(title="t", subtitle="s", sections=[section, inputs_section([input_file(path)], [log])])
    text = render_markdown(report)
    assert "<script>" not in text and "<b>" not in text and "a\\|b\\`&lt;script&gt;.log" in text
    assert decode_report(encode_report(report)) == report


def test_a_trace_without_the_kernel_has_a_row() -> None:
    (table,) = focal_section([("rank 0", ())], "flash").blocks
    assert isinstance(table, Table) and len(table.rows) == 1
    assert "none" in render_markdown(page(title="t", subtitle="s", sections=[focal_section([("rank 0", ())], "flash")]))


@pytest.mark.parametrize(
    ("indices", "text"),
    [((), ""), ((0,), "1"), ((3, 1, 2, 7), "2-4, 8"), (tuple(range(0, 20, 2)), "1, 3, 5, 7, 9, 11 and 4 more stretches")],
)
def test_ranges(indices: tuple[int, ...], text: str) -> None:
    assert ranges(indices) == text
