"""One door to the terminal: whatever a text from outside holds, it is shown and never obeyed."""

from __future__ import annotations

import gzip
import io
import json
import re
from pathlib import Path

import pytest
from rich.progress import Progress, TextColumn
from rich.table import Table

from strobe.cli.console import Output, _Pace, styled, table_text, terminal
from strobe.perf.table.model import Column, Ratio, Row
from strobe.perf.table.model import Table as ReportTable
from strobe.perf.table.model import Text as Words
from terminal import Strobe

ROOT = Path(__file__).parents[2]
RUN = ROOT / "benchmarks" / "engine-h200" / "320x576"
LOG = ROOT / "tests" / "data" / "logs" / "mislabelled_seconds.log"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e[/b][bold]\r\x08"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


def test_every_way_out_shows_what_it_is_given(capfd: pytest.CaptureFixture[str]) -> None:
    output = Output()
    table = Table(HOSTILE)
    table.add_row(HOSTILE)
    output.show(HOSTILE, styled((HOSTILE, "bold"), HOSTILE), table)
    output.note(HOSTILE)
    output.write(f"{HOSTILE}\n")
    Output(json=True).emit({HOSTILE: [HOSTILE, "\udcff"]})
    with output.progress(HOSTILE) as advance:
        advance(1, 2, HOSTILE)
    captured = capfd.readouterr()
    assert not OBEYED.search(captured.out + captured.err)
    assert captured.out.count("]0;owned") == 8 and captured.err.count("]0;owned") == 1
    document = captured.out[captured.out.index("{") :]
    assert json.loads(document) == {"v": 1, HOSTILE: [HOSTILE, "\udcff"]}


def test_a_bar_obeys_itself_alone() -> None:
    console = terminal()
    console.file, console._force_terminal = io.StringIO(), True
    with Progress(TextColumn("{task.description}", markup=False), console=console) as bar:
        bar.add_task(HOSTILE)
    shown = console.file.getvalue()
    assert "]0;owned" in shown and "\x1b[?25l" in shown  # the bar hides the cursor
    assert not re.search("\x1b\\]|\x1b\\[2J|\x9b|\u202e", shown)


def test_the_time_left_is_that_of_the_pieces_done() -> None:
    now = [0.0]
    pace = _Pace(clock=lambda: now[0])
    assert pace.left(0, 10) == "", "nothing is known yet"
    for at, done, said in ((8.0, 1, "about 72 s left"), (100.0, 5, "about 2 min left"), (120.0, 10, "")):
        now[0] = at
        assert pace.left(done, 10) == said
    assert pace.left(2, 4) == "", "other pieces"
    now[0] += 7200.0
    assert pace.left(3, 4) == "about 2.0 h left"


def test_a_log_has_the_time_left(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.cli.console.EVERY_S", 0.0)
    with Output().progress("demo") as advance:
        advance(0, 3, "baseline")
        advance(1, 3, "baseline")
        advance(3, 3, "")
    assert capfd.readouterr().err.splitlines() == ["demo 0/3 baseline", "demo 1/3 baseline, about 1 s left", "demo 3/3"]


def test_a_run_folder_with_escapes_in_its_name(strobe: Strobe, tmp_path: Path) -> None:
    run = tmp_path / "r[/b]\x1b[2J\u202e\udcff"
    run.mkdir(parents=True)
    (run / "records.jsonl").write_bytes(gzip.decompress((RUN / "records.jsonl.gz").read_bytes()))
    for flags in ((), ("--json",)):
        done = strobe("report", run, "--out", tmp_path / "[red]page", *flags)
        assert done.code == 0, done.err
        assert not OBEYED.search(done.out + done.err)
        assert "[red]page" in done.out
    assert done.document["runs"] == [str(run)]


def test_errors_with_escapes(strobe: Strobe, tmp_path: Path) -> None:
    for arguments in (("lint", tmp_path / HOSTILE), ("report", f"--{HOSTILE}"), ("lint", "--debug", HOSTILE)):
        done = strobe(*arguments)
        assert done.code == 2 and "[/b]" in done.err
        assert not OBEYED.search(done.out + done.err)


def test_no_other_way_out_of_the_command_line() -> None:
    folder = ROOT / "src" / "strobe" / "cli"
    ways = re.compile(r"\bConsole\(|\bprint\(|sys\.std(?:out|err)|rich\.print|from_markup|rich\.markup")
    found = {
        path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if ways.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"console.py", "main.py", "app.py"}, "the last one draws our own docstrings on the console of --help"


def test_a_narrow_screen_cuts_words_and_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    heads = (Column("name"), Column("speedup", numeric=True), Column("why"))
    table = ReportTable("Cap", heads, (Row((Words("a"), Ratio(0.149, 0.121, 0.182), Words("a long text " * 9))),))
    assert "a     0.149x [0.121, 0.182]  a long text a l..." in table_text(table).plain
