"""One command at several commits: what is checked out and run, what is refused, and that the repository stays as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from strobe.bench.own.programs import checked_out, commit_of, measure_programs
from strobe.core.errors import ConfigError, StrobeError
from strobe.perf.records.store import RunRecords, create_run, read_run

PRINTS = "import os, pathlib, sys\npathlib.Path({log!r}).open('a').write('{number} ' + os.getcwd() + chr(10))\n"


def git(repo: Path, *arguments: str) -> str:
    quiet = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(repo), *quiet, *arguments], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def repo(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three commits, whose program writes which it is and where it runs; a tag like a flag at the first."""
    place = tmp_path / "a repository"
    place.mkdir()
    git(place, "init", "--quiet", "--initial-branch", "main")
    for number in range(3):
        (place / "bench.py").write_text(PRINTS.format(log=str(log), number=number))
        git(place, "add", "--all")
        git(place, "commit", "--quiet", "--message", f"commit {number}")
    git(place, "update-ref", "refs/tags/--output=x", "HEAD~2")
    monkeypatch.chdir(place)
    return place


def measured(root: Path, commits: tuple[str, ...], command: str, install: str = "", **plan: object) -> RunRecords:
    options: dict[str, Any] = {"rounds": 1, "warmup": 1, **plan}
    with checked_out(commits, commits, command, install) as programs:
        return read_run(measure_programs(programs, lambda: create_run(root, "programs"), lambda *_: None, **options))


def untouched(repo: Path) -> bool:
    """One worktree, no branch made, nothing left in git's own folder."""
    assert len(git(repo, "worktree", "list").splitlines()) == 1
    assert git(repo, "branch", "--list").split() == ["*", "main"]
    return not list((repo / ".git").glob("worktrees/*"))


def test_each_commit_runs_its_own_code_in_turns(repo: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(repo))
    run = measured(tmp_path / "runs", ("HEAD~1", "main"), f"{sys.executable} bench.py")
    lines = [line.split(" ", 1) for line in log.read_text().splitlines()]
    assert [number for number, _ in lines] == list("12" + "1221")
    assert len({place for _, place in lines}) == 2 and not any(Path(place).exists() for _, place in lines)
    assert [(each.name, each.command.partition("  # at ")[2]) for each in run.variants] == [
        (name, git(repo, "rev-parse", name)[:12]) for name in ("HEAD~1", "main")
    ]
    assert untouched(repo)


def test_it_is_installed_once_in_an_environment_of_its_own(repo: Path, tmp_path: Path) -> None:
    seen, packages = tmp_path / "seen", "import msgspec, sys; assert 'venv' in sys.prefix"
    measured(tmp_path / "runs", ("HEAD~1", "HEAD"), f'python -c "{packages}"', f'python -c "{packages}" && echo $PWD >> {seen}')
    assert [Path(line).parent.name for line in seen.read_text().splitlines()] == ["0", "1"]


def test_traces_that_the_untimed_runs_leave_are_kept(repo: Path, tmp_path: Path) -> None:
    run = measured(
        tmp_path / "runs", ("HEAD~1", "HEAD"), 'if [ "$STROBE_PROFILE_DIR" ]; then mkdir -p "$STROBE_PROFILE_DIR"; fi', warmup=2
    )
    assert [path.name for path in sorted((run.folder / "traces").iterdir())] == ["0", "1"]
    assert all(not any(path.iterdir()) for path in (run.folder / "traces").iterdir())


@pytest.mark.parametrize(
    "asked", ["nowhere", "HEAD~1..HEAD", "--upload-pack=touch hacked", "--output=hacked", "", "main; touch hacked"]
)
def test_what_is_no_commit_is_refused(repo: Path, asked: str) -> None:
    with pytest.raises(ConfigError, match="has no commit"):
        commit_of(asked)
    assert untouched(repo) and not (repo / "hacked").exists()


def test_a_tag_named_like_an_option_is_a_tag(repo: Path) -> None:
    assert commit_of("refs/tags/--output=x") == commit_of("--output=x") == git(repo, "rev-parse", "HEAD~2")
    assert not (repo / "x").exists()


def test_what_fails_or_is_interrupted_leaves_no_worktree(repo: Path) -> None:
    with (
        pytest.raises(StrobeError, match=r"HEAD~1: --install 'echo why; exit 3' failed: exit code 3: why"),
        checked_out(("HEAD~1", "HEAD"), ("HEAD~1", "HEAD"), "true", "echo why; exit 3"),
    ):
        raise AssertionError("it was installed")
    assert untouched(repo)
    with pytest.raises(KeyboardInterrupt), checked_out(("HEAD~1", "HEAD"), ("HEAD~1", "HEAD"), "true", "") as programs:
        assert all(Path(each.folder).is_dir() for each in programs)
        raise KeyboardInterrupt
    assert untouched(repo) and not any(Path(each.folder).exists() for each in programs)


def test_a_dirty_repository_stays_as_it_is_and_its_hooks_do_not_run(repo: Path, log: Path, tmp_path: Path) -> None:
    (repo / "bench.py").write_text("raise SystemExit('the dirty one')")
    (repo / "new.txt").write_text("mine")
    git(repo, "add", "new.txt")
    hook = repo / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/hacked'\n")
    hook.chmod(0o755)
    before = git(repo, "status", "--porcelain"), git(repo, "rev-parse", "HEAD"), git(repo, "stash", "list")
    measured(tmp_path / "runs", ("HEAD~1", "HEAD"), f"{sys.executable} bench.py")
    assert len(log.read_text().splitlines()) == 6 and untouched(repo)
    assert (git(repo, "status", "--porcelain"), git(repo, "rev-parse", "HEAD"), git(repo, "stash", "list")) == before
    assert not (tmp_path / "hacked").exists() and (repo / "bench.py").read_text() == "raise SystemExit('the dirty one')"
