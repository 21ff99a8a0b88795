"""The acceptance of a model as a run: its checks, its page, the line for a table, and what a damaged model gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from strobe.bench.accept import LEAST_BLOCKS, AcceptSubject, not_judged, run_accept
from strobe.core.errors import ConfigError
from strobe.engine.model import Model
from strobe.engine.presets import preset
from strobe.perf.records.record import Check
from strobe.perf.records.store import read_run
from strobe.perf.report.accept_page import accept_report, acceptance_of, markdown_line
from strobe.perf.report.build import build_report
from strobe.perf.report.write import render_markdown

CPU = torch.device("cpu")


def quiet(*step: object) -> None:
    pass


def subject(model: Model, **change: object) -> AcceptSubject:
    fields: dict[str, object] = {
        "model": model,
        "config": preset("balanced"),
        "prompts": ("red circle", "blue square moving"),
        "device": CPU,
        "seed": 0,
        "blocks": 6,
    }
    return AcceptSubject(**(fields | change))  # type: ignore[arg-type]


@pytest.fixture
def words(tiny: Model) -> Model:
    from strobe.models.text.words import WordEncoder

    return replace(tiny, text=WordEncoder(["red", "blue", "circle", "square", "moving"], dim=16, length=6))


def test_every_check_is_written_and_the_preset_is_compared(words: Model, tmp_path: Path) -> None:
    folder = run_accept(subject(words, blocks=12), root=tmp_path, progress=quiet)
    records = read_run(folder)
    found = acceptance_of(records)
    assert found.complete
    names = {check.name: check for check in found.checks}
    assert len(names) == len(found.checks)
    assert names["streaming_against_one_pass"].passed and names["preset_balanced"].passed and names["prompt_sensitivity"].passed
    compared = read_run(folder / "compare")
    assert compared.header.order[:2] == ("quality", "balanced") and compared.end is not None and compared.end.status == "complete"
    page = render_markdown(build_report([folder]))
    assert page == render_markdown(accept_report(folder))
    for told in ("Line for a table of results", "pixel FPS, steady", "source of the bound", "reported, not judged"):
        assert told in page
    head, rule, row = markdown_line(records, found).splitlines()
    assert head.count("|") == rule.count("|") == row.count("|") == 10 and row.startswith("| tiny | 000000000000 | balanced |")
    assert f"{found.num_judged - len(found.failed)} of {found.num_judged}" in row


def test_a_damaged_model_is_not_accepted_and_the_page_says_why(words: Model, tmp_path: Path) -> None:
    import copy

    dit = copy.deepcopy(words.dit)
    with torch.no_grad():
        dit.layers[1].ffn[0].weight[0, 0] = float("nan")
    folder = run_accept(subject(replace(words, dit=dit)), root=tmp_path, progress=quiet)
    found = acceptance_of(read_run(folder))
    assert found.complete and not found.accepted
    assert {"tensors_not_finite", "latents_not_finite", "latent_std", "prompt_sensitivity"} <= {
        each.name for each in found.failed
    }
    report = accept_report(folder)
    assert report.subtitle.startswith("Not accepted: ") and report.banners[0].title == "Checks failed"
    assert any("transformer blocks.1.ffn.0.weight" in item for item in report.banners[0].items)


def test_random_weights_are_not_judged_by_their_clips() -> None:
    for name, group, kept in (
        ("motion", "frames", False),
        ("latent_std", "latents", False),
        ("latents_not_finite", "latents", True),
    ):
        check = not_judged(Check(group=group, name=name, value=1.0, passed=False, basis="fact"))  # type: ignore[arg-type]
        assert (check.passed is False) == kept and check.basis.startswith("fact" if kept else "random weights")
    check = Check(group="stream", name="x", value=1.0, passed=False)
    assert not_judged(check) == check


def test_what_cannot_be_accepted_is_told_before_anything_runs(words: Model) -> None:
    with pytest.raises(ConfigError, match="3 frame blocks are too few to see drift; give 4 or more"):
        subject(words, blocks=3)
    with pytest.raises(ConfigError, match="the other prompt is the same as the first"):
        subject(words, prompts=("red circle", "red circle"))
    with pytest.raises(ConfigError, match="purple"):
        subject(words, prompts=("red circle", "purple circle"))
    assert LEAST_BLOCKS == 4
