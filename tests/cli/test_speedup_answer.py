"""The answer of `strobe speedup`: first in the terminal and on the page, and changed by every lie in a copy of a trace."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from artefacts import FA, FA_STAGES_MS, SECTION, VSA, VSA_STAGES_MS, fa_layers, vsa_layers, write_guide, write_trace
from model_traces import write_model_trace
from source import ROOT
from terminal import Result, Strobe

Event = dict[str, Any]
SPAN = "range:attention:start -> range:attention:end"


def against(strobe: Strobe, before: Path, after: Path, *more: object) -> Result:
    focal = ("--focal-baseline", "flash", "--focal-candidate", "flash")
    return strobe("speedup", "--baseline-trace", before, "--candidate-trace", after, *focal, *more, "--details")


def changed(path: Path, name: str, change: Callable[[list[Event]], list[Event]]) -> Path:
    """A copy of a trace with other events."""
    document = json.loads(path.read_text())
    document["traceEvents"] = change(document["traceEvents"])
    copy = path.with_name(f"{name}.json")
    copy.write_text(json.dumps(document))
    return copy


def labelled(path: Path) -> Path:
    """A trace of steps whose attention and matrix product are launched inside a range `attention`."""

    def label(events: list[Event]) -> list[Event]:
        steps = [each for each in events if each["name"].startswith("ProfilerStep")]
        return [*events, *({**each, "name": "attention", "ts": each["ts"] + 10, "dur": 100} for each in steps)]

    return changed(write_model_trace(path), f"{path.stem}-labelled", label)


def parts(result: Result) -> dict[str, tuple[float, float]]:
    """Microseconds of each part on both sides, after the sums were checked against the account."""
    assert result.code == 0, result.err
    found = result.document
    answer, ledger = found["answer"], found["ledgers"][0]
    for key in ("baseline_ns", "candidate_ns", "saved_ns"):
        assert sum(Fraction(part[key]) for part in answer["parts"]) == Fraction(ledger[key])
    assert len(answer["parts"]) <= 8
    return {part["part"]: tuple(float(Fraction(part[key])) / 1e3 for key in ("baseline_ns", "candidate_ns"))
            for part in answer["parts"]}  # fmt: skip


def test_a_slower_candidate_has_a_loss(strobe: Strobe, tmp_path: Path) -> None:
    fast = write_model_trace(tmp_path / "fast.json")
    slow = changed(
        fast, "slow", lambda events: [{k: v * 2 if k in ("ts", "dur") else v for k, v in event.items()} for event in events]
    )
    said = against(strobe, fast, slow, "-o", tmp_path / "page").out.partition("candidate against baseline: 0.50x")[2]
    assert "% of a step and 100.0 % of what it loses." in said and "of the loss" in said and "saving" not in said
    assert "of the saving" in against(strobe, slow, fast, "-o", tmp_path / "page").out


def test_parts_worked_out_by_hand(strobe: Strobe, tmp_path: Path) -> None:
    sides = write_model_trace(tmp_path / "a.json"), write_model_trace(tmp_path / "b.json", faster=3)
    result = against(strobe, *sides, "--json")
    assert parts(result) == {"focal kernel": (60, 20), "matrix products": (30, 10), "gaps between kernels": (10, 70)}
    answer = result.document["answer"]
    assert answer["unit"] == "step" and answer["levels"] == ["step"] and answer["missing"] == ""
    assert answer["limit"] == "candidate's largest part now: gaps between kernels, 70 % of a step (0.07000 of 0.1000 ms)."


def test_a_renamed_kernel_changes_the_account(strobe: Strobe, tmp_path: Path) -> None:
    plain = write_model_trace(tmp_path / "a.json")

    def rename(events: list[Event]) -> list[Event]:
        return [{**each, "name": "mystery"} if each["name"] == "gemm" else each for each in events]

    found = parts(against(strobe, plain, changed(plain, "b", rename), "--json"))
    assert (found["matrix products"], found["other kernels"]) == ((30, 0), (0, 30)) and found["focal kernel"] == (60, 60)


def test_a_dropped_label_changes_the_account(strobe: Strobe, tmp_path: Path) -> None:
    whole = labelled(tmp_path / "a.json")

    def drop(events: list[Event]) -> list[Event]:
        return [each for each in events if each["name"] != "attention"]

    same = parts(against(strobe, whole, whole, "--section", SPAN, "--json"))
    assert same["section around the focal kernel"] == (30, 30) and "matrix products" not in same
    result = against(strobe, whole, changed(whole, "b", drop), "--section", SPAN, "--json")
    assert parts(result)["section around the focal kernel"] == (30, 0) and parts(result)["matrix products"] == (0, 30)
    assert "none with a section" in result.document["levels"]["section"]["missing"]


def test_a_step_that_is_left_out_changes_the_account(strobe: Strobe, tmp_path: Path) -> None:
    plain = write_model_trace(tmp_path / "a.json")

    def leave_out(events: list[Event]) -> list[Event]:
        """Without what the third step launched, and without its range."""
        gone = {each["args"]["correlation"] for each in events if each["args"].get("correlation", 0) // 10 == 2}
        return [each for each in events
                if each["args"].get("correlation") not in gone and each["name"] != "ProfilerStep#2"]  # fmt: skip

    assert parts(against(strobe, plain, plain, "--json"))["gaps between kernels"] == (10, 10)
    result = against(strobe, plain, changed(plain, "b", leave_out), "--json")
    assert parts(result)["gaps between kernels"] == (10, 35), "one of four steps lasts as long as two"
    assert [side["traces"][0]["steps"] for side in result.document["sides"].values()] == [5, 4]
    assert Fraction(result.document["answer"]["candidate_ns"]) == 125_000


def test_the_answer_is_last_in_the_terminal_and_first_on_the_page(strobe: Strobe, tmp_path: Path) -> None:
    sides = write_model_trace(tmp_path / "a.json"), write_model_trace(tmp_path / "b.json", faster=3)
    result = against(strobe, *sides, "-o", tmp_path / "page")
    at = result.out.index("candidate against baseline: 1.00x")
    for earlier in ("Speedups.", "Ledger for one step.", "every interval is unpaired"):
        assert result.out.index(earlier) < at
    for later in ("focal kernel", "Explained: ", "candidate's largest part now", "facts are not recorded on both sides"):
        assert later in result.out[at:]
    report = json.loads((tmp_path / "page" / "report.json").read_text())
    assert [section["id"] for section in report["sections"]][:2] == ["answer", "settings"]
    assert [bool(section.get("folded")) for section in report["sections"]] == [False] + [True] * (len(report["sections"]) - 1)
    (figure,) = (block for block in report["sections"][0]["blocks"] if block["type"] == "figure")
    assert figure["picture"]["type"] == "waterfall"
    page = (tmp_path / "page" / "report.md").read_text()
    assert page.index("candidate against baseline: 1.00x") < page.index("Experiment settings")


def test_unknown_facts_and_missing_levels_are_one_line_each(strobe: Strobe, tmp_path: Path) -> None:
    plain = write_model_trace(tmp_path / "a.json")
    result = against(strobe, plain, plain, "-o", tmp_path / "page")
    facts = against(strobe, plain, plain, "--json").document["facts"]
    unknown = [fact for fact in facts if (fact["verdict"], fact["weight"]) == ("unknown", "must")]
    assert f"{len(unknown)} facts are not recorded on both sides" in result.out
    assert "model checkpoint" not in result.out and result.out.count("not recorded") <= 3
    line = "Not measured on both sides: section (no section was asked for: give --section); attention, stage, e2e (no log given)."
    assert result.out.count(line) == 1 and "Missing," not in result.out
    assert "Traces hold no clocks: " in result.out
    logs = strobe("speedup", ROOT / "examples/vsa_case/fa.log", ROOT / "examples/vsa_case/vsa.log", "--details")
    assert logs.code == 0 and "no clocks" not in logs.out
    short = strobe("speedup", plain, plain)
    assert short.code == 0 and "not recorded on both sides" not in short.out and "no clocks" not in short.out
    report = json.loads((tmp_path / "page" / "report.json").read_text())
    assert "banners" not in report or not any("recorded" in item for each in report["banners"] for item in each["items"])
    settings = next(section for section in report["sections"] if section["id"] == "settings")
    assert any("model checkpoint" in note for note in settings["blocks"][0]["notes"])


def test_what_contradicts_stands_above_the_answer(strobe: Strobe, tmp_path: Path) -> None:
    """The log's attention call is 50 microseconds, and the kernel inside it took 60."""
    plain = write_model_trace(tmp_path / "a.json")
    log = tmp_path / "a.log"
    log.write_text(">>>> VSA time: 0.050 ms\n" * 8)
    more = ("--baseline-log", log, "--unit", "ms")
    unit = "baseline: VSA: labelled ms; read as ms, as the unit option says, against what is known: 50.0 µs would be shorter"
    said = "baseline: the traced kernel (0.060000 ms) is longer than the whole attention call of the log (0.050000 ms)"
    result = against(strobe, plain, plain, *more, "-o", tmp_path / "page")
    head = "Figures contradict each other"
    assert result.out.index(head) < result.out.index(said) < result.out.index("candidate against baseline")
    assert result.out.count(said) == 1, "no late note says it again"
    page = (tmp_path / "page" / "report.md").read_text()
    assert page.index(said) < page.index("candidate against baseline: 1.00x")
    document = against(strobe, plain, plain, *more, "--json").document
    assert [text.startswith(each) for text, each in zip(document["contradictions"], (said, unit), strict=True)] == [True] * 2
    assert set(document["contradictions"]) <= set(document["anomalies"])


def test_a_coincidence_is_a_caution_above_the_answer(strobe: Strobe, tmp_path: Path) -> None:
    guide = write_guide(tmp_path)
    result = strobe(
        "speedup", "--baseline-log", guide["fa_log"], "--candidate-log", guide["vsa_log"], "--baseline-trace", guide["fa_trace"],
        "--candidate-trace", guide["vsa_trace"], "--focal-baseline", FA, "--focal-candidate", VSA, "--section", SECTION,
        "--details",
    )  # fmt: skip
    said = "the baseline's kernel equals the candidate's attention call to 4e-05: a copy or a coincidence"
    assert result.out.count(said) == 1 and result.out.index(said) < result.out.index("What a step is spent on.")
    assert "1.25x [1.25, 1.25] for the stage; 1.51x [1.51, 1.51] for the traced step" in result.out


def test_the_case_of_the_tutorial_is_answered_on_a_narrow_screen(strobe: Strobe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    case = ROOT / "examples" / "vsa_case"
    files = [case / f"{name}.{kind}" for name in ("fa", "vsa") for kind in ("log", "pt.trace.json.gz")]
    result = strobe("speedup", *files)
    assert result.code == 0 and 20 < result.out.count("\n") <= 40 and max(map(len, result.out.splitlines())) <= 80


def test_the_first_line_is_the_answer(strobe: Strobe, tmp_path: Path) -> None:
    """Two logs and two traces without a flag tell of kernels by name; with the calls of a stage, of the stage."""
    guide = write_guide(tmp_path)
    inputs = ("speedup", guide["fa_log"], guide["fa_trace"], guide["vsa_log"], guide["vsa_trace"])
    plain = strobe(*inputs).out
    assert plain.splitlines()[0] == (
        "The kernel is 3.45x faster, the stage 1.25x. The kernel saves 6.773 ms of a 12.94 ms step; gathering and tiling take "
        "2.752 ms back, other changes save 0.3500 ms."
    )
    assert (
        plain.count("\n") <= 40
        and "Vanilla: labelled ms, but only s fits (13.0 ms): 13.0 µs would be shorter than the 9.53 ms kernel inside it" in plain
    )
    ladder = [
        line.split()[-6:]
        for line in plain.splitlines()
        if line.startswith(("focal kernel,", "attention call,", "traced", "stage"))
    ]
    assert ladder == [
        ["3.4520", "9.534580", "2.762085", "6.772495", "-", "-"],
        ["12.999318", "9.534198", "3.465120", "3.307375", "51.2", "%"],
        ["12.944580", "8.573097", "4.371483", "2.401012", "64.5", "%"],
        ["1.2513", "7200.807590", "5754.608690", "1446.198900", "-", "-"],
    ]
    changed_most = "focal kernel 9.535 -> 2.762 ms; vectorized_gather_kernel 1.552 ms (new); tile_kernel 1.200 ms (new)."
    assert f"Changed most in a step: {changed_most}" in plain
    assert (
        "The 1,446 ms that the stage saves cannot be split by part: the log counts neither attention calls nor steps in its "
        "rounds. --calls-per-stage N splits them; each call saves 6.772 ms."
    ) in plain.splitlines()
    of_stage = (
        "The kernel is 3.45x faster, the stage 1.25x. The kernel saves 2,926 ms of a 7,201 ms stage; {} take 1,189 ms back, "
        "unexplained time grows by 442 ms, other changes save 151 ms."
    )
    told = strobe(*inputs, "--calls-per-stage", "432", "-o", tmp_path / "page").out
    assert told.splitlines()[0] == of_stage.format("gathering and tiling") and "Focal calls in a stage" not in told
    assert json.loads((tmp_path / "page" / "report.json").read_text())["subtitle"] == told.splitlines()[0]
    cut = (*inputs, "--focal-baseline", FA, "--focal-candidate", VSA, "--section", SECTION, "--calls-per-stage", "432")
    assert strobe(*cut).out.splitlines()[0] == of_stage.format("gathering and tiling")


def bars(path: Path, stages_ms: tuple[str, ...], steps: int, step_s: str, prefix: str = "") -> Path:
    """A log of rounds, each with the end of a progress bar over its steps before it."""
    bar = f"100%|##########| {steps}/{steps} [00:05<00:00, {step_s:>5}s/it]"
    path.write_text("".join(f"{bar}\n{prefix}[DenoisingStage] finished in {each} ms\n" for each in stages_ms))
    return path


@pytest.fixture
def steps(tmp_path: Path) -> dict[str, Path]:
    """Logs of nine steps in a round, and traces of four steps with 48 calls each."""

    def whole(layers: list[list[tuple[str, str, int]]]) -> list[list[tuple[str, str, int]]]:
        return [[("kernel", "embed", 1_000), *layer * 48] for layer in (*layers, layers[2])]

    return {
        "fa_log": bars(tmp_path / "fa.log", FA_STAGES_MS, 9, "0.62"),
        "vsa_log": bars(tmp_path / "vsa.log", VSA_STAGES_MS, 9, "0.42"),
        "fa_trace": write_trace(tmp_path / "fa.pt.trace.json.gz", whole(fa_layers())),
        "vsa_trace": write_trace(tmp_path / "vsa.pt.trace.json.gz", whole(vsa_layers())),
    }


def test_calls_of_a_stage_are_found_in_its_progress_bar_and_the_steps_of_the_trace(
    strobe: Strobe, steps: dict[str, Path]
) -> None:
    found = strobe("speedup", *steps.values(), "--json").document
    said = "9 steps in a round of the log ('step of a bare progress bar' ends there) x 48 focal calls in a step of the trace"
    assert [(side["calls_per_stage"], side["calls_from"]) for side in found["sides"].values()] == [(432, said)] * 2
    assert found["answer"]["unit"] == "stage"
    out = strobe("speedup", *steps.values()).out.splitlines()
    assert out[0] == (
        "The kernel is 3.45x faster, the stage 1.25x. The kernel saves 2,926 ms of a 7,201 ms stage; gathering and tiling take "
        "1,188 ms back, unexplained time grows by 442 ms, other changes save 151 ms."
    )
    assert f"Focal calls in a stage: 432 ({said})." in out


def test_a_repetition_of_little_work_is_no_step_unless_a_range_says_so(strobe: Strobe, tmp_path: Path) -> None:
    """A third of a step is work: two such repetitions may be a step of the log, which is as long as one."""
    named = write_model_trace(tmp_path / "a.json", faster=3)
    events = json.loads(gzip.decompress(write_trace(tmp_path / "b.json.gz", fa_layers()).read_bytes()))["traceEvents"]
    shorter = [{**each, "dur": each["dur"] / 3} if each["cat"] == "kernel" else each for each in events]
    found = tmp_path / "b.json"
    found.write_text(json.dumps({"traceEvents": shorter}))
    many = "9 steps in a round of the log ('step of a bare progress bar' ends there) x 1 focal calls in a step of the trace"
    few = "a step of 12.9 ms in the log may be several of the trace's, which has 4.31 ms of device work (--steps)"
    for trace, rate, ms, expected in ((named, "10000.00", "0.95", (9, many)), (found, "77.52", "120", (None, few))):
        log = tmp_path / "a.log"
        log.write_text(f"100%|####| 9/9 [00:00<00:00, {rate}it/s]\n[DenoisingStage] finished in {ms} ms\n" * 4)
        side = strobe("speedup", log, trace, log, trace, "--json").document["sides"]["baseline"]
        assert (side["calls_per_stage"], side["calls_from"]) == expected


def test_a_count_of_calls_that_the_steps_contradict_is_not_used(strobe: Strobe, steps: dict[str, Path]) -> None:
    """The log times the calls of one layer alone."""
    text = steps["fa_log"].read_text().splitlines(keepends=True)
    timed = [">>>> Vanilla time: 12.9 ms\n" * 9 + line if "finished" in line else line for line in text]
    steps["fa_log"].write_text("".join(timed))
    side = strobe("speedup", *steps.values(), "--json").document["sides"]["baseline"]
    assert side["calls_per_stage"] is None
    assert side["calls_from"].startswith("counted in the log: 9 values") and side["calls_from"].endswith(
        "step of the trace are 432"
    )


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ((("500", "400", "401", "402"), 4, "0.09"),
         "one step of the trace has 621 ms of device work, and a whole stage of the log takes 401 ms"),
        ((("2500", "2400", "2401", "2402"), 9, "0.26"),
         "the focal kernels of 9 steps take 4.12 s, and a whole stage of the log takes 2.40 s"),
    ],
)  # fmt: skip
def test_a_log_of_another_run_than_the_trace_is_said_before_the_numbers(
    strobe: Strobe, steps: dict[str, Path], log: tuple[tuple[str, ...], int, str], says: str
) -> None:
    bars(steps["fa_log"], *log)
    result = strobe("speedup", *steps.values(), "--allow-different", "steps")
    assert result.code == 0, result.err
    said = f"  baseline: log and trace are of different runs: {says}"
    lines = result.out.splitlines()
    assert lines.index(said) < lines.index("From the kernel to the whole.") and "stage of 401" not in result.out
    assert "a stage is spent on" not in result.out


def test_a_baseline_with_other_steps_is_not_comparable_and_says_how_many(strobe: Strobe, steps: dict[str, Path]) -> None:
    bars(steps["vsa_log"], VSA_STAGES_MS, 8, "0.42")
    first = strobe("speedup", *steps.values()).out.splitlines()[0]
    differs = "denoising steps: 9 against 8; focal calls in a stage: 432 against 384"
    assert first.startswith(f"Not comparable, so there is no speedup: {differs}.")
    allowed = strobe("speedup", *steps.values(), "--allow-different", "steps", "calls").out.splitlines()
    assert allowed[0].startswith("The kernel is 3.45x faster, the stage 1.25x. The kernel saves 3,058 ms of a 7,201 ms stage")


@pytest.mark.parametrize(("shown", "calls"), [(1, 432), (2, None)])
def test_of_several_ranks_one_bar_counts_and_two_that_cannot_be_told_apart_do_not(
    strobe: Strobe, steps: dict[str, Path], shown: int, calls: int | None
) -> None:
    for name, stages in (("fa_log", FA_STAGES_MS), ("vsa_log", VSA_STAGES_MS)):
        lines = bars(steps[name], stages, 9, "0.62" if name == "fa_log" else "0.42", "[rank 0] ").read_text().splitlines()
        both = [line if "|" in line else f"{line}\n{line.replace('rank 0', 'rank 1')}" for line in lines]
        steps[name].write_text("".join(f"{line}\n" * (shown if "|" in line else 1) for line in both))
    result = strobe("speedup", *steps.values())
    sides = strobe("speedup", *steps.values(), "--json").document["sides"]
    assert [side["calls_per_stage"] for side in sides.values()] == [calls] * 2
    assert ("cannot be split by part: the log counts neither" in result.out) is (calls is None)


def test_a_trace_without_a_log_and_a_log_whose_step_is_no_traced_one_say_so(strobe: Strobe, steps: dict[str, Path]) -> None:
    traces = strobe("speedup", steps["fa_trace"], steps["vsa_trace"]).out
    assert traces.startswith("The kernel is 3.45x faster, the traced step 1.51x. The kernel saves 325 ms of a 621 ms step;")
    assert "attention, stage, e2e (no log given)" in traces and "cannot be split" not in traces
    guide = write_guide(steps["fa_log"].parent / "guide")
    layers = strobe("speedup", steps["fa_log"], guide["fa_trace"], steps["vsa_log"], guide["vsa_trace"]).out
    assert (
        "baseline: a step of 620 ms in the log cannot be the trace's, which takes 12.9 ms (--steps); candidate: a step of 420 ms "
        "in the log cannot be the trace's, which takes 8.57 ms (--steps)"
    ) in layers


def test_sides_that_are_not_comparable_have_two_columns_and_no_headline(strobe: Strobe, tmp_path: Path) -> None:
    sides = write_model_trace(tmp_path / "a.json", "Bert"), write_model_trace(tmp_path / "b.json", "ViT", faster=2)
    result = against(strobe, *sides, "-o", tmp_path / "page")
    answer = result.out[result.out.rindex("Not comparable, so there is no speedup: model: Bert against ViT.") :]
    head = next(line for line in answer.splitlines() if line.startswith("part "))
    assert head.split() == ["part", "baseline", "ms", "candidate", "ms"]
    assert "x [" not in answer and "instead of" not in answer and "of the saving" not in answer
    report = json.loads((tmp_path / "page" / "report.json").read_text())
    assert [block["type"] for block in report["sections"][0]["blocks"]] == ["table", "notes"], "no waterfall between them"
    found = against(strobe, *sides, "--json").document["answer"]
    assert found["levels"] == [] and found["explained_saving_share"] is None
    assert {part["share"] for part in found["parts"]} == {None}


def test_without_an_account_one_line_says_so(strobe: Strobe, tmp_path: Path) -> None:
    guide = write_guide(tmp_path)
    logs = ("speedup", "--baseline-log", guide["fa_log"], "--candidate-log", guide["vsa_log"], "--unit", "s")
    said = "No account of the time: no trace of the baseline and the candidate."
    (line,) = (line for line in strobe(*logs).out.splitlines() if "No account of the time" in line)
    assert line == f"The attention call is 1.36x faster, the stage 1.25x. {said}"
    answer = strobe(*logs, "--json").document["answer"]
    assert (answer["missing"], answer["parts"], answer["unit"]) == ("no trace of the baseline and the candidate", [], "")


@pytest.mark.parametrize(
    ("focal", "unit"), [(True, "a focal call with the time up to the next one"), (False, "the whole traced window")]
)
def test_without_a_step_it_says_what_the_unit_is(strobe: Strobe, tmp_path: Path, focal: bool, unit: str) -> None:
    plain = write_model_trace(tmp_path / "a.json")

    def once(events: list[Event]) -> list[Event]:
        """The first step alone, without its range."""
        return [each for each in events if each["args"].get("correlation", 99) < 10 or each["cat"] == "cpu_op"]

    def other(events: list[Event]) -> list[Event]:
        """The same without a kernel of attention."""
        return [{**each, "name": each["name"].replace("flash", "mystery")} for each in once(events)]

    alone = changed(plain, "b", once if focal else other)
    result = strobe("speedup", alone, alone, "--details")
    assert result.code == 0, result.err
    answer = result.out[result.out.rindex("candidate against baseline") :]
    assert "No step was recognised on both sides (" in answer and f"so the times are of {unit}." in answer
    assert ("Nothing says that both windows hold the same work." in answer) is not focal


def test_the_first_sentence_adds_up(strobe: Strobe) -> None:
    """What is saved less what is taken back is the difference of the stage, as far as its figures are printed."""
    case = ROOT / "examples" / "vsa_case"
    files = [case / f"{name}.{kind}" for name in ("fa", "vsa") for kind in ("log", "pt.trace.json.gz")]
    first = strobe("speedup", *files, "--calls-per-stage", "432").out.splitlines()[0]
    saves, takes, grows, others = (
        int(re.search(pattern, first)[1].replace(",", ""))
        for pattern in (r"saves ([\d,]+) ms", r"take ([\d,]+) ms back", r"grows by ([\d,]+) ms", r"changes save ([\d,]+) ms")
    )
    assert saves - takes - grows + others == 1_446
