"""`strobe log`: what it asks to be measured, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from strobe.bench.cases import ablate as run
from strobe.bench.cases.ablate import AblationCell, Job
from strobe.bench.cells import Outcome
from terminal import Strobe


def test_quick_measures_presets_against_the_base(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], Job]] = []

    def nothing(cells: Sequence[AblationCell], job: Job, folder: Path, progress: object) -> Outcome:
        asked.append(([cell.planned.name for cell in cells], job))
        return Outcome(measured=(), kept=(), failed=())

    monkeypatch.setattr(run, "run_cells", nothing)
    result = strobe("log", "--quick", "--presets", "turbo", "low_memory", "--device", "cpu", "--out", tmp_path / "log")
    assert result.code == 2 and "nothing was measured" in result.err
    ((cells, job),) = asked
    assert cells == ["preset-turbo", "preset-low_memory"]
    assert (job.base, job.script.num_blocks, len(job.script.switches)) == ("baseline", 34 + 20, 10)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a folder"),
        (["--quick", "--full"], "name one of them"),
        (["--knobs"], "add --quick or --full"),
        (["absent"], "nothing was measured at absent"),
        (["--quick", "--presets", "turbbo"], "did you mean 'turbo'"),
        (["--quick", "--switches", "-1"], "0 switches or more"),
    ],
)
def test_what_cannot_be_is_refused(strobe: Strobe, tmp_path: Path, arguments: list[str], words: str) -> None:
    result = strobe("log", *arguments, "--out", tmp_path / "log")
    assert result.code == 2 and words in result.err
