"""The speedup report as a value: every table is whole, every picture adds up."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from artefacts import FA, SECTION, VSA, write_guide, write_trace
from reports import section, tables
from strobe.perf.analysis.structure.sections import parse_section
from strobe.perf.logs import read_log
from strobe.perf.report.blocks.fields import page
from strobe.perf.report.blocks.kernels import focal_section
from strobe.perf.report.blocks.logs import input_file, inputs_section, ranges
from strobe.perf.report.documents.speedup import speedup_document
from strobe.perf.report.speedup_page.build import anomalies, build_speedup_report
from strobe.perf.report.speedup_page.study import SideRequest, SpeedupRequest, SpeedupStudy, load_speedup
from strobe.perf.report.write import render_html, render_markdown
from strobe.perf.table.model import Count, ExactTime, Figure, Report, Table, Text, Waterfall
from strobe.perf.table.rows import to_json

CAPTURES = Path(__file__).parents[4] / "benchmarks" / "presets-h200" / "traces"


NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_guide(tmp_path_factory.mktemp("guide"))


def request(guide: dict[str, Path]) -> SpeedupRequest:
    sides = [
        SideRequest(name=name, log=guide[log], traces=(guide[trace],), focal=focal, section=parse_section(SECTION, focal))
        for name, log, trace, focal in (("baseline", "fa_log", "fa_trace", FA), ("candidate", "vsa_log", "vsa_trace", VSA))
    ]
    return SpeedupRequest(baseline=sides[0], candidate=sides[1], allow_unlike=True)


@pytest.fixture(scope="module")
def presets() -> SpeedupStudy:
    """Our own captures: two presets of one model."""
    section = parse_section("range:attention:start -> nvjet -> range:attention:end")
    sides = [
        SideRequest(name=side, traces=(CAPTURES / f"{name}.json.gz",), focal="nvjet", section=section)
        for side, name in (("baseline", "baseline"), ("candidate", "ultra"))
    ]
    return load_speedup(SpeedupRequest(baseline=sides[0], candidate=sides[1], allow_different=("compiled",)))


def all_tables(report: Report) -> list[Table]:
    return [table for each in report.sections for table in tables(each)]


def figure(report: Report, name: str) -> Figure:
    return next(block for block in section(report, name).blocks if isinstance(block, Figure))


def check_whole(report: Report) -> None:
    assert len({each.id for each in report.sections}) == len(report.sections)
    for table in all_tables(report):
        for row in table.rows:
            assert len(row.cells) == len(table.columns), table.caption
    page = render_html(report)
    assert len(page.encode()) < 300_000 and render_markdown(report)


def test_logs_alone_say_nothing_of_what_a_kernel_saved(guide: dict[str, Path]) -> None:
    sides = [SideRequest(name=name, log=guide[log]) for name, log in (("baseline", "fa_log"), ("candidate", "vsa_log"))]
    page = render_markdown(
        build_speedup_report(load_speedup(SpeedupRequest(baseline=sides[0], candidate=sides[1], calls=2, unit="s")))
    )
    assert "saved nothing" not in page
    assert "What the focal kernel saved is not known" in page


def test_the_seven_parts_of_the_guide(guide: dict[str, Path]) -> None:
    report = build_speedup_report(load_speedup(request(guide)))
    check_whole(report)
    assert [each.id for each in report.sections] == [
        "answer", "settings", "stages", "attention", "kernels", "sections", "speedups", "ledger", "timeline", "flame", "notes",
        "inputs",
    ]  # fmt: skip
    stages = tables(section(report, "stages"))[0]
    heads = [row.cells[0] for row in stages.rows]
    assert heads == [Text(name) for name in ("run_01", "run_02", "run_03", "run_04", "avg_all_rounds", "avg_excl_warmup")]
    assert stages.rows[-1].cells[1:] == (ExactTime(7_200_807_590), ExactTime(5_754_608_690))
    kernels = tables(section(report, "kernels"))[0]
    assert [cell for cell in kernels.rows[1].cells if isinstance(cell, ExactTime)] == [
        ExactTime(8_286_255), ExactTime(2_761_085), ExactTime(2_762_085), ExactTime(2_762_085), ExactTime(2_763_085),
    ]  # fmt: skip
    assert [speedup.level for speedup in report.speedups] == ["kernel", "section", "attention", "step", "stage"]


def test_every_table_that_uses_the_timers_says_that_the_unit_is_not_the_label(guide: dict[str, Path]) -> None:
    report = build_speedup_report(load_speedup(replace(request(guide), calls=384)))
    loud = {table.caption for table in all_tables(report) if any("UNIT NOT AS LABELLED" in note for note in table.notes)}
    assert loud == {"Attention timers.", "Speedups.", "From the kernel to one stage.", "Ledger for one stage."}


def test_waterfalls_end_where_the_candidate_stands(guide: dict[str, Path], presets: SpeedupStudy) -> None:
    for study in (load_speedup(request(guide)), load_speedup(replace(request(guide), calls=384)), presets):
        report = build_speedup_report(study)
        check_whole(report)
        pictures = [block.picture for each in report.sections for block in each.blocks if isinstance(block, Figure)]
        waterfalls = [picture for picture in pictures if isinstance(picture, Waterfall)]
        assert waterfalls
        for picture in waterfalls:
            first, *steps, last = picture.bars
            assert first.total and last.total and not any(bar.total for bar in steps)
            assert [bar.start_ns for bar in (*steps, last)][:-1] == [first.stop_ns, *(bar.stop_ns for bar in steps)][:-1]
            assert (steps[-1].stop_ns if steps else first.stop_ns) == last.stop_ns


def twelve(tmp_path: Path) -> SpeedupStudy:
    """Thirteen repetitions a side, the last of which nothing bounds; all but the copies vary."""
    sides, copy = [], ("gpu_memcpy", "copy", 9_000)
    for name, focal in (("baseline", 900_000), ("candidate", 400_000)):
        layers = [
            [("kernel", "flash", focal + 977 * (7 * n % 13)), ("kernel", "gemm", 700_000 - 3_001 * (5 * n % 13)), copy]
            for n in range(13)
        ]
        trace = write_trace(tmp_path / f"{name}.json.gz", layers)
        sides.append(SideRequest(name=name, traces=(trace,), focal="flash"))
    return load_speedup(SpeedupRequest(baseline=sides[0], candidate=sides[1], steps="flash"))


def test_lines_of_enough_steps_carry_intervals_into_every_form_of_the_report(tmp_path: Path) -> None:
    study = twelve(tmp_path)
    (account,) = study.accounts
    spread = account.intervals
    assert spread.steps == (12, 12) and spread.total is not None
    report = build_speedup_report(study)
    check_whole(report)
    shown = figure(report, "ledger")
    at = [column.title for column in shown.table.columns].index("95 % interval")
    cells = {row.cells[1]: row.cells[at] for row in shown.table.rows}
    focal = spread.lines["focal: kernel"]
    assert cells[Text("focal kernel")] == Text(f"{focal.low / 1e6:.6f} to {focal.high / 1e6:.6f}")
    assert cells[Text("copies")] == Text("0.000000 to 0.000000")
    assert cells[Text("sum of all lines")] == Text(f"{spread.total.low / 1e6:.6f} to {spread.total.high / 1e6:.6f}")
    assert any("12 of the baseline and 12 of the candidate, unpaired, drift unknown" in note for note in shown.table.notes)
    bar = next(bar for bar in shown.picture.bars if bar.label == "focal kernel")
    assert (bar.low_ns, bar.high_ns) == (round(bar.start_ns - focal.high), round(bar.start_ns - focal.low))
    assert bar.low_ns < bar.stop_ns < bar.high_ns
    last = shown.picture.bars[-1]
    assert last.low_ns is not None and last.high_ns is not None and last.low_ns < last.stop_ns < last.high_ns
    page, text = render_html(report), render_markdown(report)
    assert page.count('class="interval"') == sum(bar.low_ns is not None for bar in shown.picture.bars) >= 2
    assert "| 95 % interval (ms) |" in text and page == render_html(build_speedup_report(twelve(tmp_path)))
    (ledger,) = to_json(speedup_document(study))["ledgers"]
    assert (ledger["saved_low_ns"], ledger["saved_high_ns"]) == (round(spread.total.low, 3), round(spread.total.high, 3))
    assert ledger["intervals"] == {"steps": [12, 12], "none_because": ""}
    assert [line["saved_low_ns"] for line in ledger["lines"] if line["line"] == "focal kernel"] == [round(focal.low, 3)]


def test_two_steps_have_no_intervals_and_the_table_says_why(guide: dict[str, Path]) -> None:
    study = load_speedup(request(guide))
    table = figure(build_speedup_report(study), "ledger").table
    assert "95 % interval" not in [column.title for column in table.columns]
    assert "No intervals: 2 and 2 compared steps, and an interval needs 5 on each side." in table.notes
    (ledger,) = to_json(speedup_document(study))["ledgers"]
    assert ledger["saved_low_ns"] is None and {line["saved_low_ns"] for line in ledger["lines"]} == {None}


def test_one_label_with_two_units_is_told(guide: dict[str, Path]) -> None:
    unproven = replace(request(guide).baseline, traces=(), focal=None, section=None)
    study = load_speedup(replace(request(guide), baseline=unproven))
    (said,) = (each for each in anomalies(study) if "labelled 'ms'" in each)
    assert "read as ms on the baseline and as s on the candidate" in said


def test_a_timer_that_did_not_wait_is_told(guide: dict[str, Path], tmp_path: Path) -> None:
    log = tmp_path / "late.log"
    log.write_text("".join(f">>>> VSA time: 0.00280{number} s\n" for number in range(8)))
    slow = replace(request(guide).candidate, log=log)
    report = build_speedup_report(load_speedup(replace(request(guide), candidate=slow)))
    notes = render_markdown(report)
    assert "traced section" in notes and "longer than the whole attention call" in notes


def test_communication_is_split_into_waiting_and_moving(tmp_path: Path) -> None:
    """Rank 1 is late by 0.5 ms in each of four collectives of 1 ms."""
    paths = []
    for rank in (0, 1):
        layer = [("kernel", "flash", 9_000_000), ("kernel", "gemm", 3_000_000 + rank * 500_000)]
        path = write_trace(tmp_path / f"{rank}.json.gz", [[*layer, ("kernel", NCCL, 1_500_000 - rank * 500_000)]] * 4, rank)
        document = json.loads(gzip.decompress(path.read_bytes()))
        for event in document["traceEvents"]:
            if event["name"] == NCCL:
                event["args"] |= {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
        path.write_bytes(gzip.compress(json.dumps(document).encode()))
        paths.append(path)
    side = SideRequest(name="baseline", traces=tuple(paths), focal="flash")
    report = build_speedup_report(load_speedup(SpeedupRequest(baseline=side, candidate=replace(side, name="candidate"))))
    check_whole(report)
    table = next(table for table in all_tables(report) if table.caption.startswith("Communication of every rank"))
    assert [row.cells[1:] for row in table.rows[:2]] == [
        (Text("rank 0"), Count(4), ExactTime(2_000_000), ExactTime(4_000_000), Count(0)),
        (Text("rank 1"), Count(4), ExactTime(0), ExactTime(4_000_000), Count(4)),
    ]
    assert len(table.rows) == 4


DATA = Path(__file__).parents[3] / "data" / "logs"


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
