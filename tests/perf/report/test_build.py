"""The report of a run says what the records say: values against independent arithmetic, gaps against their reasons."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

import strobe
from reports import by_title, notes, records, rewrite, section, tables
from strobe.core.errors import DataError
from strobe.perf.analysis.ledger.account import total
from strobe.perf.analysis.ledger.speedup import Answer, PartLine
from strobe.perf.analysis.parts import Part
from strobe.perf.analysis.runs.compare import own_code
from strobe.perf.records.record import PLAN, Gate, Git, Plan, PlannedCell
from strobe.perf.records.store import read_run, seal
from strobe.perf.report.blocks.answer import COMPUTE_BOUND, answers_of, headline, limit
from strobe.perf.report.build import build_report, report_and_findings
from strobe.perf.report.findings import Finding
from strobe.perf.report.log_page import vary_report
from strobe.perf.report.run_page import _roofs as roofs_of
from strobe.perf.report.study import damage_of, load_study, only_pair
from strobe.perf.report.write import render_html, render_markdown, write_report
from strobe.perf.table.model import ExactTime, Headlines, Missing, Ratio, Report, Share, Table, Text, Time, speedup_words
from strobe.records import Clip, Excluded, Span, Variant

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
    assert all(row.cells[3] == Time(0) for row in answer.rows) and "of a clip's time" in section(report, "answer").lead
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


def test_a_trace_that_lost_its_attention_spans_claims_no_kernel_speedup(make_run: MakeRun) -> None:
    """As of a compiled model."""
    folder = make_run()
    path = folder / "traces" / "turbo.json.gz"
    data, lost = json.loads(gzip.decompress(path.read_bytes())), ("strobe::attention", "strobe::attention_kernel")
    data["traceEvents"] = [event for event in data["traceEvents"] if event["name"] not in lost]
    path.write_bytes(gzip.compress(json.dumps(data).encode()))
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


COMPARED = Path(__file__).parents[3] / "benchmarks" / "engine-h200" / "compare"
PASSES = "traces/ultra.passes.json.gz"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A published run of an H200; `quality` launches its kernels one by one, `ultra` replays graphs."""
    (tmp_path / "traces").mkdir()
    for name in ("records.jsonl.gz", "traces/quality.json.gz", "traces/ultra.json.gz", PASSES, "traces/sparse.passes.json.gz"):
        shutil.copyfile(COMPARED / name, tmp_path / name)
    return tmp_path


def built(run: Path) -> tuple[Report, Finding]:
    report, findings = report_and_findings([run], into=run, pair=("quality", "ultra"), allow_different=())
    return report, findings[0]


def parts(finding: Finding) -> set[Part]:
    assert finding.answer is not None
    return {part for line in finding.answer.lines for part in line.parts}


def test_the_files_of_a_published_run_are_those_that_were_recorded(run: Path) -> None:
    report, finding = built(run)
    assert damage_of(only_pair(read_run(run), ("quality", "ultra"))) == ()
    assert not any(PASSES in item for banner in report.banners for item in banner.items)
    assert Part.ATTENTION_KERNEL in parts(finding) and Part.PASS not in parts(finding)


@pytest.mark.few("another's", "gone")
@pytest.mark.parametrize("damage", ["another's", "cut", "gone", "link"])
def test_passes_that_were_not_recorded_label_nothing_and_are_said(run: Path, damage: str) -> None:
    file = run / PASSES
    data = file.read_bytes()
    file.unlink()
    if damage == "another's":
        shutil.copyfile(run / "traces/sparse.passes.json.gz", file)
    elif damage == "cut":
        file.write_bytes(data[:-20])
    elif damage == "link":
        file.symlink_to(COMPARED / PASSES)
    report, finding = built(run)
    (banner,) = (banner for banner in report.banners if any(PASSES in item for item in banner.items))
    assert banner.level == "stop" and any("the graphs of ultra are not told apart" in item for item in banner.items)
    assert Part.PASS in parts(finding) and Part.ATTENTION_KERNEL not in parts(finding)


FLOPS, READ, WRITE = 10 * 10**12, 6 * 10**9, 4 * 10**9


def edited(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """Rewrite the records line by line."""
    return rewrite(folder, [change(line) for line in records(folder)])


def with_costs(line: dict[str, Any], flops: int = FLOPS) -> dict[str, Any]:
    if line["record"] == "variant":
        cost = {"flops": flops, "read_bytes": READ, "write_bytes": WRITE}
        line["costs"] = [{"span": name, **cost} for name in ("denoise_step", "attention_kernel", "never")]
        line["dtype"] = "bfloat16"
    return line


def on_gpu(line: dict[str, Any], name: str = "NVIDIA H100 80GB HBM3") -> dict[str, Any]:
    if line["record"] == "header":
        line["machine"] |= {"device": "cuda:0", "device_name": name, "gpu_count": 1}
    return line


def roofline(folder: Path) -> Table:
    return tables(section(build_report([folder]), "roofline"))[0]


@pytest.mark.parametrize(
    ("change", "said", "columns"),
    [
        (lambda line: on_gpu(with_costs(line)), "The SM clock was not sampled while it ran", 11),
        (lambda line: on_gpu(with_costs(line, 10**14)), "ANOMALY, denoise_step", 11),
        (with_costs, "No published peaks are known for Example CPU 9000", 6),
    ],
)
def test_a_note_says_what_is_not_known_and_what_cannot_be(make_run: MakeRun, change: Any, said: str, columns: int) -> None:
    table = roofline(edited(make_run(), change))
    assert len(table.columns) == columns and "of peak at its clock" not in by_title(table)[0]
    assert any(note.startswith(said) for note in table.notes)


def test_the_attention_kernel_is_taken_from_the_trace(make_run: MakeRun) -> None:
    table = roofline(edited(make_run(), lambda line: with_costs(line, 10**9)))
    assert len(table.rows) == 2  # `never` was not measured
    row = by_title(table)[1]
    assert (row["stage"].text, row["how"].text) == ("attention_kernel", "traced")
    assert row["n"].value == 3 * 5 * 4  # frame blocks, passes, layers
    assert 0 < row["mean"].ns < 31e6


def filling(line: dict[str, Any]) -> dict[str, Any]:
    """The first of the traced frame blocks, 6 to 8, meets half a window; a quarter of a step's work is attention."""
    line = with_costs(line, 10**9)
    if line["record"] == "variant":
        line["attended_keys"] = [10, 20, 30, 40, 50, 50, 50, 100]
        for cost in line["costs"]:
            share = 1 if cost["span"] == "attention_kernel" else 4
            cost |= {"attended_flops": cost["flops"] // share, "attended_read_bytes": cost["read_bytes"] // (2 * share)}
    return line


def test_a_traced_call_counts_the_keys_that_it_attended_to(make_run: MakeRun) -> None:
    """Two of three frame blocks have a full window, one half of it; timed frame blocks are steady and count in full."""
    folder = make_run()
    changes = (lambda line: with_costs(line, 10**9), filling)
    (full_step, full_kernel), (step, kernel) = (by_title(roofline(edited(folder, change))) for change in changes)
    costs = roofs_of(load_study([folder]).subjects[0]).costs  # of a breakdown, whose steps are traced too
    assert costs["attention_kernel"].flops == round(10**9 * 5 / 6)
    assert costs["denoise_step"].flops == round(10**9 * (1 - 1 / 24))
    assert kernel["mean"] == full_kernel["mean"] and kernel["how"].text == "traced"
    assert kernel["TFLOP/s"].value == pytest.approx(full_kernel["TFLOP/s"].value * 5 / 6)
    assert kernel["GB/s"].value == pytest.approx(full_kernel["GB/s"].value * (WRITE + READ * (1 - 1 / 12)) / (WRITE + READ))
    assert (step["how"].text, step["TFLOP/s"], step["GB/s"]) == ("timed", full_step["TFLOP/s"], full_step["GB/s"])


def test_a_trace_with_a_prompt_switch_gives_no_rate_of_attention(make_run: MakeRun) -> None:
    """Its recache attends with a whole window of queries."""

    def switched(line: dict[str, Any]) -> dict[str, Any]:
        line = with_costs(line, 10**9)
        if line["record"] == "header":
            line["workload"]["prompts"][1]["frame_block"] = 7
        return line

    table = roofline(edited(make_run(), switched))
    assert [row.cells[0].text for row in table.rows] == ["denoise_step"]  # type: ignore[union-attr]


def test_a_dtype_without_a_peak_has_no_floor(make_run: MakeRun) -> None:
    def wide(line: dict[str, Any]) -> dict[str, Any]:
        line = on_gpu(with_costs(line))
        return line | {"dtype": "float64"} if line["record"] == "variant" else line

    table = roofline(edited(make_run(), wide))
    row = by_title(table)[0]
    assert isinstance(row["of peak"], Missing) and isinstance(row["floor"], Missing) and isinstance(row["of bandwidth"], Share)


def test_an_attribution_trace_gives_no_times(make_run: MakeRun) -> None:
    """A second trace line of the same variant, with options that distort times, that points nowhere."""
    folder = make_run()
    line = {"record": "trace", "v": 2, "variant": "turbo", "clip": 9, "path": "attribution/turbo.json.gz", "sha256": "0" * 64}
    line |= {"size_bytes": 1, "first_block": 6, "num_blocks": 1, "options": ["with_stack"]}
    plain = build_report([folder])
    with (folder / "records.jsonl").open("ab") as file:
        file.write(seal(json.dumps(line).encode(), len(records(folder)) + 1) + b"\n")
    report = build_report([folder])
    assert report.speedups == plain.speedups
    assert any("with with_stack: no times" in str(row.cells[0]) for row in tables(section(report, "settings"))[0].rows)


def test_the_fastest_proven_candidate_is_answered_first_and_printed_last(make_run: MakeRun) -> None:
    setting, settings = make_run.__globals__["Setting"], make_run.__globals__["SETTINGS"]
    step_ms = min(each.step_ms for each in settings) / 2
    report = build_report([make_run(settings=(settings[0], setting("swift", step_ms, 4, 12, 0.3), *settings[1:]))])
    assert report.sections[0].lead.startswith("swift against baseline: ")
    assert render_markdown(report).count("swift against baseline: ") == 1
    assert [table.caption.split()[0] for table in answers_of(report)] == [*(each.name for each in settings[1:]), "swift"]


def answer_of(times: dict[Part, tuple[int, int]]) -> Answer:
    """The answer of a step with these times of both sides."""
    lines = [
        PartLine(parts=(part,), baseline_ns=Fraction(b), candidate_ns=Fraction(c), share=None, elsewhere_ns=Fraction(0))
        for part, (b, c) in times.items()
    ]
    return Answer(
        lines=tuple(lines),
        baseline_ns=total(line.baseline_ns for line in lines),
        candidate_ns=total(line.candidate_ns for line in lines),
        unit="step",
        explained_time_share=1.0,
        explained_saving_share=None,
    )


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (
            {Part.FOCAL: 2762, Part.SECTION: 2752, Part.MATRIX: 3000, Part.GAPS: 59},
            "the focal kernel and the section around it, 64 % of a step (0.005514 of 0.008573 ms)",
        ),
        ({Part.FOCAL: 1000, Part.SECTION: 1000, Part.MATRIX: 3000}, "matrix products, 60 % of a step (0.003000 of 0.005000 ms)"),
        ({Part.FOCAL: 3000, Part.SECTION: 1000, Part.MATRIX: 1000}, "focal kernel, 60 % of a step (0.003000 of 0.005000 ms)"),
        (
            {Part.ATTENTION_KERNEL: 20, Part.ATTENTION_AROUND: 30, Part.FEED_FORWARD: 40, Part.NORMS: 10},
            "attention and the work around its kernel, 50 % of a step (0.00005000 of 0.0001000 ms)",
        ),
    ],
)
def test_a_kernel_and_its_section_limit_together_where_neither_is_the_largest_part(times: dict[Part, int], said: str) -> None:
    found = answer_of({part: (ns, ns) for part, ns in times.items()})
    assert limit("sparse", found) == f"sparse's largest part now: {said}."


def test_a_kernel_is_bound_by_its_flops_only_near_the_peak() -> None:
    """Of the largest part nothing but its rate says what bounds it; a side that waits for the host is bound by that."""

    def said(of_peak: float, waiting: int = 0, part: Part = Part.ATTENTION_KERNEL, waited: int = 0) -> str:
        times = {part: 60, Part.FEED_FORWARD: 40, Part.WAITING: waiting}
        found = answer_of({one: (waited if one is Part.WAITING else ns, ns) for one, ns in times.items()})
        return limit("sparse", found, f" at {100 * of_peak:.0f} % of the peak", of_peak)

    assert said(0.46).startswith("sparse's largest part now: attention kernel, 60 % of a step")
    assert said(0.46).endswith(" at 46 % of the peak.") and "bound" not in said(0.62)
    assert said(COMPUTE_BOUND).startswith("sparse is bound by attention FLOPs now, 60 % of a step")
    assert said(0.9, part=Part.NORMS).startswith("sparse's largest part now: norms and glue"), "the rate is attention's"
    assert said(0.9, waiting=100).startswith("sparse is bound by the host now: the GPU waits for it in 50 % of a step")
    assert said(0.9, waiting=100, waited=300).startswith(
        "sparse is still bound by the host, as the baseline (75 %): the GPU waits"
    )


NAME = "without-ring_cache"


def setting(step_ms: float, name: str = "balanced") -> SimpleNamespace:
    return SimpleNamespace(name=name, step_ms=step_ms, steps=4, window=12, copies=1.0)


WITH, WITHOUT = setting(20.0), setting(30.0, NAME)


@pytest.fixture
def cell(make_run: Callable[..., Path], tmp_path: Path) -> Path:
    """Each denoise step takes 20 ms with the optimisation and 30 without it, timed and traced alike; all else is the same."""
    left_out = PlannedCell(name=NAME, kind="leave-one-out", changes={"ring_cache": "off"})
    plan = Plan(base="balanced", request={}, values={}, idle={"compile": "no compiler"}, cells=(left_out,))
    (tmp_path / PLAN).write_bytes(msgspec.json.encode(plan))
    return make_run(f"cells/{NAME}", settings=(WITH, WITHOUT), baseline="balanced")


def row(folder: Path) -> list[str]:
    """The one row of the table."""
    page = render_markdown(vary_report(folder))
    assert "compile is asked for and does nothing here: no compiler" in page
    (table,) = page.split("**Lines that moved.**")[1:]
    (line,) = (line for line in table.splitlines() if line.startswith("| 2 without"))
    return [text.strip() for text in line.strip("|").split("|")]


def test_the_line_that_moved_most_is_named_with_its_level(cell: Path, tmp_path: Path) -> None:
    name, ratio, verdict, line, level, moved = row(tmp_path)
    assert (name, verdict) == ("2 without-ring\\_cache", "slower")
    assert (line, level) == ("denoise\\_step / attention: op", "attention section")
    assert 1.40 < 1 / float(ratio.partition("x")[0]) < 1.43  # 170 of 120 ms a frame block, its decode included
    operators, layers = 3 + 13 + 9 + 6, 4  # their shares of 94 of a layer, the kernel not among them
    per_layer_ms = (WITHOUT.step_ms - WITH.step_ms) / layers * operators / 94
    assert -float(moved) == pytest.approx(7 * 4 * layers * per_layer_ms, rel=0.05)  # 7 steady frame blocks of 4 steps; 5 % noise


def test_if_no_line_moved_with_the_whole_that_is_said(cell: Path, tmp_path: Path) -> None:
    """The traces are those of the other side: they say faster where the clips say slower."""

    lines = records(cell)
    traces = [line for line in lines if line.get("variant") and "first_block" in line]
    assert [trace["variant"] for trace in traces] == ["balanced", NAME]
    traces[0]["variant"], traces[1]["variant"] = NAME, "balanced"
    rewrite(cell, lines)
    name, ratio, verdict, line, level, moved = row(tmp_path)
    assert 1.40 < 1 / float(ratio.partition("x")[0]) < 1.43 and (name, verdict) == ("2 without-ring\\_cache", "slower")
    assert (line, level, moved) == ("- (no line of the traced frame blocks moved with the whole)", "", "-")


MS = 1_000_000
ORDER = ("slow", "fast", "fast", "slow")
SAMPLES = {"slow": (40, 44, 42, 46), "fast": (20, 22, 21, 23)}
"""Milliseconds of each sample, in order."""


def made(root: Path, kind: str, *, calls: int = 1, samples: dict[str, tuple[int, ...]] = SAMPLES, **clip: Any) -> Path:
    """A run of half as many rounds as there are samples; `odd` has failed its gate."""
    rounds = len(samples["slow"]) // 2
    order = (*ORDER[:2], "odd", "odd", *ORDER[2:])
    with strobe.create_run(root, "made") as run:
        run.append(strobe.describe_run(run.folder, torch.device("cpu"), order, rounds, kind))
        run.append(*(Variant(name=name, preset="custom", command=name if kind == "programs" else "") for name in SAMPLES))
        if kind == "calls":
            run.append(
                Gate(variant="fast", reference="slow", rule="the same", passed=True, detail="equal in every bit", exact=True),
                Gate(variant="odd", reference="slow", rule="the same", passed=False, detail="out: 1, expected 2", exact=True),
            )
        done = dict.fromkeys(SAMPLES, 0)
        for place, name in enumerate(ORDER * rounds):
            number = done[name]
            done[name] += 1
            common = {"variant": name, "clip": number, "order": place, "palindrome": place // 4}
            value_ns = samples[name][number] * MS * calls
            span = Span(**common, name="e2e", index=None, start_ns=0, value_ns=value_ns, clock="perf_counter", warmup=False)
            run.append(span, Clip(**common, phase="timed", num_spans=1, calls=calls, **clip))
        return run.folder


@pytest.mark.parametrize("calls", [1, 50])
def test_times_are_of_one_call(tmp_path: Path, calls: int) -> None:
    slow, fast, odd = own_code(strobe.read_run(made(tmp_path, "calls", calls=calls, peak_bytes=90, start_bytes=70)))
    assert [value / MS for value in slow.samples_ns] == [40, 44, 42, 46]
    assert fast.mean_ns == pytest.approx((20 * 22 * 21 * 23) ** 0.25 * MS)
    assert fast.low_ns < fast.mean_ns < fast.high_ns
    assert fast.speedup.ratio == 2.0 and slow.speedup is None
    assert (fast.peak_bytes, fast.added_bytes) == (90, 20)
    assert (odd.samples_ns, odd.mean_ns, odd.low_ns, odd.speedup, odd.peak_bytes) == ((), None, None, None, None)
    assert not odd.gate.passed and slow.gate is None


def test_a_sample_that_was_excluded_is_none(tmp_path: Path) -> None:
    folder = made(tmp_path, "calls")
    run = strobe.read_run(folder)
    left_out = Excluded(variant="fast", span="clip", clip=None, indices=(1,), kind="compilation", cause="compilation")
    found = own_code(type(run)(**{name: getattr(run, name) for name in run.__dataclass_fields__} | {"excluded": (left_out,)}))
    assert [value / MS for value in found[1].samples_ns] == [20, 21, 23]
    assert len(found[1].speedup.ratios) == 1, "its whole round"


def test_the_page_of_functions(tmp_path: Path) -> None:
    report = build_report([made(tmp_path, "calls", peak_bytes=3 << 20, start_bytes=1 << 20)])
    text = render_markdown(report).replace("\\", "")
    assert report.title == "fast and odd against slow"
    assert "2.000x [2.000, 2.000]" in text and "| 3.0 MiB | 2.0 MiB |" in text
    assert "out: 1, expected 2" in text and "outputs differ" in text
    assert "| slow | 4 | 1 | 40.00 | 42.00 |" in text, "the median is no sample longer than half of them"
    assert "No account for fast" in text and 'strobe.span("name")' in text
    assert [(each.candidate, each.level, each.ratio.value) for each in report.speedups] == [("fast", "e2e", 2.0)]


def test_the_page_of_programs(tmp_path: Path) -> None:
    folder = made(tmp_path, "programs", user_ns=7 * MS, system_ns=2 * MS, exit_status=1)
    report = build_report([folder])
    text = render_markdown(report).replace("\\", "")
    assert "| 7.000 | 2.000 |" in text, "CPU times"
    assert "about 10 MiB" in text, "why there is no peak"
    assert "failed runs" in text and not any("account" in f"{each.title} {each.lead}".lower() for each in report.sections)
    row = strobe.compare_runs(folder).calls[1]
    assert (row.user_ns, row.system_ns, row.failures, row.peak_bytes, row.equal_output) == (7 * MS, 2 * MS, 4, None, None)


def test_two_of_a_run_are_reported_alone(tmp_path: Path) -> None:
    found = strobe.compare_runs(made(tmp_path, "calls"), pair=("fast", "slow"))
    assert [(row.name, row.ratio) for row in found.calls] == [("fast", None), ("slow", 0.5)]


@pytest.mark.parametrize("pairs", [3, 4])
def test_the_two_times_beside_a_ratio_have_it_as_their_quotient(tmp_path: Path, pairs: int) -> None:
    """Means of all samples have another: a slow pair of the baseline moves them, and not the median ratio."""
    samples = {"slow": (40, 40, 44, 40, 90, 60, 30, 30)[: 2 * pairs], "fast": (20, 24, 20, 22, 21, 23, 60, 60)[: 2 * pairs]}
    folder = made(tmp_path, "calls", calls=5, samples=samples)
    found = strobe.compare_runs(folder).calls[1]
    assert found.pair_baseline_ns / found.pair_candidate_ns == pytest.approx(found.ratio, rel=1e-12)
    assert 20 * MS < found.pair_candidate_ns < 23 * MS and 40 * MS <= found.pair_baseline_ns < 43 * MS
    base, own, _ = own_code(strobe.read_run(folder))
    assert base.mean_ns / own.mean_ns != pytest.approx(found.ratio, rel=0.01)
    assert base.pair_baseline_ns is None
    shown = " -> ".join(f"{ns / MS:#.4g}" for ns in (found.pair_baseline_ns, found.pair_candidate_ns))
    assert shown in render_markdown(build_report([folder])).replace("\\", "").replace("&gt;", ">")


@pytest.mark.parametrize(
    ("ratio", "verdict", "said"),
    [
        (Ratio(1.2683, 1.25, 1.29), "faster", "1.27x [1.25, 1.29] faster than plain"),
        (Ratio(0.8696, 0.8547, 0.8850), "slower", "15 % [13, 17] slower than plain"),
        (Ratio(0.25, 0.2, 0.5), "slower", "4.00x [2.00, 5.00] slower than plain"),
        (
            Ratio(0.0034, 0.0031, 1.2),
            "inconclusive",
            "0.0034x [0.0031, 1.20] of plain's speed: not proven, the interval holds 1; measure more rounds",
        ),
        (Ratio(0.998, 0.99, 1.01), "no difference", "1.00x [0.99, 1.01] of plain's speed: no difference"),
        (Ratio(1.5), "inconclusive", "1.50x of plain's speed: not proven, there is no interval; measure more rounds"),
        (
            Ratio(1.53, 0.13, 7.39),
            "inconclusive",
            "1.53x [0.13, 7.39] of plain's speed: not proven, the interval holds 1; measure more rounds",
        ),
        (
            Ratio(1.005, 1.001, 1.04),
            "inconclusive",
            "1.00x [1.00, 1.04] of plain's speed: not proven, the difference is too small to count",
        ),
    ],
)
def test_a_speedup_is_said_as_a_practitioner_says_it(ratio: Ratio, verdict: str, said: str) -> None:
    assert speedup_words(ratio, verdict, "plain") == said
