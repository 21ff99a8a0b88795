"""Clips under methods of selection: pairs of a prompt and seed, shares of tiles and weight, what a method has over a count."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import selection_clips
import strobe
from published import BENCHMARKS
from selection_clips import METRICS, Trial, Variant, measured, over_count, table, variants
from tiny_model import well_read_model

CPU = torch.device("cpu")
PROMPTS = ("a red circle moving left", "a blue square moving up")
ALL_TILES = 1e-12
"""A sparsity that skips no tile."""


@pytest.fixture(scope="module")
def trial() -> Trial:
    return Trial(model=well_read_model(), device=CPU, prompts=PROMPTS, seed=3, blocks=2, tile=(1, 2, 4))


@pytest.fixture(scope="module")
def dense(trial: Trial) -> Tensor:
    return trial.run(lambda *_: lambda q, k, v: strobe.dense_attention(q, k, v).out)


def test_a_clip_is_held_against_that_of_its_prompt_and_seed(trial: Trial, dense: Tensor) -> None:
    with strobe.Session([*PROMPTS], model=trial.model, samples=(0, 1), seed=3, preset="baseline", device="cpu") as session:
        stock = torch.cat([block.samples for block in session.stream(2)], dim=1)
    assert torch.equal(dense, stock), "what is not sparse is what the model does by itself"
    found = measured("all", trial, dense, lambda *_: {"sparsity": ALL_TILES})
    assert found.skipped == 0 and found.kept == pytest.approx(1, abs=1e-5) and min(found.values["psnr"]) > 50
    other = measured("all", trial, dense.flip(0), lambda *_: {"sparsity": ALL_TILES})
    assert max(other.values["psnr"]) < 40


def test_denoise_passes_are_sparse_and_the_pass_that_writes_is_dense(trial: Trial, dense: Tensor) -> None:
    """Tiles and weights counted by hand, in float64, over the keys that the layers were given."""
    seen, asked = list[tuple[int, int, int]](), list[tuple[int, int, int]]()

    def choose(step: int, layer: int, tiles: int) -> dict[str, Any]:
        asked.append((step, layer, tiles))
        return {"sparsity": 0.5}

    def count(step: int, layer: int) -> Any:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            seen.append((step, layer, k.shape[1] // (q.shape[1] // 3)))
            return strobe.dense_attention(q, k, v).out

        return attend

    trial.run(count)
    passes = [(step, layer, frames) for frames in (3, 6) for step in range(4) for layer in range(2)]
    assert seen == passes
    found = measured("count@0.5", trial, dense, choose)
    of_frame = math.prod(trial.frame) // 8
    assert asked == [(step, layer, frames * of_frame) for step, layer, frames in passes]
    assert found.skipped == pytest.approx(0.5) and 0.5 < found.kept < 1
    assert all(len(found.values[metric]) == 2 for metric in METRICS)
    assert max(found.values["psnr"]) < 60 and statistics.fmean(found.values["temporal_difference"]) > 0


def made(name: str, skipped: float, *psnr: float) -> Variant:
    values = {"psnr": [*psnr], "ssim": [each / 100 for each in psnr], "temporal_difference": [1 / each for each in psnr]}
    return Variant(name=name, skipped=skipped, kept=0.5, values=values)


def test_a_method_is_compared_with_a_count_clip_by_clip() -> None:
    counts = [made("count@0.2", 0.2, 30, 40, 50), made("count@0.6", 0.6, 10, 20, 30)]
    found = over_count(counts, made("keep@0.9", 0.3, 27, 36, 49))
    more = [27 - 25, 36 - 35, 49 - 45]  # at 0.3 a count has three quarters of the way up
    half = 4.302652729911275 * statistics.stdev(more) / math.sqrt(3)  # Student's quantile of two degrees of freedom
    mean = statistics.fmean(more)
    assert found["psnr"] == f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"
    at = 0.6 - 0.4 * (statistics.fmean((27, 36, 49)) - 20) / 20  # where the counts have the same mean
    assert found["skipped"].startswith(f"{0.3 - at:+.1%} [")
    low, high = (float(each.strip("[]%,")) / 100 for each in found["skipped"].split()[1:])
    assert low < 0.3 - at < high
    assert over_count(counts, made("keep@0.99", 0.1, 60, 60, 60)) == {}, "beyond the counts nothing is said"
    page = table([*counts, made("keep@0.9", 0.3, 27, 36, 49)])
    assert page.count("\n") == 4 and page.splitlines()[2].endswith("|  |  |  |  |") and found["psnr"] in page


def test_each_head_is_given_its_own_number_of_the_tiles_there_are(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()

    def not_run(name: str, _: Trial, __: Tensor, choose: Any) -> Variant:
        asked.append(choose)
        return made(name, 0.5, 1, 2)

    shares = {0.8: {(0, 0): (0.5, 0.0), (3, 1): (0.25, 0.9)}, 0.9: {(0, 0): (0.0, 0.0), (3, 1): (0.0, 0.05)}}
    monkeypatch.setattr(selection_clips, "measured", not_run)
    monkeypatch.setattr(selection_clips, "calibrated", lambda *_: shares)
    variants(trial, trial, (), (), (0.8, 0.9))
    given = [[choose(step, layer, 20)["topk"] for step, layer in ((0, 0), (3, 1))] for choose in asked]
    assert given == [[(10, 20), (15, 2)], [(20, 20), (20, 19)]] and asked[0](0, 0, 7) == {"topk": (4, 7)}


def test_the_same_clips_for_every_method(trial: Trial) -> None:
    other = replace(trial, seed=4)
    found = variants(trial, other, (0.5,), ("count", "corrected"), (0.8,))
    assert [each.name for each in found] == ["count@0.5", "corrected@0.5", "keep@0.8"]
    assert found[0].skipped == found[1].skipped != found[2].skipped
    assert 0.7 < found[2].kept < 0.95
    assert found[0].values["psnr"] != found[1].values["psnr"]


def test_the_published_table_is_what_its_numbers_render_to() -> None:
    folder = BENCHMARKS / "shapes-h100"
    numbers = json.loads((folder / "selection_clips.json").read_bytes())
    assert table([Variant(**each) for each in numbers]) + "\n" == (folder / "selection_clips.md").read_text(encoding="utf-8")
