"""The acceptance of a model: all checks of one model under one preset, and its comparison with `quality`, written as runs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from msgspec import structs

from strobe.bench.accept.behaviour import check_frames, check_latents, check_prompt
from strobe.bench.accept.clips import SHORT, check_autoencoder, check_oracle, make
from strobe.bench.accept.equal import BLOCKS, check_equal, plain
from strobe.bench.accept.order import check_order
from strobe.bench.accept.weights import check_weights
from strobe.bench.case import Plan, Progress
from strobe.bench.cases.stream import Script, StreamCase
from strobe.bench.runner import end_line, run_case
from strobe.core.errors import ConfigError
from strobe.engine.config import EngineConfig
from strobe.engine.model import Model
from strobe.engine.presets import quality
from strobe.engine.weighted import check_prompts
from strobe.perf.measure.machine import describe_run
from strobe.perf.records.record import Check, Gate, Workload
from strobe.perf.records.store import RunWriter, create_run, read_run
from strobe.quality.temporal import block_starts

LEAST_BLOCKS: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The model to accept, and the settings.

    Args:
        model: as loaded.
        config: preset that streams.
        prompts: first prompt, and another one.
        device: where it runs.
        seed: of the first clip; the clip of another seed has the next one.
        blocks: frame blocks of the first clip.

    Raises:
        ConfigError: too few frame blocks, equal prompts, or one that the model cannot take.
    """

    model: Model
    config: EngineConfig
    prompts: tuple[str, str]
    device: torch.device
    seed: int
    blocks: int

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
    """Run all checks and write them line by line, then compare the preset with `quality`; return the run folder.

    The comparison is a run of its own in the folder `compare`; its gate is a check too.

    Args:
        root: where the folder is made.
        open_run: makes the folder from `root` and a slug.
    """
    script = Script(prompt=subject.prompts[0], num_blocks=subject.blocks, seed=subject.seed)
    asked = subject.config
    same = replace(quality(), simulate=asked.simulate, positions=asked.positions, dtype=asked.dtype)
    configs = [asked] if asked.name == same.name else [same, asked]
    with (
        closing(StreamCase(configs, script=script, model=subject.model, device=subject.device)) as case,
        open_run(root, f"accept-{subject.config.name}") as writer,
    ):
        header = describe_run(writer.folder, subject.device, (case.baseline, *case.candidates), 1, "accept")
        writer.append(structs.replace(header, model=case.model, workload=case.workload))
        with end_line(writer):
            writer.append(structs.replace(case.settings(subject.config.name), calls_per_stage={}))
            for check in checks_of(subject, case.workload, lambda what: progress(0, 1, what)):
                writer.append(not_judged(check) if subject.model.random_weights else check)
            plan = Plan(palindromes=2, traced_blocks=0, alone=True)
            place = writer.folder / "compare"
            outcome = run_case(case, root=place, plan=plan, progress=progress, open_run=lambda folder, _: RunWriter(folder))
            writer.append(*map(_gate_check, read_run(outcome.folder).gates))
    return writer.folder


def _gate_check(gate: Gate) -> Check:
    """Return the gate of the comparison as a check."""
    return Check(
        group="presets", name=f"preset_{gate.variant}", value=None, passed=gate.passed, meaning=f"gate against {gate.reference}",
        basis=gate.rule, detail=gate.detail,
    )  # fmt: skip


def not_judged(check: Check) -> Check:
    """Return a check of a model with random weights: what its clips look like means nothing, the rest holds for any weights."""
    if check.group in ("weights", "stream", "presets") or check.name == "latents_not_finite":
        return check
    return structs.replace(check, passed=None, basis="random weights: what clips look like means nothing, so it is not judged")


def checks_of(subject: Subject, work: Workload, count: Callable[[str], object]) -> Iterator[Check]:
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


def _freed(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
