"""The acceptance of a model, its page, and its checks: each against a slow reference, and which damage it finds."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from strobe.bench import accept
from strobe.bench.accept import RULES, AcceptSubject, check_frames, check_latents, check_weights, checked, not_judged, run_accept
from strobe.cache.kv import CacheStep
from strobe.engine.model import Model
from strobe.engine.presets import balanced, preset
from strobe.models.shapes.grammar import parse
from strobe.models.text.words import WordEncoder
from strobe.perf.records.record import Check
from strobe.perf.records.store import read_run
from strobe.perf.report.build import build_report
from strobe.perf.report.quality_page import accept_report, outcome
from strobe.perf.report.write import render_markdown
from terminal import quiet
from train_shapes.render import advance, render

CPU = torch.device("cpu")


def named(checks: Iterable[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def failed(checks: Iterable[Check]) -> set[str]:
    return {check.name for check in checks if check.passed is False}


def moving(num_frames: int = 16, size: int = 24) -> Tensor:
    """A smooth bright disc that moves over a dark ground, uint8 [F, Y, X, 3]."""
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    frames = []
    for number in range(num_frames):
        distance = ((x - 6 - 0.5 * number) ** 2 + (y - 12) ** 2).float()
        frames.append((200 * torch.exp(-distance / 40)).to(torch.uint8).unsqueeze(-1).expand(-1, -1, 3))
    return torch.stack(frames)


def noise(seed: int = 0, num_frames: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (num_frames, 24, 24, 3), dtype=torch.uint8, generator=generator)


def damaged(model: Model, *, layer: int, value: float, whole: bool = False) -> Model:
    """A copy whose layer has this value, in all its parameters or in one weight of its feed-forward network."""
    dit = copy.deepcopy(model.dit)
    with torch.no_grad():
        for parameter in dit.layers[layer].parameters() if whole else [dit.layers[layer].ffn[0].weight[0, :1]]:
            parameter.fill_(value)
    return replace(model, dit=dit)


@pytest.mark.parametrize(
    ("value", "low", "high", "passed"),
    [(1, None, 1, True), (1.1, None, 1, False), (0, 0.5, 2, False), (math.nan, None, 1, False), (math.inf, 0, None, False)],
)
def test_a_value_passes_within_its_bounds_and_only_if_it_is_finite(
    value: float, low: float | None, high: float | None, passed: bool
) -> None:
    check = checked("motion", value, low=low, high=high)
    assert check.passed is passed and (check.value is None) == (not math.isfinite(value))


def test_figures_of_frames_are_those_of_numpy() -> None:
    frames, unrelated = noise(1, 8), noise(2, 6)
    found = named(check_frames(frames, unrelated))
    pixels, others = frames.numpy().astype(float), unrelated.numpy().astype(float)
    motion, apart = np.abs(np.diff(pixels, axis=0)).mean(), np.abs(pixels[:6] - others).mean()
    variances = pixels.var((1, 2), ddof=1)
    correlation = 1 - 0.5 * (np.diff(pixels, axis=2) ** 2).mean() / variances.mean()
    assert found["motion"].value == pytest.approx(motion, rel=1e-5)
    assert found["coherence"].value == pytest.approx(motion / apart, rel=1e-5)
    assert found["contrast"].value == pytest.approx(np.sqrt(variances).mean(), rel=1e-5)
    assert found["neighbour_correlation"].value == pytest.approx(correlation, abs=1e-5)


@pytest.mark.parametrize(
    ("frames", "finds"),
    [
        (moving(), set()),
        (noise(), {"neighbour_correlation", "coherence"}),
        (moving()[:1].expand(16, -1, -1, -1), {"motion"}),
        (torch.full((16, 24, 24, 3), 90, dtype=torch.uint8), {"contrast", "motion", "neighbour_correlation"}),
    ],
    ids=["moving", "noise", "still", "flat"],
)
def test_each_bad_clip_fails_the_checks_made_for_it(frames: Tensor, finds: set[str]) -> None:
    assert failed(check_frames(frames, noise(5))) == finds


def test_latents_are_finite_and_of_the_autoencoders_scale() -> None:
    latents = torch.randn(12, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    assert failed(check_latents(latents)) == set()
    assert failed(check_latents(0.1 * latents)) == failed(check_latents(5 * latents)) == {"latent_std"}
    latents[7, 1, 2, 3] = math.nan
    found = named(check_latents(latents))
    assert found["latents_not_finite"].value == 1 and found["latents_not_finite"].detail == "first in latent frame 7"
    assert found["latent_std"].passed is False and found["latent_std"].value is None


def test_broken_and_empty_tensors_are_named(tiny: Model) -> None:
    assert failed(check_weights(tiny)) == set()
    found = named(check_weights(damaged(tiny, layer=1, value=math.nan)))
    assert found["tensors_not_finite"].passed is False and found["matrices_of_zeros"].passed
    assert found["tensors_not_finite"].detail == "transformer blocks.1.ffn.0.weight"
    found = named(check_weights(damaged(tiny, layer=0, value=0, whole=True)))
    assert found["matrices_of_zeros"].passed is False and found["tensors_not_finite"].passed
    assert found["matrices_of_zeros"].detail.startswith("transformer blocks.0.")


@pytest.fixture
def latents() -> Tensor:
    return torch.randn(9, 4, 4, 4, generator=torch.Generator().manual_seed(3))


def test_streaming_equals_one_pass_and_a_cache_that_loses_a_frame_does_not(
    tiny: Model, latents: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = accept.plain(tiny, balanced(), CPU)
    found = named(accept.check_equal(tiny, config, "red circle", latents, 0))
    assert found["streaming_against_one_pass"].passed and found["streamed_frames_against_one_call"].passed

    class Forgets:
        """A cache in which the first frame block was never written."""

        def __init__(self, *arguments: object) -> None:
            self.inner = make(*arguments)  # type: ignore[arg-type]

        def at(self, first_frame: int, num_frames: int) -> CacheStep:
            step = self.inner.at(first_frame, num_frames)
            self.inner.values[:, :, : 3 * 4].zero_()
            return step

    make = accept.new_cache
    monkeypatch.setattr(accept, "new_cache", Forgets)
    assert "streaming_against_one_pass" in failed(accept.check_equal(tiny, config, "red circle", latents, 0))


def test_the_error_of_denoising_is_that_over_the_best_linear_estimate(tiny: Model, latents: Tensor) -> None:
    """The best linear estimate itself has 1, up to chance; what is found without looking at the noisy latents has more."""
    config = accept.plain(tiny, balanced(), CPU)
    generator = torch.Generator().manual_seed(1)
    x0 = torch.randn(9, 4, 32, 32, generator=generator)
    drawn = torch.randn(3, 4, 32, 32, generator=generator)
    linear, blind = [], []
    for sigma in config.schedule.sigmas:
        noisy = (1 - sigma) * x0[-3:] + sigma * drawn
        linear.append((1 - sigma) / ((1 - sigma) ** 2 + sigma**2) * noisy)
        blind.append(torch.randn(3, 4, 32, 32, generator=generator))

    found, guessed = (named(accept.check_gain(config, each, x0))["denoising"] for each in (linear, blind))
    assert found.passed and found.value == pytest.approx(1, abs=0.05)
    assert guessed.passed is False


def test_what_the_bundled_model_shows_is_read_from_its_pixels() -> None:
    prompts = ("a red circle moving left slowly on a navy background", "a green star moving up fast on a forest background")
    attributes = torch.tensor([parse(prompt).attributes for prompt in prompts])[:, None].expand(-1, 33, -1)
    clip = render(attributes, advance(torch.zeros(2, 2), attributes), torch.zeros(2, 2), torch.tensor([24.0, 24.0]))
    drawn = [(each.permute(0, 2, 3, 1) * 255).round().to(torch.uint8) for each in clip]
    right, wrong = ([(prompt, drawn[number]) for number, prompt in enumerate(told)] for told in (prompts, prompts[::-1]))
    assert named(accept.check_oracle(right, 9))["prompt_accuracy"].passed
    assert named(accept.check_oracle(wrong, 9))["prompt_accuracy"].value == 0
    assert list(accept.check_oracle([("a red ball on a table", drawn[0])], 9)) == []


def subject(model: Model, blocks: int = 6) -> AcceptSubject:
    prompts = ("red circle", "blue square moving")
    return AcceptSubject(model=model, config=preset("balanced"), prompts=prompts, device=CPU, seed=0, blocks=blocks)


@pytest.fixture
def words(tiny: Model) -> Model:
    return replace(tiny, text=WordEncoder(["red", "blue", "circle", "square", "moving"], dim=16, length=6))


def test_every_check_is_written_and_stands_on_the_page(words: Model, tmp_path: Path) -> None:
    folder = run_accept(subject(words, blocks=4), root=tmp_path, progress=quiet)
    records = read_run(folder)
    assert outcome(records)[2]
    names = {check.name: check for check in records.checks}
    assert len(names) == len(records.checks) and set(names) == set(RULES) - {"prompt_accuracy"}, "which reads no such clip"
    assert names["streaming_against_one_pass"].passed and names["prompt_sensitivity"].passed
    page = render_markdown(build_report([folder]))
    assert page == render_markdown(accept_report(folder)) and "source of the bound" in page
    assert all(name in page.replace("\\", "") for name in names)


def test_a_damaged_model_is_not_accepted_and_the_page_says_why(words: Model, tmp_path: Path) -> None:
    folder = run_accept(subject(damaged(words, layer=1, value=math.nan)), root=tmp_path, progress=quiet)
    run = read_run(folder)
    _, checks, complete = outcome(run)
    failed = {each.name for each in checks}
    assert complete and {"tensors_not_finite", "latents_not_finite", "latent_std", "prompt_sensitivity"} <= failed
    report = accept_report(folder)
    assert report.subtitle.startswith("Not accepted: ") and report.banners[0].title == "Checks failed"
    assert any("transformer blocks.1.ffn.0.weight" in item for item in report.banners[0].items)


@pytest.mark.parametrize("which", ["frames motion", "latents latent_std", "latents latents_not_finite", "stream x"])
def test_random_weights_are_not_judged_by_their_clips(which: str) -> None:
    group, name = which.split()
    check = not_judged(Check(group=group, name=name, value=1.0, passed=False, basis="fact"))  # type: ignore[arg-type]
    kept = name in ("latents_not_finite", "x")
    assert (check.passed is False) == kept and check.basis.startswith("fact" if kept else "random weights")
