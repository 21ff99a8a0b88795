"""Configurations of a stream, resolved for one model on one device, with the checks that their settings go together there."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import asdict, dataclass, replace
from typing import Final

import torch

from strobe.cache.kv import Positions
from strobe.cache.policy import Past, RingPolicy
from strobe.core.device import card_of
from strobe.core.errors import ConfigError, ImplUnavailableError
from strobe.core.libraries import broken
from strobe.eightbit.rows import FP8_CAPABILITY
from strobe.engine.config import DTYPES, AttentionFormat, DType, EngineConfig, Format, Knobs, ModelDefaults, NoiseSchedule

KERNEL_HEAD_DIM: Final = 128
"""Of the kernels, and of Wan's transformers."""


def without_kernel(device: torch.device, dtype: torch.dtype, head_dim: int = KERNEL_HEAD_DIM) -> str:
    """Say why attention in eight bits does not run on a device; empty if it does. On a CPU its reference runs."""
    from strobe.attention.dense.eight.api import choose
    from strobe.attention.types import AttentionSpec

    spec = AttentionSpec(
        batch=1,
        q_len=1,
        kv_len=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=head_dim,
        dtype=dtype,
        device=device,
        softmax_scale=head_dim**-0.5,
        return_lse=False,
        needs_grad=False,
        card=card_of(device),
    )
    try:
        choose(spec, "auto")
    except ImplUnavailableError as error:
        return error.reason
    return ""


OVERLAP_CORES = 4
"""Fewest CPU cores from which decoding runs beside the commit pass. On two, a frame block of `shapes` took 1.06 times as long
with it (95 % interval 1.02 to 1.09, 30 mirrored pairs); three cores and more were not measured."""


def _does_nothing(name: str, config: EngineConfig, defaults: ModelDefaults, device: torch.device) -> str:
    """Say why a knob does nothing for a model on a device; empty if it does something."""
    knobs = config.knobs
    if name == "merge_lora":
        return "" if defaults.lora else "no LoRA belongs to the model"
    if name in ("compile", "fused_kernels", "cuda_graphs"):
        return _cannot_compile(device) if name == "compile" else _cannot_launch(name, config, device)
    if name == "late_frames" and defaults.past == "recomputed":
        return "the past of a frame block is derived from the frames of the one before"
    cores = len(os.sched_getaffinity(0))
    if name == "overlap_decode" and device.type == "cpu" and cores < OVERLAP_CORES:
        return f"{cores} CPU core(s), below {OVERLAP_CORES}: on two, decoding beside the transformer measured slower"
    if name == "late_frames" and (not knobs.overlap_decode or _does_nothing("overlap_decode", config, defaults, device)):
        return "it needs overlap_decode, which is off here"
    return ""


NEEDED_BY_GRAPHS = ("ring_cache", "rope_table", "modulation_table", "text_once")
"""Knobs without which a pass does not stay on the device or does not keep its addresses."""


def _cannot_launch(name: str, config: EngineConfig, device: torch.device) -> str:
    if device.type == "cpu":
        return "used on CUDA only"
    if name == "fused_kernels":
        return f"needs Triton: {why}" if (why := broken("triton.language")) else ""
    off = next((each for each in NEEDED_BY_GRAPHS if not getattr(config.knobs, each)), "")
    return f"knob {off} is off" if off else ""


def _cannot_compile(device: torch.device) -> str:
    if device.type == "cpu":
        return "used on CUDA only: a CPU machine need not have a C++ compiler"
    if why := broken("triton.language"):
        return f"needs Triton: {why}"
    if not any(map(shutil.which, ("gcc", "clang"))):
        return "Triton needs a C compiler, and neither gcc nor clang is on the path"
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedConfig:
    """An `EngineConfig` for one model on one device, with nothing left to fill in.

    `knobs` are those in effect; `asked` is what it was made from; `again` has the steps that make given frames anew.
    """

    asked: EngineConfig
    device: torch.device
    dtype: torch.dtype
    frame_block: int
    first_block: int
    schedule: NoiseSchedule
    again: NoiseSchedule | None
    policy: RingPolicy
    positions: Positions
    past: Past
    past_weight: float
    sparsity: float
    keep_sink: bool
    linear_format: Format
    kv_format: Format
    attention_format: AttentionFormat
    simulate: bool
    knobs: Knobs

    @property
    def name(self) -> str:
        """Name of the preset."""
        return self.asked.name

    def latents_of(self, frame_block: int) -> range:
        """Return the numbers of the latent frames of a frame block."""
        first = 0 if frame_block == 0 else self.first_block + (frame_block - 1) * self.frame_block
        return range(first, first + (self.frame_block if frame_block else self.first_block))

    @property
    def num_recomputed(self) -> int:
        """Latent frames whose keys and values are derived anew in a frame block of a full window; 0 where they are kept."""
        return self.policy.window - self.frame_block if self.past == "recomputed" else 0

    @property
    def num_ahead(self) -> int:
        """Latent frames that are under way between two frame blocks, where a pass denoises several frame blocks; else 0."""
        return (len(self.schedule.timesteps) - 1) * self.frame_block if self.past == "rolling" else 0

    @property
    def pass_frames(self) -> frozenset[int]:
        """Numbers of latent frames that passes have."""
        own = {self.first_block, self.frame_block}
        if self.past in ("kept", "shots"):
            return frozenset(own | ({self.policy.window} if self.past == "kept" else set()))
        made = range(self.first_block, self.policy.window + 1, self.frame_block)
        if self.past == "rolling":
            under_way = range(self.frame_block, self.num_ahead + self.frame_block + 1, self.frame_block)
            return frozenset({*own, self.policy.window, *under_way})
        return frozenset(own | {rest for end in made if (rest := min(end, self.num_recomputed) % self.frame_block)})

    @property
    def simulated(self) -> bool:
        """Whether linear layers compute in `dtype` what FP8 would give."""
        return self.simulate and self.linear_format == "fp8"

    @property
    def calls_per_block(self) -> dict[str, int]:
        """Transformer passes of a steady frame block, by stage."""
        if self.past == "rolling":
            return {"denoise_step": 1, "commit": 1}
        again = {"recache": math.ceil(self.num_recomputed / self.frame_block)} if self.num_recomputed else {"commit": 1}
        return {"denoise_step": len(self.schedule.timesteps)} | again


def filled(config: EngineConfig, defaults: ModelDefaults) -> ModelDefaults:
    """Replace a model's trained settings by those that a configuration gives."""
    names = ("window", "sink", "positions", "past_weight", "timesteps", "shift")
    return replace(defaults, **{name: value for name in names if (value := getattr(config, name)) is not None})


def resolve(config: EngineConfig, defaults: ModelDefaults, device: torch.device) -> ResolvedConfig:
    """Fill in a configuration for a model and a device.

    Raises:
        ConfigError: the window leaves no room for the model's frame block beside the sink.
        ImplUnavailableError: as `check_device`.
    """
    check_device(config, device)
    own = filled(config, defaults)
    first_block = defaults.frame_block if config.first_block is None else config.first_block
    _check_past(config, own, first_block)  # first: it asks for a larger window than a frame block does
    policy = RingPolicy(window=own.window, sink=own.sink)
    policy.check_block(max(first_block - policy.sink, defaults.frame_block))
    if config.attention_format != "native" and own.past != "kept":
        what = {"recomputed": "is recomputed", "rolling": "is rolling", "shots": "comes in shots"}[own.past]
        raise ConfigError(
            f"attention_format {config.attention_format!r} is for models whose past is kept, and the past of this one {what}: "
            "use attention_format 'native', or a preset such as balanced"
        )
    plan = NoiseSchedule(timesteps=own.timesteps, shift=own.shift, sampler=own.sampler)
    return ResolvedConfig(
        asked=config,
        device=device,
        dtype=dtype_of(config, device),
        frame_block=defaults.frame_block,
        first_block=first_block,
        schedule=plan,
        again=plan.below(config.strength) if config.strength else None,
        policy=policy,
        positions=own.positions,
        past=own.past,
        past_weight=own.past_weight,
        sparsity=config.sparsity,
        keep_sink=config.keep_sink,
        linear_format=config.linear_format,
        kv_format=config.kv_format,
        attention_format=config.attention_format,
        simulate=config.simulate,
        knobs=replace(config.knobs, **dict.fromkeys(idle_knobs(config, defaults, device), False)),
    )


def idle_knobs(config: EngineConfig, defaults: ModelDefaults, device: torch.device) -> dict[str, str]:
    """Return the knobs of a configuration that do nothing for a model on a device, so that they are off, with the reasons."""
    asked = [name for name, on in asdict(config.knobs).items() if on]
    return {name: reason for name in asked if (reason := _does_nothing(name, config, defaults, device))}


def dtype_of(config: EngineConfig, device: torch.device) -> torch.dtype:
    """Return the dtype of weights and activations on a device."""
    automatic: DType = "bfloat16" if device.type == "cuda" else "float32"
    return DTYPES[automatic if config.dtype == "auto" else config.dtype]


def check_device(config: EngineConfig, device: torch.device) -> None:
    """Refuse a device that lacks what a configuration needs, whatever the model.

    Raises:
        ImplUnavailableError: FP8 matrix units are not on it and `simulate` is off, or no kernel attends in eight bits there.
    """
    near = "turbo" if config.timesteps else "balanced"
    if reason := _without_fp8(config, device):
        other = f"preset '{near}' or linear_format 'native'", "this one with --simulate (what FP8 would give, no faster)"
        raise ImplUnavailableError(config.name, f"it {reason}", other, what="preset")
    if reason := _without_eight(config, device):
        raise ImplUnavailableError(config.name, f"it {reason}", (f"preset '{near}' or attention_format 'native'",), what="preset")


def lacking(config: EngineConfig, device: torch.device) -> str:
    """Say what a configuration needs and a device lacks, and what to do; empty if nothing."""
    if reason := _without_fp8(config, device):
        return f"{config.name} {reason}; --simulate computes what it would give"
    reason = _without_eight(config, device)
    return f"{config.name} {reason}" if reason else ""


def _without_fp8(config: EngineConfig, device: torch.device) -> str:
    if config.linear_format != "fp8" or config.simulate or card_of(device).capability >= FP8_CAPABILITY:
        return ""
    least = ".".join(map(str, FP8_CAPABILITY))
    return f"runs linear layers in FP8, and {device} has no FP8 matrix units (compute capability {least} or later)"


def _without_eight(config: EngineConfig, device: torch.device) -> str:
    reason = "" if config.attention_format == "native" else without_kernel(device, dtype_of(config, device))
    return f"attends in eight bits, which does not run on {device}: {reason}" if reason else ""


def _check_past(config: EngineConfig, own: ModelDefaults, first_block: int) -> None:
    if own.past == "rolling":
        _check_rolling(config, own, first_block)
    if own.past == "shots":
        _check_shots(config, own)
    if own.past != "recomputed":
        if own.past_weight != 1:
            raise ConfigError(
                f"past_weight {own.past_weight:g} is for models whose past is recomputed, such as those of the recipe krea; "
                "leave it out"
            )
        return
    if own.sink != 1:
        raise ConfigError(
            f"the past of this model is recomputed behind one frame made anew, so its sink is 1; {config.name} has {own.sink}: "
            "give sink 1 and a window of 4 or more (--sink 1 --window 6), or another preset"
        )
    if config.sparsity:
        raise ConfigError(f"sparsity {config.sparsity} does not go with a past that is recomputed: set it to 0")


def _check_rolling(config: EngineConfig, own: ModelDefaults, first_block: int) -> None:
    size, steps = own.frame_block, len(own.timesteps)
    off = {
        f"window {own.window}": own.window < size * (steps + 2) or own.window % size > 0,
        f"sink {own.sink}": own.sink != size,
        f"sparsity {config.sparsity}": config.sparsity > 0,
        f"strength {config.strength:g}": config.strength > 0,
        f"kv_format {config.kv_format!r}": config.kv_format != "native",
        "knob ring_cache off": not config.knobs.ring_cache,
        f"sampler {own.sampler}": own.sampler != "renoise",
        f"first_block {first_block}": first_block != size,
    }
    if wrong := [what for what, found in off.items() if found]:
        raise ConfigError(
            f"{config.name} has {' and '.join(wrong)}, and this model denoises {steps} frame blocks of {size} at once: it needs "
            f"a window of {size * (steps + 2)} or more that is a multiple of {size}, a sink of {size}, a ring of native keys and "
            "values, strength 0, and a first frame block as long as the others; preset balanced has them"
        )


def _check_shots(config: EngineConfig, own: ModelDefaults) -> None:
    least = 2 * own.sink + own.frame_block
    needs = {  # what is wrong: what to give
        f"sink {own.sink}": ("a sink of 1 or more", own.sink < 1),
        f"window {own.window}": (f"a window of {least} or more for a sink of {own.sink}", own.window < least),
        f"positions {own.positions}": ("absolute positions", own.positions != "absolute"),
        f"sparsity {config.sparsity}": ("sparsity 0", config.sparsity > 0),
        "knob ring_cache off": ("knob ring_cache on", not config.knobs.ring_cache),
    }
    if wrong := {what: need for what, (need, found) in needs.items() if found}:
        raise ConfigError(
            f"{config.name} has {' and '.join(wrong)}; the shots of this model pin frames beside the sink, so give "
            f"{' and '.join(wrong.values())}. Preset balanced has all that shots need, and --recipe causal-wan does without shots"
        )
