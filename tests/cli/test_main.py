"""Exit codes, one-line errors and the flags every verb has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import strobe as package
from source import ROOT
from strobe.cli import app as commands
from strobe.cli import main as module
from strobe.core.errors import ImplUnavailableError, ShapeError, StrobeError
from terminal import Strobe

VERBS = [
    "demo",
    "generate",
    "compare",
    "presets",
    "report",
    "trace",
    "speedup",
    "lint",
    "extract stages",
    "extract attention",
    "extract kernels",
    "profile stream",
    "profile attention",
    "profile kernels",
    "doctor",
]


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


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example_and_the_common_flags(strobe: Strobe, verb: str) -> None:
    result = strobe(*verb.split(), "--help")
    assert result.code == 0
    assert f"\n strobe {verb}" in result.out, "no example"
    for flag in ("--json", "--quiet", "--debug"):
        assert flag in result.out


TRACE = str(ROOT / "tests" / "data" / "shapes_cpu" / "baseline.json.gz")
NOWHERE = [
    ("demo", "--rounds", "1", "--device", "cpu", "--out"),
    ("trace", TRACE, "-o"),
    ("report", str(ROOT / "benchmarks" / "presets-h200"), "--output"),
    ("bench", "tree", "--world-size", "1", "--seq-len", "64", "-o"),
    ("profile", "attention", "--seq-q", "64", "--heads", "1", "--head-dim", "32", "--impls", "sdpa", "--device", "cpu", "-o"),
]


@pytest.mark.parametrize("arguments", NOWHERE, ids=[" ".join(words[:2]) for words in NOWHERE])
def test_a_place_that_cannot_be_written_is_a_wrong_argument(strobe: Strobe, arguments: tuple[str, ...]) -> None:
    result = strobe(*arguments, "/proc/x")
    said = result.err.splitlines()[-1]
    assert result.code == 2 and "cannot write /proc/x" in said and said.endswith("name another place"), result.err


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
