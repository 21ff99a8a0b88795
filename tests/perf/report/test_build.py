"""The report says what the records say: values against independent arithmetic, gaps against their reasons."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import strobe
from reports import notes, records, rewrite, section, tables
from strobe.core.errors import DataError
from strobe.perf.records.record import Gate, Git
from strobe.perf.records.store import seal
from strobe.perf.report.blocks.answer import headline
from strobe.perf.report.build import build_report, report_and_findings
from strobe.perf.report.write import render_html, render_markdown, write_report
from strobe.perf.table.model import ExactTime, Headlines, Missing, Share, Text, Time

MakeRun = Callable[..., Path]
CUT_SHORT = "the run was cut short (it has no last line): {} of 24 timed clips, and what came after them is missing"


def test_a_speedup_whose_interval_holds_1_is_never_called_faster(make_run: MakeRun) -> None:
    folder = make_run()
    noise = {0: 1, 1: 7, 2: 1}  # of the baseline, by palindrome: as when something else ran
    noisy = records(folder)
    for line in noisy:
        if line["record"] == "span" and line["variant"] == "baseline":
            line["value_ns"] *= noise.get(line["palindrome"], 1)
            line["start_ns"] *= noise.get(line["palindrome"], 1)
    rewrite(folder, noisy)
    report, findings = report_and_findings([folder])
    found = findings[0]
    e2e = next(each.ratio for each in report.speedups if each.level == "e2e")
    assert e2e.value > 1.2 and e2e.low is not None and e2e.high is not None and e2e.low < 1 < e2e.high
    interval = f"{e2e.value:.2f}x [{e2e.low:.2f}, {e2e.high:.2f}]"
    assert found.answer is not None
    said = headline(found, found.answer)
    assert f"a whole clip {interval}: not proven, the interval holds 1; measure more rounds; a steady frame block" in said
    for text in (said, render_markdown(report), render_html(report)):
        assert not re.search(r"[0-9]x( \\?\[[^]]*\])? (faster|slower|as fast)", text), "faster or slower beside a figure"
    title = strobe.compare_runs(folder).title().partition(", ultra")[0].partition(", turbo")[0]
    assert title.endswith(f"[{e2e.low:.4g}, {e2e.high:.4g}] (not proven, the interval holds 1)")


@pytest.mark.parametrize(
    ("step_ms", "copies", "said"),
    [(31.0, 1.0, "the attention kernel saved nothing"), (30.9, 1.0, "changed by less than 1 %"), (31.0, 0.9, "")],
)
def test_no_share_is_realised_of_a_kernel_that_did_not_change(
    make_run: MakeRun, step_ms: float, copies: float, said: str
) -> None:
    setting = make_run.__globals__["Setting"]
    settings = (make_run.__globals__["SETTINGS"][0], setting("other", step_ms, 4, 12, copies))
    (table,) = tables(section(build_report([make_run(settings=settings)]), "chain"))
    for row in table.rows[:4]:
        cell = row.cells[-1]
        assert said in cell.reason if said else isinstance(cell, Share)
    assert said or table.rows[0].cells[-1] == Share(1.0)


def test_the_same_records_twice_give_zeros_and_ratio_one(make_run: MakeRun) -> None:
    folder = make_run()
    own = [line for line in records(folder) if "baseline" in (line.get("variant"), line.get("name"))]
    shift = 1 + max(line["order"] for line in own if "order" in line)
    twins = [{**line, "order": line["order"] + shift} if "order" in line else dict(line) for line in own]
    for line in twins:
        line["name" if line["record"] == "variant" else "variant"] = "twin"
    report = build_report([rewrite(folder, [records(folder)[0], *own, *twins])])
    assert [item.ratio.value for item in report.speedups] == [1.0] * 5
    table = tables(section(report, "ledger"))[0]
    assert all(row.cells[4] == ExactTime(0) for row in table.rows)
    answer = tables(section(report, "answer"))[0]
    assert all(row.cells[3] == Time(0) for row in answer.rows) and "Explained: " in answer.caption
    headlines = section(report, "headline").blocks[0]
    assert isinstance(headlines, Headlines) and headlines.rows[0].verdict.text == "no difference"


def test_without_traces_the_timed_levels_remain_and_the_rest_says_why(make_run: MakeRun) -> None:
    folder = make_run()
    rewrite(folder, [line for line in records(folder) if line["record"] != "trace"])
    report = build_report([folder])
    assert {item.level for item in report.speedups} == {"step", "block", "e2e"}
    assert "no traced clip in this run" in notes(section(report, "ledger"))
    assert section(report, "timeline").lead == "No picture: no variant has a traced denoise step."
    write_report(report, folder)


def test_a_changed_trace_and_a_lost_trace_are_said(make_run: MakeRun) -> None:
    folder = make_run()
    (folder / "traces" / "ultra.json.gz").unlink()
    (folder / "traces" / "turbo.json.gz").write_bytes((folder / "traces" / "baseline.json.gz").read_bytes())
    report = build_report([folder])
    said, stops = notes(section(report, "notes")), [banner.items for banner in report.banners if banner.level == "stop"]
    assert [item.partition(": ")[2].partition(";")[0] for item in stops[0]] == [
        "traces/turbo.json.gz is not the file that was recorded (its SHA-256 differs)"
    ]
    assert "ultra has no trace to show: trace traces/ultra.json.gz cannot be read: No such file or directory" in said
    (folder / "traces" / "ultra.json.gz").write_text("not a trace")
    assert str(folder) not in notes(section(build_report([folder]), "notes"))


def test_a_single_variant_is_a_report_without_comparison(make_run: MakeRun) -> None:
    folder = make_run()
    rewrite(folder, [line for line in records(folder) if line.get("variant", line.get("name")) in ("baseline", None)])
    report = build_report([folder])
    assert report.speedups == () and "no candidate" in section(report, "headline").lead
    write_report(report, folder)


def test_an_interrupted_run_reports_what_it_finished(make_run: MakeRun) -> None:
    folder = make_run()
    text = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    last = [number for number, line in enumerate(text) if '"palindrome":1' in line][-1]
    (folder / "records.jsonl").write_text("".join(text[:last]) + text[last][:40])
    report = build_report([folder])
    (banner,) = report.banners
    assert banner.level == "caution"
    assert list(banner.items) == [
        CUT_SHORT.format(15), "the last line of the records is cut short and not read",
    ]  # fmt: skip
    headlines = section(report, "headline").blocks[0]
    assert "too few for an interval" in headlines.rows[0].detail and headlines.rows[0].verdict.text == "inconclusive"
    write_report(report, folder)


def test_a_run_killed_in_its_first_clip_still_makes_a_report(make_run: MakeRun) -> None:
    folder = make_run()
    text = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    (folder / "records.jsonl").write_text("".join(text[:1]))
    report = build_report([folder])
    assert report.speedups == () and report.title == "run-a"
    assert [banner.items for banner in report.banners] == [(CUT_SHORT.format(0),)]
    pages = write_report(report, folder)
    assert all("it has no last line" in page.read_text() for page in pages) and len(pages) == 3


def test_red_gates_and_dirty_checkouts_come_before_the_numbers(make_run: MakeRun) -> None:
    folder = make_run(git=Git(commit="a" * 40, dirty=True))
    gate = Gate(variant="turbo", reference="baseline", rule="same latents", passed=False, detail="differs by 0.3")
    with (folder / "records.jsonl").open("ab") as file:
        file.write(seal(msgspec.json.encode(gate), len(records(folder)) + 1) + b"\n")
    stop, caution = build_report([folder]).banners
    assert stop.level == "stop" and stop.items == (
        "turbo failed its gate against baseline: same latents, measured differs by 0.3",
    )
    assert caution.level == "caution" and "changed files" in caution.items[0]


def test_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least one run folder"):
        build_report([])
    with pytest.raises(DataError, match="no records"):
        build_report([tmp_path])


def test_two_runs_keep_their_ratios_apart_and_are_compared_as_unpaired(make_run: MakeRun) -> None:
    first, second = make_run("run-a"), make_run("run-b")
    report = build_report([first, second])
    assert not report.banners
    assert len(report.speedups) == 2 * 15
    assert {item.candidate for item in report.speedups if item.reference == "baseline (run-b)"} == {
        "balanced (run-b)", "turbo (run-b)", "ultra (run-b)",
    }  # fmt: skip
    between = tables(section(report, "headline"))[-1]
    assert "drift between the runs is unknown" in between.notes[0]
    assert [row.cells[0] for row in between.rows] == [Text(name) for name in ("baseline", "balanced", "turbo", "ultra")]


def test_runs_of_different_code_are_not_comparable(make_run: MakeRun) -> None:
    first, second = make_run("run-a"), make_run("run-b", git=Git(commit="b" * 40, dirty=False))
    report = build_report([first, second])
    (banner,) = report.banners
    assert banner.level == "stop" and banner.title.startswith("Not comparable") and banner.items[0].startswith("commit differs")
    assert not any("different runs" in table.caption for table in tables(section(report, "headline")))


def test_clips_are_relative_to_where_the_report_lies(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    (folder / "clips" / "turbo.mp4").unlink()
    for into, prefix in ((None, ""), (tmp_path / "elsewhere", "../run-a/")):
        (videos,) = section(build_report([folder], into=into), "clips").blocks
        assert [item.path for item in videos.items] == [f"{prefix}clips/{name}.mp4" for name in ("baseline", "balanced", "ultra")]


def strip_regions(folder: Path, variant: str, names: tuple[str, ...]) -> None:
    """Take spans out of a trace, as a compiled model loses them."""
    path = folder / "traces" / f"{variant}.json.gz"
    data = json.loads(gzip.decompress(path.read_bytes()))
    data["traceEvents"] = [event for event in data["traceEvents"] if event["name"] not in {f"strobe::{name}" for name in names}]
    path.write_bytes(gzip.compress(json.dumps(data).encode()))


def test_a_trace_that_lost_its_attention_spans_claims_no_kernel_speedup(make_run: MakeRun) -> None:
    folder = make_run()
    strip_regions(folder, "turbo", ("attention", "attention_kernel"))
    report = build_report([folder])
    assert {item.level for item in report.speedups if item.candidate == "turbo"} == {"step", "block", "e2e"}
    (chain,) = section(report, "chain").blocks
    kernel = next(row for row in chain.table.rows if row.cells[:2] == (Text("turbo"), Text("kernel")))
    assert all(isinstance(cell, Missing) for cell in (kernel.cells[2], *kernel.cells[5:]))
    summary = tables(section(report, "attention"))[0]
    assert [row.cells[2] for row in summary.rows if row.cells[0] == Text("turbo")] == [
        Missing("the trace has no attention regions")
    ]
    write_report(report, folder)


def test_runs_of_a_callers_own_code_need_no_clip(make_run: MakeRun) -> None:
    folder = make_run(workload=None, model=None)
    report = build_report([folder])
    assert {item.level for item in report.speedups} == {"kernel", "section", "step", "block", "e2e"}
    assert isinstance(tables(section(report, "latency"))[0].rows[0].cells[1], Missing)
    write_report(report, folder)
