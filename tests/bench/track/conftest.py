"""A repository of twelve commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from histories import twelve_commits


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("own") / "a repository"
    twelve_commits(place)
    return place
