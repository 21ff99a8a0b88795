"""`strobe train-shapes`: what it hands to the training, and what it says of it. The training itself is tested with the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from strobe.models.shapes.train import run
from strobe.models.shapes.train.state import Progress
from terminal import Strobe


def test_every_stage_is_told(strobe: Strobe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(folder: Path, *, device: torch.device, scale: float, seed: int) -> Iterator[Progress]:
        assert (folder, device.type, scale, seed) == (tmp_path, "cpu", 0.1, 3)
        for stage, step, loss in (("teacher", 50, 0.5), ("teacher", 100, 0.25), ("student", 10, 0.125)):
            yield Progress(stage=stage, step=step, total=100, seconds=1.5, values={"loss": loss})

    monkeypatch.setattr(run, "train", train)
    result = strobe("train-shapes", "--out", tmp_path, "--scale", 0.1, "--seed", 3, "--device", "cpu", "--json")
    assert result.code == 0
    assert result.document == {
        "v": 1,
        "folder": str(tmp_path),
        "stages": {
            "teacher": {"step": 100, "seconds": 1.5, "loss": 0.25},
            "student": {"step": 10, "seconds": 1.5, "loss": 0.125},
        },
    }


def test_a_scale_that_trains_nothing_is_refused(strobe: Strobe, tmp_path: Path) -> None:
    result = strobe("train-shapes", "--out", tmp_path / "new", "--scale", 0)
    assert result.code == 2 and "--scale 0 is not positive" in result.err and not (tmp_path / "new").exists()
