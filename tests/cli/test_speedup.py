"""`strobe speedup` from the command to the page, the exact figures and the gate."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from artefacts import FA, FA_STAGES_MS, SECTION, VSA, VSA_STAGES_MS, fa_layers, vsa_layers, write_guide, write_trace
from model_traces import write_model_trace
from source import H200, ROOT
from terminal import Result, Strobe

PRESETS = Path(__file__).parents[2] / "benchmarks" / "presets-h200"


LEVELS = ["kernel", "section", "attention", "step", "stage", "e2e"]


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_guide(tmp_path_factory.mktemp("guide"))


def flags(guide: dict[str, Path], *more: object, focal: tuple[str, str] = (FA, VSA)) -> tuple[object, ...]:
    return (
        "speedup", "--baseline-log", guide["fa_log"], "--candidate-log", guide["vsa_log"],
        "--baseline-trace", guide["fa_trace"], "--candidate-trace", guide["vsa_trace"],
        "--focal-baseline", focal[0], "--focal-candidate", focal[1], *more,
    )  # fmt: skip


def test_the_worked_example(strobe: Strobe, guide: dict[str, Path], tmp_path: Path) -> None:
    result = strobe(*flags(guide, "--section", SECTION, "--allow-unlike", "-o", tmp_path / "report", "--json"))
    assert result.code == 0, result.err
    found = result.document
    ratios = {level: found["levels"][level]["ratio"] for level in LEVELS}
    assert {level: None if ratio is None else f"{ratio:.4f}" for level, ratio in ratios.items()} == {
        "kernel": "3.4520", "section": "1.7294", "attention": "1.3634", "step": "1.5099", "stage": "1.2513", "e2e": None,
    }  # fmt: skip
    assert [
        (line["line"], line["baseline_ns"], line["candidate_ns"], line["saved_ns"]) for line in found["call_ledger"]["lines"]
    ] == [
        ("focal kernel", "9534580", "2762085", "6772495"),
        ("section beyond the kernel (one side unmeasured)", "0", "2751012", "-2751012"),
        ("attention call beyond the section", "3464738", "4021101", "-556363"),
    ]
    assert found["call_ledger"]["saved_ns"] == "3465120" and f"{found['call_ledger']['realised_share']:.1%}" == "51.2%"
    assert found["levels"]["section"]["unlike"].startswith("unlike: kernel of the baseline against memcpy:end -> gather:end")
    assert found["levels"]["stage"]["saved_ns"] == "1446198900"
    assert any("N = 417.36, which is no integer" in each for each in found["anomalies"])
    assert any("baseline's kernel equals the candidate's attention call to 4e-05" in each for each in found["anomalies"])
    (unit,) = found["sides"]["candidate"]["attention"][0]["units"]
    assert (unit["label"], unit["unit"], unit["source"], unit["proven"]) == ("ms", "s", "inferred", True)
    assert found["sides"]["candidate"]["section"] == f"memcpy:end -> {VSA} -> gather:end"
    check_folder(tmp_path / "report", found, guide)


def check_folder(folder: Path, found: Any, guide: dict[str, Path]) -> None:
    """The page says what the document says, and what it was made from lies beside it."""
    assert {path.name for path in folder.iterdir()} == {
        "report.html", "report.md", "report.json", "speedup.json", "inputs.json",
    }  # fmt: skip
    assert json.loads((folder / "speedup.json").read_text()) == {
        key: value for key, value in found.items() if key not in ("written", "not_met")
    }
    page = (folder / "report.md").read_text()
    for text in ("3.4520", "1.3634", "1.2513", "51.2 %", "417.36", "7200.807590", "5754.608690", "12.999318", "9.534198"):
        assert text in page, text
    assert page.count("UNIT NOT AS LABELLED") >= 4, "said under every table that uses the values"
    assert len((folder / "report.html").read_bytes()) < 300_000
    listed = json.loads((folder / "inputs.json").read_text())["inputs"]
    assert {Path(each["path"]) for each in listed} == set(guide.values())
    for each in listed:
        read = Path(each["path"]).read_bytes()
        assert each["size_bytes"] == len(read) and each["sha256"] == hashlib.sha256(read).hexdigest()


def test_without_leave_the_kernel_does_not_stand_for_a_section(strobe: Strobe, guide: dict[str, Path]) -> None:
    result = strobe(*flags(guide, "--section", SECTION, "--json"))
    section = result.document["levels"]["section"]
    assert (
        section["ratio"] is None
        and section["missing"] == "baseline: 3 focal calls, none with a section: 3 no memcpy:end before it"
    )
    assert [line["line"] for line in result.document["call_ledger"]["lines"]] == [
        "focal kernel", "attention call beyond the kernel",
    ]  # fmt: skip
    unlike = flags(guide, "--section", "elementwise:end -> gemm:start", SECTION)
    refused = strobe(*unlike)
    assert refused.code == 2 and "--allow-unlike" in refused.err and refused.err.count("\n") == 1
    shown = strobe(*unlike, "--allow-unlike", "--details")
    assert shown.code == 0 and shown.out.count("unlike: elementwise:end -> gemm:start of the baseline against") >= 3


def write_host_trace(path: Path, steps_us: tuple[int, ...]) -> Path:
    """A trace of a CPU: steps, one after the other, with an operator in each."""
    events, at = [], 1_000
    for number, length in enumerate(steps_us):
        for category, name, dur in (("user_annotation", f"ProfilerStep#{number}", length), ("cpu_op", "aten::mm", length - 5)):
            events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": at, "dur": dur, "args": {}})
        at += length
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_a_side_that_was_traced_on_the_host_alone(strobe: Strobe, guide: dict[str, Path], tmp_path: Path) -> None:
    host = write_host_trace(tmp_path / "host.json", (500, 400, 600))
    logs = ("--baseline-log", guide["fa_log"], "--candidate-log", guide["vsa_log"])
    mixed = ("--baseline-trace", guide["fa_trace"], "--candidate-trace", host, "--focal-baseline", "flash")
    result = strobe("speedup", *logs, *mixed, "--unit", "s", "--json")
    assert result.code == 0, result.err
    levels = result.document["levels"]
    assert levels["stage"]["ratio"] is not None and levels["kernel"]["ratio"] is None and levels["step"]["ratio"] is None
    assert "host.json" not in result.err and "its traces hold no device events" in json.dumps(levels["kernel"])
    faster = write_host_trace(tmp_path / "faster.json", (250, 250, 250))
    both = strobe("speedup", "--baseline-trace", host, "--candidate-trace", faster, "--json")
    step = both.document["levels"]["step"]
    assert both.code == 0 and step["ratio"] == pytest.approx(2.0) and "on the host" in json.dumps(step)
    slower = write_host_trace(tmp_path / "slower.json", (2_000_000,) * 3)  # the interval stands beside the ratio
    shown = strobe("speedup", faster, slower, "--details").out
    assert re.search(r"traced step +0\.0001250 +0\.0001250 to 0\.0001250 +slower", shown)
    assert "neither kernel, section nor attention call was measured" in shown
    named = strobe("speedup", "--baseline-trace", host, "--candidate-trace", faster, "--steps", "Step#2", "--json")
    assert named.document["levels"]["step"]["ratio"] == pytest.approx(600 / 250)
    assert "host: its traces hold no device events, only the host's" in strobe("speedup", *mixed, "--details").out


def test_the_gate(strobe: Strobe, guide: dict[str, Path]) -> None:
    assert strobe(*flags(guide, "--require", "kernel>=3", "--require", "attention~>=1.3")).code == 0
    result = strobe(*flags(guide, "--require", "stage>=1.5", "--require", "e2e>=1", "--require", "attention>=1.3", "--json"))
    assert result.code == 1
    reasons = result.document["not_met"]
    assert "stage is 1.251" in reasons[0] and "e2e was not measured" in reasons[1] and "without an interval" in reasons[2]


def test_files_in_order_are_the_sides(strobe: Strobe, guide: dict[str, Path], tmp_path: Path) -> None:
    logs, traces = (guide["fa_log"], guide["vsa_log"]), (guide["fa_trace"], guide["vsa_trace"])
    by_flag = strobe("speedup", "--baseline-log", logs[0], "--candidate-log", logs[1], "--baseline-trace", traces[0],
                     "--candidate-trace", traces[1], "--json")  # fmt: skip
    for files in ((*logs, *traces), (logs[0], traces[0], logs[1], traces[1])):
        found = strobe("speedup", *files, "--json")
        assert found.code == 0 and found.document == by_flag.document
    assert "vae" in strobe("speedup", *files, "--stage", "vae").out, "a level is missing"
    records = H200 / "pair" / "records.jsonl.gz"
    names = ("--names", "^sdpa/attention$", "^sparse:triton/attention$", "--allow-different", "backend", "sparsity")
    assert strobe("speedup", records, records, *names, "--json").document["levels"]["attention"]["ratio"] is not None


def test_more_focal_kernels_than_fit_into_the_stage_are_refused(strobe: Strobe, guide: dict[str, Path]) -> None:
    result = strobe(*flags(guide, "--calls-per-stage", 100_000))
    assert result.code == 2 and "--calls-per-stage 100000: so many focal kernels of the baseline take" in result.err
    most = int(re.search(r"at most (\d+) fit", result.err)[1])  # type: ignore[index]
    assert strobe(*flags(guide, "--calls-per-stage", most)).code == 0
    assert strobe(*flags(guide, "--calls-per-stage", most + 1)).code == 2


# The answer of `strobe speedup`: first in the terminal and on the page, and changed by every lie in a copy of a trace.


Event = dict[str, Any]


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


def test_a_slower_candidate_has_a_loss(strobe: Strobe, tmp_path: Path) -> None:
    fast = write_model_trace(tmp_path / "fast.json")
    slow = changed(
        fast, "slow", lambda events: [{k: v * 2 if k in ("ts", "dur") else v for k, v in event.items()} for event in events]
    )
    said = against(strobe, fast, slow, "-o", tmp_path / "page").out.partition("candidate against baseline: 0.50x")[2]
    assert "% of a step and 100.0 % of what it loses." in said and "of the loss" in said and "saving" not in said
    assert "of the saving" in against(strobe, slow, fast, "-o", tmp_path / "page").out


def test_the_answer_is_last_in_the_terminal_and_first_on_the_page(strobe: Strobe, tmp_path: Path) -> None:
    sides = write_model_trace(tmp_path / "a.json"), write_model_trace(tmp_path / "b.json", faster=3)
    result = against(strobe, *sides, "-o", tmp_path / "page")
    at = result.out.index("candidate against baseline: 1.00x")
    for earlier in ("Speedups.", "Ledger for one step.", "every interval is unpaired"):
        assert result.out.index(earlier) < at
    for later in ("focal kernel", "Explained: ", "candidate's largest part now", "facts are missing on at least one side"):
        assert later in result.out[at:]
    report = json.loads((tmp_path / "page" / "report.json").read_text())
    assert [section["id"] for section in report["sections"]][:2] == ["answer", "settings"]
    assert [bool(section.get("folded")) for section in report["sections"]] == [False] + [True] * (len(report["sections"]) - 1)
    (figure,) = (block for block in report["sections"][0]["blocks"] if block["type"] == "figure")
    assert figure["picture"]["type"] == "waterfall"
    page = (tmp_path / "page" / "report.md").read_text()
    assert page.index("candidate against baseline: 1.00x") < page.index("Experiment settings")


def test_a_level_whose_interval_holds_1_is_not_called_faster(strobe: Strobe, tmp_path: Path) -> None:
    """Every second call of the attention kernel takes a third: faster in the mean, and no proof of it."""
    plain = write_model_trace(tmp_path / "a.json")

    def shorten_some(events: list[Event]) -> list[Event]:
        kernels = [each for each in events if each.get("cat") == "kernel" and each["name"] == "flash_fwd"]
        for each in kernels[::2]:
            each["dur"] /= 3
        return events

    said = against(strobe, plain, changed(plain, "b", shorten_some)).out.splitlines()[0]
    unproven = "The kernel is 1.50x: not proven, the interval holds 1; the traced step is 1.00x: no difference."
    assert said.startswith(unproven) and "faster" not in said


def test_without_an_interval_nothing_is_called_faster(strobe: Strobe, tmp_path: Path) -> None:
    """A trace of one step, and attention kernels of two names, against themselves; and a step with a kernel of half the time."""

    def halve(events: list[Event]) -> list[Event]:
        return [each | {"dur": each["dur"] / 2} if each["name"] == "flash_fwd" else each for each in events]

    many = write_model_trace(tmp_path / "a.json")
    one = changed(many, "one", lambda events: events[:8])  # the first step
    for other, said in ((one, "1.00x: no difference"), (changed(one, "b", halve), "2.00x: not proven, there is no interval")):
        assert against(strobe, one, other).out.startswith(f"The kernel is {said}; the traced step is ")
    two = changed(
        many, "two", lambda events: [one | {"name": "sage_attn"} if i % 16 == 4 else one for i, one in enumerate(events)]
    )
    (log := tmp_path / "a.log").write_text("[DenoisingStage] finished in 1.5 seconds\n" * 8)
    said = strobe("speedup", log, two, log, two).out
    assert said.startswith("The attention kernels are 1.00x: no difference; the stage is 1.00x: no difference.")


def test_unknown_facts_and_missing_levels_are_one_line_each(strobe: Strobe, tmp_path: Path) -> None:
    plain = write_model_trace(tmp_path / "a.json")
    result = against(strobe, plain, plain, "-o", tmp_path / "page")
    facts = against(strobe, plain, plain, "--json").document["facts"]
    unknown = [fact for fact in facts if (fact["verdict"], fact["weight"]) == ("unknown", "must")]
    assert f"{len(unknown)} facts are missing on at least one side" in result.out
    assert "model checkpoint" not in result.out and result.out.count("not recorded") <= 3
    line = "Not measured on both sides: section (no section was asked for: give --section); attention, stage, e2e (no log given)."
    assert result.out.count(line) == 1 and "Missing," not in result.out
    assert "Traces have no clock rates. " in result.out
    logs = strobe("speedup", ROOT / "examples/vsa_case/fa.log", ROOT / "examples/vsa_case/vsa.log", "--details")
    assert logs.code == 0 and "no clock rates" not in logs.out
    short = strobe("speedup", plain, plain)
    assert short.code == 0 and "missing on at least one side" not in short.out and "no clock rates" not in short.out
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


def test_the_case_of_the_tutorial_is_answered_on_a_narrow_screen(strobe: Strobe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    case = ROOT / "examples" / "vsa_case"
    files = [case / f"{name}.{kind}" for name in ("fa", "vsa") for kind in ("log", "pt.trace.json.gz")]
    result = strobe("speedup", *files)
    assert result.code == 0 and 20 < result.out.count("\n") <= 40 and max(map(len, result.out.splitlines())) <= 80


def test_the_first_line_is_the_answer(strobe: Strobe, guide: dict[str, Path], tmp_path: Path) -> None:
    """Two logs and two traces without a flag tell of kernels by name; with the calls of a stage, of the stage."""
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


def bars(stages_ms: tuple[str, ...], steps: int, step_s: str, prefix: str = "") -> str:
    """A log of rounds, each with the end of a progress bar over its steps before it."""
    bar = f"100%|##########| {steps}/{steps} [00:05<00:00, {step_s:>5}s/it]"
    return "".join(f"{bar}\n{prefix}[DenoisingStage] finished in {each} ms\n" for each in stages_ms)


@pytest.fixture
def steps(tmp_path: Path) -> dict[str, Path]:
    """Logs of nine steps in a round, and traces of four steps with 48 calls each."""

    def whole(layers: list[list[tuple[str, str, int]]]) -> list[list[tuple[str, str, int]]]:
        return [[("kernel", "embed", 1_000), *layer * 48] for layer in (*layers, layers[2])]

    logs = {"fa_log": bars(FA_STAGES_MS, 9, "0.62"), "vsa_log": bars(VSA_STAGES_MS, 9, "0.42")}
    for name, text in logs.items():
        (tmp_path / name).write_text(text)
    return {name: tmp_path / name for name in logs} | {
        "fa_trace": write_trace(tmp_path / "fa.pt.trace.json.gz", whole(fa_layers())),
        "vsa_trace": write_trace(tmp_path / "vsa.pt.trace.json.gz", whole(vsa_layers())),
    }


def of_two_ranks(shown: int) -> str:
    """Lines of two ranks, and so many of their bars."""
    lines = bars(FA_STAGES_MS, 9, "0.62", "[rank 0] ").splitlines()
    return "".join(f"{line}\n" * shown if "|" in line else f"{line}\n{line.replace('rank 0', 'rank 1')}\n" for line in lines)


FOUND = "9 steps in a round of the log ('step of a bare progress bar' ends there) x {} focal calls in a step of the trace"
TIMED = bars(FA_STAGES_MS, 9, "0.62").replace("[Denoising", ">>>> Vanilla time: 12.9 ms\n" * 9 + "[Denoising")
OTHER_RUN = "one step of the trace has 621 ms of device work, and a whole stage of the log takes 401 ms"


@pytest.mark.parametrize(
    ("log", "calls", "said"),
    [
        (bars(FA_STAGES_MS, 9, "0.62"), 432, FOUND.format(48)),
        (TIMED, None, f"one process wrote it, and {FOUND.format(48)} are 432"),
        (bars(("500", "400", "401", "402"), 4, "0.09"), None, OTHER_RUN),
        (bars(("2500", "2400", "2401", "2402"), 9, "0.26"), None,
         "the focal kernels of 9 steps take 4.12 s, and a whole stage of the log takes 2.40 s"),
        (of_two_ranks(1), 432, FOUND.format(48)),
        (of_two_ranks(2), None, ""),
    ],
    ids=["a bar", "one layer is timed", "a shorter step", "shorter kernels", "a bar of two ranks", "bars of two ranks"],
)  # fmt: skip
def test_calls_of_a_stage_are_found_in_its_progress_bar_and_the_steps_of_the_trace(
    strobe: Strobe, steps: dict[str, Path], log: str, calls: int | None, said: str
) -> None:
    steps["fa_log"].write_text(log)
    side = strobe("speedup", *steps.values(), "--json").document["sides"]["baseline"]
    assert side["calls_per_stage"] == calls and said in side["calls_from"]


def test_the_first_line_is_of_the_stage_whose_calls_are_found(strobe: Strobe, steps: dict[str, Path]) -> None:
    out = strobe("speedup", *steps.values()).out.splitlines()
    assert out[0] == (
        "The kernel is 3.45x faster, the stage 1.25x. The kernel saves 2,926 ms of a 7,201 ms stage; gathering and tiling take "
        "1,188 ms back, unexplained time grows by 442 ms, other changes save 151 ms."
    )
    assert f"Focal calls in a stage: 432 ({FOUND.format(48)})." in out


def test_a_repetition_of_little_work_is_no_step_unless_a_range_says_so(strobe: Strobe, tmp_path: Path) -> None:
    """A third of a step is work: two such repetitions may be a step of the log, which is as long as one."""
    named = write_model_trace(tmp_path / "a.json", faster=3)
    events = json.loads(gzip.decompress(write_trace(tmp_path / "b.json.gz", fa_layers()).read_bytes()))["traceEvents"]
    shorter = [{**each, "dur": each["dur"] / 3} if each["cat"] == "kernel" else each for each in events]
    found = tmp_path / "b.json"
    found.write_text(json.dumps({"traceEvents": shorter}))
    few = "a step of 12.9 ms in the log may be several of the trace's, which has 4.31 ms of device work (--steps)"
    for trace, rate, ms, expected in ((named, "10000.00", "0.95", (9, FOUND.format(1))), (found, "77.52", "120", (None, few))):
        log = tmp_path / "a.log"
        log.write_text(f"100%|####| 9/9 [00:00<00:00, {rate}it/s]\n[DenoisingStage] finished in {ms} ms\n" * 4)
        side = strobe("speedup", log, trace, log, trace, "--json").document["sides"]["baseline"]
        assert (side["calls_per_stage"], side["calls_from"]) == expected


def test_a_log_of_another_run_than_the_trace_is_said_before_the_numbers(strobe: Strobe, steps: dict[str, Path]) -> None:
    steps["fa_log"].write_text(bars(("500", "400", "401", "402"), 4, "0.09"))
    result = strobe("speedup", *steps.values(), "--allow-different", "steps")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    said = lines.index(f"  baseline: log and trace are of different runs: {OTHER_RUN}")
    assert said < lines.index("From the kernel to the whole.") and "stage of 401" not in result.out
    assert "a stage is spent on" not in result.out


def test_a_baseline_with_other_steps_is_not_comparable_and_says_how_many(strobe: Strobe, steps: dict[str, Path]) -> None:
    steps["vsa_log"].write_text(bars(VSA_STAGES_MS, 8, "0.42"))
    first = strobe("speedup", *steps.values()).out.splitlines()[0]
    differs = "denoising steps: 9 against 8; focal calls in a stage: 432 against 384"
    assert first.startswith(f"Not comparable, so there is no speedup: {differs}.")
    allowed = strobe("speedup", *steps.values(), "--allow-different", "steps", "calls").out.splitlines()
    assert allowed[0].startswith("The kernel is 3.45x faster, the stage 1.25x. The kernel saves 3,058 ms of a 7,201 ms stage")


def test_a_trace_without_a_log_and_a_log_whose_step_is_no_traced_one_say_so(
    strobe: Strobe, guide: dict[str, Path], steps: dict[str, Path]
) -> None:
    traces = strobe("speedup", steps["fa_trace"], steps["vsa_trace"]).out
    assert traces.startswith("The kernel is 3.45x faster, the traced step 1.51x. The kernel saves 325 ms of a 621 ms step;")
    assert "attention, stage, e2e (no log given)" in traces and "cannot be split" not in traces
    layers = strobe("speedup", steps["fa_log"], guide["fa_trace"], steps["vsa_log"], guide["vsa_trace"]).out
    assert (
        "baseline: a step of 620 ms in the log cannot be the trace's, which takes 12.9 ms (--steps); candidate: a step of 420 ms "
        "in the log cannot be the trace's, which takes 8.57 ms (--steps)"
    ) in layers


def test_a_log_that_is_cut_short_and_values_that_are_no_times_are_told_with_the_answer(strobe: Strobe, tmp_path: Path) -> None:
    line = "[DenoisingStage] finished in {} seconds\n"
    packed = gzip.compress("".join(map(line.format, range(1, 2_000))).encode())
    (cut := tmp_path / "a.log.gz").write_bytes(packed[:-200])
    (odd := tmp_path / "b.log").write_text("".join(map(line.format, (1.5, -1, 1.5, "nan"))))
    said = strobe("speedup", cut, odd).out
    assert "  log of the baseline: the compressed file is cut short; what could be read counts\n" in said
    assert "of the candidate: DenoisingStage, in no figure: 1 nan, 1 negative (line 2: -1 seconds, line 4: nan seconds)\n" in said
    odd.write_text(line.format("7,200"))
    assert "a time for every rank; left out: DenoisingStage: 1 ambiguous (line 1: 7,200)" in strobe("speedup", cut, odd).err


def test_without_an_account_one_line_says_so(strobe: Strobe, guide: dict[str, Path]) -> None:
    logs = ("speedup", "--baseline-log", guide["fa_log"], "--candidate-log", guide["vsa_log"], "--unit", "s")
    said = "No account of the time: no trace of the baseline and the candidate."
    (line,) = (line for line in strobe(*logs).out.splitlines() if "No account of the time" in line)
    assert line == f"The attention call is 1.36x: not proven, there is no interval; the stage is 1.25x faster. {said}"
    document = strobe(*logs, "--json").document
    answer, levels = document["answer"], document["levels"]
    assert (answer["missing"], answer["parts"], answer["unit"]) == ("no trace of the baseline and the candidate", [], "")
    assert {name for name in LEVELS if levels[name]["ratio"] is not None} == {"attention", "stage"}
    assert levels["kernel"]["missing"] == "baseline: no trace given; candidate: no trace given" and document["ledgers"] == []


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
    assert ("From the kernel to the whole." in strobe("speedup", alone, alone).out) is focal  # no table without a row


def test_a_trace_of_two_devices_says_that_one_is_compared(strobe: Strobe, tmp_path: Path) -> None:
    plain = write_model_trace(tmp_path / "a.json")
    two = changed(plain, "b", lambda events: [*events, events[4] | {"args": events[4]["args"] | {"device": 1}}])
    said = "trace b of the candidate: of its 2 devices only the one whose focal kernels, or else all, take longest is compared"
    assert said in against(strobe, plain, two).out and " devices only " not in against(strobe, plain, plain).out


# `strobe speedup` on sides that must not be compared: the page is made, it has no speedup, and no requirement holds.


@pytest.fixture
def unlike(tmp_path: Path) -> tuple[Path, Path]:
    """Two models on one GPU."""
    vit = write_model_trace(tmp_path / "vit.json", "ViT", size=(96, 20), faster=2)
    return write_model_trace(tmp_path / "bert.json", "Bert"), vit


def test_two_models_on_one_gpu_are_not_comparable(strobe: Strobe, unlike: tuple[Path, Path], tmp_path: Path) -> None:
    result = against(strobe, *unlike, "--require", "kernel~>=0.1", "--require", "step~<9", "-o", tmp_path / "page", "--json")
    found = result.document
    assert result.code == 1 and found["comparable"] is False
    assert found["obstacles"] == ["model", "weights", "shapes"]
    assert found["not_comparable_because"] == [
        "model: Bert against ViT", "weights of matrix products: 64x64 against 96x96",
        "input sizes of the focal kernel: 1x12x4x16, 1x12x4x16, 1x12x4x16 against 1x20x4x24, 1x20x4x24, 1x20x4x24",
    ]  # fmt: skip
    assert [line.split(" does not count")[0] for line in found["not_met"]] == ["candidate: kernel", "candidate: step"]
    assert all("--allow-different model weights shapes" in line for line in found["not_met"])
    for level in ("kernel", "step"):
        figure = found["levels"][level]
        assert (figure["ratio"], figure["verdict"], figure["realised"]) == (None, None, None)
        assert figure["baseline"]["mean_ns"] and figure["candidate"]["mean_ns"], "the times themselves are shown"
    page = (tmp_path / "page" / "report.md").read_text()
    assert page.startswith("# Not comparable: candidate against baseline") and "Ideal by Amdahl" not in page
    assert json.loads((tmp_path / "page" / "report.json").read_text())["speedups"] == []
    for text in (page, against(strobe, *unlike).out):
        assert "faster" not in text.replace("faster calls", "") and "not comparable" in text


def test_a_stated_fact_does_not_replace_evidence(strobe: Strobe, unlike: tuple[Path, Path]) -> None:
    result = against(strobe, *unlike, "--fact", "model=Bert", "--allow-different", "weights", "shapes", "--json")
    assert result.document["obstacles"] == ["model"]
    said = "model of the candidate is stated as Bert, and ViT was found: that counts"
    assert said in against(strobe, *unlike, "--fact", "model=Bert").out


def test_variants_of_a_run_that_differ_in_work_have_no_speedup(strobe: Strobe, tmp_path: Path) -> None:
    """Our captured run, as if one of its variants had made longer frame blocks than the reference."""
    run = tmp_path / "run"
    run.mkdir()
    lines = [json.loads(line) for line in gzip.decompress((PRESETS / "records.jsonl.gz").read_bytes()).splitlines()]
    for line in lines:
        if line["record"] == "variant" and line["name"] == "turbo":
            line["tokens_per_block"] += 64
    (run / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "traces").symlink_to(PRESETS / "traces")
    asked = ("report", run, "--out", tmp_path / "page", "--require", "turbo:e2e>=0.1", "--json")
    result = strobe(*asked)
    assert result.code == 1
    found = result.document
    assert found["comparable"] == {"balanced": True, "quality": True, "turbo": False, "ultra": True}
    assert {each["candidate"] for each in found["speedups"]} == {"balanced", "quality", "ultra"}
    assert all("not comparable (sequence length" in line and "--allow-different tokens" in line for line in found["not_met"])
    meant = strobe(*asked, "--allow-different", "tokens")
    assert meant.code == 0 and all(meant.document["comparable"].values())


def test_one_file_on_both_sides_is_said(strobe: Strobe, unlike: tuple[Path, Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy.json"
    copy.write_bytes(unlike[0].read_bytes())
    said = "bert.json is the same file on both sides"
    assert said in against(strobe, unlike[0], copy, "-o", tmp_path / "page").out
    assert said not in against(strobe, *unlike, "-o", tmp_path / "page").out
