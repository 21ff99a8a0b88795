"""Measure the bundled model by its pixels: autoencoder, prompts, held-out combinations, switches, long streams; prints JSON.

It ends with 1 if a figure misses its target. Made for a GPU; hours on a CPU with the default numbers.

Usage: python tools/measure_shapes.py [PRESET...] [--model shapes] [--streams 128] [--blocks 201] [--seed 0] [--device auto]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from strobe.core.device import resolve_device
from strobe.engine.load import load
from strobe.engine.model import Model
from strobe.engine.presets import preset as settings_of
from strobe.engine.session import Session
from strobe.models.shapes import oracle
from strobe.models.shapes.grammar import Scene
from strobe.models.vae.tiny import TinyVAE
from train_shapes.clips import describe, measure, sample_scene

SETTLED = (1, 10)
"""Frame blocks, first and last, over which prompt accuracy is measured."""

SWITCH_AT = 12
LATE = (10, 200, 1000)
"""Frame blocks at which a long stream is evaluated; drift counts from the first of them."""

SHOWN = 0.5
"""Share of a frame block's frames that must follow a new prompt for the switch to be visible."""


@dataclass(frozen=True, slots=True)
class AccuracyFigure:
    """One measured figure.

    Args:
        name: name of the figure.
        preset: preset that streamed; empty if none did.
        value: measured.
        n: streams, or clips.
        definition: exactly what was counted.
        target: goal in words; empty if there is none.
        reached: whether it does; None where there is no target.
    """

    name: str
    preset: str
    value: float
    n: int
    definition: str
    target: str = ""
    reached: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What is measured, and how much.

    Args:
        model: model as `engine.load` returns it.
        device: where it runs.
        streams: in lockstep.
        blocks: length of the long stream, in frame blocks.
        seed: seed of prompts and noise.
    """

    model: Model
    device: torch.device
    streams: int = 128
    blocks: int = 201
    seed: int = 0

    def clips(self, preset: str, seed: int, prompts: dict[int, list[str]], wanted: Sequence[int]) -> list[Tensor]:
        """Stream in lockstep; return the wanted frame blocks as float frames `[N, F, 3, Y, X]` on the device."""
        kept, total = [], wanted[-1] + 1
        with Session(preset=preset, model=self.model, seed=seed, samples=range(self.streams), device=self.device) as session:
            for block in range(total):
                if block in prompts:
                    session.prompt(prompts[block], wait=True)
                made = next(iter(session.stream(1)))
                if block in wanted:
                    kept.append(made.samples.to(self.device).permute(0, 1, 4, 2, 3).float() / 255)
                sys.stderr.write(f"{preset}: frame block {block + 1} of {total}\n")
        return kept


def measure_model(trial: Trial, presets: Sequence[str]) -> Iterator[AccuracyFigure]:
    """Yield every figure of the model card; each preset streams on its own."""
    assert isinstance(trial.model.vae, TinyVAE), "the oracle reads clips of shapes, or of weights trained like it"
    vae = trial.model.vae.to(trial.device)
    value = measure(vae, trial.device)
    definition = "-10 log10(MSE) in [0, 1] over 64 unseen clips of 21 frames, coded from their first frame, float32"
    yield AccuracyFigure("autoencoder PSNR, dB", "", value, 64, definition, ">= 38", value >= 38)
    vae.cpu()
    for preset in presets:
        yield from _prompts(trial, preset)
        yield from _long(trial, preset)


def _prompts(trial: Trial, preset: str) -> Iterator[AccuracyFigure]:
    """Measure accuracy on seen, held-out and shuffled prompts, and the frames until a switch shows."""
    rng, count = random.Random(trial.seed), trial.streams
    for kind in ("seen", "held-out"):
        first, second = ([sample_scene(rng, held_out=kind == "held-out") for _ in range(count)] for _ in range(2))
        prompts = {at: [describe(scene, rng) for scene in scenes] for at, scenes in ((0, first), (SWITCH_AT, second))}
        clips = trial.clips(preset, trial.seed, prompts, range(SWITCH_AT + 2))
        settled = clips[SETTLED[0] : SETTLED[1] + 1]
        definition = f"share of frames of frame blocks {SETTLED[0]} to {SETTLED[1]} with everything as prompted"
        right = [_right(clip, first) for clip in settled]
        yield _share(f"prompt accuracy, {kind}", preset, right, definition, 0.95 if kind == "seen" else 0.8)
        yield _share(f"first frame block, {kind}", preset, [_right(clips[0], first)], "the same over frame block 0", None)
        soon = torch.stack([_right(clip, second).mean(1) >= SHOWN for clip in clips[SWITCH_AT:]]).any(0)
        definition = f"share of streams whose frame block 0 or 1 after it is >= {SHOWN:.0%} frames of the whole new prompt"
        yield _share(f"switch visible within 2 frame blocks, {kind}", preset, [soon.double()], definition, 0.95)
        if kind == "seen":
            yield _chance(preset, [_right(clip, first[1:] + first[:1]) for clip in settled], first)


def _long(trial: Trial, preset: str) -> Iterator[AccuracyFigure]:
    """Measure accuracy along one long stream without a switch."""
    rng = random.Random(trial.seed + 1)
    scenes = [sample_scene(rng) for _ in range(trial.streams)]
    wanted = [block for block in LATE if block < trial.blocks]
    if not wanted:
        return
    clips = trial.clips(preset, trial.seed + 1, {0: [describe(scene, rng) for scene in scenes]}, wanted)
    values = [float(_right(clip, scenes).mean()) for clip in clips]
    definition = "share of its frames with everything as prompted; one prompt from the start"
    for block, value in zip(wanted, values, strict=True):
        goal = () if block == wanted[0] else (f"within 0.05 of frame block {wanted[0]}", value >= values[0] - 0.05)
        yield AccuracyFigure(f"accuracy at frame block {block}", preset, value, trial.streams, definition, *goal)


def _right(clip: Tensor, scenes: Sequence[Scene]) -> Tensor:
    """Mark the frames that show every prompted attribute with 1, others 0; float64 `[N, F]`."""
    wanted = torch.tensor([scene.attributes for scene in scenes], device=clip.device)
    return (oracle.detect(clip).labels == wanted.unsqueeze(1)).all(-1).double()


def _mean(right: Sequence[Tensor]) -> float:
    return float(torch.cat([part.flatten() for part in right]).mean())


def _share(name: str, preset: str, right: Sequence[Tensor], definition: str, least: float | None) -> AccuracyFigure:
    value = _mean(right)
    goal = () if least is None else (f">= {least:g}", value >= least)
    return AccuracyFigure(name, preset, value, len(right[0]), definition, *goal)


def _chance(preset: str, right: Sequence[Tensor], scenes: Sequence[Scene]) -> AccuracyFigure:
    """Measure accuracy against another stream's prompt. Chance is how often two of these prompts ask for the same."""
    value = _mean(right)
    pairs = [(a, b) for number, a in enumerate(scenes) for b in scenes[number + 1 :]]
    chance = sum(a == b for a, b in pairs) / max(1, len(pairs))
    limit = chance + 3 * (max(chance, 1 / len(scenes)) / len(scenes)) ** 0.5
    definition = "the same frames held against the next stream's prompt; the limit is chance plus three standard errors"
    goal = f"chance: {chance:.4f}, at most {limit:.4f}"
    return AccuracyFigure("prompt accuracy, prompts shuffled", preset, value, len(scenes), definition, goal, value <= limit)


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", default=["quality", "turbo", "ultra"])
    parser.add_argument("--model", default="shapes", help="shapes, or a folder of weights trained like it")
    parser.add_argument("--streams", type=int, default=128, help="in lockstep, 2 or more")
    parser.add_argument("--blocks", type=int, default=201, help="length of the long stream in frame blocks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    for name in asked.presets:
        settings_of(name)  # a wrong one is told before anything is measured
    device = resolve_device(asked.device)
    trial = Trial(model=load(asked.model), device=device, streams=asked.streams, blocks=asked.blocks, seed=asked.seed)
    figures = list(measure_model(trial, asked.presets))
    sys.stdout.write(json.dumps({"figures": [asdict(figure) for figure in figures]}, indent=2) + "\n")
    return int(any(figure.reached is False for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
