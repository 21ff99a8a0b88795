"""Configurations of a stream as the user gives them, with their schedules of noise; `strobe.engine.resolve` resolves one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Final, Literal

import torch

from strobe.cache.kv import Positions
from strobe.cache.policy import Past, RingPolicy
from strobe.core.errors import ConfigError, unknown_choice
from strobe.core.shapes import VaeStride
from strobe.models.wan.flow import Sampler, shifted_sigma, unipc_sigma, warped_timestep


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseSchedule:
    """A few-step schedule: nominal timesteps, warped by an explicit shift.

    ``sigma = shift * s / (1 + (shift - 1) * s)`` with ``s = timestep / 1000``; the transformer is told ``1000 * sigma``.

    Args:
        timesteps: nominal, falling, in (0, 1000]; the first is 1000 because a stream starts from pure noise. A 0 may come last:
            a step that is told 0 and takes away the weakest noise of the official table, that of timestep 1.
        shift: 1 leaves the timesteps alone, larger values spend more steps on strong noise.
        skipped: so many first steps are left out, because the latents to begin with are less noisy; see `below`.
        sampler: what a step does with a flow. "unipc" goes on from its own latents (`strobe.engine.denoise`), begins just below
            pure noise and tells whole timesteps; "renoise" mixes fresh noise into clean latents.

    Raises:
        ConfigError: timesteps or shift are not of that kind.

    Source: Esser et al. 2024 (timestep shifting); Self-Forcing, `utils/scheduler.py`; krea realtime-video, `v2v.py` (a last 0);
    Wan2.2, `wan/utils/fm_solvers_unipc.py` at 00b69de (levels of "unipc").
    """

    timesteps: tuple[float, ...]
    shift: float
    skipped: int = 0
    sampler: Sampler = "renoise"

    def __post_init__(self) -> None:
        if not 0 < self.shift < math.inf:
            raise ConfigError(f"shift {self.shift} is not a positive number; official models use 5 or 8")
        check_timesteps(self.timesteps)
        if self.sampler == "unipc" and not self.timesteps[-1]:
            raise ConfigError("UniPC has no step at timestep 0: its last one ends clean; leave the 0 out of the timesteps")

    @property
    def draws(self) -> int:
        """Tensors of noise that a frame block takes."""
        return len(self.timesteps) if self.sampler == "renoise" else 1

    @property
    def sigmas(self) -> tuple[float, ...]:
        """Noise level of each step: 1 is pure noise, 0 clean."""
        if self.sampler == "unipc":
            return tuple(unipc_sigma(timestep, self.shift) for timestep in self.timesteps[self.skipped :])
        return tuple(shifted_sigma(timestep or 1, self.shift) for timestep in self.timesteps[self.skipped :])

    @property
    def warped(self) -> tuple[float, ...]:
        """Timesteps after the shift, as the transformer takes them: ``1000 * sigma`` with the official rounding."""
        if self.sampler == "unipc":
            return tuple(float(int(1000 * sigma)) for sigma in self.sigmas)
        return tuple(warped_timestep(timestep, self.shift) if timestep else 0.0 for timestep in self.timesteps[self.skipped :])

    def below(self, strength: float) -> NoiseSchedule:
        """Return the steps whose noise level is at most `strength`, with which a given clip is noised and denoised again.

        Raises:
            ConfigError: there is none; names the lowest level.

        Source: SDEdit (Meng et al. 2021), section 3, at the levels that a few-step model was trained for.
        """
        levels = replace(self, skipped=0).sigmas
        skipped = sum(level > strength + 1e-9 for level in levels)
        if skipped == len(levels):
            told = ", ".join(f"{level:.3g}" for level in levels)
            raise ConfigError(
                f"strength {strength:g} leaves no denoise step: this schedule has the noise levels {told}; give {levels[-1]:.3g} "
                "or more, or 0 to begin with the clip as it is"
            )
        return replace(self, skipped=skipped)


def check_timesteps(timesteps: Sequence[float]) -> None:
    """Check nominal timesteps.

    Raises:
        ConfigError: they do not start at 1000, do not fall, or leave [0, 1000].
    """
    falling = all(first > second for first, second in pairwise(timesteps))
    if not timesteps or timesteps[0] != 1000 or not falling or timesteps[-1] < 0:
        given = ", ".join(f"{timestep:g}" for timestep in timesteps) or "none"
        raise ConfigError(f"timesteps {given} are not valid: start at 1000 and fall towards 0, e.g. 1000, 500, 250")


DType = Literal["auto", "float32", "bfloat16"]
Format = Literal["native", "fp8", "int8"]
FORMATS: tuple[Format, ...] = ("native", "fp8", "int8")
AttentionFormat = Literal["native", "int8"]
ATTENTION_FORMATS: tuple[AttentionFormat, ...] = ("native", "int8")
DTYPES: dict[DType, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "positions": ("absolute", "rebased"),
    "dtype": ("auto", *DTYPES),
    "linear_format": FORMATS,
    "kv_format": FORMATS,
    "attention_format": ATTENTION_FORMATS,
}
"""Words that a setting may be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Knobs:
    """Optimisations, each on or off. Off costs what the official code pays; a knob that the device cannot use is turned off.

    Args:
        ring_cache: keys and values stay in fixed slots; off: rolled, cloned and concatenated in every layer and pass.
        rope_table: rotations built once per frame block in float32; off: built in every pass, applied in float64.
        modulation_table: time path worked out once per timestep; off: in every pass and for every latent frame.
        text_once: text embedding once per prompt; off: again in every pass.
        block_decode: one decoder call per frame block; off: one per latent frame.
        commit_kv_only: last layer of the commit pass writes keys and values only; off: a full pass.
        fused_qkv: queries, keys and values in one matrix product; off: three.
        merge_lora: a LoRA, if there is one, is added into the weights; off: two more matrix products per linear layer.
        overlap_decode: decoding runs beside the commit pass; off: after it.
        late_frames: decoding runs beside the next frame block too, so frames come and prompts act one frame block later; off: at
            once.
        fused_kernels: norms, modulation, gates, RoPE and cache writes in Triton kernels of their own; off: in PyTorch.
        cuda_graphs: a pass is one CUDA graph, replayed; off: every kernel is launched by the host.
        compile: Wan's decoder in kernels of its own or through torch.compile, and without fused_kernels the layers of a pass;
            off: eager.
    """

    ring_cache: bool = True
    rope_table: bool = True
    modulation_table: bool = True
    text_once: bool = True
    block_decode: bool = True
    commit_kv_only: bool = True
    fused_qkv: bool = True
    merge_lora: bool = True
    overlap_decode: bool = True
    late_frames: bool = False
    fused_kernels: bool = True
    cuda_graphs: bool = True
    compile: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDefaults:
    """Settings that a model was trained for; they fill in what a configuration leaves open.

    Args:
        frame_size: height and width in pixels.
        fps: pixel frames per second.
        stride: pixels and frames per latent.
        frame_block: latent frames of a frame block.
        timesteps: nominal timesteps of its full schedule.
        shift: of the schedule.
        window: latent frames attended, sink and current frame block included.
        sink: first latent frames, never evicted.
        positions: see `EngineConfig`.
        past: where keys and values of earlier frame blocks come from. If they are "recomputed", the window is what is recomputed
            and the frame block, positions begin at 0 in every frame block, and the sink is one frame, made anew from pixels. If
            they are "rolling", a pass has as many frame blocks as there are timesteps and looks back within the window without
            the last frame block. If a stream comes in "shots", the first frames of a shot stay as a sink of their own.
        past_weight: see `EngineConfig`.
        sampler: see `strobe.engine.config.NoiseSchedule`.
        lora: a LoRA belongs to it.
    """

    frame_size: tuple[int, int]
    fps: int
    stride: VaeStride
    frame_block: int
    timesteps: tuple[float, ...]
    shift: float
    window: int = 12
    sink: int = 3
    positions: Positions = "rebased"
    past: Past = "kept"
    past_weight: float = 1.0
    sampler: Sampler = "renoise"
    lora: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Settings of a stream, as given. Presets are functions that return one (`strobe.engine.presets`).

    Args:
        name: shown in tables.
        timesteps: nominal, from 1000 down; None: the model's own.
        shift: of the schedule; None: the model's own.
        window: latent frames attended, sink and current frame block included; None: the model's own.
        sink: first latent frames, never evicted; None: the model's own.
        first_block: latent frames of the first frame block; None: as many as every other. 1 starts from a single frame.
        positions: "absolute" (official) or "rebased" (the sink moves along, so that a stream may be endless); None: the model's
            own.
        past_weight: what a key between the first frame and the frame block counts for in attention while a frame block is
            denoised, in (0, 1]; for a model whose past is recomputed; None: the model's own.
        sparsity: share of the past, behind the sink and in tiles, that a query leaves out; 0: everything kept is attended. With
            attention in eight bits blocks of 128 keys take the place of tiles.
        keep_sink: a prompt switch with recache leaves the sink as it is once frames were evicted; False: the sink is renewed.
        dtype: of weights and cache; "auto": float32 on a CPU, bfloat16 on a GPU.
        linear_format: of the weights of the layers' matrices: "native" (in `dtype`), "fp8" (weights and activations, on
            FP8 matrix units) or "int8" (weights alone).
        kv_format: of the cached keys and values: "native", "fp8" or "int8", one scale per token and head.
        attention_format: of self-attention: "native" (in `dtype`) or "int8" (int8 queries and keys, FP8 weights and values, which
            the cache keeps so).
        simulate: compute what "fp8" would give in `dtype`, for hardware without it; no faster.
        strength: 0 takes frames that a stream starts from as they are; above 0 they are noised to the highest level of the
            schedule that is not above it, and denoised under the prompt; 1 leaves nothing of them.
        knobs: optimisations.

    Raises:
        ConfigError: a value is not allowed; names the nearest that is.
    """

    name: str = "custom"
    timesteps: tuple[float, ...] | None = None
    shift: float | None = None
    window: int | None = None
    sink: int | None = None
    first_block: int | None = None
    positions: Positions | None = None
    past_weight: float | None = None
    sparsity: float = 0.0
    keep_sink: bool = True
    dtype: DType = "auto"
    linear_format: Format = "native"
    kv_format: Format = "native"
    attention_format: AttentionFormat = "native"
    simulate: bool = False
    strength: float = 0.0
    knobs: Knobs = field(default_factory=Knobs)

    def __post_init__(self) -> None:
        for each in fields(self):
            if hasattr(value := getattr(self, each.name), "item"):  # a number of numpy would not equal its resumed self either
                object.__setattr__(self, each.name, value.item())
        sink = self.sink or 0
        RingPolicy(window=max(sink, 0) + 1 if self.window is None else self.window, sink=sink)
        if not 0 <= self.sparsity < 1:
            raise ConfigError(f"sparsity {self.sparsity} is not valid: give 0 (everything is attended) to below 1")
        if not 0 <= self.strength <= 1:
            raise ConfigError(f"strength {self.strength:g} is not valid: give 0 (the clip as it is) to 1 (nothing of it is left)")
        if self.sparsity and not self.knobs.ring_cache:
            raise ConfigError(f"sparsity {self.sparsity} needs knob ring_cache: turn it on, or set sparsity to 0")
        if self.past_weight is not None and not 0 < self.past_weight <= 1:
            raise ConfigError(f"past_weight {self.past_weight} is not valid: give a factor above 0, up to 1 (nothing is faded)")
        if self.timesteps is not None:
            check_timesteps(self.timesteps)
            object.__setattr__(self, "timesteps", tuple(self.timesteps))  # a list would not equal its resumed self
        for name, allowed in _CHOICES.items():
            if (given := getattr(self, name)) not in (*allowed, *([None] if name == "positions" else [])):
                raise unknown_choice(name, given, allowed)
        off = {"knob ring_cache off": not self.knobs.ring_cache}
        if self.attention_format != "native":
            off = {f"kv_format {self.kv_format!r} (the cache is in eight bits already)": self.kv_format != "native"} | off
        else:
            off = {f"sparsity {self.sparsity}": self.sparsity > 0} | off
        name = "kv_format" if self.attention_format == "native" else "attention_format"
        if getattr(self, name) != "native" and (wrong := [what for what, found in off.items() if found]):
            raise ConfigError(
                f"{name} {getattr(self, name)!r} does not go with {' and '.join(wrong)}: use {name} 'native', or change the other"
            )
        if self.first_block is not None and self.first_block < 1:
            raise ConfigError(f"first_block {self.first_block} is not valid: the first frame block has 1 or more latent frames")


def replace_knobs(knobs: Knobs, **changes: bool) -> Knobs:
    """Copy knobs with some changed.

    Raises:
        ConfigError: no knob has that name; names the nearest.
    """
    names = [each.name for each in fields(Knobs)]
    for name in changes:
        if name not in names:
            raise unknown_choice("knob", name, names)
    return replace(knobs, **changes)
