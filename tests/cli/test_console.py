"""What reaches a terminal or a browser: text from outside is shown and never obeyed, words are completed, pages fit."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress, TextColumn
from rich.table import Table

from artefacts import write_guide, write_trace
from live_server import CHROMIUM
from source import PACKAGE, ROOT
from strobe.cli import completion
from strobe.cli.app import app
from strobe.cli.console import Output, _Pace, styled, table_text, terminal
from strobe.engine.load import SHAPES
from strobe.engine.presets import PRESETS
from strobe.models.wan.config import SIZES
from strobe.models.wan.recipes import RECIPES
from strobe.perf.table.model import Column, Ratio, Row
from strobe.perf.table.model import Table as ReportTable
from strobe.perf.table.model import Text as Words
from terminal import Strobe

RUN = ROOT / "benchmarks" / "engine-h200" / "320x576"
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


def test_the_names_are_the_originals() -> None:
    assert tuple(PRESETS) == completion.PRESETS and (*SHAPES.models, *SIZES) == completion.MODELS
    assert sorted(completion.RECIPES) == sorted(RECIPES)


@pytest.mark.parametrize(
    ("shell", "file", "loader"),
    [
        ("bash", ".local/share/bash-completion/completions/strobe", ".bashrc"),
        ("zsh", ".zsh/completions/_cyclopts_strobe", ".zshrc"),
        ("fish", ".config/fish/completions/strobe.fish", ""),
    ],
)
def test_the_script_of_a_shell_knows_verbs_flags_and_choices(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, file: str, loader: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ZSH", raising=False)
    monkeypatch.delenv("ZSH_CUSTOM", raising=False)
    done = strobe("--install-completion", "--shell", shell)
    assert done.code == 0 and str(tmp_path / file) in done.out
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert all(word in text for word in ("presets", "random-weights", "interpolate", "--config" if shell != "fish" else "config"))
    assert not loader or str((tmp_path / file).parent) in (tmp_path / loader).read_text(encoding="utf-8")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["ser"], {"serve"}),
        (["generate", "--random-w"], {"--random-weights"}),
        (["generate", "--preset", "tur"], {"turbo", "turbo_fp8", "turbo_int8"}),
        (["serve", "--model", "wan"], {"wan-1.3b", "wan-5b", "wan-14b"}),
        (["compare", "base"], {"baseline"}),
        (["generate", "--mode", "so"], {"soft"}),
    ],
)
def test_bash_completes(tmp_path: Path, typed: list[str], offered: set[str]) -> None:
    program, script, loaded = tmp_path / "strobe", tmp_path / "complete.bash", tmp_path / "loaded"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(PACKAGE.parent)!r})\n"
        "from strobe.cli.main import main\ncode = main()\n"
        f"open({str(loaded)!r}, 'w').write(' '.join(sys.modules))\nsys.exit(code)\n"
    )
    program.chmod(0o755)
    script.write_text(app.generate_completion(shell="bash"))
    words = " ".join(("strobe", *typed))
    code = f'source {script}; COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _strobe; printf "%s\\n" "${{COMPREPLY[@]}}"'
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", code], env=environment, capture_output=True, text=True, timeout=600)
    assert {word.strip() for word in done.stdout.split("\n") if word.strip()} == offered, done.stderr
    assert not loaded.exists() or "torch" not in loaded.read_text().split(), "a shell waits for this"


@pytest.fixture
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with pytest.importorskip("playwright.sync_api").sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.mark.rest
def test_every_section_is_printed_and_closes_again(strobe: Strobe, browser: Any, tmp_path: Path) -> None:
    guide = write_guide(tmp_path)
    assert strobe("speedup", guide["fa_trace"], guide["vsa_trace"], "-o", tmp_path / "page").code == 0
    page = browser.new_page()
    page.goto((tmp_path / "page" / "report.html").as_uri())
    heights = "() => [...document.querySelectorAll('section')].map((section) => section.getBoundingClientRect().height)"
    shown = page.evaluate(heights)
    page.emulate_media(media="print")
    by_style = page.evaluate(heights)
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    by_script = page.evaluate(heights)
    page.emulate_media(media="screen")
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(heights) == shown
    closed = [at for at, height in enumerate(shown) if height < 100]
    assert closed and all(by_style[at] > shown[at] and by_script[at] > shown[at] for at in closed)


@pytest.mark.rest
def test_a_long_kernel_name_does_not_widen_the_page_of_a_phone(strobe: Strobe, browser: Any, tmp_path: Path) -> None:
    name = "Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_nn_align8>"
    path = write_trace(tmp_path / "t.json.gz", [[("kernel", name, 90_000)]] * 3)
    assert strobe("trace", path, "-o", tmp_path / "page").code == 0
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto((tmp_path / "page" / "report.html").as_uri())
    page.evaluate("() => document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
