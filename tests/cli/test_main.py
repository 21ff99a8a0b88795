"""Exit codes, one-line errors, the flags every verb has, and what is said at a signal and by several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import strobe as package
from sandbox import hears_ctrl_c
from source import ROOT
from strobe.attention.tree import CollectiveError
from strobe.cli import app as commands
from strobe.cli import main as module
from strobe.cli.console import Output
from strobe.cli.defaults import every_verb
from strobe.cli.main import MISSING, USAGE, main
from strobe.cli.ranks import said_by_rank_0, says
from strobe.core.errors import ConfigError, ImplUnavailableError, ShapeError, StrobeError
from strobe.perf.records.store import read_run
from terminal import Strobe


def test_version(strobe: Strobe) -> None:
    assert strobe("--version").out.split() == ["strobe", package.__version__]


def test_the_list_of_verbs_says_what_each_does(strobe: Strobe) -> None:
    listed = strobe("--help")
    assert listed.out == strobe().out and listed.code == 0
    for verb, words in (("generate", "Make a clip from a prompt"), ("bench", "Measure what the package ships")):
        assert any(line.split()[1:2] == [verb] and words in line for line in listed.out.splitlines()), verb
    assert all(f" {verb} " in listed.out for verb in commands.VERBS)


@pytest.mark.parametrize("verb", commands.VERBS)
def test_a_verb_is_listed_with_its_first_sentence(verb: str) -> None:
    assert commands.VERBS[verb] == " ".join(commands.app[verb].help.split("\n\n")[0].split())


def test_the_list_of_verbs_imports_none_and_a_page_no_reader_of_markdown() -> None:
    code = (
        "import sys; from strobe.cli.main import main; main(['--help']); listed = set(sys.modules); main(['lint', '--help']);"
        "sys.stderr.write(' '.join({m for m in listed if m.startswith('strobe.cli.')}) + '\\n'"
        " + str('rich.markdown' in sys.modules or 'markdown_it' in sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.splitlines()
    assert not {f"strobe.cli.{verb.replace('-', '_')}" for verb in commands.VERBS} & set(said[0].split())
    assert said[1] == "False"


@pytest.mark.parametrize("verb", [" ".join(words) for words, _ in every_verb()])
def test_help_has_an_example_and_the_common_flags(strobe: Strobe, verb: str) -> None:
    result = strobe(*verb.split(), "--help")
    assert result.code == 0
    assert f"\n strobe {verb}" in result.out, "no example"
    for flag in ("--json", "--quiet", "--debug"):
        assert flag in result.out


TRACE = str(ROOT / "tests" / "data" / "shapes_cpu" / "baseline.json.gz")
NOWHERE = [
    ("demo", "--rounds", "1", "--device", "cpu", "--out"),
    ("generate", "a red circle moving left", "--blocks", "1", "--device", "cpu", "-o"),
    ("trace", TRACE, "-o"),
    ("report", str(ROOT / "benchmarks" / "presets-h200"), "--output"),
    ("bench", "tree", "--world-size", "1", "--seq-len", "64", "-o"),
    ("profile", "attention", "--seq-q", "64", "--heads", "1", "--head-dim", "32", "--impls", "sdpa", "--device", "cpu", "-o"),
]


@pytest.mark.parametrize("arguments", NOWHERE, ids=[" ".join(words[:2]) for words in NOWHERE])
def test_a_place_that_cannot_be_written_is_a_wrong_argument(strobe: Strobe, arguments: tuple[str, ...]) -> None:
    result = strobe(*arguments, "/proc/x.mp4" if arguments[0] == "generate" else "/proc/x")
    said = result.err.splitlines()[-1]
    assert result.code == 2 and "/proc/x" in said and said.endswith("name another place"), result.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ShapeError("too odd"), 2),
        (ImplUnavailableError("fa4", "no such GPU"), 3),
        (StrobeError("no space"), 3),
        (OSError(28, "No space left on device", "clip.mp4"), 3),
        (FileExistsError(17, "File exists", "report"), 2),
        (IsADirectoryError(21, "Is a directory", "out"), 2),
        (KeyboardInterrupt(), 130),
        (RuntimeError("a bug\nin two lines"), 70),
    ],
)
def test_every_way_to_end_has_its_exit_code(
    strobe: Strobe, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(type(module.app), "__call__", fail)
    plain, debug = strobe("doctor"), strobe("doctor", "--debug")
    assert plain.code == debug.code == code
    assert plain.err.count("\n") == 1 and "Traceback" not in plain.err
    assert "Traceback" in debug.err


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_reader_that_goes_away_is_no_error(flags: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "from strobe.cli.main import main; raise SystemExit(main())", "presets", *flags]
    path = os.pathsep.join([str(Path(package.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=600, env=environment)
    os.close(writer)
    assert done.returncode == module.BROKEN_PIPE
    assert done.stderr == ""


LACKS = ImplUnavailableError("cuda", "no GPU on this machine", ["cpu"])


@pytest.mark.parametrize(
    ("code", "error", "local_rank", "followers"),
    [
        (USAGE, ConfigError("wrong on all ranks"), "2", False),
        (MISSING, CollectiveError("rank 1 is gone, and rank 0 says so", [1]), "2", False),
        (MISSING, CollectiveError("rank 0 is gone", [0]), "2", True),
        (MISSING, StrobeError("this GPU is full"), "2", True),
        (MISSING, LACKS, "2", False),
        (MISSING, LACKS, "0", True),  # of another machine
    ],
)
def test_who_says_what(monkeypatch: pytest.MonkeyPatch, code: int, error: Exception, local_rank: str, followers: bool) -> None:
    assert says(code, error)
    monkeypatch.setenv("RANK", "8")
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert says(code, error) == followers


def test_a_rank_that_follows_says_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert said_by_rank_0(Output(json=True)) == Output(json=True)
    command = ["generate", "a red circle", "--seconds", "1", "--blocks", "1"]
    assert main(command) == USAGE and "give --seconds or --blocks" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    assert main(command) == USAGE and capsys.readouterr().err == ""
    assert said_by_rank_0(Output(json=True)) == Output(quiet=True)


COMPARE = ("compare", "quality", "turbo", "--device", "cpu", "--blocks", "5", "--no-switch", "--rounds", "50")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("sent", "code", "message", "said"),
    [(signal.SIGTERM, 143, "SIGTERM", "terminated"), (signal.SIGINT, 130, "Ctrl-C", "interrupted")],
)
def test_what_is_kept_is_said(tmp_path: Path, sent: signal.Signals, code: int, message: str, said: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "strobe", *COMPARE, "--out", str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, preexec_fn=hears_ctrl_c, **pipes) as process:
        until = time.monotonic() + 300
        while not any(b'"record":"clip"' in path.read_bytes() for path in tmp_path.glob("*/records.jsonl")):
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(sent)
        _, err = process.communicate(timeout=120)
    (folder,) = tmp_path.iterdir()
    run = read_run(folder)
    assert process.returncode == code, err
    assert err.splitlines()[-2:] == [f"the {len(run.clips)} finished clips are kept: strobe report {folder}", f"error: {said}"]
    assert run.end is not None
    assert (run.end.status, run.end.message) == ("interrupted", message)
