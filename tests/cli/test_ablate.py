"""`strobe ablate` and `strobe log` from the command to the page."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from strobe.bench.cases import ablate as run
from strobe.cli.main import main
from terminal import Strobe

CLIP = ("--model", "tiny", "--device", "cpu", "--blocks", "4", "--switch", "block=2:a blue square moving up")
SMALL = ("--base", "turbo", "--rounds", "1", "--samples", "1", "--traced", "0", *CLIP)


@pytest.fixture(scope="module")
def ablated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """One cell of the bundled model, and the JSON that the command printed."""
    folder = tmp_path_factory.mktemp("ablate") / "ablation"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["ablate", "steps=1", *SMALL, "--out", str(folder), "--json", "--quiet"])
    assert code == 0, out.getvalue()
    return folder, json.loads(out.getvalue())


def test_the_pages_pass_the_linter(strobe: Strobe, ablated: tuple[Path, Any], tmp_path: Path) -> None:
    folder, document = ablated
    assert (document["measured"], document["failed"]) == (["steps-1"], [])
    assert {Path(path).name for path in document["report"].values()} == {"report.html", "report.md", "report.json"}
    assert strobe("log", folder, "--out", tmp_path / "log").code == 0
    for page in (folder, tmp_path / "log"):
        found = strobe("lint", page / "report.md", "--json")
        assert (found.code, found.document["findings"]) == (0, [])


def test_the_page_is_made_again_from_the_cells(strobe: Strobe, ablated: tuple[Path, Any]) -> None:
    folder, document = ablated
    before = (folder / "report.md").read_bytes()
    result = strobe("ablate", "--render", "--out", folder, "--json")
    assert result.code == 0 and result.document["speedups"] == document["speedups"]
    assert (folder / "report.md").read_bytes() == before


def test_a_finished_cell_is_kept(strobe: Strobe, ablated: tuple[Path, Any]) -> None:
    result = strobe("ablate", "steps=1", *SMALL, "--out", ablated[0], "--json")
    assert (result.document["measured"], result.document["kept"]) == ([], ["steps-1"])
    other = strobe("ablate", "steps=1", *SMALL, "--out", ablated[0], "--seed", "7")
    assert other.code == 2 and "differ in seed" in other.err


def test_an_interruption_names_what_is_kept_and_what_goes_on(
    strobe: Strobe, ablated: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_cells", stop)
    page = {"ablate": f"strobe ablate --render --out {ablated[0]}", "log": f"strobe log {ablated[0]} --out {ablated[0]}"}
    for line in (("ablate", "steps=1", *SMALL), ("log", "--quick", "--presets", "turbo", "--device", "cpu")):
        some, nothing = strobe(*line, "--out", ablated[0]), strobe(*line, "--out", tmp_path / "new")
        assert some.code == nothing.code == 130
        assert some.err.startswith("the 1 finished cells are kept: the same command goes on from there, ")
        assert page[line[0]] in some.err
        assert nothing.err == "error: interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["ablate", "preset=turbo,ultra"], "ultra"),
        (["ablate", "linear_format=fp8"], "linear_format-fp8"),
        (["log", "--quick", "--presets", "turbo", "ultra"], "ultra"),
    ],
)
def test_what_cannot_run_here_is_told_before_anything_runs(
    strobe: Strobe, tmp_path: Path, arguments: list[str], named: str
) -> None:
    result = strobe(*arguments, "--device", "cpu", "--out", tmp_path / "out")
    assert result.code == 3 and result.err.startswith(f"error: preset '{named}' cannot run: ")
    assert "preset 'turbo'" in result.err and "--simulate" in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["windw=6"], "did you mean 'window'"),
        (["window=12"], "nothing to measure"),
        (["window=6", "--grid"], "two factors or more"),
        (["window=3"], "smallest window"),
        (["switch_at=99"], "never take effect"),
        (["--base", "balancd"], "did you mean 'balanced'"),
    ],
)
def test_what_cannot_be_measured_is_refused(strobe: Strobe, tmp_path: Path, arguments: list[str], words: str) -> None:
    result = strobe("ablate", *arguments, "--device", "cpu", "--out", tmp_path / "out")
    assert result.code == 2 and words in result.err
    assert not (tmp_path / "out").exists()
