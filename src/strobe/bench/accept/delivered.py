"""Frames per second of a stream, from the denoise steps alone to an encoded file: each column adds what the last left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import Final

import torch

from strobe.core import spans
from strobe.core.errors import WeightsError
from strobe.core.spans import recording
from strobe.engine.config import EngineConfig
from strobe.engine.load import Model
from strobe.engine.pick import BLOCKS, first_steady
from strobe.engine.session import Session
from strobe.engine.video import VideoFile
from strobe.models.vae.taew import RAW_LATENTS, Taew, TaewConfig, load_taew, random_taew
from strobe.models.vae.wan.autoencoder import WanVAE
from strobe.models.vae.wan.config import WanVAEConfig
from strobe.models.vae.wan.weights import find_wan_vae, load_wan_vae, random_wan_vae
from strobe.perf.measure.timing import TimingRecorder

DENOISE: Final = "denoise"
COMMIT: Final = "denoise + commit"
TINY: Final = "+ tiny VAE"
FULL: Final = "+ full VAE"
ENCODE: Final = "+ encode"
COLUMNS: Final = (DENOISE, COMMIT, TINY, FULL, ENCODE)
DRAWN: Final = "drawn, for there is none: its time counts, its frames mean nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column of delivered frames per second.

    Args:
        name: of `COLUMNS`.
        blocks_ns: time of each steady frame block; empty: it cannot be had.
        note: what decodes, or why the column cannot be had.
        frames: in the file that it wrote.
    """

    name: str
    blocks_ns: tuple[int, ...] = ()
    note: str = ""
    frames: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoders:
    """The model with its tiny and with its full autoencoder; None where there is none, with notes on both."""

    tiny: Model | None
    full: Model | None
    tiny_note: str
    full_note: str


def decoders(model: Model, folder: Path | None, tiny: Path | None) -> Decoders:
    """Find the other autoencoder of a model: its file beside the weights, else one of its size with random weights.

    Args:
        model: as loaded.
        folder: of the weights; None: there is none.
        tiny: file of a tiny decoder; None: one beside the weights, by name.

    Raises:
        WeightsError: the file of the tiny decoder cannot be read.
    """
    if isinstance(model.vae, WanVAE):
        found = tiny or _beside(folder)
        if found is None and model.vae.latent_channels != TaewConfig().latent_channels:
            return Decoders(tiny=None, full=model, tiny_note="no tiny decoder for these latents is known", full_note="its own")
        other = random_taew(TaewConfig(), 0) if found is None else load_taew(found)
        note = DRAWN if found is None else found.name
        return Decoders(tiny=replace(model, vae=other), full=model, tiny_note=note, full_note="its own")
    if isinstance(model.vae, Taew):
        try:
            other_vae, note = load_wan_vae(find_wan_vae(folder)) if folder else None, "beside the weights"
        except WeightsError:
            other_vae = None
        if other_vae is None:
            other_vae, note = random_wan_vae(WanVAEConfig(), 0), DRAWN
        return Decoders(tiny=model, full=replace(model, vae=other_vae), tiny_note="its own", full_note=note)
    return Decoders(tiny=model, full=None, tiny_note="its own", full_note="this model has one autoencoder, the tiny one")


def measure(
    model: Model,
    config: EngineConfig,
    prompt: str,
    device: torch.device,
    *,
    others: Decoders,
    seed: int,
    video: Path,
    progress: Callable[[str], object],
) -> Iterator[Column]:
    """Measure every column, one stream each, over the frame blocks that find the window full.

    The first two columns are sums of the passes of a frame block; the others are times from one delivery to the next.

    Args:
        others: the model with its autoencoders, see `decoders`.
        video: file that the last column writes.
    """
    progress(DENOISE)
    denoise, commit = _passes(others.tiny or model, config, prompt, device, seed)
    yield Column(name=DENOISE, blocks_ns=denoise, note="sum of a frame block's denoise steps")
    yield Column(name=COMMIT, blocks_ns=commit, note="and of its commit pass")
    for name, one, note in ((TINY, others.tiny, others.tiny_note), (FULL, others.full, others.full_note)):
        progress(name)
        times = () if one is None else _delivered(one, config, prompt, device, seed, None)[0]
        yield Column(name=name, blocks_ns=times, note=note)
    progress(ENCODE)
    times, frames = _delivered(model, config, prompt, device, seed, video)
    yield Column(name=ENCODE, blocks_ns=times, note="the model's own autoencoder, and H.264 into a file", frames=frames)


def _passes(model: Model, config: EngineConfig, prompt: str, device: torch.device, seed: int) -> tuple[tuple[int, ...], ...]:
    """Return the time of the denoise steps, and with the commit pass, of each steady frame block; nothing runs beside them."""
    alone = replace(config, knobs=replace(config.knobs, overlap_decode=False, late_frames=False))
    recorder = TimingRecorder(device)
    with Session(prompt, preset=alone, model=model, device=device, seed=seed) as session:
        first = first_steady(session.config)
        with recording(recorder):
            recorder.start_clip()
            for _ in session.stream(first + BLOCKS):
                pass
            regions = recorder.finish_clip()
    steady = range(first, first + BLOCKS)
    denoise = dict.fromkeys(steady, 0)
    commit = dict.fromkeys(steady, 0)
    for region in regions:
        if region.parent in denoise and region.name == spans.DENOISE_STEP:
            denoise[region.parent] += region.value_ns
        if region.parent in commit and region.name == spans.COMMIT:
            commit[region.parent] += region.value_ns
    return tuple(denoise.values()), tuple(denoise[index] + commit[index] for index in steady)


def _delivered(
    model: Model, config: EngineConfig, prompt: str, device: torch.device, seed: int, video: Path | None
) -> tuple[tuple[int, ...], int]:
    """Return the times from one delivery to the next of the steady frame blocks, encoding included if there is a file, and the
    number of all frames."""
    with Session(prompt, preset=config, model=model, device=device, seed=seed) as session:
        first, at, frames = first_steady(session.config), [], 0
        file = nullcontext() if video is None else VideoFile(video, fps=model.defaults.fps)
        with file as written:
            for block in islice(session.stream(), first + BLOCKS):  # endless: none is made ahead of the last
                if written is not None:
                    written.write(block.frames)
                frames += len(block.frames)
                at.append(perf_counter_ns())
    return tuple(after - before for before, after in pairwise(at[first - 1 :])), frames


def _beside(folder: Path | None) -> Path | None:
    """Find a tiny decoder in a folder by its name."""
    if folder is None or not folder.is_dir():
        return None
    files = (path for path in sorted(folder.iterdir()) if path.suffix in (".pth", ".safetensors"))
    return next((path for path in files if any(name in path.name for name in RAW_LATENTS)), None)
