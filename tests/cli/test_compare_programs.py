"""`strobe compare -- COMMAND -- COMMAND`, from the command line to the page and the gate."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from strobe.cli.compare import commands_of
from strobe.cli.main import main
from strobe.perf.measure.stats import Verdict
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
    assert two["command"] == "echo $((1 + 1)) | cat" and two["verdict"] in get_args(Verdict)
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


def test_one_command_is_measured_at_two_commits(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    for words in (["init", "--quiet"], *(["commit", "--quiet", "--allow-empty", "-m", each] for each in "12")):
        subprocess.run(["git", *quiet, *words], check=True, timeout=60)
    more = ("--rounds", "2", "--require", "HEAD:e2e~>=1000", "--json", "--", "true")
    assert main(["compare", "--commits", "HEAD~1", "HEAD", *more]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in document["calls"]] == ["HEAD~1", "HEAD"]
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
    assert (done.code, done.err.count("\n")) == (3, 1)
    assert "ended with exit status 7; the last it wrote to stderr: why" in done.err
