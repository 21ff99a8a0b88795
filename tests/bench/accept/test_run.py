"""The acceptance of a model as a run: its checks, its page, and what a damaged model gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from strobe.bench.accept import RULES, AcceptSubject, not_judged, run_accept
from strobe.engine.model import Model
from strobe.engine.presets import preset
from strobe.perf.records.record import Check
from strobe.perf.records.store import read_run
from strobe.perf.report.accept_page import accept_report, complete, failed_checks
from strobe.perf.report.build import build_report
from strobe.perf.report.write import render_markdown
from terminal import quiet

CPU = torch.device("cpu")


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


def test_every_check_is_written_and_stands_on_the_page(words: Model, tmp_path: Path) -> None:
    folder = run_accept(subject(words, blocks=4), root=tmp_path, progress=quiet)
    records = read_run(folder)
    assert complete(records)
    names = {check.name: check for check in records.checks}
    assert len(names) == len(records.checks) and set(names) == set(RULES) - {"prompt_accuracy"}, "which reads no such clip"
    assert names["streaming_against_one_pass"].passed and names["prompt_sensitivity"].passed
    page = render_markdown(build_report([folder]))
    assert page == render_markdown(accept_report(folder)) and "source of the bound" in page
    assert all(name in page.replace("\\", "") for name in names)


def test_a_damaged_model_is_not_accepted_and_the_page_says_why(words: Model, tmp_path: Path) -> None:
    import copy

    dit = copy.deepcopy(words.dit)
    with torch.no_grad():
        dit.layers[1].ffn[0].weight[0, 0] = float("nan")
    folder = run_accept(subject(replace(words, dit=dit)), root=tmp_path, progress=quiet)
    run = read_run(folder)
    failed = {each.name for each in failed_checks(run)}
    assert complete(run) and {"tensors_not_finite", "latents_not_finite", "latent_std", "prompt_sensitivity"} <= failed
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
