"""The acceptance of a model: all checks and columns of one model under one preset, written as a run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from msgspec import structs

from strobe.bench.accept.behaviour import check_frames, check_latents, check_prompt
from strobe.bench.accept.clips import SHORT, check_autoencoder, check_oracle, check_presets, make
from strobe.bench.accept.delivered import COLUMNS, Column, Decoders, measure
from strobe.bench.accept.equal import BLOCKS, check_equal, plain
from strobe.bench.accept.order import check_order
from strobe.bench.accept.weights import check_weights
from strobe.bench.case import Progress
from strobe.bench.cases.stream import Script, StreamCase
from strobe.bench.clips import ClipNumbers
from strobe.bench.runner import end_line
from strobe.core.errors import ConfigError
from strobe.core.spans import FRAME_BLOCK
from strobe.engine.config import EngineConfig
from strobe.engine.load import Model
from strobe.engine.weighted import check_prompts
from strobe.perf.measure.clocks import read_clocks
from strobe.perf.measure.machine import describe_run
from strobe.perf.measure.profile import file_sha256
from strobe.perf.records.base import Line
from strobe.perf.records.checks import Check
from strobe.perf.records.record import Absent, Span, Video, Workload
from strobe.perf.records.store import RunWriter, create_run
from strobe.quality.temporal import block_starts

LEAST_BLOCKS: Final = 4
_CLIP: Final = "clips/clip.mp4"


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The model to accept, and the settings.

    Args:
        model: as loaded.
        config: preset that streams.
        presets: presets that are compared with `quality`.
        prompts: first prompt, and another one.
        device: where it runs.
        seed: of the first clip; the clip of another seed has the next one.
        blocks: frame blocks of the first clip.
        decoders: the model with its autoencoders.

    Raises:
        ConfigError: too few frame blocks, equal prompts, or one that the model cannot take.
    """

    model: Model
    config: EngineConfig
    presets: tuple[EngineConfig, ...]
    prompts: tuple[str, str]
    device: torch.device
    seed: int
    blocks: int
    decoders: Decoders

    def __post_init__(self) -> None:
        check_blocks(self.blocks)
        if self.prompts[0] == self.prompts[1]:
            raise ConfigError("the other prompt is the same as the first; give two different ones")
        check_prompts(self.model.text, self.prompts)


def check_blocks(blocks: int) -> None:
    """Check the length of the first clip.

    Raises:
        ConfigError: it is too short to see drift.
    """
    if blocks < LEAST_BLOCKS:
        raise ConfigError(f"{blocks} frame blocks are too few to see drift; give {LEAST_BLOCKS} or more")


def run_accept(
    subject: Subject, *, root: Path, progress: Progress, open_run: Callable[[Path, str], RunWriter] = create_run
) -> Path:
    """Run all checks, measure all columns and write them line by line; return the run folder.

    Args:
        root: where the folder is made.
        open_run: makes the folder from `root` and a slug.
    """
    model, device = subject.model, subject.device
    script = Script(prompt=subject.prompts[0], num_blocks=subject.blocks, seed=subject.seed)
    with (
        closing(StreamCase([subject.config], script=script, model=model, device=device)) as case,
        open_run(root, f"accept-{subject.config.name}") as writer,
    ):
        header = describe_run(writer.folder, device, COLUMNS, 1, "accept")
        absent = tuple(
            Absent(variant=name, reason=note)
            for name, one, note in (
                (COLUMNS[2], subject.decoders.tiny, subject.decoders.tiny_note),
                (COLUMNS[3], subject.decoders.full, subject.decoders.full_note),
            )
            if one is None
        )
        writer.append(structs.replace(header, model=case.model, workload=case.workload, absent=absent))
        with end_line(writer):
            settings, count = case.settings(case.baseline), _Counter(progress, len(subject.presets))
            for check in checks_of(subject, case.workload, count):
                writer.append(not_judged(check) if model.random_weights else check)
            numbers = ClipNumbers(device)
            (writer.folder / _CLIP).parent.mkdir()
            for column in _columns(subject, writer.folder / _CLIP, count):
                if column.blocks_ns:
                    writer.append(structs.replace(settings, name=column.name, decoder=column.note))
                    writer.append(*_spans(column, numbers, device))
                if column.frames:
                    writer.append(_video(writer.folder, column.frames, subject))
    return writer.folder


@dataclass(kw_only=True)
class _Counter:
    """Tells how far the work is, step by step."""

    progress: Progress
    total: int
    done: int = 0

    def __init__(self, progress: Progress, num_presets: int) -> None:
        self.progress, self.total = progress, 7 + num_presets + len(COLUMNS) - 1

    def __call__(self, what: str) -> None:
        self.progress(min(self.done, self.total), self.total, what)
        self.done += 1


def not_judged(check: Check) -> Check:
    """Return a check of a model with random weights: what its clips look like means nothing, the rest holds for any weights."""
    if check.group in ("weights", "stream", "presets") or check.name == "latents_not_finite":
        return check
    return structs.replace(check, passed=None, basis="random weights: what clips look like means nothing, so it is not judged")


def checks_of(subject: Subject, work: Workload, count: _Counter) -> Iterator[Check]:
    """Make the clips and yield every check."""
    model, config, device, seed = subject.model, subject.config, subject.device, subject.seed
    prompt, other = subject.prompts
    count("weights")
    yield from check_weights(model)
    count("first clip")
    clip = make(model, config, prompt, device, seed, subject.blocks)
    yield from check_latents(clip.latents)
    count("another prompt")
    prompted = make(model, config, other, device, seed, SHORT)
    count("another seed")
    seeded = make(model, config, prompt, device, seed + 1, SHORT)
    unrelated = make(model, config, other, device, seed + 1, SHORT)
    starts = block_starts(len(clip.frames), work.frames_per_block, work.frames_first_block)
    yield from check_frames(clip.frames, unrelated.frames, starts)
    size = min(len(clip.latents), len(prompted.latents))
    yield from check_prompt(clip.latents[:size], prompted.latents[:size], seeded.latents[:size], clip.config.dtype)
    if not model.random_weights:
        yield from check_oracle([(prompt, clip.frames), (other, prompted.frames)], work.frames_first_block)
    count("streaming against one pass")
    ordinary = plain(model, config, device)
    yield from check_equal(model, ordinary, prompt, clip.latents[: BLOCKS * ordinary.frame_block], seed)
    size = ordinary.frame_block
    yield check_order(model, ordinary, prompt, clip.latents[size : 2 * size], seed)
    count("autoencoder")
    yield from check_autoencoder(model, clip.frames[: work.frames_first_block], ordinary)
    _freed(device)
    if subject.presets:
        yield from check_presets(model, subject.presets, prompt, device, seed, count)
    _freed(device)


def _columns(subject: Subject, video: Path, count: _Counter) -> Iterator[Column]:
    yield from measure(
        subject.model,
        subject.config,
        subject.prompts[0],
        subject.device,
        others=subject.decoders,
        seed=subject.seed,
        video=video,
        progress=count,
    )


def _spans(column: Column, numbers: ClipNumbers, device: torch.device) -> Sequence[Line]:
    """Return the lines of a column's frame blocks, numbered from the first that counts, with the line of their clip."""
    clip = numbers.finish(column.name, "timed", 0, len(column.blocks_ns), read_clocks(device))
    lines: list[Line] = []
    start_ns = 0
    for index, value_ns in enumerate(column.blocks_ns):
        lines.append(
            Span(
                variant=column.name, clip=clip.clip, order=clip.order, palindrome=0, name=FRAME_BLOCK, index=index,
                start_ns=start_ns, value_ns=value_ns, clock="perf_counter", warmup=False,
            )
        )  # fmt: skip
        start_ns += value_ns
    return (*lines, clip)


def _video(folder: Path, frames: int, subject: Subject) -> Video:
    path = folder / _CLIP
    return Video(
        variant=COLUMNS[-1],
        path=_CLIP,
        sha256=file_sha256(path),
        frames=frames,
        fps=subject.model.defaults.fps,
        caption=f"{subject.prompts[0]}; seed {subject.seed}",
    )


def _freed(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
