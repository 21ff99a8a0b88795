"""The command line on our own captures of an H200, and the blocks of the manual, which show what it prints of them."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from source import H200
from terminal import Strobe

ROOT = Path(__file__).parents[2]
PAIR = H200 / "pair"


def test_a_graph_is_declared_or_not_comparable(strobe: Strobe) -> None:
    found = strobe("speedup", H200 / "eager.json.gz", H200 / "graph.json.gz", "--json").document
    assert (found["comparable"], found["not_comparable_because"]) == (False, ["CUDA or HIP graphs: none seen against yes"])


def test_a_page_without_its_traces_says_so(strobe: Strobe, tmp_path: Path) -> None:
    folder = shutil.copytree(PAIR, tmp_path / "pair")
    (folder / "traces" / "sdpa.json.gz").unlink()
    assert strobe("report", folder).code == 0
    page = (folder / "report.md").read_text()
    assert "traces/sdpa.json.gz is not there any more" in page and "| sparse-triton | sparse-triton.json.gz |" in page


PAGES = ("docs/traces.md", "docs/speedup.md", "docs/tutorial_speedup.md", "docs/profile.md")
BLOCKS = [
    (page, block)
    for page in PAGES
    for block in re.findall(r"^```\n(\$ strobe .*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
]


@pytest.mark.parametrize(
    ("page", "block"),
    [
        pytest.param(page, block, id=f"{page}-{i}", marks=pytest.mark.rest if "engine-h200/compare" in block else ())  # large
        for i, (page, block) in enumerate(BLOCKS)
    ],
)
def test_the_manual_shows_what_the_commands_print(
    page: str, block: str, strobe: Strobe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in ("tests", "examples", "benchmarks"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    command, _, shown = block.replace("\\\n", " ").partition("\n")
    result = strobe(*shlex.split(command)[2:])
    assert result.code == 0, result.err
    printed = [line.rstrip() for line in result.out.splitlines()]
    lines = [line.rstrip() for line in shown.splitlines() if line.strip() and line != "..."]
    assert lines and not [line for line in lines if line not in printed]


def test_the_readme_s_case_has_the_tutorial_s_figures() -> None:
    """The blocks of the tutorial are what the commands print; the README repeats three of its figures in prose."""
    shown = "".join(block for page, block in BLOCKS if page == "docs/tutorial_speedup.md")
    (caption,) = re.findall(r"^\*The kernel saves (.*?)\[How to read it\]", (ROOT / "README.md").read_text(), re.MULTILINE)
    figures = re.findall(r"\d+\.\d+(?= ms)", caption)
    assert len(figures) == 3 and all(f"{figure} ms" in shown for figure in figures)


def test_every_page_shows_something() -> None:
    assert {page for page, _ in BLOCKS} == set(PAGES)
