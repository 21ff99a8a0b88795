"""`strobe trace` and `strobe extract` from logs and traces to tables, files and exit codes; the manual on our own captures."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from source import H200, ROOT
from strobe.cli.main import MISSING, USAGE
from strobe.core import libraries
from strobe.core.libraries import install
from strobe.perf.report import study
from strobe.perf.report.study import APART
from terminal import Strobe

EVIL = "void evil</script>|`x`<float>(int)"


def event(cat: str, name: str, ts: str, dur: str, tid: int, **args: Any) -> str:
    """One event as text: times are written as digits, not as floats."""
    rest = json.dumps({"ph": "X", "cat": cat, "name": name, "pid": 0 if "stream" in args else 1, "tid": tid, "args": args})
    return f'{{"ts": {ts}, "dur": {dur}, {rest[1:]}'


def write_trace(path: Path, rank: int = 0, *, device: bool = True, base: int = 1_700_000_000_000_000_000) -> Path:
    """Three steps of two kernels and a copy; the host is late before each step."""
    events = []
    for step in range(3):
        at = 1_000_000 + 1000 * step
        events.append(event("user_annotation", f"ProfilerStep#{step}", f"{at}.000", "500.000", 5))
        for n, (kind, name, dur) in enumerate((("kernel", "gemm", 100), ("kernel", EVIL, 50), ("gpu_memcpy", "Memcpy DtoD", 10))):
            link = 10 * step + n
            events.append(event("cpu_op", "aten::op", f"{at + 200 * n}.250", "9.500", 5))
            if device:
                events.append(event("cuda_runtime", "cudaLaunchKernel", f"{at + 200 * n}.500", "5.125", 5, correlation=link))
                begin = f"{at + 12 + 200 * n}.00{n}"
                events.append(event(kind, name, begin, f"{dur}.001", 7, device=0, stream=7, correlation=link))
    head = f'{{"schemaVersion": 1, "baseTimeNanoseconds": {base}, "distributedInfo": {{"rank": {rank}, "world_size": 2}}'
    path.write_bytes(f'{head}, "traceEvents": [{",".join(events)}]}}'.encode())
    return path


def test_a_trace_becomes_tables_on_stdout(strobe: Strobe, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json")
    answer, result = strobe("trace", path), strobe("trace", path, "--details")
    assert answer.out.count("\n") < 20 and "exclusive ms" not in answer.out and answer.out.startswith("device 0: busy for ")
    assert "Tables: --details prints them" in answer.out and "Tables: --details" not in result.out
    assert result.code == 0 and result.err == ""
    assert "host-bound" in result.out and "gemm" in result.out and "device 0" in result.out
    assert "2.410003" in result.out  # from 12.000 to 2412.002 + 10.001 µs
    assert not list(tmp_path.glob("report*"))


def test_the_terminal_answers_what_was_asked(strobe: Strobe, tmp_path: Path) -> None:
    for rank in (0, 1):
        write_trace(tmp_path / f"r{rank}.json", rank)
    found = "kernel:end -> evil -> memcpy:end", "kernel:end -> zzz -> link:end"
    out = strobe("trace", tmp_path, "--section", found[0], "--section", found[1], "--steps", "nowhere").out
    row = next(line for line in out.splitlines() if line.startswith("rank 1") and found[0] in line)
    assert row.split()[8:12] == ["3", "0.310002", "0.310002", "0.310002"]  # from 12.000 + 100.001 to 412.002 + 10.001 µs
    assert "rank 0, kernel:end -> zzz -> link:end: no device event matches 'zzz'" in out  # ":end:" is no picture
    assert "rank 0, device 0 and 1 more: no range that launched work and no kernel matches 'nowhere'." in out
    assert strobe("trace", tmp_path).out.startswith("rank 0, device 0 (1 more in the tables): busy ")
    assert "Kernels of 1 more device: in the report" in strobe("trace", tmp_path, "--details").out
    for rank in (0, 1):
        host = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5, "dur": 2}
        (tmp_path / f"host{rank}.json").write_text(json.dumps({"traceEvents": [host]}))
    hosts = strobe("trace", tmp_path / "host0.json", tmp_path / "host1.json").out  # a table of threads and one of operators each
    assert "Not shown: 2 of the tables of operators and ranges; -o FOLDER writes them." in hosts
    assert "Length of a step" in strobe("trace", tmp_path / "r0.json", "--details").out


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_longer_than_the_terminal_is_wide(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for flags in ((), ("--details",)):
        out = strobe("trace", H200 / "eager.json.gz", *flags).out
        assert [line for line in out.splitlines() if len(line) > width and " " in line.strip()] == []
        assert "More columns, on the page" in out or not flags
    assert out.count("\n") > 40 > strobe("trace", H200 / "eager.json.gz").out.count("\n")


def test_a_folder_gets_the_report_and_every_event(strobe: Strobe, tmp_path: Path) -> None:
    for rank in (1, 0):
        write_trace(tmp_path / f"r{rank}.json", rank)
    result = strobe("trace", tmp_path, "-o", tmp_path / "out" / "page", "--json")
    assert result.code == 0
    written = result.document["written"]
    assert sorted(written) == ["data", "events", "html", "json", "md"] and all(Path(path).is_file() for path in written.values())
    assert {key: value for key, value in result.document.items() if key != "written"} == json.loads(
        Path(written["data"]).read_text()
    )
    assert Path(written["html"]).stat().st_size < 300_000
    with gzip.open(written["events"], "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["trace"] for row in rows] == ["rank 0"] * 9 + ["rank 1"] * 9
    assert (rows[0]["name"], rows[0]["start_ns"], rows[0]["end_ns"]) == (
        "gemm", "1700000001000012000", "1700000001000112001",
    )  # fmt: skip
    assert (rows[1]["name"], rows[1]["start_ns"], rows[1]["call"]) == (EVIL, "1700000001000212001", "cudaLaunchKernel")
    assert (rows[1]["call_start_ns"], rows[1]["call_end_ns"]) == ("1700000001000200500", "1700000001000205625")
    again = strobe("trace", tmp_path / "r0.json", tmp_path / "r1.json", "-o", tmp_path / "again")
    assert again.code == 0
    for name in ("report.html", "report.md", "report.json", "trace.json", "events.csv.gz"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / "page" / name).read_bytes()


def test_one_format_can_be_printed_or_written_alone(strobe: Strobe, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json")
    assert strobe("trace", path, "--format", "md").out.startswith("# Trace a\n")
    assert strobe("trace", path, "--format", "html").out.startswith("<!doctype html>")
    assert json.loads(strobe("trace", path, "--format", "json").out)["v"] == 1
    result = strobe("trace", path, "--format", "md", "-o", tmp_path / "out")
    assert result.code == 0 and sorted(one.name for one in (tmp_path / "out").iterdir()) == ["events.csv.gz", "report.md"]


def test_a_window_is_all_that_is_analysed(strobe: Strobe, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json")
    result = strobe("trace", path, "--window", "ProfilerStep#1", "-o", tmp_path / "out", "--json")
    assert result.code == 0
    with gzip.open(result.document["written"]["events"], "rt", newline="") as file:
        assert [row["start_ns"][-9:] for row in csv.DictReader(file)] == ["001012000", "001212001", "001412002"]
    missing = strobe("trace", path, "--window", "ProfilerStep#7")
    assert missing.code == USAGE and "ProfilerStep#7" in missing.err and len(missing.err.splitlines()) == 1


def test_a_window_of_a_trace_of_a_cpu_is_time_of_the_host(strobe: Strobe, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.json", device=False)
    result = strobe("trace", path, "--window", "ProfilerStep#1", "-o", tmp_path / "out")
    assert result.code == 0, result.err
    assert "host threads over 0.500 ms" in result.out
    rows = gzip.decompress((tmp_path / "out" / "events.csv.gz").read_bytes()).decode().splitlines()[1:]
    assert len(rows) == 3
    missing = strobe("trace", path, "--window", "7")
    assert missing.code == USAGE and "no range ProfilerStep#7" in missing.err and missing.err.count("\n") == 1


def test_a_damaged_trace_is_read_as_far_as_it_goes(strobe: Strobe, tmp_path: Path) -> None:
    whole = write_trace(tmp_path / "a.json").read_bytes()
    (tmp_path / "cut.json").write_bytes(whole[: len(whole) * 2 // 3])
    result = strobe("trace", tmp_path / "cut.json")
    assert result.code == 0 and "it ends before its JSON does" in result.err
    assert result.out.startswith("Truncated\n") and "busy for" in result.out, "damage is named before any figure"


def test_perfetto_is_written_and_missed(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_trace(tmp_path / "a.json")
    monkeypatch.setattr(libraries, "_TRIED", {})
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace.perfetto_trace_pb2", None)
    result = strobe("trace", path, "--perfetto", tmp_path / "x.pftrace")
    assert result.code == MISSING and install("perfetto") in result.err
    monkeypatch.undo()
    pytest.importorskip("perfetto")
    result = strobe("trace", path, "--perfetto", tmp_path / "x.pftrace", "--json")
    assert result.code == 0 and (tmp_path / "x.pftrace").stat().st_size > 500


@pytest.mark.parametrize("files", [1, APART])
def test_the_verb_runs_without_torch(tmp_path: Path, elsewhere: None, files: int) -> None:
    ranks = [str(write_trace(tmp_path / f"{rank}.json", rank)) for rank in range(files)]
    code = (
        "import sys\nsys.modules['torch'] = None\nfrom strobe.cli.main import main\n"
        "assert main(sys.argv[1:]) == 0\nassert 'av' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "trace", *ranks, "-o", str(tmp_path / "out")],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started find modules where this one does."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def test_processes_read_what_this_one_does(
    strobe: Strobe, tmp_path: Path, elsewhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    for rank in (2, 0, 1):
        write_trace(tmp_path / "in" / f"r{rank}.json", rank, base=1_700_000_000_000_000_000 + rank)
    cut = write_trace(tmp_path / "in" / "r3.json", 3).read_bytes()
    (tmp_path / "in" / "r3.json").write_bytes(cut[: len(cut) * 2 // 3])
    (tmp_path / "in" / "other.json").write_text("{]")
    flags = ("--by", "shape", "--window", "1ms..3ms", "--json")
    here = strobe("trace", tmp_path / "in", *flags, "-o", tmp_path / "here")
    monkeypatch.setattr(study, "APART", 1)
    there = strobe("trace", tmp_path / "in", *flags, "-o", tmp_path / "there")
    assert here.code == there.code == 0 and here.err == there.err and "skipped" in there.err and "r3.json" in there.err
    assert here.document["files"] == there.document["files"] and len(there.document["files"]) == 4
    assert here.document["kernels"] and here.document | {"written": {}} == there.document | {"written": {}}
    events = [gzip.decompress((tmp_path / where / "events.csv.gz").read_bytes()) for where in ("here", "there")]
    assert events[0] == events[1] and events[0].count(b"rank 2") > 0


def test_what_processes_cannot_read_is_one_line(
    strobe: Strobe, tmp_path: Path, elsewhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = tmp_path / "bad.json", write_trace(tmp_path / "good.json")
    bad.write_text("{]")
    for path in (bad, tmp_path / "missing.json"):
        here = strobe("trace", path)
        monkeypatch.setattr(study, "APART", 1)
        there = strobe("trace", good, path)
        monkeypatch.setattr(study, "APART", APART)
        assert here.code == there.code == USAGE and here.err == there.err
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "strobe").mkdir()
    (tmp_path / "strobe" / "__init__.py").write_text("raise SystemExit('no strobe here')")
    monkeypatch.setattr(study, "APART", 1)
    lost = strobe("trace", good)
    assert lost.code == MISSING and "the process that was to read it ended: no strobe here" in lost.err


def test_operators_are_read_unless_a_file_is_large(strobe: Strobe, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default a small file is read with its operators; a large one says how."""
    graph = H200 / "eager.json.gz"
    assert " took no time, the trace would be " in strobe("trace", graph).out
    assert "If other kernels took no time, the trace would be " in strobe("trace", H200 / "graph.json.gz").out
    assert "operators launched 15 %" in strobe("trace", graph, "--details").out
    monkeypatch.setattr("strobe.perf.report.study.DETAILED_BYTES", 1000)
    assert " took no time, the trace would be " not in strobe("trace", graph).out
    page = strobe("trace", graph, "--format", "md").out
    assert "eager: not read, because a file has more than" in page and "--details reads them" in page.replace("\\-", "-")
    assert "what if?" in strobe("trace", graph, "--details").out
    assert json.loads(strobe("trace", graph, "--json").out)["what_if"] == []


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
    assert "like a timing, but of no pattern: 5; line 1: >>>> VSA latency: 9.5 ms" in result.err
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


def test_a_graph_is_declared_or_not_comparable(strobe: Strobe) -> None:
    found = strobe("speedup", H200 / "eager.json.gz", H200 / "graph.json.gz", "--json").document
    assert (found["comparable"], found["not_comparable_because"]) == (False, ["CUDA or HIP graphs: none seen against yes"])


def test_a_page_without_its_traces_says_so(strobe: Strobe, tmp_path: Path) -> None:
    folder = shutil.copytree(H200 / "pair", tmp_path / "pair")
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


def test_every_page_shows_something_and_the_readme_s_case_has_the_tutorial_s_figures() -> None:
    """The blocks of the tutorial are what the commands print; the README repeats three of its figures in prose."""
    assert {page for page, _ in BLOCKS} == set(PAGES)
    shown = "".join(block for page, block in BLOCKS if page == "docs/tutorial_speedup.md")
    (caption,) = re.findall(r"^\*The kernel saves (.*?)\[How to read it\]", (ROOT / "README.md").read_text(), re.MULTILINE)
    figures = re.findall(r"\d+\.\d+(?= ms)", caption)
    assert len(figures) == 3 and all(f"{figure} ms" in shown for figure in figures)
