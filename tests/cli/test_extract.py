"""`strobe extract` from logs and traces to tables, and the command line on our own captures of an H200."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from source import H200, ROOT
from strobe.cli.main import USAGE
from terminal import Strobe

LOGS = Path(__file__).parents[1] / "data" / "logs"
VSA = LOGS / "mislabelled_seconds.log"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """16 calls of 10 ms: a range that launches a focal kernel of 2.762085 ms and more, and a gather; 5.45 ms on the device."""
    events = []
    for call in range(16):
        at = 1_000_000 + 10_000 * call
        events.append({"ph": "X", "cat": "user_annotation", "name": "attention", "pid": 1, "tid": 1, "ts": at, "dur": 100})
        for n, (name, start, dur) in enumerate((("_attn_fwd_sparse", 50, 2762.085 + call / 1000), ("gather", 3000, 2500))):
            link = {"correlation": 2 * call + n + 1}
            launch = {"name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at + 10 + 10 * n, "dur": 5, "args": link}
            work = {"name": name, "pid": 0, "tid": 7, "ts": at + start, "dur": dur, "args": {**link, "device": 0, "stream": 7}}
            events += [{"ph": "X", "cat": "cuda_runtime", **launch}, {"ph": "X", "cat": "kernel", **work}]
    path = tmp_path / "vsa.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_stages_to_markdown_and_json(strobe: Strobe, tmp_path: Path) -> None:
    out = tmp_path / "new" / "stages.md"
    result = strobe("extract", "stages", VSA, LOGS / "tqdm.log", "-o", out, "--json")
    assert result.code == 0, result.err
    first, second = result.document["stages"]
    assert (first["log"], first["stage"], len(first["rounds_ns"])) == (VSA.name, "LTX2DenoisingStage", 7)
    assert first["rounds_ns"][1] == 5_754_608_690 and first["avg_excl_warmup_ns"] == pytest.approx(5_754_609_166.67, abs=0.01)
    assert list(first["excluded"]) == ["run_01"] and second["rounds_ns"] == [9_038_900_000, 9_012_500_000]
    assert [file["sha256"] for file in result.document["inputs"]] == [sha256(VSA), sha256(LOGS / "tqdm.log")]
    text = out.read_text()
    assert (
        "| run\\_02 | 5754.608690 |" in text and "| **avg\\_excl\\_warmup** | **5754.609167** |" in text and sha256(VSA) in text
    )


def test_stages_print_tables(strobe: Strobe) -> None:
    result = strobe("extract", "stages", LOGS / "similar.log", "--stage", "vae|diffusion")
    assert result.code == 0 and "VAE decoding, by round." in result.out and "run_01" in result.out
    assert "5 lines look like a timing and match no pattern; line 1: >>>> VSA latency: 9.5 ms" in result.err
    assert strobe("extract", "stages", LOGS / "similar.log", "--quiet").err == ""


def test_attention_with_a_proven_unit(strobe: Strobe, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "attention.md"
    flags = ("--candidate-log", VSA, "--candidate-trace", trace, "--focal-candidate", "_attn_fwd_sparse", "-o", out)
    result = strobe("extract", "attention", *flags, "--json")
    assert result.code == 0, result.err
    (timer,) = result.document["attention"]
    (unit,) = timer["units"]
    assert (unit["unit"], unit["source"], unit["proven"]) == ("s", "inferred", True)
    assert timer["calls"]["mean_ns"] == pytest.approx(9_534_198, abs=2_000) and timer["method"] == "steady"
    assert {file["sha256"] for file in result.document["inputs"]} == {sha256(VSA), sha256(trace)}
    assert "UNIT NOT AS LABELLED" in out.read_text()
    assert "UNIT NOT AS LABELLED" in strobe("extract", "attention", *flags).out


def test_attention_windows_and_an_override(strobe: Strobe) -> None:
    flags = ("--baseline-log", VSA, "--between", "5ms..20ms", "--unit", "s", "--json")
    (timer,) = strobe("extract", "attention", *flags).document["attention"]
    assert timer["method"] == "window" and timer["calls"]["n"] == 48
    assert timer["excluded"] == {"outside the window: at least 5.00 ms and at most 20.0 ms": 8}
    assert timer["units"][0]["source"] == "override"


def test_a_timer_that_did_not_wait_stops_and_asks(strobe: Strobe, trace: Path, tmp_path: Path) -> None:
    log = tmp_path / "fast.log"
    log.write_text(">>>> VSA time: 0.22 ms\n" * 8)
    flags = ("--candidate-log", log, "--candidate-trace", trace, "--focal-candidate", "_attn")
    stopped = strobe("extract", "attention", *flags)
    assert stopped.code == USAGE and "the timer did not wait for the device" in stopped.err and "--unit" in stopped.err
    assert stopped.err.count("\n") == 1
    (timer,) = strobe("extract", "attention", *flags, "--range", "attention", "--unit", "ms", "--json").document["attention"]
    assert "far below the 5.45 ms" in timer["remarks"][0]


def test_kernels(strobe: Strobe, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "kernels.md"
    result = strobe("extract", "kernels", trace, "--focal", "_attn_fwd", "-o", out, "--json")
    assert result.code == 0, result.err
    ((device,),) = (each["devices"] for each in result.document["kernels"])
    calls = device["calls"]
    assert (calls["n"], calls["min_ns"], calls["max_ns"], calls["p50_ns"]) == (16, 2_762_085, 2_762_100, 2_762_092)
    assert calls["sum_ns"] == 16 * 2_762_085 + sum(range(16))
    assert "| 16 | 44.193480 | 2.762085 | 2.762092 | 2.762092 | - (max of 16) | 2.762100 |" in out.read_text()


def test_what_is_no_trace_is_skipped_in_a_folder_and_an_error_by_name(strobe: Strobe, trace: Path, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(trace.read_bytes())
    other = tmp_path / "report.json"
    other.write_text('{"title": "a page"}')
    result = strobe("extract", "kernels", tmp_path, "--focal", "_attn_fwd")
    assert result.code == 0 and "_attn_fwd_sparse" in result.out and f"skipped {other}" in result.err
    result = strobe("extract", "kernels", tmp_path, other, "--focal", "_attn_fwd")
    assert result.code == 2 and str(other) in result.err


PAIR = H200 / "pair"


def test_a_graph_is_declared_or_not_comparable(strobe: Strobe) -> None:
    found = strobe("speedup", H200 / "eager.json.gz", H200 / "graph.json.gz", "--json").document
    assert (found["comparable"], found["not_comparable_because"]) == (False, ["CUDA or HIP graphs: none seen against yes"])


def test_a_page_without_its_traces_says_so(strobe: Strobe, tmp_path: Path) -> None:
    folder = shutil.copytree(PAIR, tmp_path / "pair")
    (folder / "traces" / "sdpa.json.gz").unlink()
    assert strobe("report", folder).code == 0
    page = (folder / "report.md").read_text()
    assert "traces/sdpa.json.gz is not there any more" in page and "| sparse-triton | sparse-triton.json.gz |" in page


PAGES = ("docs/traces.md", "docs/speedup.md", "docs/tutorial_speedup.md", "docs/profile.md")
BLOCKS = [
    (page, block)
    for page in PAGES
    for block in re.findall(r"^```\n(\$ strobe .*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
]


@pytest.mark.parametrize(
    ("page", "block"),
    [
        pytest.param(page, block, id=f"{page}-{i}", marks=pytest.mark.rest if "engine-h200/compare" in block else ())  # large
        for i, (page, block) in enumerate(BLOCKS)
    ],
)
def test_the_manual_shows_what_the_commands_print(
    page: str, block: str, strobe: Strobe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in ("tests", "examples", "benchmarks"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    command, _, shown = block.replace("\\\n", " ").partition("\n")
    result = strobe(*shlex.split(command)[2:])
    assert result.code == 0, result.err
    printed = [line.rstrip() for line in result.out.splitlines()]
    lines = [line.rstrip() for line in shown.splitlines() if line.strip() and line != "..."]
    assert lines and not [line for line in lines if line not in printed]


def test_the_readme_s_case_has_the_tutorial_s_figures() -> None:
    """The blocks of the tutorial are what the commands print; the README repeats three of its figures in prose."""
    shown = "".join(block for page, block in BLOCKS if page == "docs/tutorial_speedup.md")
    (caption,) = re.findall(r"^\*The kernel saves (.*?)\[How to read it\]", (ROOT / "README.md").read_text(), re.MULTILINE)
    figures = re.findall(r"\d+\.\d+(?= ms)", caption)
    assert len(figures) == 3 and all(f"{figure} ms" in shown for figure in figures)


def test_every_page_shows_something() -> None:
    assert {page for page, _ in BLOCKS} == set(PAGES)
