"""Clips of the bundled model under methods of sparse attention, each against its dense clip of the same prompt and seed.

`python tools/selection_clips.py --clips 64 --out clips.json` prints a table in Markdown; the file has the numbers of every clip.

Every denoise pass attends sparsely in every layer, over the whole window; the pass that writes a finished frame block is dense.
`count` and the others are those of `strobe bench attention --captured`. `keep` is a count for each head and denoise step, found
by the rule of `calibrate` in dense clips of other prompts and another seed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import strobe
from strobe.attention.sparse.coarse import budget, share_held
from strobe.attention.sparse.layout import tile_layout
from strobe.bench.attention.run import METHODS, SHARES
from strobe.core.device import resolve_device
from strobe.engine.config import EngineConfig
from strobe.engine.load import load
from strobe.engine.model import Model, latent_shape
from strobe.engine.presets import preset
from strobe.integrations.diffusers.keep import tiles_that_keep
from strobe.models.wan.layers import WanLayer
from strobe.perf.measure.stats import mean_bounds
from strobe.quality.fidelity import compare
from train_shapes.clips import describe, sample_scene

PLACES: Final = {"psnr": 2, "ssim": 4, "temporal_difference": 5}
METRICS: Final = tuple(PLACES)
IDENTICAL_DB: Final = 100.0
"""PSNR of clips that are equal, for means."""
KEEPS: Final = (0.9, 0.95, 0.99)
PROBED: Final = 64
"""Queries of each head that the weight kept is measured with."""
RESAMPLED: Final = 2000
"""Draws of the bootstrap over clips."""

Triple = tuple[int, int, int]
Choose = Callable[[int, int, int], Mapping[str, Any]]
"""Options of `video_sparse_attention`, by denoise step, layer and number of key tiles."""
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What all clips have in common.

    Args:
        prompts: one for each clip.
        seed: of all noise; each clip draws its own.
        blocks: frame blocks of a clip.
        tile: tokens of a tile in (time, height, width), inside one latent frame, since a cache may hold frames in any order.
    """

    model: Model
    device: torch.device
    prompts: Sequence[str]
    seed: int
    blocks: int
    tile: Triple

    @property
    def frame(self) -> tuple[int, int]:
        """Tokens of a latent frame, in height and width."""
        grid = latent_shape(self.model.defaults, self.model.dit.config).token_grid(self.model.dit.config.patch)
        return grid.height, grid.width

    def grid(self, rows: Tensor) -> Triple:
        """Return the grid of tokens `[B, S, H, D]` of whole latent frames."""
        height, width = self.frame
        return rows.shape[1] // (height * width), height, width

    def run(self, denoise: Callable[[int, int], Attend]) -> Tensor:
        """Make the clips, uint8 `[N, F, Y, X, 3]`.

        Args:
            denoise: gives the attention of a denoise pass, by step and layer; the pass after the last step is dense.
        """
        config = EngineConfig(name="clips", dtype="float32", knobs=preset("baseline").knobs)
        stock, numbers, calls = WanLayer.attend, dict[int, int](), Counter[int]()

        def attend(layer: WanLayer, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
            number = numbers.setdefault(id(layer), len(numbers))
            step = calls[number] % (steps + 1)
            calls[number] += 1
            return stock(layer, q, k, v, mask) if step == steps else denoise(step, number)(q, k, v)

        options: dict[str, Any] = {"preset": config, "model": self.model, "seed": self.seed, "device": self.device}
        with strobe.Session([*self.prompts], samples=range(len(self.prompts)), **options) as session:
            steps = len(session.config.schedule.timesteps)
            with mock.patch.object(WanLayer, "attend", attend):
                found = torch.cat([block.samples for block in session.stream(self.blocks)], dim=1)
        if {*calls.values()} != {self.blocks * (steps + 1)}:
            raise SystemExit(f"layers attended {sorted({*calls.values()})} times, expected {self.blocks * (steps + 1)}")
        return found


@dataclass(kw_only=True, slots=True)
class Variant:
    """Clips of one method against the dense ones.

    Args:
        skipped: share of the pairs of tiles.
        kept: share of dense attention's weight on the selected keys, mean.
        values: by metric, of each clip.
    """

    name: str
    skipped: float = 0.0
    kept: float = 1.0
    values: dict[str, list[float]] = field(default_factory=dict)


def calibrated(trial: Trial, keeps: Sequence[float]) -> dict[float, dict[tuple[int, int], tuple[float, ...]]]:
    """Return what each head skips to keep a share of the weight, by step and layer, from windows that are full in dense clips."""
    held: defaultdict[tuple[int, int], defaultdict[int, Tensor | float]] = defaultdict(lambda: defaultdict(float))

    def denoise(step: int, layer: int) -> Attend:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            tiles, kv_tiles = (tile_layout(trial.grid(each), trial.tile) for each in (q, k))
            held[step, layer][kv_tiles.num_tiles] += share_held(q, k, tiles, queries=PROBED, kv_layout=kv_tiles).cpu()
            return strobe.dense_attention(q, k, v).out

        return attend

    trial.run(denoise)
    full = max(next(iter(held.values())))
    return {
        keep: {at: tuple(1 - number / full for number in tiles_that_keep(each[full], keep, 1)[0]) for at, each in held.items()}
        for keep in keeps
    }


def measured(name: str, trial: Trial, dense: Tensor, choose: Choose) -> Variant:
    """Make the clips of a method, and compare each with its dense one."""
    seen, pairs, kept = 0.0, 0, list[float]()

    def denoise(step: int, layer: int) -> Attend:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            nonlocal seen, pairs
            tiles = tile_layout(trial.grid(k), trial.tile).num_tiles
            found = strobe.video_sparse_attention(
                q, k, v, grid=trial.grid(q), kv_grid=trial.grid(k), tile=trial.tile, kv_tile=trial.tile, probe=PROBED,
                **choose(step, layer, tiles),
            )  # fmt: skip
            assert found.recall is not None
            counts = found.selection.counts
            seen, pairs = seen + float(counts.sum()), pairs + counts.numel() * tiles
            kept.append(float(found.recall.mean()))
            return found.out

        return attend

    clips = trial.run(denoise)
    variant = Variant(name=name, skipped=1 - seen / pairs, kept=fmean(kept), values={metric: [] for metric in METRICS})
    for clip, reference in zip(clips, dense, strict=True):
        for metric, (value, _) in compare(clip.to(trial.device), reference.to(trial.device), METRICS).items():
            variant.values[metric].append(IDENTICAL_DB if value is None else value)
    return variant


def variants(
    trial: Trial, other: Trial, levels: Sequence[float], methods: Sequence[str], keeps: Sequence[float]
) -> list[Variant]:
    """Measure every method at every level.

    Args:
        other: what `keep` is calibrated on.
    """
    dense = trial.run(lambda *_: lambda q, k, v: strobe.dense_attention(q, k, v).out)
    found = []
    for method in methods:
        for level in SHARES if method == "share" else levels:
            given = METHODS[method](level)
            found.append(measured(f"{method}@{level:g}", trial, dense, lambda *_, given=given: given))
    for keep, skipped in calibrated(other, keeps).items() if keeps else ():

        def choose(
            step: int, layer: int, tiles: int, shares: Mapping[tuple[int, int], tuple[float, ...]] = skipped
        ) -> dict[str, Any]:
            return {"topk": tuple(budget(None, share, 1, tiles)[0] for share in shares[step, layer])}

        found.append(measured(f"keep@{keep:g}", trial, dense, choose))
    return found


def over_count(counts: Sequence[Variant], given: Variant) -> dict[str, str]:
    """Return what a method has over `count` of the same clips: each metric at equal skipped share, and `skipped` at equal PSNR.

    Between two counts is interpolated: a metric clip by clip, with Student's interval of the mean over clips; a skipped share on
    the curve of mean PSNRs, with a bootstrap over clips. Empty where the counts do not reach so far.
    """
    ranked = sorted(counts, key=lambda each: each.skipped)
    shares, curves = (
        [each.skipped for each in ranked],
        {metric: np.array([each.values[metric] for each in ranked]) for metric in METRICS},
    )  # by metric [counts, clips]
    told = {}
    if shares and shares[0] <= given.skipped <= shares[-1]:
        for metric, curve in curves.items():
            at = [float(np.interp(given.skipped, shares, clip)) for clip in curve.T]
            more = [value - other for value, other in zip(given.values[metric], at, strict=True)]
            told[metric] = _mean(more, PLACES[metric], sign="+")
    psnr = np.array(given.values["psnr"])
    if shares and curves["psnr"].mean(axis=1).min() <= psnr.mean() <= curves["psnr"].mean(axis=1).max():
        draws = np.random.default_rng(0).integers(len(psnr), size=(RESAMPLED, len(psnr)))
        drawn = [given.skipped - _share_at(curves["psnr"][:, draw].mean(axis=1), shares, psnr[draw].mean()) for draw in draws]
        low, high = np.quantile(drawn, [0.025, 0.975])
        more = given.skipped - _share_at(curves["psnr"].mean(axis=1), shares, psnr.mean())
        told["skipped"] = f"{more:+.1%} [{low:+.1%}, {high:+.1%}]"
    return told


def _share_at(curve: Any, shares: Sequence[float], psnr: float) -> float:
    """Return the skipped share at which a falling curve has a PSNR."""
    return float(np.interp(psnr, np.minimum.accumulate(curve)[::-1], shares[::-1]))


def table(found: Sequence[Variant]) -> str:
    """Write the table in Markdown: each method, and what it has over one count for all."""
    counts = [each for each in found if each.name.startswith("count@")]
    lines = [
        "| method | skips | weight kept | PSNR, dB | SSIM | temporal difference | over `count` at equal skipping: PSNR | SSIM | "
        "temporal difference | at equal PSNR it skips |",
        "|---|" + "---:|" * 9,
    ]
    for each in found:
        own = [_mean(each.values[metric], PLACES[metric]) for metric in METRICS]
        over = {} if each in counts else over_count(counts, each)
        more = [over.get(name, "") for name in (*METRICS, "skipped")]
        lines.append(f"| `{each.name}` | {each.skipped:.1%} | {each.kept:.1%} | {' | '.join([*own, *more])} |")
    return "\n".join(lines)


def _mean(values: Sequence[float], places: int, sign: str = "") -> str:
    low, high = mean_bounds(values)
    return f"{fmean(values):{sign}.{places}f} [{low:{sign}.{places}f}, {high:{sign}.{places}f}]"


def main(argv: Sequence[str]) -> None:
    """Measure, print the table, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=48, help="two or more, for an interval")
    parser.add_argument("--blocks", type=int, default=8, help="frame blocks of a clip; a window is full from the fourth on")
    parser.add_argument("--tile", type=int, nargs=3, default=(1, 4, 4), help="tokens in time, height, width; time is 1")
    parser.add_argument("--levels", type=float, nargs="+", default=(0.1, 0.2, 0.3, 0.45, 0.6, 0.7, 0.8))
    parser.add_argument("--methods", nargs="*", default=[*METHODS], choices=[*METHODS])
    parser.add_argument("--keep", type=float, nargs="*", default=KEEPS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(argv)
    model, device = load("shapes"), resolve_device(asked.device)
    trials = []
    for seed in (0, 1):
        rng = random.Random(seed)
        prompts = [describe(sample_scene(rng), rng) for _ in range(asked.clips)]
        trials.append(Trial(model=model, device=device, prompts=prompts, seed=seed, blocks=asked.blocks, tile=tuple(asked.tile)))
    found = variants(*trials, asked.levels, asked.methods, asked.keep)
    sys.stdout.write(table(found) + "\n")
    if asked.out:
        asked.out.write_text(json.dumps([asdict(each) for each in found]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
