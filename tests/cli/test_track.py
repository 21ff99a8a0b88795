"""`strobe track` on a small repository whose programs print their speed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from histories import git, twelve_commits
from model_traces import write_model_trace
from strobe.perf.report.model import decode_report
from terminal import Strobe

CASE = ("--case", f"{sys.executable} bench.py", "--install", f"{sys.executable} install.py", "--environment", "none")


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("own") / "repo"
    twelve_commits(place)
    return place


@pytest.fixture
def run(strobe: Strobe, repo: Path, tmp_path: Path) -> Strobe:
    """`strobe track run` with one round over the last commits, into `history`."""

    def call(*more: object) -> object:
        given: dict[str, object] = {"--repo": repo, "--rounds": 2, "--figure": "ms", "-o": tmp_path / "history"}
        words = [word for flag, value in given.items() if flag not in more for word in (flag, value)]
        return strobe("track", "run", *words, *(CASE if "--case" not in more else ()), *more)

    return call  # type: ignore[return-value]


def test_a_history_is_measured_told_and_gated(run: Strobe, strobe: Strobe, repo: Path, tmp_path: Path) -> None:
    found = run("--commits", "HEAD~5..HEAD", "--require", "last/first<=1.05", "--json")
    assert found.code == 0, found.err
    commits = git(repo, "rev-list", "--reverse", "HEAD~6..HEAD").split()
    document = found.document
    (step,) = document["steps"]
    assert (step["commit"], step["before"], step["suspects"], step["worse"]) == (commits[2], commits[1], 1, False)
    assert step["ratio"] == pytest.approx(0.8) and document["figures"]["ms"]["last/first"] == pytest.approx(0.8)
    failed = [row for row in document["points"] if row["failed_at"]]
    assert [(row["commit"], row["failed_at"], row["value"]) for row in failed] == [(commits[0], "run", None)]
    assert "2 commits" not in found.err and "10 measurements taken" in found.err
    again = strobe("track", "report", tmp_path / "history", "--require", "ms:last/first>=1", "worse_steps<=0")
    assert again.code == 1 and "not met: ms: last/first is 0.8 [0.8, 0.8], >=1 required" in again.out
    assert "worse_steps" not in again.out


def test_a_relative_folder_is_a_history_too(run: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = run("--commits", "HEAD~1..HEAD", "-o", "here", "--json")
    assert found.code == 0, found.err
    assert [row["failed_at"] for row in found.document["points"]] == ["", ""] and (tmp_path / "here" / "report.md").is_file()


def test_the_page_says_what_the_terminal_says(run: Strobe, repo: Path, tmp_path: Path) -> None:
    shown = run("--commits", "HEAD~5..HEAD").out
    page = tmp_path / "history" / "report.html"
    html, report = page.read_text(), decode_report((tmp_path / "history" / "report.json").read_bytes())
    culprit = git(repo, "rev-parse", "--short=10", "HEAD~3")
    for text in (culprit, "commit 9", "-20.0 % [-20.0, -20.0]", "did not run"):
        assert text in shown and text in html
    assert "it is broken" in html and html.count('class="dot s2 hollow"') == 1
    ids = [section.id for section in report.sections]
    assert ids == ["steps", "figure-0", "sessions", "case"] and report.speedups == ()
    (figure,) = report.sections[1].blocks
    plane = figure.picture  # type: ignore[union-attr]
    assert [level.y for level in plane.levels] == pytest.approx([150, 120])
    assert [mark.hollow for mark in plane.marks] == [False] * 5 + [True]


def test_a_thinned_history_is_bisected(run: Strobe, strobe: Strobe, repo: Path, tmp_path: Path) -> None:
    run("--commits", "HEAD~7..HEAD~1", "--steps", "2")
    found = strobe("track", "find", tmp_path / "history", "--json")
    (step,) = found.document["steps"]
    assert step["suspects"] == 1 and step["commit"] == git(repo, "rev-parse", "HEAD~3")
    assert len(git(repo, "worktree", "list").splitlines()) == 1


def test_the_same_command_again_measures_nothing(run: Strobe) -> None:
    run("--commits", "HEAD~1..HEAD")
    again = run("--commits", "HEAD~1..HEAD")
    assert again.code == 0 and "nothing was missing" in again.err


def test_traces_on_both_sides_give_an_account(run: Strobe, strobe: Strobe, repo: Path, tmp_path: Path) -> None:
    for name, kernel in (("before", "flash_fwd"), ("after", "_attn_fwd_sparse")):
        write_model_trace(tmp_path / f"{name}.json.gz", kernels=(kernel, "gemm"))
    script = tmp_path / "traced.sh"
    choice = "if grep -q 120 bench.py; then t=after; else t=before; fi"
    script.write_text(f"{choice}\ncp {tmp_path}/$t.json.gz $STROBE_TRACK_OUT/\n{sys.executable} bench.py\n")
    found = run("--commits", "HEAD~4..HEAD~3", "--case", f"sh {script}")
    assert found.code == 0, found.err
    culprit = git(repo, "rev-parse", "--short=10", "HEAD~3")
    report = decode_report((tmp_path / "history" / "report.json").read_bytes())
    (account,) = [section for section in report.sections if section.id == f"account-ms-{culprit}"]
    assert culprit in account.title and account.blocks
    assert (tmp_path / "history" / "steps" / f"ms-{culprit}" / "report.html").is_file()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--commits", "nowhere..HEAD"), "no commit 'nowhere'"),
        (("--commits=--all",), "no commit '--all'"),
        (("--require", "last/frist<1"), "did you mean 'last/first'"),
        (("--require", "wall:steps<1"), "unknown candidate"),
        (("--rounds", "0"), "--rounds 0: give 1 or more"),
        (("--steps", "0"), "--steps 0: give 1 or more"),
        (("--least", "0"), "--least 0"),
        (("--timeout", "0"), "above 0"),
        (("--higher", "fps"), "no figure of the case"),
        (("--case", ""), "--case is empty"),
        (("--case", "python 'bench"), "cannot be read"),
        (("--repo", "/nowhere/at/all"), "no such folder"),
    ],
)
def test_what_cannot_be_measured_is_one_line(run: Strobe, more: tuple[str, ...], words: str, tmp_path: Path) -> None:
    found = run(*more)
    assert found.code == 2 and words in found.err and found.err.startswith("error: ") and found.err.count("\n") == 1
    assert not (tmp_path / "history" / "sessions").exists()


def test_a_requirement_on_a_last_commit_that_failed_does_not_hold(run: Strobe) -> None:
    found = run("--commits", "HEAD~6..HEAD~5", "--require", "last/first<=100", "failed<=0")
    assert found.code == 1
    assert "ms: last/first was not measured" in found.out and "ms: failed is 1" in found.out


def test_no_value_at_all_is_a_failure(run: Strobe) -> None:
    found = run("--commits", "HEAD~5")
    assert found.code == 1 and "did not run" in found.out


def test_no_history_is_said(strobe: Strobe, tmp_path: Path) -> None:
    found = strobe("track", "report", tmp_path)
    assert found.code == 2 and "`strobe track run` makes one" in found.err
