"""Pages made from the code are up to date, no link leads nowhere, every page is in the navigation, figures are those measured."""

from __future__ import annotations

import gzip
import re
import runpy
import sys
from pathlib import Path

import pytest

from artefacts import write_guide
from source import ROOT, name_of

PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("README.md")),
    *sorted((ROOT / "src").rglob("README.md")),
]
FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]*))?\)")


def test_generated_pages_are_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["generate.py", str(tmp_path)])
    runpy.run_path(str(ROOT / "docs" / "generate.py"), run_name="__main__")
    for page in tmp_path.iterdir():
        assert page.read_text() == (ROOT / "docs" / page.name).read_text(), f"docs/{page.name} is out of date: run `make docs`"


def anchors(page: Path) -> set[str]:
    """Where a link can lead to inside a page: its headings, as they are slugged in a checkout and in the site."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ +(.+?) *$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=[name_of(page) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.finditer(FENCE.sub("", page.read_text(encoding="utf-8"))):
        target = page.parent / link["path"] if link["path"] else page
        assert target.exists(), f"{name_of(page)} links to {link['path']}"
        if link["anchor"]:
            assert link["anchor"] in anchors(target), f"{name_of(page)} links to {link['path']}#{link['anchor']}"


def test_anchors_are_read_from_headings() -> None:
    assert {"which-card-runs-what", "a-video"} <= anchors(ROOT / "docs" / "attention.md")
    assert "tree_examplepy-torchrun---nproc-per-node-2-tree_examplepy" not in anchors(ROOT / "docs" / "tree.md")


def test_every_page_is_in_the_navigation_and_the_index() -> None:
    """The site is built strictly by `make docs`; this needs nothing to be installed for it."""
    pages = sorted(page.name for page in (ROOT / "docs").glob("*.md"))
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    assert sorted(re.findall(r"[\w/]+\.md\b", navigation)) == sorted([*pages, "benchmarks/README.md"])
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert [page for page in pages if f"({page})" not in index] == ["index.md"]


def test_pictures_are_small_and_shown() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    pictures = sorted((ROOT / "docs" / "pictures").iterdir())
    assert sum(picture.stat().st_size for picture in pictures) <= 1_200_000
    for picture in pictures:
        assert picture.stat().st_size <= (2_500_000 if picture.suffix == ".gif" else 150_000), picture.name
        assert f"pictures/{picture.name})" in text, f"no page shows {picture.name}"


def test_the_case_of_the_tutorial_is_the_worked_example(tmp_path: Path) -> None:
    for path in write_guide(tmp_path).values():
        kept = (ROOT / "examples" / "vsa_case" / path.name).read_bytes()
        read = gzip.decompress if path.suffix == ".gz" else bytes
        assert read(kept) == read(path.read_bytes()), f"examples/vsa_case/{path.name}"


README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("folder", "source"), [("engine-h200", "README.md"), ("attention-h200", "32k/report.md.gz")])
def test_tables_of_the_readme_have_the_figures_of_the_folder_that_they_name(folder: str, source: str) -> None:
    """Each row is named as a row of a page there; a figure of it, rounded as there."""
    table = re.search(r"(?:^\|.*\n)+", README[README.index(f"](benchmarks/{folder}/README.md)") :], re.MULTILINE)
    assert table is not None
    file = ROOT / "benchmarks" / folder / source
    page = (gzip.decompress if file.suffix == ".gz" else bytes)(file.read_bytes()).decode().splitlines()
    _, _, *rows = table[0].splitlines()
    assert len(rows) >= 5
    for row in rows:
        named = re.search(r"`([^`]+)`", row)
        figures = re.findall(r"\d+\.\d+", row)
        assert named and figures, row
        names = {named[1], row.split("|")[1].strip(" `")}
        lines = [line for line in page if names & {cell.strip(" `") for cell in line.split("|")}]
        assert any(all(is_rounded(each, line) for each in figures) for line in lines), f"{file} does not have {row}"


@pytest.mark.parametrize(("column", "preset"), [(2, "balanced"), (3, "turbo_fp8"), (4, "sparse")])
def test_shares_of_a_frame_block_are_those_of_the_published_page(column: int, preset: str) -> None:
    page = gzip.decompress((ROOT / "benchmarks" / "engine-h200" / "compare" / "report.md.gz").read_bytes()).decode()
    published = page.replace("\\_", "_").split(f"**Shares of {preset}: 8 traced frame blocks")[1]
    shares, idle = {}, {}
    for line in published.partition("\n\n* ")[0].splitlines():
        cells = [cell.strip("* ") for cell in line.split("|")]
        if len(cells) == 9 and cells[5].endswith("%"):
            shares[cells[1].partition(" (")[0]], idle[cells[1].partition(" (")[0]] = cells[5], cells[6]
    text = (ROOT / "docs" / "profile.md").read_text(encoding="utf-8")
    shown = [line.split("|") for line in text[text.index("### The same on a GPU") :].partition("One attention")[0].splitlines()]
    said = {cells[1].strip(): cells[column].strip() for cells in shown if len(cells) > column}
    pieces = ("attention", "attention / attention_kernel", "cross_attention", "ffn", "vae_decode")
    names = ("self-attention", "its attention kernels", "cross-attention", "feed-forward", "decoder")
    assert [said[name] for name in names] == [shares[piece] for piece in pieces]
    (whole,) = re.findall(r"\*\*frame block\*\* \|([^\n]*)", published.partition("A layer of")[0])
    _, length, _, rest, *_ = (cell.strip("* ") for cell in whole.split("|"))
    assert said["one frame block, mean"] == f"{length} ms"
    assert said["idle, wherever it is"] == f"{100 * float(rest) / float(length):.1f} %"


def is_rounded(figure: str, line: str) -> bool:
    """Whether a line has a number that is the figure, rounded to its decimals."""
    decimals = len(figure.partition(".")[2])
    return any(f"{float(number):.{decimals}f}" == figure for number in re.findall(r"\d+\.\d+", line))


def test_flags_in_the_list_of_commands_are_flags() -> None:
    """Verbs of verbs once had the library's negative forms there, which are refused."""
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"--(?:no|empty)-[a-z-]+", page)) == {"--no-compile", "--no-switch", "--no-trace"}
    assert not re.findall(r"^.*(?:e\.g|i\.e|same way)$", page, re.MULTILINE), "the first sentence of a flag's help ends too early"


def test_every_module_in_the_tree_of_the_house_exists() -> None:
    """Outside parentheses the tree of docs/architecture.md holds names of modules and folders alone."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree, package = page[page.index("src/strobe/\n") : page.index("\ntests/")], ROOT / "src" / "strobe"
    bare, before = tree, ""
    while bare != before:
        bare, before = re.sub(r"\([^()]*\)", "", bare), bare
    room, named = "", set()
    for line in bare.splitlines()[1:]:
        if found := re.match(r"  (\w+)(?:/|\.py)\s", line):
            room, line = found[1], line[found.end() :]
        if (package / room).is_dir():
            named |= {(room, name) for name in re.findall(r"[a-z_0-9]+", line)}
    there = {
        (path.relative_to(package).parts[0], path.stem) for path in package.rglob("*") if path.is_dir() or path.suffix == ".py"
    }
    assert {"attention", "engine", "perf"} <= {room for room, _ in named}
    assert named <= there, sorted(named - there)
