"""`strobe profile stream --breakdown`, and what docs/profile.md shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from strobe.core.spans import PIECES
from strobe.perf.records.store import read_run
from terminal import Strobe

ROOT = Path(__file__).parents[2]
CAPTURE = ROOT / "tests" / "data" / "shapes_cpu" / "baseline.json.gz"
BLOCKS = re.findall(r"^```\n(\$ strobe .*?)^```", (ROOT / "docs" / "profile.md").read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS)
def test_the_manual_shows_what_the_command_prints(
    block: str, strobe: Strobe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    command, _, shown = block.partition("\n")
    result = strobe(*shlex.split(command)[2:])
    assert result.code == 0, result.err
    printed = [line.rstrip() for line in result.out.splitlines()]
    lines = [line.rstrip() for line in shown.splitlines() if line.strip() and line != "..."]
    assert len(lines) > 5 and not [line for line in lines if line not in printed]


@pytest.fixture(scope="module")
def quick() -> tuple[str, ...]:
    return ("turbo", "--no-compile", "--blocks", "4", "--active", "1", "--rounds", "1", "--device", "cpu")


def test_a_breakdown_of_a_stream(strobe: Strobe, tmp_path: Path, quick: tuple[str, ...]) -> None:
    result = strobe("profile", "stream", *quick, "--breakdown", "-o", tmp_path / "out")
    assert result.code == 0, result.err
    for words in ("Shares of turbo", "Passes and stages", "A layer of", "Launch gaps of", "attention / attention_kernel"):
        assert words in result.out
    run = read_run(tmp_path / "out")
    (trace,) = run.traces
    assert set(PIECES) <= set(trace.regions)
    assert not {span.name for span in run.spans} & set(PIECES)
    assert "Breakdown" in (tmp_path / "out" / "report.md").read_text()
