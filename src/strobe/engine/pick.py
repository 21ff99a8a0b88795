"""Search for the preset of the best quality that holds a frame rate on this machine, by measuring (`realtime`).

Every preset streams until its window is full and its passes are recorded, and `BLOCKS` frame blocks more, which are timed from
one delivery to the next, decoding included. A preset holds a rate if its slowest frame block does with `MARGIN` to spare:
``frames / slowest >= (1 + MARGIN) * fps``. Presets are tried in the order of quality, and the first that holds is taken.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice, pairwise
from time import perf_counter_ns
from typing import Final

import torch

from strobe.core.device import resolve_device
from strobe.core.errors import ConfigError, StrobeError
from strobe.engine.config import EngineConfig
from strobe.engine.model import Model
from strobe.engine.presets import preset
from strobe.engine.prompts import check_prompts
from strobe.engine.resolve import ResolvedConfig, lacking, resolve
from strobe.engine.session import Session

LADDER: Final = ("balanced", "speed", "low_memory", "sparse", "turbo", "turbo_fp8", "ultra")
"""Presets from the best quality down; docs/engine.md has what was measured. `speed` makes the frames of `balanced`, later.
`balanced_int8` is taken by name only: its errors are not known of any released model."""
BLOCKS: Final = 8
"""Frame blocks that are timed."""
MARGIN: Final = 0.3
"""What the slowest of them must have to spare. On an H200 the slowest of some 128 steady frame blocks of a preset took up to 1.30
times as long as the slowest of any eight of one clip (benchmarks/presets-h200)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PresetTrial:
    """The result of trying a preset.

    Args:
        config: the preset.
        reason: why it was not taken, if so.
        frames: pixel frames of a frame block.
        blocks_ns: of each timed frame block, from the delivery before to its own; empty if it was not measured.
    """

    config: EngineConfig
    reason: str = ""
    frames: int = 0
    blocks_ns: tuple[int, ...] = ()

    @property
    def slowest_fps(self) -> float:
        """Pixel frames per second of the slowest frame block; 0 if it was not measured."""
        return self.frames * 1e9 / max(self.blocks_ns, default=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pick:
    """The chosen preset, with all trials.

    Args:
        taken: the preset that was taken.
        holds: it holds `fps`; if not, it is the fastest.
        fps: pixel frames per second that were to be held.
        trials: all candidates in the order of quality.
    """

    taken: PresetTrial
    holds: bool
    fps: float
    trials: tuple[PresetTrial, ...]

    @property
    def config(self) -> EngineConfig:
        """The configuration that was taken."""
        return self.taken.config

    @property
    def why(self) -> str:
        """The reason for the choice, one sentence."""
        name, wanted, slowest = self.config.name, f"{self.fps:g} FPS with {MARGIN:.0%} to spare", self.taken.slowest_fps
        found = f"its slowest of {len(self.taken.blocks_ns)} frame blocks came at {slowest:.1f} FPS"
        if self.holds:
            return f"{name} has the best quality that holds {wanted} here: {found}"
        return f"no preset holds {wanted} here, so {name}, the fastest: {found}, below {needed_fps(self.fps):.1f}"


def needed_fps(fps: float) -> float:
    """Return the pixel frames per second that the slowest frame block must reach to hold a rate."""
    return fps * (1 + MARGIN)


def pick(
    model: Model,
    prompt: str,
    *,
    device: str | torch.device = "auto",
    fps: float | None = None,
    candidates: Sequence[EngineConfig] | None = None,
    clock: Callable[[], int] = perf_counter_ns,
    progress: Callable[[int, int, str], object] | None = None,
) -> Pick:
    """Find the configuration of the best quality that holds a frame rate on a device. One that cannot run there is passed over.

    Args:
        model: what will stream.
        prompt: what is streamed meanwhile.
        device: "auto", "cpu", "cuda" or "cuda:N".
        fps: pixel frames per second as delivered; None: the model's own.
        candidates: from the best quality down; None: the presets of `LADDER`.
        clock: now, in nanoseconds.
        progress: told before each frame block: how many are done, how many there are if none but the last candidate holds, and
            whose it is.

    Returns:
        the first that holds the rate. If none does: the fastest, with `holds` False.

    Raises:
        ConfigError: `fps` is not positive, or the model's words are others; an impossible configuration.
        StrobeError: no candidate can run; says why of each.
    """
    where, wanted = resolve_device(device), model.defaults.fps if fps is None else fps
    if not 0 < wanted < math.inf:
        raise ConfigError(f"fps {wanted:g} is not valid: give more than 0, such as {model.defaults.fps}")
    check_prompts(model.text, [prompt])
    configs = [preset(name) for name in LADDER] if candidates is None else list(candidates)
    planned = list(_plan(configs, model, where))
    total, before = sum(each for each in planned if isinstance(each, int)), 0
    trials: list[PresetTrial] = []
    taken: PresetTrial | None = None
    for config, plan in zip(configs, planned, strict=True):
        if taken is not None:
            trial = PresetTrial(config=config, reason=f"not measured: {taken.config.name} is of better quality and holds")
        elif isinstance(plan, ConfigError):
            raise plan
        elif isinstance(plan, str):
            trial = PresetTrial(config=config, reason=plan)
        else:
            told = partial(_tell, progress, before, total, config.name)
            trial = _try(config, where, partial(_measured, config, model, prompt, where, clock, told))
            before += plan
            taken = trial if trial.slowest_fps >= needed_fps(wanted) else None
        trials.append(trial)
    best = taken or max(trials, key=lambda each: each.slowest_fps, default=None)
    if best is None or not best.blocks_ns:
        raise StrobeError(f"no preset can run: {'; '.join(f'{each.config.name}: {each.reason}' for each in trials)}")
    below = f"FPS, below {needed_fps(wanted):.1f}"
    shown = (
        replace(each, reason=f"its slowest frame block came at {each.slowest_fps:.1f} {below}")
        if each.blocks_ns and each is not best
        else each
        for each in trials
    )
    return Pick(taken=best, holds=taken is not None, fps=wanted, trials=tuple(shown))


def _tell(progress: Callable[[int, int, str], object] | None, before: int, total: int, name: str, block: int) -> None:
    """Report one more frame block of a candidate."""
    if progress is not None:
        progress(before + block, total, f"measuring {name}")


def _plan(configs: Sequence[EngineConfig], model: Model, device: torch.device) -> Iterator[int | str | ConfigError]:
    """Yield of each candidate the frame blocks that measuring it takes, why it is not measured, or why it is impossible."""
    seen: dict[ResolvedConfig, str] = {}
    for config in configs:
        if reason := lacking(config, device):
            yield reason
            continue
        try:
            resolved = resolve(config, model.defaults, device)
        except ConfigError as error:
            yield error
            continue
        runs = replace(resolved, asked=replace(config, name="", knobs=resolved.knobs), knob_states=())
        yield f"runs as {seen[runs]} does here" if runs in seen else first_steady(resolved) + BLOCKS
        seen.setdefault(runs, config.name)


def _try(config: EngineConfig, device: torch.device, measured: Callable[[], PresetTrial]) -> PresetTrial:
    """Measure one configuration, and free its memory."""
    try:
        return measured()
    except (StrobeError, torch.OutOfMemoryError) as error:
        return PresetTrial(config=config, reason=" ".join(str(error).split()))
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _measured(
    config: EngineConfig,
    model: Model,
    prompt: str,
    device: torch.device,
    clock: Callable[[], int],
    told: Callable[[int], object],
) -> PresetTrial:
    """Measure it; when this returns, nothing holds its session."""
    told(0)
    delivered = []
    with Session(prompt, preset=config, model=model, device=device) as session:
        first = first_steady(session.config)
        blocks = session.stream()  # endless: the last frame block of another has none made ahead of it
        for number, _ in enumerate(islice(blocks, first + BLOCKS), start=1):
            delivered.append(clock())
            told(number)
        frames = session.config.frame_block * model.defaults.stride.time
    blocks_ns = tuple(after - before for before, after in pairwise(delivered[first - 1 :]))
    return PresetTrial(config=config, frames=frames, blocks_ns=blocks_ns)


def first_steady(config: ResolvedConfig) -> int:
    """Return the number of the first timed frame block: the second that finds the window full."""
    return next(index for index in count(1) if config.latents_of(index - 1).start >= config.policy.window)
