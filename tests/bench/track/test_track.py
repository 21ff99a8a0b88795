"""Sessions over a repository of twelve commits whose programs print their speed, so that nothing hangs on timing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from histories import commit, git, twelve_commits
from sandbox import hears_ctrl_c
from strobe.bench.track.bisect import narrow
from strobe.bench.track.builds import Case
from strobe.bench.track.figures import followed
from strobe.bench.track.session import held
from strobe.core.errors import ConfigError, StrobeError
from strobe.perf.analysis.history.found import find
from strobe.perf.records.history import KEPT, SESSIONS, read_history
from tracked import CASE, measure, nothing, tracking, untouched


@pytest.fixture(scope="module")
def measured(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    history = tmp_path_factory.mktemp("history") / "of it"
    measure(tracking(repo, history), "HEAD~11..HEAD")
    return history


def test_every_commit_is_measured_and_the_steps_are_found(repo: Path, measured: Path) -> None:
    commits = git(repo, "rev-list", "--reverse", "HEAD").split()
    (found,) = find(read_history(measured))
    assert [each.revision.commit for each in found.series.points] == [c for at, c in enumerate(commits) if at not in (2, 6)]
    assert [round(each.value, 6) for each in found.series.points] == [100.0] * 3 + [150.0] * 3 + [120.0] * 4
    made = [found.series.points[step.after].revision for step in found.steps]
    assert [each.commit for each in made] == [commits[4], commits[8]] and [each.subject for each in made] == [
        "commit 5",
        "commit 9",
    ]
    assert [step.ratio for step in found.steps] == pytest.approx([1.5, 0.8])
    failed = found.series.failed
    assert failed[commits[2]].at == "install" and "no install here" in failed[commits[2]].reason
    assert failed[commits[6]].at == "run" and "it is broken" in failed[commits[6]].reason and failed[commits[6]].code == 1
    assert untouched(repo) and not (measured / ".work").exists()


def test_every_sample_has_what_the_process_took_and_where(measured: Path) -> None:
    (session,) = read_history(measured)
    assert session.session.host.cores >= 1 and session.session.anchor is None
    assert all(sample.wall_ns > 0 and sample.cpu_ns > 0 for sample in session.samples)
    assert [sample.order for sample in session.samples] == list(range(20))
    rounds = [[sample.commit for sample in session.samples if sample.round == number] for number in range(2)]
    assert sorted(rounds[0]) == sorted(rounds[1]) and rounds[0] != rounds[1], "every round has another order"


def test_nothing_is_measured_twice(repo: Path, measured: Path) -> None:
    before = (measured / SESSIONS).stat().st_mtime_ns
    assert measure(tracking(repo, measured), "HEAD~11..HEAD")[0] is None
    assert (measured / SESSIONS).stat().st_mtime_ns == before


def test_a_later_session_measures_what_is_new_and_the_anchor(repo: Path, tmp_path: Path) -> None:
    measure(tracking(repo, tmp_path), "HEAD~11..HEAD~10")
    taken, _ = measure(tracking(repo, tmp_path), "HEAD~11..HEAD~8")
    first, second = read_history(tmp_path)
    anchor = git(repo, "rev-parse", "HEAD~11")
    assert second.session.anchor == anchor and taken == 4
    assert Counter(sample.commit for sample in second.samples) == {anchor: 2, git(repo, "rev-parse", "HEAD~8"): 2}
    assert len(first.samples) == 4


def test_more_rounds_take_what_is_missing_and_failures_are_not_tried_again(repo: Path, tmp_path: Path) -> None:
    measure(tracking(repo, tmp_path), "HEAD~10..HEAD~8")  # of three commits one does not install
    taken, _ = measure(tracking(repo, tmp_path, rounds=3), "HEAD~10..HEAD~8")
    assert taken == 2 and not read_history(tmp_path)[1].failures
    measure(tracking(repo, tmp_path, rounds=3, retry_failed=True), "HEAD~10..HEAD~8")
    assert [each.at for each in read_history(tmp_path)[2].failures] == ["install"]


def test_a_step_is_bisected_to_its_commit(repo: Path, tmp_path: Path) -> None:
    job = tracking(repo, tmp_path)
    measure(job, "HEAD~11..HEAD~4", 2)
    (before,) = find(read_history(tmp_path))
    assert [step.between for step in before.steps] == [6]
    (after,) = narrow(job, 0.01, nothing)
    commits = git(repo, "rev-list", "--reverse", "HEAD").split()
    (step,) = after.steps
    assert after.series.points[step.after].revision.commit == commits[4] and step.between == 0
    assert len(after.series.points) < 7, "not every commit was measured"
    assert narrow(job, 0.01, nothing)[0].steps == after.steps
    assert untouched(repo)


def test_only_the_step_that_was_asked_for_is_bisected(repo: Path, tmp_path: Path) -> None:
    job = tracking(repo, tmp_path)
    measure(job, "HEAD~11..HEAD", 3)
    commits = git(repo, "rev-list", "--reverse", "HEAD").split()
    (found,) = narrow(job, 0.01, nothing, wanted=commits[8])
    assert [step.between for step in found.steps][-1] == 0 and found.steps[0].between > 0


# --------------------------------------------------------------------------------------------------------- cases and figures


def test_what_prints_no_figure_fails_and_says_what_it_printed(repo: Path, tmp_path: Path) -> None:
    measure(tracking(repo, tmp_path, figures=followed(["fps"], [])), "HEAD")
    (session,) = read_history(tmp_path)
    assert session.samples == () and [each.at for each in session.failures] == ["figure"]
    assert "no figure 'fps'" in session.failures[0].reason and "ms, nested.fps" in session.failures[0].reason


def test_figures_within_objects_and_of_the_process(repo: Path, tmp_path: Path) -> None:
    figures = followed(["nested.fps", "wall", "cpu"], ["nested.fps"])
    measure(tracking(repo, tmp_path, figures=figures), "HEAD")
    (session,) = read_history(tmp_path)
    (first, _) = session.samples
    assert first.figures["nested.fps"] == pytest.approx(1000 / 120)
    assert first.figures["wall"] == first.wall_ns and first.figures["cpu"] == first.cpu_ns
    assert [each.higher for each in figures] == [True, False, False]


@pytest.mark.parametrize(
    ("script", "at", "words"),
    [
        ("print('{\"ms\": 0}')", "figure", "is 0; a ratio needs positive numbers"),
        ("print('{\"ms\": NaN}')", "figure", "is nan"),
        ("print('{\"ms\": true}')", "figure", "no figure 'ms'"),
        ("print('ms')", "figure", "no JSON object"),
        ("import time; time.sleep(60)", "run", "took more than 2 s"),
        ("import os; os.kill(os.getpid(), 9)", "run", "ended by signal 9"),
    ],
)
def test_a_run_that_gives_no_figure_says_why(tmp_path: Path, script: str, at: str, words: str) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "--quiet", "--initial-branch", "main")
    commit(repo, "one", {}, bench=script)
    case = Case(command=f"{sys.executable} bench.py", timeout_s=2)
    measure(tracking(repo, tmp_path / "history", case=case), "HEAD")
    (failure,) = read_history(tmp_path / "history")[0].failures
    assert failure.at == at and words in failure.reason


def test_a_run_folder_gives_the_levels_of_its_variants(repo: Path, tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    source = root / "benchmarks" / "presets-h200" / "records.jsonl.gz"
    case = Case(command=f"sh -c 'mkdir $STROBE_TRACK_OUT/run && cp {source} $STROBE_TRACK_OUT/run/'", timeout_s=60)
    measure(tracking(repo, tmp_path, case=case, figures=followed(["turbo.e2e", "turbo.block"], [])), "HEAD")
    (session,) = read_history(tmp_path)
    assert not session.failures
    value = session.samples[0].figures
    assert 0 < value["turbo.block"] < value["turbo.e2e"]
    kept = [each.kept for each in session.samples]
    assert kept == [f"{KEPT}/{session.samples[0].commit}", None]
    assert (session.folder / kept[0] / "run" / "records.jsonl.gz").is_file()


def test_a_virtual_environment_of_each_commit(repo: Path, tmp_path: Path) -> None:
    """The command's Python is that of the environment, and PYTHONPATH of this process does not reach it."""
    script = (
        "import json, os, sys; print(json.dumps({'ms': 1 + (sys.prefix != sys.base_prefix) + 2 * ('PYTHONPATH' in os.environ)}))"
    )
    case = Case(command=f'python -c "{script}"', install="python -m pip --version", environment="venv", timeout_s=60)
    measure(tracking(repo, tmp_path, case=case, rounds=1), "HEAD")
    (session,) = read_history(tmp_path)
    assert [each.figures for each in session.samples] == [{"ms": 2.0}], session.failures


def test_a_history_has_one_case_and_one_repository(repo: Path, measured: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--case"):
        measure(tracking(repo, measured, case=Case(command="true")), "HEAD")
    with pytest.raises(ConfigError, match="--figure"):
        measure(tracking(repo, measured, figures=followed(["wall"], [])), "HEAD")
    other = tmp_path / "other"
    twelve_commits(other)
    git(other, "checkout", "--quiet", "--orphan", "again")
    commit(other, "another root", {"ms": 1})
    with pytest.raises(ConfigError, match="repository"):
        measure(tracking(other, measured), "HEAD")


def test_two_sessions_at_once_are_refused(repo: Path, tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(ConfigError, match="another"):
        measure(tracking(repo, tmp_path), "HEAD")


def test_figures_that_are_asked_for_twice_or_not_at_all() -> None:
    with pytest.raises(ConfigError, match="twice"):
        followed(["ms", "ms"], [])
    with pytest.raises(ConfigError, match="no figure"):
        followed(["ms"], ["fps"])
    assert [each.name for each in followed([], [])] == ["wall"]


# ---------------------------------------------------------------------------------------------------------------- interrupted


def waits_for(condition: object, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def start(repo: Path, history: Path) -> subprocess.Popen[bytes]:
    words = [
        "track",
        "run",
        "--repo",
        str(repo),
        "--commits",
        "HEAD~5..HEAD~3",
        "--rounds",
        "4",
        "--figure",
        "ms",
        "-o",
        str(history),
    ]
    command = [sys.executable, "-m", "strobe", *words, "--case", CASE.command, "--install", CASE.install, "--environment", "none"]
    source = Path(__file__).parents[3] / "src"
    return subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": str(source)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=hears_ctrl_c,
    )


def samples(history: Path) -> list[str]:
    return [sample.commit for session in read_history(history) for sample in session.samples]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_half_way_goes_on_from_there(repo: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = start(repo, tmp_path)
    waits_for(lambda: process.poll() is not None or len(samples(tmp_path)) >= 2)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    done = samples(tmp_path)
    assert 2 <= len(done) < 8, said.decode()
    if number != signal.SIGKILL:
        assert process.returncode in (130, 143) and b"measurements are kept" in said
        assert untouched(repo) and not (tmp_path / ".work").exists()
    job = tracking(repo, tmp_path, rounds=4)
    taken, told = measure(job, "HEAD~5..HEAD~3")
    assert untouched(repo) and not (tmp_path / ".work").exists()
    counts = Counter(samples(tmp_path))
    anchor = read_history(tmp_path)[1].session.anchor
    assert anchor is not None and {counts[each.commit] for each in told if each.commit not in (anchor,)} <= {0, 4}
    assert measure(job, "HEAD~5..HEAD~3")[0] is None and taken is not None and taken < 8 + 4


def test_records_that_cannot_be_written_leave_nothing_behind(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from strobe.perf.records.store import RunWriter

    def full(*_: object) -> None:
        raise StrobeError("the disk is full")

    monkeypatch.setattr(RunWriter, "sync", full)
    with pytest.raises(StrobeError, match="full"):
        measure(tracking(repo, tmp_path), "HEAD")
    assert untouched(repo) and not (tmp_path / ".work").exists()


def test_a_damaged_line_is_measured_again(repo: Path, tmp_path: Path) -> None:
    job = tracking(repo, tmp_path)
    measure(job, "HEAD~1..HEAD")
    (session,) = read_history(tmp_path)
    file = session.folder / "measurements.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[-1] = lines[-1].replace(json.dumps(session.samples[-1].figures["ms"]).encode(), b"999.0")
    file.write_bytes(b"".join(lines))
    assert len(samples(tmp_path)) == 3
    measure(job, "HEAD~1..HEAD")
    assert min(Counter(samples(tmp_path)).values()) == 2 and len(set(samples(tmp_path))) == 2
