"""Published pages: each is, byte for byte, what its verb renders today from the records that lie beside it."""

from __future__ import annotations

import gzip
import subprocess

import pytest

from published import BENCHMARKS, DOORS
from strobe.perf.report.write import render


def test_every_published_page_has_its_verb() -> None:
    pages = {file.parent.relative_to(BENCHMARKS).as_posix() for file in BENCHMARKS.rglob("report.md*")}
    assert pages == set(DOORS)


LARGE = "engine-h200/compare"
"""The largest run."""


@pytest.mark.parametrize("folder", [pytest.param(each, marks=pytest.mark.rest) if each == LARGE else each for each in DOORS])
def test_a_page_is_what_its_records_render_to(folder: str) -> None:
    place = BENCHMARKS / folder
    report = DOORS[folder](place)
    packed = place / "report.md.gz"
    page = gzip.decompress(packed.read_bytes()) if packed.exists() else (place / "report.md").read_bytes()
    assert page == render(report, "md").encode()
    if (place / "report.json").exists():
        assert (place / "report.json").read_bytes() == render(report, "json").encode()


def test_no_rendered_html_is_tracked() -> None:
    listed = subprocess.run(["git", "ls-files", "benchmarks"], cwd=BENCHMARKS.parent, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout")
    assert not [name for name in listed.stdout.splitlines() if name.endswith(".html")]
