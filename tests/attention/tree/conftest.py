"""Ranks that are threads of this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tree_ranks import Runner, threads


@pytest.fixture(scope="module")
def ranks() -> Iterator[Runner]:
    with threads() as run:
        yield run
