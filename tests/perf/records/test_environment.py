from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from strobe.perf.records import record


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_git_state_is_that_of_the_checkout_that_tracks_the_file(tmp_path: Path) -> None:
    tracked, stray = tmp_path / "a.py", tmp_path / "b.py"
    assert record.git_state(tracked).commit is None
    git(tmp_path, "init", "-q")
    tracked.write_text("1")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-qm", "one")
    stray.write_text("2")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert record.git_state(tracked) == record.Git(commit=commit, dirty=False)
    assert record.git_state(stray).commit is None
    tracked.write_text("3")
    assert record.git_state(tracked) == record.Git(commit=commit, dirty=True)


def test_a_machine_that_tells_nothing_gives_nulls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(record, "_text", lambda path: "")
    assert record.nvidia_smi("GPU-0", ("driver_version", "clocks.sm")) == (None, None)
    assert record.git_state(Path(__file__)) == record.Git(commit=None, dirty=None)
    assert record.cpu_governor() is None
    assert record.cpu_mhz() is None
    assert record.cpu_cores() >= 1


def test_values_that_a_gpu_does_not_tell_are_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_output", lambda command: "1980, [N/A], N/A, 35")
    fields = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
    assert record.nvidia_smi("GPU-0", fields) == ("1980", None, None, "35")
    monkeypatch.setattr(record, "_output", lambda command: "No devices were found")
    assert record.nvidia_smi("GPU-0", fields) == (None, None, None, None)


def test_the_clock_of_the_cores_is_their_mean_in_mhz(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"a": "2000000", "b": "3001000", "c": "", "/proc/cpuinfo": "cpu MHz\t: 1000.5\nflags: x\ncpu MHz\t: 2000\n"}
    monkeypatch.setattr(record, "_text", lambda path: told[str(path)])
    for cores, expected in (("abc", 2500), ("", 1500)):
        monkeypatch.setattr(Path, "glob", lambda folder, pattern, cores=cores: map(Path, cores))
        assert record.cpu_mhz() == expected
