"""`strobe trace` from files to text, files and exit codes."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from source import H200
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
    assert "Kernels of 1 more device: in the report" in strobe("trace", tmp_path, "--details").out
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
    assert "operators launched 15 %" in strobe("trace", graph, "--details").out
    monkeypatch.setattr("strobe.perf.report.study.DETAILED_BYTES", 1000)
    assert " took no time, the trace would be " not in strobe("trace", graph).out
    page = strobe("trace", graph, "--format", "md").out
    assert "eager: not read, because a file has more than" in page and "--details reads them" in page.replace("\\-", "-")
    assert "what if?" in strobe("trace", graph, "--details").out
    assert json.loads(strobe("trace", graph, "--json").out)["what_if"] == []
