"""Whole programs, and one at several commits: what is run and how, what it took, how it may fail, and a repository that stays."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from strobe.bench.own.programs import checked_out, commit_of, measure_programs, programs_of, signal_name
from strobe.bench.runner import VariantError
from strobe.core.errors import ConfigError, StrobeError
from strobe.perf.records.store import RunRecords, create_run, read_run

PYTHON = sys.executable


def measured(root: Path, *commands: str | tuple[str, ...], **plan: Any) -> RunRecords:
    programs = programs_of([command if isinstance(command, tuple) else (command,) for command in commands])
    options: dict[str, Any] = {"rounds": 1, "warmup": 0} | plan
    return read_run(measure_programs(programs, lambda: create_run(root, "programs"), lambda *_: None, **options))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo '$HOME; exit'", ("echo", "$HOME; exit")),
        ("echo one two", ("echo", "one", "two")),
        ("echo 'a  b' \"c d\"", ("echo", "a  b", "c d")),
        (f"{PYTHON} -c 'print(1); print(2)'", (PYTHON, "-c", "print(1); print(2)")),
        (f"{PYTHON} -c \"print('$' * 2)\"", None),  # a shell reads variables inside double quotes
        ("echo $HOME", None), ("echo a | cat", None), ("echo a > file", None), ("echo *.py", None), ("NAME=1 echo", None),
        ("cd / && ls", None), ("exit 3", None),
    ],
)  # fmt: skip
def test_a_shell_is_used_only_where_a_command_needs_it(command: str, words: tuple[str, ...] | None) -> None:
    program, _ = programs_of([(command,), ("true",)])
    assert program.argv == (("sh", "-c", command) if words is None else words)
    assert program.command == command
    if words is not None:
        apart, _ = programs_of([words, ("true",)])  # which no shell reads
        assert (apart.argv, apart.command) == (words, shlex.join(words))


def test_names_are_the_commands_told_apart_and_cut() -> None:
    long = "echo " + "x" * 100
    names = [each.name for each in programs_of([("true",), ("true",), ("true",), (long,)])]
    assert names[:3] == ["true", "true (2)", "true (3)"]
    assert len(names[3]) == 60 and names[3].endswith("...")


def test_runs_are_interleaved_warmed_up_and_prepared(tmp_path: Path) -> None:
    log = tmp_path / "log"
    commands = [f"printf {letter} >> {log}" for letter in "abc"]
    run = measured(tmp_path / "runs", *commands, rounds=2, warmup=1, prepare=f"printf . >> {log}")
    assert log.read_text().replace(".", "") == "abc" + "abccba" * 2
    assert log.read_text().count(".") == 15 and log.read_text().startswith(".a.b")
    assert [clip.phase for clip in run.clips] == ["warmup"] * 3 + ["timed"] * 12
    assert [variant.command for variant in run.variants] == commands


WORK = "x = bytes([7]) * (64 << 20); sum(x[:20_000_000])"


def test_what_a_run_took_is_in_the_records(tmp_path: Path) -> None:
    run = measured(tmp_path / "plain", (PYTHON, "-I", "-S", "-c", WORK), "sleep 0.2")
    works, sleeps = (next(clip for clip in run.clips if clip.variant == each.name) for each in run.variants)
    took = {span.variant: span.value_ns for span in run.spans}
    assert took["sleep 0.2"] >= 200_000_000
    assert works.user_ns > sleeps.user_ns
    assert 64 << 20 < works.peak_bytes < 512 << 20, "of the program, not of what started it"
    assert sleeps.peak_bytes is None, "no more than what started it"
    assert works.exit_status == sleeps.exit_status == 0
    run = measured(tmp_path / "pipe", f"{PYTHON} -I -S -c '{WORK}' | cat", "true")
    assert run.clips[0].peak_bytes > 64 << 20 and run.clips[0].user_ns > 0


def test_output_is_thrown_away_and_input_is_empty(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    measured(tmp_path, "echo loud; echo louder >&2", "cat")
    assert capfd.readouterr() == ("", "")


def test_the_environment_and_the_folder_are_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE_OF_MINE", "gr\u00fcn \udcff")
    monkeypatch.chdir(tmp_path)
    measured(tmp_path / "runs", 'test "$ONE_OF_MINE" && pwd > here', "true")
    assert (tmp_path / "here").read_text().strip() == str(tmp_path)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo one >&2; echo two >&2; exit 3", "ended with exit status 3; the last it wrote to stderr: one / two; end"),
        ("exit 4", "ended with exit status 4, and wrote nothing to stderr"),
        ("kill -KILL $$", "was killed by SIGKILL"),
        ("no-such-program | cat; no-such-program", "exit status 127; the last it wrote to stderr: .*not found"),
    ],
)
def test_a_program_that_fails_is_an_error_that_says_how(tmp_path: Path, command: str, said: str) -> None:
    with pytest.raises(VariantError, match=said):
        measured(tmp_path, "true", command, warmup=1)
    (folder,) = tmp_path.iterdir()
    end = read_run(folder).end
    assert (end.status, end.variant) == ("failed", command)


def test_failures_can_be_timed_all_the_same(tmp_path: Path) -> None:
    run = measured(tmp_path, "true", "(exit 3) || true")
    assert [clip.exit_status for clip in run.clips[:2]] == [0, 0]


def test_what_cannot_be_started_or_prepared_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "broken"
    file.write_text("#!/no/such/interpreter\n")
    file.chmod(0o755)
    with pytest.raises(VariantError, match="could not be started: No such file"):
        measured(tmp_path / "runs", "true", str(file))
    with pytest.raises(StrobeError, match="--prepare 'exit 5': ended with exit status 5"):
        measured(tmp_path, "true", "true", prepare="exit 5")


def test_a_program_ends_with_what_waits_for_it(tmp_path: Path) -> None:
    """Interrupted, the program and what it started are ended too, even one that will not be terminated."""
    number = tmp_path / "pid"
    command = f"trap '' TERM; echo $$ > {number}; while :; do sleep 0.05; done"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            measured(tmp_path / "runs", command, "true")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    pid = int(number.read_text())
    for _ in range(100):
        if not alive(pid):
            break
        time.sleep(0.05)
    assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


def test_a_signal_has_its_name() -> None:
    assert signal_name(9) == "SIGKILL" and signal_name(250) == "signal 250"


PRINTS = "import os, pathlib, sys\npathlib.Path({log!r}).open('a').write('{number} ' + os.getcwd() + chr(10))\n"


def git(repo: Path, *arguments: str) -> str:
    quiet = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(repo), *quiet, *arguments], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three commits, whose program writes which it is and where it runs; a tag like a flag at the first."""
    place = tmp_path / "a repository"
    place.mkdir()
    git(place, "init", "--quiet", "--initial-branch", "main")
    for number in range(3):
        (place / "bench.py").write_text(PRINTS.format(log=str(tmp_path / "log"), number=number))
        git(place, "add", "--all")
        git(place, "commit", "--quiet", "--message", f"commit {number}")
    git(place, "update-ref", "refs/tags/--output=x", "HEAD~2")
    monkeypatch.chdir(place)
    return place


def at_commits(root: Path, commits: tuple[str, ...], command: str, install: str = "", **plan: object) -> RunRecords:
    options: dict[str, Any] = {"rounds": 1, "warmup": 1, **plan}
    with checked_out(commits, commits, command, install) as programs:
        return read_run(measure_programs(programs, lambda: create_run(root, "programs"), lambda *_: None, **options))


def untouched(repo: Path) -> bool:
    """One worktree, no branch made, nothing left in git's own folder."""
    assert len(git(repo, "worktree", "list").splitlines()) == 1
    assert git(repo, "branch", "--list").split() == ["*", "main"]
    return not list((repo / ".git").glob("worktrees/*"))


def test_each_commit_runs_its_own_code_in_turns(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(repo))
    run = at_commits(tmp_path / "runs", ("HEAD~1", "main"), f"{PYTHON} bench.py")
    lines = [line.split(" ", 1) for line in (tmp_path / "log").read_text().splitlines()]
    assert [number for number, _ in lines] == list("12" + "1221")
    assert len({place for _, place in lines}) == 2 and not any(Path(place).exists() for _, place in lines)
    assert [(each.name, each.command.partition("  # at ")[2]) for each in run.variants] == [
        (name, git(repo, "rev-parse", name)[:12]) for name in ("HEAD~1", "main")
    ]
    assert untouched(repo)


def test_it_is_installed_once_in_an_environment_of_its_own(repo: Path, tmp_path: Path) -> None:
    seen, packages = tmp_path / "seen", "import msgspec, sys; assert 'venv' in sys.prefix"
    at_commits(tmp_path / "runs", ("HEAD~1", "HEAD"), f'python -c "{packages}"', f'python -c "{packages}" && echo $PWD >> {seen}')
    assert [Path(line).parent.name for line in seen.read_text().splitlines()] == ["0", "1"]


def test_traces_that_the_untimed_runs_leave_are_kept(repo: Path, tmp_path: Path) -> None:
    run = at_commits(
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


def test_a_dirty_repository_stays_as_it_is_and_its_hooks_do_not_run(repo: Path, tmp_path: Path) -> None:
    (repo / "bench.py").write_text("raise SystemExit('the dirty one')")
    (repo / "new.txt").write_text("mine")
    git(repo, "add", "new.txt")
    hook = repo / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/hacked'\n")
    hook.chmod(0o755)
    before = git(repo, "status", "--porcelain"), git(repo, "rev-parse", "HEAD"), git(repo, "stash", "list")
    at_commits(tmp_path / "runs", ("HEAD~1", "HEAD"), f"{PYTHON} bench.py")
    assert len((tmp_path / "log").read_text().splitlines()) == 6 and untouched(repo)
    assert (git(repo, "status", "--porcelain"), git(repo, "rev-parse", "HEAD"), git(repo, "stash", "list")) == before
    assert not (tmp_path / "hacked").exists() and (repo / "bench.py").read_text() == "raise SystemExit('the dirty one')"
