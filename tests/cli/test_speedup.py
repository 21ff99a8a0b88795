"""`strobe speedup` from the command to the page, the exact figures and the gate."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from artefacts import FA, SECTION, VSA, fa_layers, vsa_layers, write_guide, write_log, write_trace
from captures import H200
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


def test_the_same_inputs_give_the_same_files(strobe: Strobe, guide: dict[str, Path], tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert strobe(*flags(guide, "--section", SECTION, "-o", tmp_path / name)).code == 0
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


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


def test_known_calls_reach_the_stage(strobe: Strobe, guide: dict[str, Path]) -> None:
    found = strobe(*flags(guide, "--calls-per-stage", 384, "--json")).document
    assert found["call_ledger"]["unit"] == found["ledgers"][0]["unit"] == "stage"
    assert found["call_ledger"]["lines"][-1]["saved_ns"] == str(1_446_198_900 - 384 * 3_465_120)
    for ledger in (found["call_ledger"], found["ledgers"][0]):
        assert sum(int(line["saved_ns"]) for line in ledger["lines"]) == int(ledger["saved_ns"]) == 1_446_198_900
    assert any("417.36 of them: N = 384 leaves 115.592820 ms" in each for each in found["anomalies"])


def test_a_run_against_itself(strobe: Strobe, guide: dict[str, Path]) -> None:
    same = dict.fromkeys(("fa_log", "vsa_log"), guide["fa_log"]) | dict.fromkeys(("fa_trace", "vsa_trace"), guide["fa_trace"])
    result = strobe(*flags(same, "--json", focal=(FA, FA)))
    found = result.document
    for level in ("kernel", "attention", "step", "stage"):
        assert (found["levels"][level]["ratio"], found["levels"][level]["verdict"]) == (1.0, "no difference")
    for ledger in (found["call_ledger"], *found["ledgers"]):
        assert {line["saved_ns"] for line in ledger["lines"]} == {"0"}
    assert not found["anomalies"]


def test_any_input_may_be_missing(strobe: Strobe, guide: dict[str, Path], tmp_path: Path) -> None:
    logs = strobe("speedup", "--baseline-log", guide["fa_log"], "--candidate-log", guide["vsa_log"], "--unit", "s", "--json")
    assert logs.code == 0, logs.err
    levels = logs.document["levels"]
    assert {name for name in LEVELS if levels[name]["ratio"] is not None} == {"attention", "stage"}
    assert levels["kernel"]["missing"] == "baseline: no trace given; candidate: no trace given" and logs.document["ledgers"] == []
    traces = strobe("speedup", "--baseline-trace", guide["fa_trace"], "--candidate-trace", guide["vsa_trace"], "--json").document
    assert {name for name in LEVELS if traces["levels"][name]["ratio"] is not None} == {"kernel", "step"}
    both = strobe(
        "speedup", "--baseline-log", guide["fa_log"], "--candidate-log", guide["vsa_log"], "--unit", "s", "-o", tmp_path
    )
    assert both.code == 0 and "No ledger: no trace of the baseline and the candidate" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"baseline-log": "fa_log"}, "--baseline-log is of one: give --candidate-log too"),
        ({"candidate-trace": "vsa_trace"}, "--candidate-trace is of one: give --baseline-trace too"),
        ({"baseline-log": "fa_log", "candidate-trace": "vsa_trace"}, "give --candidate-log or --baseline-trace too"),
    ],
)
def test_one_side_alone_is_no_speedup(strobe: Strobe, guide: dict[str, Path], given: dict[str, str], says: str) -> None:
    result = strobe("speedup", *(word for flag, name in given.items() for word in (f"--{flag}", guide[name])))
    assert result.code == 2 and says in result.err and result.err.count("\n") == 1, result.err


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
    assert "host: its traces hold no device events, only the host's" in strobe("speedup", *mixed, "--details").out


def test_what_differs_is_not_comparable_unless_it_is_meant_to(strobe: Strobe, guide: dict[str, Path]) -> None:
    facts = ("--fact", "frames=121", "baseline:sparsity=0", "candidate:sparsity=0.7")
    plain = strobe(*flags(guide, *facts, "--json")).document
    assert plain["not_comparable_because"] == ["sparsity: 0 against 0.7"] and not plain["comparable"]
    assert "Not comparable" in strobe(*flags(guide, *facts)).out
    meant = strobe(*flags(guide, *facts, "--allow-different", "sparsity", "--json")).document
    assert meant["comparable"]
    verdicts = {each["name"]: each["verdict"] for each in meant["facts"]}
    assert (verdicts["sparsity"], verdicts["frames"], verdicts["device"], verdicts["dtype"]) == (
        "allowed",
        "same",
        "same",
        "unknown",
    )


def test_the_gate(strobe: Strobe, guide: dict[str, Path]) -> None:
    assert strobe(*flags(guide, "--require", "kernel>=3", "--require", "attention~>=1.3")).code == 0
    result = strobe(*flags(guide, "--require", "stage>=1.5", "--require", "e2e>=1", "--require", "attention>=1.3", "--json"))
    assert result.code == 1
    reasons = result.document["not_met"]
    assert "stage is 1.251" in reasons[0] and "e2e was not measured" in reasons[1] and "without an interval" in reasons[2]


def two_ranks(folder: Path, layers: Any, slow: int) -> Path:
    folder.mkdir()
    for rank in (0, 1):
        write_trace(folder / f"host_{rank}.pt.trace.json", layers(3_000_000 + slow * (rank == 1)), rank=rank)
    return folder


def test_every_rank_has_its_ledger_and_the_slowest_counts(strobe: Strobe, tmp_path: Path) -> None:
    folders = two_ranks(tmp_path / "fa", fa_layers, 500_000), two_ranks(tmp_path / "vsa", vsa_layers, 100_000)
    given = ("--baseline-trace", folders[0], "--candidate-trace", folders[1], "--focal-baseline", FA, "--focal-candidate", VSA)
    found = strobe("speedup", *given, "--json").document
    assert [each["ranks"] for each in found["ledgers"]] == ["slowest rank (rank 1 against rank 1)", "rank 0", "rank 1"]
    saved = [int(line["saved_ns"]) for line in found["ledgers"][0]["lines"] if line["line"] == "other kernels"]
    other = [int(line["saved_ns"]) for line in found["ledgers"][1]["lines"] if line["line"] == "other kernels"]
    assert saved[0] - other[0] == 500_000 - 100_000
    shown = strobe("speedup", *given, "-o", tmp_path / "page")
    assert shown.code == 0 and "Every rank, for one step" in (tmp_path / "page" / "report.md").read_text()


def test_a_counted_log_knows_its_calls(strobe: Strobe, guide: dict[str, Path], tmp_path: Path) -> None:
    def log(path: Path, timer: str, call_s: str, stage_ms: str) -> Path:
        write_log(path, timer, (), ())
        lines = []
        for _ in range(4):
            lines += [f">>>> {timer} time: {call_s} s"] * 6 + [f"[DenoisingStage] finished in {stage_ms} ms"]
        path.write_text("\n".join(lines))
        return path

    counted = guide | {
        "fa_log": log(tmp_path / "a.log", "Vanilla", "0.012", "100"), "vsa_log": log(tmp_path / "b.log", "VSA", "0.008", "70"),
    }  # fmt: skip
    found = strobe(*flags(counted, "--json")).document
    assert found["sides"]["baseline"]["calls_per_stage"] == 6 and "counted in the log" in found["sides"]["baseline"]["calls_from"]
    assert found["call_ledger"]["unit"] == "stage" and found["call_ledger"]["saved_ns"] == "30000000"
    assert found["levels"]["attention"]["low"] is not None, "rounds do not depend on each other"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--focal-baseline", "flush"), "flush"),
        (("--section", "memcpy -> gather:end"), "must end with :start or :end"),
        (("--allow-different", "model", "sparsty"), "did you mean 'sparsity'?); allowed: commit, model, checkpoint"),
        (("--fact", "frames"), "NAME=VALUE"),
        (("--priority", "focal", "comm"), "name each of"),
        (("--require", "fast"), "--require"),
        (("--require", "block>1"), "block"),
        (("--between", "9s..1s"), "no value lies between"),
        (("--between", "9s"), "write SHORTEST..LONGEST"),
        (("--section", "a", "b", "c"), "one for both sides, or two"),
        (("--fact", "candidate:frames"), "NAME=VALUE"),
        (("--baseline", "quality"), "RUN_DIR"),
        (("--names", "", "sparse"), "no attention timer 'sparse'"),
        (("--stage", "vae"), "vae"),
    ],
)
def test_bad_input_is_one_line(strobe: Strobe, guide: dict[str, Path], more: tuple[str, ...], says: str) -> None:
    given = list(flags(guide))
    if more[0] in given:
        del given[given.index(more[0]) : given.index(more[0]) + 2]
    result: Result = strobe(*given, *more)
    if more[0] == "--stage":  # a stage that is not there is a missing level, not an error
        assert result.code == 0 and says in result.out
        return
    assert result.code == 2 and says in result.err and result.err.count("\n") == 1, result.err


def test_two_variants_of_a_run(strobe: Strobe, tmp_path: Path) -> None:
    """Any two variants of an interleaved run, with the paired intervals of the report of our own runs."""
    run = tmp_path / "run"
    shutil.copytree(PRESETS, run)
    result = strobe("speedup", run, "--baseline", "quality", "--candidate", "turbo", "--require", "e2e>=1.2", "--json")
    assert result.code == 0, result.err
    assert {(each["candidate"], each["reference"]) for each in result.document["speedups"]} == {("turbo", "quality")}
    assert {Path(path).parent for path in result.document["report"].values()} == {run / "turbo-against-quality"}
    e2e = next(each for each in result.document["speedups"] if each["level"] == "e2e")
    assert e2e["low"] < e2e["ratio"] < e2e["high"]
    page = (run / "turbo-against-quality" / "report.md").read_text()
    assert "turbo against quality" in page and "| ultra" not in page and "| balanced" not in page
    back = strobe("speedup", run, "--baseline", "turbo", "--candidate", "quality", "--json").document
    inverse = next(each for each in back["speedups"] if each["level"] == "e2e")
    assert inverse["ratio"] == pytest.approx(1 / e2e["ratio"], rel=1e-3), "medians of an even number of pairs"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--baseline", "quality"), "RUN_DIR --baseline A --candidate B"),
        (("--baseline", "quality", "--candidate", "turbo2"), "did you mean 'turbo'"),
        (("--baseline", "quality", "--candidate", "quality"), "against itself"),
        (("--baseline", "quality", "--candidate", "turbo", "--section", "a:end -> b:end"), "leave out --section"),
        (("--baseline", "quality", "--candidate", "turbo", "--baseline-log", "x.log"), "leave out --baseline-log"),
        (("--baseline", "quality", "--candidate", "turbo", "--unit", "s"), "--unit and the like"),
        (("--baseline", "quality", "--candidate", "turbo", "--stage", "vae"), "leave out"),
    ],
)
def test_a_run_folder_takes_two_variants(strobe: Strobe, tmp_path: Path, more: tuple[str, ...], says: str) -> None:
    result = strobe("speedup", PRESETS, *more, "-o", tmp_path / "page")
    assert result.code == 2 and says in result.err and not (tmp_path / "page").exists()


def test_files_in_order_are_the_sides(strobe: Strobe, guide: dict[str, Path], tmp_path: Path) -> None:
    logs, traces = (guide["fa_log"], guide["vsa_log"]), (guide["fa_trace"], guide["vsa_trace"])
    by_flag = strobe("speedup", "--baseline-log", logs[0], "--candidate-log", logs[1], "--baseline-trace", traces[0],
                     "--candidate-trace", traces[1], "--json")  # fmt: skip
    for files in ((*logs, *traces), (logs[0], traces[0], logs[1], traces[1])):
        found = strobe("speedup", *files, "--json")
        assert found.code == 0 and found.document == by_flag.document
    gone = strobe("speedup", logs[0], tmp_path / "gone.log")
    assert gone.code == 2 and "gone.log: No such file" in gone.err and gone.err.count("\n") == 1
    records = H200 / "pair" / "records.jsonl.gz"
    names = ("--names", "^sdpa/attention$", "^sparse:triton/attention$", "--allow-different", "backend", "sparsity")
    assert strobe("speedup", records, records, *names, "--json").document["levels"]["attention"]["ratio"] is not None
    for wrong, said in (
        ((logs[0],), f"{logs[0]} is the only log: add the other side's; the baseline's comes first"),
        ((*traces, traces[0]), f"{traces[0]}: these are 3 traces; give two, the baseline's first"),
        (
            (*logs, "--baseline-log", logs[0]),
            "a log is given by a flag too; give both logs as files, the baseline's first, or both",
        ),
    ):
        result = strobe("speedup", *wrong)
        assert result.code == 2 and said in result.err


def test_nothing_to_compare(strobe: Strobe) -> None:
    result = strobe("speedup")
    assert result.code == 2 and "--baseline-log" in result.err


@pytest.mark.parametrize("calls", [0, -3])
def test_a_stage_has_at_least_one_call(strobe: Strobe, guide: dict[str, Path], calls: int) -> None:
    for verb in (flags(guide), ("extract", "attention", "--candidate-log", guide["vsa_log"])):
        result = strobe(*verb, "--calls-per-stage", calls)
        assert result.code == 2 and f"--calls-per-stage {calls}: a stage has 1 or more" in result.err


def test_more_focal_kernels_than_fit_into_the_stage_are_refused(strobe: Strobe, guide: dict[str, Path]) -> None:
    result = strobe(*flags(guide, "--calls-per-stage", 100_000))
    assert result.code == 2 and "--calls-per-stage 100000: so many focal kernels of the baseline take" in result.err
    most = int(re.search(r"at most (\d+) fit", result.err)[1])  # type: ignore[index]
    assert strobe(*flags(guide, "--calls-per-stage", most)).code == 0
    assert strobe(*flags(guide, "--calls-per-stage", most + 1)).code == 2


def test_lines_that_match_no_pattern_are_told(strobe: Strobe, tmp_path: Path) -> None:
    log = tmp_path / "new.log"
    log.write_text("start\n>>>> VSA time: 12.5 parsecs\n")
    result = strobe("speedup", "--baseline-log", log, "--candidate-log", log, "--details")
    assert result.code == 0
    said = "Log of the baseline: 1 lines look like a timing and match no pattern; line 2: >>>> VSA time: 12.5 parsecs"
    assert said in result.out
