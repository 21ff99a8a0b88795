"""`strobe accept`: its document, its files, its exit codes, and one line for each wrong input."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from strobe.bench import accept
from strobe.cli.model import ModelFlags
from strobe.engine.load import load
from terminal import Strobe


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames of few blocks, and no clip of another prompt or seed longer than the first."""
    monkeypatch.setattr(accept, "SHORT", 3)


@pytest.mark.rest
def test_broken_weights_are_not_accepted_and_the_files_say_why(
    strobe: Strobe, short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load("shapes")
    model.dit.layers[3].ffn[0].weight.data[0, 0] = math.nan
    monkeypatch.setattr(ModelFlags, "load", lambda flags: replace(model, name="broken"))
    out = tmp_path / "out"
    result = strobe("accept", "--preset", "turbo", "--blocks", 4, "--device", "cpu", "-o", out, "--json")
    assert result.code == 1, result.err
    document = result.document
    assert not document["accepted"] and {"tensors_not_finite", "latents_not_finite"} <= set(document["failed"])
    assert document["verdict"].startswith("Not accepted: ")
    checks = {check["name"]: check for check in document["checks"]}
    assert checks["tensors_not_finite"]["detail"] == "transformer blocks.3.ffn.0.weight"
    assert checks["latent_std"]["value"] is None and checks["latent_std"]["passed"] is False and checks["latent_std"]["high"] == 4
    assert {path.name for path in out.iterdir()} == {"records.jsonl", "report.html", "report.json", "report.md"}
    again = strobe("report", out)
    assert again.code == 0 and "broken" in (out / "report.md").read_text(encoding="utf-8")
