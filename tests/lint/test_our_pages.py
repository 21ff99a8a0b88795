"""Our own pages have no finding, and what is no document is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from strobe.core.errors import DataError
from strobe.lint.rules import lint_file
from strobe.perf.report.speedup_page.build import build_speedup_report
from strobe.perf.report.speedup_page.study import SideRequest, SpeedupRequest, load_speedup
from strobe.perf.report.write import render_markdown

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "benchmarks" / "README.md",
    ROOT / "src" / "strobe" / "models" / "shapes" / "bundle" / "MODEL_CARD.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("path", PAGES, ids=[path.relative_to(ROOT).as_posix() for path in PAGES])
def test_our_pages_are_clean(path: Path) -> None:
    assert lint_file(path) == ()


def test_our_report_is_clean(tmp_path: Path) -> None:
    page = tmp_path / "report.md"
    page.write_bytes(gzip.decompress((ROOT / "benchmarks" / "presets-h200" / "report.md.gz").read_bytes()))
    assert lint_file(page) == ()


@pytest.mark.parametrize("logs", [False, True], ids=["traces", "logs"])
def test_our_account_of_a_speedup_is_clean(tmp_path: Path, logs: bool) -> None:
    case = ROOT / "examples" / "vsa_case"
    fa, vsa = (
        SideRequest(name=name, log=case / f"{side}.log", traces=() if logs else (case / f"{side}.pt.trace.json.gz",))
        for name, side in (("baseline", "fa"), ("candidate", "vsa"))
    )
    page = tmp_path / "report.md"
    page.write_text(render_markdown(build_speedup_report(load_speedup(SpeedupRequest(baseline=fa, candidate=vsa, calls=432)))))
    assert lint_file(page) == ()


def test_what_cannot_be_linted(tmp_path: Path) -> None:
    for name, words in {"none.md": "cannot be read", "page.html": "Markdown"}.items():
        with pytest.raises(DataError, match=words):
            lint_file(tmp_path / name)
