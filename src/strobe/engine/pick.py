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
from statistics import median
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
class PresetRate:
    """Measured speed of a preset.

    Args:
        frames: pixel frames of a frame block.
        blocks_ns: of each timed frame block, from the delivery before to its own.
        cost_ns: all that measuring took, from opening the session on.
    """

    frames: int
    blocks_ns: tuple[int, ...]
    cost_ns: int

    @property
    def slowest_fps(self) -> float:
        """Pixel frames per second of the slowest frame block."""
        return self.frames * 1e9 / max(self.blocks_ns)

    @property
    def median_fps(self) -> float:
        """Pixel frames per second of the median frame block."""
        return self.frames * 1e9 / median(self.blocks_ns)

    @property
    def spread(self) -> float:
        """Slowest frame block over the median."""
        return max(self.blocks_ns) / median(self.blocks_ns)

    def holds(self, fps: float) -> bool:
        """Return whether every frame block comes within its playback time, with the margin."""
        return self.slowest_fps >= needed_fps(fps)


@dataclass(frozen=True, kw_only=True, slots=True)
class PresetTrial:
    """The result of trying a preset: `rate` is None if it was not measured, `reason` says why it was not taken, if so."""

    config: EngineConfig
    rate: PresetRate | None
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Pick:
    """The chosen preset, with all trials.

    Args:
        config: the preset that was taken.
        rate: of it.
        holds: it holds `fps`; if not, it is the fastest.
        fps: pixel frames per second that were to be held.
        trials: all candidates in the order of quality.
    """

    config: EngineConfig
    rate: PresetRate
    holds: bool
    fps: float
    trials: tuple[PresetTrial, ...]

    @property
    def why(self) -> str:
        """The reason for the choice, one sentence."""
        name, wanted = self.config.name, f"{self.fps:g} FPS with {MARGIN:.0%} to spare"
        found = f"its slowest of {len(self.rate.blocks_ns)} frame blocks came at {self.rate.slowest_fps:.1f} FPS"
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
    tried: Callable[[PresetTrial], object] | None = None,
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
        tried: told each trial as soon as it is over, for what is shown if the rest is interrupted.

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
    trials: list[PresetTrial] = []
    planned = list(_plan(configs, model, where))
    total, before = sum(each for each in planned if isinstance(each, int)), 0
    for number, (config, plan) in enumerate(zip(configs, planned, strict=True)):
        if isinstance(plan, ConfigError):
            raise plan
        if isinstance(plan, str):
            trial = PresetTrial(config=config, rate=None, reason=plan)
        else:
            told = None if progress is None else partial(_tell, progress, before, total, config.name)
            trial = _try(config, model, prompt, where, clock, told)
            before += plan
        trials.append(trial)
        if tried is not None:
            tried(trial)
        if trial.rate is not None and trial.rate.holds(wanted):
            reason = f"not measured: {config.name} is of better quality and holds"
            trials += [PresetTrial(config=other, rate=None, reason=reason) for other in configs[number + 1 :]]
            return Pick(config=config, rate=trial.rate, holds=True, fps=wanted, trials=_told(trials, config, wanted))
    measured = [(trial.rate.slowest_fps, trial) for trial in trials if trial.rate is not None]
    if not measured:
        raise StrobeError(f"no preset can run: {'; '.join(f'{each.config.name}: {each.reason}' for each in trials)}")
    _, fastest = max(measured, key=lambda each: each[0])
    assert fastest.rate is not None
    shown = _told(trials, fastest.config, wanted)
    return Pick(config=fastest.config, rate=fastest.rate, holds=False, fps=wanted, trials=shown)


def _tell(progress: Callable[[int, int, str], object], before: int, total: int, name: str, block: int) -> None:
    """Report one more frame block of a candidate."""
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


def _try(
    config: EngineConfig,
    model: Model,
    prompt: str,
    device: torch.device,
    clock: Callable[[], int],
    told: Callable[[int], object] | None,
) -> PresetTrial:
    """Measure one configuration."""
    try:
        return PresetTrial(config=config, rate=_measure(config, model, prompt, device, clock, told), reason="")
    except (StrobeError, torch.OutOfMemoryError) as error:
        return PresetTrial(config=config, rate=None, reason=" ".join(str(error).split()))
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _measure(
    config: EngineConfig,
    model: Model,
    prompt: str,
    device: torch.device,
    clock: Callable[[], int],
    told: Callable[[int], object] | None,
) -> PresetRate:
    if told is not None:
        told(0)
    began = clock()
    with Session(prompt, preset=config, model=model, device=device) as session:
        first = first_steady(session.config)
        blocks = session.stream()  # endless: the last frame block of another has none made ahead of it
        delivered = []
        for number, _ in enumerate(islice(blocks, first + BLOCKS), start=1):
            delivered.append(clock())
            if told is not None:
                told(number)
        at = delivered[first - 1 :]
        frames = session.config.frame_block * model.defaults.stride.time
    blocks_ns = tuple(after - before for before, after in pairwise(at))
    return PresetRate(frames=frames, blocks_ns=blocks_ns, cost_ns=at[-1] - began)


def first_steady(config: ResolvedConfig) -> int:
    """Return the number of the first timed frame block: the second that finds the window full."""
    return next(index for index in count(1) if config.latents_of(index - 1).start >= config.policy.window)


def _told(trials: Sequence[PresetTrial], taken: EngineConfig, fps: float) -> tuple[PresetTrial, ...]:
    """Add to each trial that was measured and not taken its reason."""
    return tuple(
        each
        if each.rate is None or each.config is taken
        else replace(each, reason=f"its slowest frame block came at {each.rate.slowest_fps:.1f} FPS, below {needed_fps(fps):.1f}")
        for each in trials
    )
