"""Whole programs: which command is run and how, what a run of it took, and how it may fail."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from strobe.bench.own.programs import measure_programs, programs_of, signal_name
from strobe.bench.runner import VariantError
from strobe.core.errors import StrobeError
from strobe.perf.records.store import RunRecords, create_run, read_run

PYTHON = sys.executable


def measured(root: Path, *commands: str | tuple[str, ...], **plan: Any) -> RunRecords:
    programs = programs_of([command if isinstance(command, tuple) else (command,) for command in commands])
    options: dict[str, Any] = {"rounds": 1, "warmup": 0} | plan
    return read_run(measure_programs(programs, lambda: create_run(root, "programs"), lambda *_: None, **options))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo one two", ("echo", "one", "two")),
        ("echo 'a  b' \"c d\"", ("echo", "a  b", "c d")),
        (f"{PYTHON} -c 'print(1); print(2)'", (PYTHON, "-c", "print(1); print(2)")),
        (f"{PYTHON} -c \"print('$' * 2)\"", None),  # a shell reads variables inside double quotes
        ("echo $HOME", None),
        ("echo a | cat", None),
        ("echo a > file", None),
        ("echo *.py", None),
        ("NAME=1 echo", None),
        ("cd / && ls", None),
        ("exit 3", None),
    ],
)
def test_a_shell_is_used_only_where_a_command_needs_it(command: str, words: tuple[str, ...] | None) -> None:
    program, _ = programs_of([(command,), ("true",)])
    assert program.argv == (("sh", "-c", command) if words is None else words)
    assert program.command == command


def test_plain_words_are_never_read_by_a_shell() -> None:
    program, _ = programs_of([("echo", "$HOME; exit"), ("true",)])
    assert program.argv == ("echo", "$HOME; exit")
    assert program.command == "echo '$HOME; exit'"


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
