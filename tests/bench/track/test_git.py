"""Commits of a repository and their names, none of which git or a shell obeys; the repository stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from histories import commit, git
from strobe.bench.track.git import revisions, root_of, thinned
from strobe.core.errors import ConfigError
from strobe.perf.analysis.history.found import find
from strobe.perf.records.history import read_history
from tracked import measure, tracking, untouched


def test_a_merge_counts_as_one_commit(repo: Path, tmp_path: Path) -> None:
    place = tmp_path / "merged"
    git(tmp_path, "clone", "--quiet", str(repo), str(place))
    git(place, "checkout", "--quiet", "-b", "side", "HEAD~2")
    for number in range(3):
        commit(place, f"side {number}", {"ms": 60})
    git(place, "checkout", "--quiet", "main")
    git(place, "merge", "--quiet", "--no-ff", "-X", "theirs", "-m", "merge side", "side")
    last = commit(place, "after", {"ms": 60})
    found = revisions(place, "HEAD~3..HEAD")
    assert [each.subject for each in found] == ["commit 11", "commit 12", "merge side", "after"]
    assert [each.position for each in found] == [11, 12, 13, 14] and len(found[2].parents) == 2
    measure(tracking(place, tmp_path / "history"), "HEAD~3..HEAD")
    (series,) = find(read_history(tmp_path / "history"))
    assert [step.between for step in series.steps] == [0] and series.series.points[-1].revision.commit == last
    assert series.series.points[series.steps[0].after].revision.subject == "merge side"


def test_a_range_that_leaves_the_branch_begins_where_it_leaves_it(repo: Path, tmp_path: Path) -> None:
    place = tmp_path / "side"
    git(tmp_path, "clone", "--quiet", str(repo), str(place))
    git(place, "checkout", "--quiet", "-b", "side", "HEAD~2")
    commit(place, "side", {"ms": 60})
    assert [each.subject for each in revisions(place, "side..main")] == ["commit 10", "commit 11", "commit 12"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("nowhere..HEAD", "no commit 'nowhere'"),
        ("HEAD..HEAD~3", "turn them round"),
        ("HEAD~3...HEAD", "three dots"),
        ("--upload-pack=touch hacked..HEAD", "no commit '--upload-pack=touch hacked'"),
        ("--output=hacked", "no commit '--output=hacked'"),
        ("HEAD~3..--output=hacked", "no commit '--output=hacked'"),
        ("", "no commit ''"),
        ("main; touch hacked", "no commit"),
    ],
)
def test_what_is_no_range_is_refused(repo: Path, asked: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        revisions(repo, asked)
    assert untouched(repo) and not (repo / "hacked").exists()


def test_a_branch_named_like_an_option_is_a_branch(repo: Path, tmp_path: Path) -> None:
    place = tmp_path / "odd"
    git(tmp_path, "clone", "--quiet", str(repo), str(place))
    git(place, "update-ref", "refs/heads/--output=x", "HEAD~5")
    found = revisions(place, "refs/heads/--output=x..HEAD")
    assert [each.subject for each in found][::5] == ["commit 7", "commit 12"]
    assert revisions(place, "--output=x..HEAD") == found
    assert not (place / "x..HEAD").exists() and not (place / "x").exists()


def test_one_name_is_one_commit_and_few_are_spread_evenly(repo: Path) -> None:
    (one,) = revisions(repo, "main")
    assert one.subject == "commit 12" and revisions(repo, "main..main") == (one,)
    found = revisions(repo, "HEAD~11..HEAD")
    assert [each.position for each in thinned(found, 4)] == [1, 5, 8, 12]
    assert thinned(found, 1) == found[-1:] and thinned(found, 50) == found == thinned(found, None)


def test_what_is_no_repository_is_refused(repo: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        root_of(tmp_path / "none")
    with pytest.raises(ConfigError, match="not a git repository"):
        root_of(tmp_path)
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repo}", "shallow")
    with pytest.raises(ConfigError, match="shallow"):
        root_of(tmp_path / "shallow")
    git(tmp_path, "init", "--quiet", "empty")
    with pytest.raises(ConfigError, match="no commit yet"):
        root_of(tmp_path / "empty")


def test_a_dirty_repository_stays_as_it_is_and_its_hooks_do_not_run(repo: Path, tmp_path: Path) -> None:
    place = tmp_path / "dirty"
    git(tmp_path, "clone", "--quiet", str(repo), str(place))
    (place / "bench.py").write_text("raise SystemExit('the dirty one')")
    (place / "new.txt").write_text("mine")
    git(place, "add", "new.txt")
    hook = place / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/hacked'\n")
    hook.chmod(0o755)
    before = git(place, "status", "--porcelain"), git(place, "rev-parse", "HEAD"), git(place, "stash", "list")
    measure(tracking(place, place / "history"), "HEAD")
    (session,) = read_history(place / "history")
    assert [sample.figures["ms"] for sample in session.samples] == [120.0, 120.0] and not session.failures
    git(place, "config", "core.excludesFile", str(tmp_path / "ignored"))
    (tmp_path / "ignored").write_text("history\n")
    assert (git(place, "status", "--porcelain"), git(place, "rev-parse", "HEAD"), git(place, "stash", "list")) == before
    assert not (tmp_path / "hacked").exists() and (place / "bench.py").read_text() == "raise SystemExit('the dirty one')"
