"""Accuracy of the bundled model, read from pixels: autoencoder, prompts, held-out combinations, switches, long streams."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from strobe.core.errors import ConfigError
from strobe.engine.model import Model
from strobe.engine.session import Session
from strobe.models.shapes import oracle
from strobe.models.shapes.clips import measure
from strobe.models.shapes.grammar import Scene, sample_scene
from strobe.models.vae.tiny import TinyVAE

SETTLED = (1, 10)
"""Frame blocks, first and last, over which prompt accuracy is measured."""

SWITCH_AT = 12
LATE = (10, 200, 1000)
"""Frame blocks at which a long stream is evaluated; drift counts from the first of them."""

SHOWN = 0.5
"""Share of a frame block's frames that must follow a new prompt for the switch to be visible."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AccuracyFigure:
    """One measured figure.

    Args:
        name: name of the figure.
        preset: preset that streamed; empty if none did.
        value: measured.
        target: goal in words.
        reached: whether it does; None where there is no target.
        n: streams, or clips.
        definition: exactly what was counted.
    """

    name: str
    preset: str
    value: float
    target: str
    reached: bool | None
    n: int
    definition: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """Sizes of the accuracy measurement: presets, streams, frame blocks, seed.

    Args:
        presets: each streams on its own.
        streams: in lockstep.
        blocks: length of the long stream, in frame blocks.
        seed: seed of prompts and noise.
    """

    presets: tuple[str, ...]
    streams: int = 128
    blocks: int = 201
    seed: int = 0


def measure_model(
    model: Model, device: torch.device, trial: Trial, progress: Callable[[int, int, str], None]
) -> Iterator[AccuracyFigure]:
    """Yield every figure of the model card.

    Args:
        model: model as `engine.load` returns it.
        device: where it runs.
        trial: how much.
        progress: called between frame blocks: (done, total, what).

    Raises:
        ConfigError: another model than `shapes` or one trained like it.
    """
    if not isinstance(model.vae, TinyVAE):
        raise ConfigError(
            f"model {model.name!r} is none whose clips the oracle reads; give shapes, or a folder with weights trained like it"
        )
    vae = model.vae.to(device)
    yield AccuracyFigure(
        name="autoencoder PSNR, dB",
        preset="",
        value=(value := measure(vae, device)),
        target=">= 38",
        reached=value >= 38,
        n=64,
        definition="-10 log10(MSE) in [0, 1] over 64 unseen clips of 21 frames, coded from their first frame, float32",
    )
    vae.cpu()
    for preset in trial.presets:
        run = _PresetRun(model=model, device=device, preset=preset, trial=trial, progress=progress)
        yield from _prompts(run)
        yield from _long(run)


@dataclass(frozen=True, kw_only=True, slots=True)
class _PresetRun:
    """One preset under trial."""

    model: Model
    device: torch.device
    preset: str
    trial: Trial
    progress: Callable[[int, int, str], None]

    def clips(self, seed: int, prompts: dict[int, list[str]], wanted: Sequence[int]) -> list[Tensor]:
        """Stream in lockstep; return the wanted frame blocks as float frames `[N, F, 3, Y, X]` on the device."""
        kept, total = [], wanted[-1] + 1
        samples = range(self.trial.streams)
        with Session(preset=self.preset, model=self.model, seed=seed, samples=samples, device=self.device) as session:
            for block in range(total):
                if block in prompts:
                    session.prompt(prompts[block], wait=True)
                made = next(iter(session.stream(1)))
                if block in wanted:
                    kept.append(made.samples.to(self.device).permute(0, 1, 4, 2, 3).float() / 255)
                self.progress(block + 1, total, f"{self.preset}: {self.trial.streams} streams")
        return kept


def _prompts(run: _PresetRun) -> Iterator[AccuracyFigure]:
    """Measure accuracy on seen, held-out and shuffled prompts, and the frames until a switch shows."""
    rng, count = random.Random(run.trial.seed), run.trial.streams
    for kind in ("seen", "held-out"):
        first, second = ([sample_scene(rng, held_out=kind == "held-out") for _ in range(count)] for _ in range(2))
        prompts = {at: [scene.prompt(rng) for scene in scenes] for at, scenes in ((0, first), (SWITCH_AT, second))}
        clips = run.clips(run.trial.seed, prompts, range(SWITCH_AT + 2))
        settled = clips[SETTLED[0] : SETTLED[1] + 1]
        definition = f"share of frames of frame blocks {SETTLED[0]} to {SETTLED[1]} with everything as prompted"
        right = [_right(clip, first) for clip in settled]
        yield _share(f"prompt accuracy, {kind}", run.preset, right, definition, 0.95 if kind == "seen" else 0.8)
        yield _share(f"first frame block, {kind}", run.preset, [_right(clips[0], first)], "the same over frame block 0", None)
        soon = torch.stack([_right(clip, second).mean(1) >= SHOWN for clip in clips[SWITCH_AT:]]).any(0)
        definition = f"share of streams whose frame block 0 or 1 after it is >= {SHOWN:.0%} frames of the whole new prompt"
        yield _share(f"switch visible within 2 frame blocks, {kind}", run.preset, [soon.double()], definition, 0.95)
        if kind == "seen":
            yield _chance(run.preset, [_right(clip, first[1:] + first[:1]) for clip in settled], first)


def _long(run: _PresetRun) -> Iterator[AccuracyFigure]:
    """Measure accuracy along one long stream without a switch."""
    rng = random.Random(run.trial.seed + 1)
    scenes = [sample_scene(rng) for _ in range(run.trial.streams)]
    wanted = [block for block in LATE if block < run.trial.blocks]
    if not wanted:
        return
    clips = run.clips(run.trial.seed + 1, {0: [scene.prompt(rng) for scene in scenes]}, wanted)
    values = [float(_right(clip, scenes).mean()) for clip in clips]
    for block, value in zip(wanted, values, strict=True):
        first = block == wanted[0]
        yield AccuracyFigure(
            name=f"accuracy at frame block {block}",
            preset=run.preset,
            value=value,
            target="" if first else f"within 0.05 of frame block {wanted[0]}",
            reached=None if first else value >= values[0] - 0.05,
            n=run.trial.streams,
            definition="share of its frames with everything as prompted; one prompt from the start",
        )


def _right(clip: Tensor, scenes: Sequence[Scene]) -> Tensor:
    """Mark the frames that show every prompted attribute with 1, others 0; float64 `[N, F]`."""
    wanted = torch.tensor([scene.attributes for scene in scenes], device=clip.device)
    return (oracle.detect(clip).labels == wanted.unsqueeze(1)).all(-1).double()


def _share(name: str, preset: str, right: Sequence[Tensor], definition: str, goal: float | None) -> AccuracyFigure:
    value = float(torch.cat([part.flatten() for part in right]).mean())
    return AccuracyFigure(
        name=name,
        preset=preset,
        value=value,
        target="" if goal is None else f">= {goal:g}",
        reached=None if goal is None else value >= goal,
        n=len(right[0]),
        definition=definition,
    )


def _chance(preset: str, right: Sequence[Tensor], scenes: Sequence[Scene]) -> AccuracyFigure:
    """Measure accuracy against another stream's prompt. Chance is how often two of these prompts ask for the same."""
    value = float(torch.cat([part.flatten() for part in right]).mean())
    pairs = [(a, b) for number, a in enumerate(scenes) for b in scenes[number + 1 :]]
    chance = sum(a == b for a, b in pairs) / max(1, len(pairs))
    limit = chance + 3 * (max(chance, 1 / len(scenes)) / len(scenes)) ** 0.5
    return AccuracyFigure(
        name="prompt accuracy, prompts shuffled",
        preset=preset,
        value=value,
        target=f"chance: {chance:.4f}, at most {limit:.4f}",
        reached=value <= limit,
        n=len(scenes),
        definition="the same frames held against the next stream's prompt; the limit is chance plus three standard errors",
    )
