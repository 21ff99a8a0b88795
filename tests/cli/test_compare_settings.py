"""`strobe compare --vary` and `strobe report --log` from the command to the page."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import pytest

from strobe.bench.cases import ablate as run
from terminal import Strobe, alone

ROOT = Path(__file__).parents[2]
CLIP = ("--model", "tiny", "--device", "cpu", "--blocks", "8", "--switch", "block=2:a blue square moving up")
SMALL = ("turbo", "--vary", "steps=1", "--rounds", "1", *CLIP)


@pytest.fixture(scope="module")
def ablated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """One cell of the bundled model, and the JSON that the command printed."""
    folder = tmp_path_factory.mktemp("ablate") / "ablation"
    done = alone("compare", *SMALL, "--out", folder, "--json", "--quiet")
    assert done.code == 0, done.err
    return folder, done.document


def test_the_pages_pass_the_linter(strobe: Strobe, ablated: tuple[Path, Any], tmp_path: Path) -> None:
    folder, document = ablated
    assert (document["measured"], document["failed"]) == (["steps-1"], [])
    assert {Path(path).name for path in document["report"].values()} == {"report.html", "report.md", "report.json"}
    assert strobe("report", folder, "--log", "--out", tmp_path / "log").code == 0
    for page in (folder, tmp_path / "log"):
        found = strobe("lint", page / "report.md", "--json")
        assert (found.code, found.document["findings"]) == (0, [])


def test_the_page_is_made_again_from_the_cells(strobe: Strobe, ablated: tuple[Path, Any]) -> None:
    folder, document = ablated
    before = (folder / "report.md").read_bytes()
    result = strobe("report", folder, "--json")
    assert result.code == 0 and result.document["speedups"] == document["speedups"]
    assert (folder / "report.md").read_bytes() == before


def test_a_finished_cell_is_kept(strobe: Strobe, ablated: tuple[Path, Any]) -> None:
    result = strobe("compare", *SMALL, "--out", ablated[0], "--json")
    assert (result.document["measured"], result.document["kept"]) == ([], ["steps-1"])
    other = strobe("compare", *SMALL, "--out", ablated[0], "--seed", "7")
    assert other.code == 2 and "differ in seed" in other.err


def test_an_interruption_names_what_is_kept_and_what_goes_on(
    strobe: Strobe, ablated: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_cells", stop)
    some, nothing = (strobe("compare", *SMALL, "--out", folder) for folder in (ablated[0], tmp_path / "new"))
    assert some.code == nothing.code == 130
    assert some.err.startswith("the 1 finished cells are kept: the same command goes on from there, ")
    assert f"strobe report {ablated[0]}" in some.err
    assert nothing.err == "error: interrupted\n"


@pytest.mark.parametrize(("factor", "named"), [("preset=turbo,ultra", "ultra"), ("linear_format=fp8", "linear_format-fp8")])
def test_what_cannot_run_here_is_told_before_anything_runs(strobe: Strobe, tmp_path: Path, factor: str, named: str) -> None:
    result = strobe("compare", "balanced", "--vary", factor, "--device", "cpu", "--out", tmp_path / "out")
    assert result.code == 3 and result.err.startswith(f"error: preset '{named}' cannot run: ")
    assert "preset 'turbo'" in result.err and "--simulate" in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("folder", ["batch", "eight-low"])
def test_published_settings_are_reported_by_their_folder(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    place = shutil.copytree(ROOT / "benchmarks/engine-h200" / folder, tmp_path / folder)
    published = gzip.decompress((place / "report.md.gz").read_bytes())
    reported = strobe("report", place)
    assert reported.code == 0 and 10 < reported.out.count("\n") <= 40
    assert (place / "report.md").read_bytes() == published


@pytest.mark.parametrize("folder", ["engine-h200/compare", "presets-h200"])
def test_many_candidates_are_answered_on_a_screen(
    strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    reported = strobe("report", ROOT / "benchmarks" / folder, "--out", tmp_path)
    assert reported.code == 0 and 20 < reported.out.count("\n") <= 40
    assert "ultra against baseline" in reported.out and "quality against baseline" not in reported.out
