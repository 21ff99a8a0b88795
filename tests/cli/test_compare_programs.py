"""`strobe compare -- COMMAND -- COMMAND`, from the command line to the page and the gate."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from strobe.cli.compare import commands_of
from strobe.cli.main import main
from strobe.perf.records.store import read_run
from terminal import Strobe


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        (("a b", "--", "c"), (("a b",), ("c",))),
        (("a", "b", "--", "c", "-x"), (("a", "b"), ("c", "-x"))),
        (("a", "--"), (("a",), ("",))),
        (("--", "b"), (("",), ("b",))),
        (("a", "--", "--", "b"), (("a",), ("",), ("b",))),
    ],
)
def test_each_command_stands_behind_a_mark_of_its_own(words: tuple[str, ...], commands: object) -> None:
    assert commands_of(words) == commands


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_programs_give_a_run_a_page_and_a_document(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--rounds", "2", "--warmup", "0", "--names", "one", "two", "--json", "-o", "kept")
    code = main(["compare", *flags, "--", "sleep", "0.01", "--", "echo $((1 + 1)) | cat"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    (folder,) = (place / "kept").iterdir()
    assert document["runs"] == [f"kept/{folder.name}"]
    one, two = document["calls"]
    assert (one["name"], one["command"], one["reference"], one["samples"]) == ("one", "sleep 0.01", "one", 4)
    assert (two["command"], two["verdict"] in ("faster", "slower", "no difference", "inconclusive")) == (
        "echo $((1 + 1)) | cat",
        True,
    )
    assert one["min_ns"] >= 10_000_000 and one["ratio"] is None and two["ratio"] > 0
    assert document["figures"] == {"two": {**dict.fromkeys(document["figures"]["two"]), "e2e": two["ratio"]}}
    for path in document["report"].values():
        assert "echo $((1 + 1)) | cat" in Path(path).read_text().replace("\\", "")
    assert read_run(folder).header.kind == "programs"


def test_a_run_is_rendered_again_and_held_to_a_requirement(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "-q", "--rounds", "2", "--", "true", "--", "echo"]) == 0
    assert "Time and memory of one run, against true." in capsys.readouterr().out
    (folder,) = (place / "runs").iterdir()
    first = (folder / "report.json").read_text()
    assert main(["report", str(folder), "--require", "e2e~<=1000"]) == 0
    assert (folder / "report.json").read_text() == first
    assert main(["report", str(folder), "--require", "e2e~>=1000"]) == 1
    assert main(["report", str(folder), str(folder)]) == 2
    assert "report it without other runs" in capsys.readouterr().err


REFUSED = {
    "one command": (["--", "true"], "'true' needs a candidate to compare it with; write strobe compare PRESET PRESET"),
    "nothing": ([], "nothing to compare; write"),
    "an empty command": (["--", "true", "--"], "command 2 is empty"),
    "a blank command": (["--", "true", "--", "  "], "command 2 is empty"),
    "a quote without its end": (["--", "true", "--", "echo 'a"], "cannot be read: no closing quotation"),
    "names": (["--names", "a", "a", "--", "true", "--", "true"], "give 2 different names"),
    "a name too few": (["--names", "a", "--", "true", "--", "true"], "give 2 different names"),
    "a blank name": (["--names", "a", " ", "--", "true", "--", "true"], "give 2 different names"),
    "a flag of presets": (["--blocks", "3", "--seed", "1", "--", "true", "--", "true"], "--blocks, --seed: for presets"),
    "differences": (["--allow-different", "tokens", "--", "true", "--", "true"], "--allow-different: for presets"),
    "a flag of programs": (["--prepare", "true", "baseline", "turbo"], "--prepare: for programs, each behind a --"),
    "a figure": (["--require", "step>=1", "--", "true", "--", "true"], "unknown figure in --require 'step'; allowed: e2e"),
    "a candidate": (
        ["--require", "x:e2e>=1", "--names", "a", "b", "--", "true", "--", "true"],
        "unknown candidate in --require 'x'",
    ),
    "rounds": (["--rounds", "0", "--", "true", "--", "true"], "rounds"),
    "commits of no repository": (["--commits", "a", "b", "--", "true"], "run this inside a clone of the repository"),
    "one commit": (["--commits", "a", "--", "true"], "a comparison needs two or more, got a"),
    "the same commit twice": (["--commits", "a", "b", "--names", "a", "a", "--", "true"], "give 2 different names"),
    "commits without a command": (["--commits", "a", "b", "--", " "], "give the command that is measured"),
    "a command that cannot be read": (["--commits", "a", "b", "--", "python 'bench"], "cannot be read"),
    "an installation that cannot be read": (["--commits", "a", "b", "--install", "pip 'x", "--", "true"], "cannot be read"),
    "a candidate that is no commit": (
        ["--commits", "a", "b", "--require", "c:e2e>=1", "--", "true"],
        "unknown candidate in --require 'c'",
    ),
    "an installation of programs": (["--install", "true", "--", "true", "--", "true"], "--install: for commits"),
    "warm-up": (["--warmup", "-1", "--", "true", "--", "true"], "0 runs of warm-up or more"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_comparison_is_refused_and_leaves_nothing(what: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, said = REFUSED[what]
    assert main(["compare", *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not list(place.iterdir())


def test_one_command_is_measured_at_two_commits(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    for words in (
        ("init", "--quiet"),
        ("commit", "--quiet", "--allow-empty", "-m", "1"),
        ("commit", "--quiet", "--allow-empty", "-m", "2"),
    ):
        subprocess.run(["git", *quiet, *words], check=True, timeout=60)
    code = main(
        ["compare", "--commits", "HEAD~1", "HEAD", "--rounds", "2", "--require", "HEAD:e2e~>=1000", "--json", "--", "true"]
    )
    document = json.loads(capsys.readouterr().out)
    assert code == 1 and [each["name"] for each in document["calls"]] == ["HEAD~1", "HEAD"]
    (line,) = document["not_met"]
    assert line.startswith("HEAD: e2e is ") and all(each["command"].startswith("true  # at ") for each in document["calls"])


def test_traces_of_both_sides_name_the_command_for_the_account(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leaves = 'if [ "$STROBE_PROFILE_DIR" ]; then mkdir -p "$STROBE_PROFILE_DIR"; fi'
    assert main(["compare", "--rounds", "2", "--names", "a", "b", "--", leaves, "--", leaves]) == 0
    (folder,) = (place / "runs").iterdir()
    told = f"strobe speedup --baseline-trace runs/{folder.name}/traces/0 --candidate-trace runs/{folder.name}/traces/1"
    assert f"where the time of b went: {told} -o runs/{folder.name}/account-1" in " ".join(capsys.readouterr().err.split())


def test_a_missing_program_and_a_failing_one_are_one_line(place: Path, strobe: Strobe) -> None:
    done = strobe("compare", "--", "no-such-program", "--", "true")
    assert (done.code, done.err.count("\n")) == (3, 1) and "no program 'no-such-program'" in done.err
    done = strobe("compare", "-q", "--", "true", "--", "echo why >&2; exit 7")
    assert (done.code, done.err.count("\n")) == (
        3,
        1,
    ) and "ended with exit status 7; the last it wrote to stderr: why" in done.err


def test_help_tells_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "strobe compare PRESET PRESET" in told and "strobe compare -- COMMAND -- COMMAND" in told
    assert "--prepare" in told
