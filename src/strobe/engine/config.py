"""Configurations of a stream: as the user gives them, and resolved for one model on one device."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import torch

from strobe.cache.kv import Positions
from strobe.cache.policy import Past, RingPolicy
from strobe.core.device import card_of, resolve_device
from strobe.core.errors import ConfigError, ImplUnavailableError, unknown_choice
from strobe.core.shapes import VaeStride
from strobe.eightbit.rows import FP8_CAPABILITY
from strobe.engine.attention_format import check_attention_format, check_past_of_format, without_kernel
from strobe.engine.knob_states import KnobState, Place, knob_state
from strobe.engine.past_checks import check_past
from strobe.engine.schedule import NoiseSchedule, check_timesteps
from strobe.models.wan.flow import Sampler

DType = Literal["auto", "float32", "bfloat16"]
Format = Literal["native", "fp8", "int8"]
FORMATS: tuple[Format, ...] = ("native", "fp8", "int8")
AttentionFormat = Literal["native", "int8"]
ATTENTION_FORMATS: tuple[AttentionFormat, ...] = ("native", "int8")
CompileMode = Literal["default", "max-autotune", "reduce-overhead"]
COMPILE_MODES: tuple[CompileMode, ...] = ("default", "max-autotune", "reduce-overhead")
DTYPES: dict[DType, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _knob(meaning: str, *, on: bool = True) -> bool:
    return field(default=on, metadata={"meaning": meaning})


@dataclass(frozen=True, kw_only=True, slots=True)
class Knobs:
    """Optimisations, each on or off. Off costs what the official code pays; a knob that the device cannot use is turned off."""

    ring_cache: bool = _knob("keys and values stay in fixed slots; off: rolled, cloned and concatenated in every layer and pass")
    rope_table: bool = _knob("rotations built once per frame block in float32; off: built in every pass, applied in float64")
    modulation_table: bool = _knob("time path worked out once per timestep; off: in every pass and for every latent frame")
    text_once: bool = _knob("text embedding once per prompt; off: again in every pass")
    block_decode: bool = _knob("one decoder call per frame block; off: one per latent frame")
    commit_kv_only: bool = _knob("last layer of the commit pass writes keys and values only; off: a full pass")
    fused_qkv: bool = _knob("queries, keys and values in one matrix product; off: three")
    merge_lora: bool = _knob("a LoRA, if there is one, is added into the weights; off: two more matrix products per linear layer")
    overlap_decode: bool = _knob("decoding runs beside the commit pass; off: after it")
    late_frames: bool = _knob(
        "decoding runs beside the next frame block too, so frames come and prompts act one frame block later; off: at once",
        on=False,
    )
    fused_kernels: bool = _knob("norms, modulation, gates, RoPE and cache writes in Triton kernels of their own; off: in PyTorch")
    cuda_graphs: bool = _knob("a pass is one CUDA graph, replayed; off: every kernel is launched by the host")
    memory_pool: bool = _knob(
        "keys and values, recorded passes and the decoder take from one pool, sized at the start; off: from torch's as they come",
        on=False,
    )
    compile: bool = _knob("Wan's decoder, and without fused_kernels the layers of a pass, through torch.compile; off: eager")


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
        sampler: see `strobe.engine.schedule.NoiseSchedule`.
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
        sparsity: share of the past, behind the sink and in tiles, that a query leaves out; 0: everything kept is attended.
        keep_sink: a prompt switch with recache leaves the sink as it is once frames were evicted; False: the sink is renewed.
        dtype: of weights and cache; "auto": float32 on a CPU, bfloat16 on a GPU.
        linear_format: of the weights of the layers' matrices: "native" (in `dtype`), "fp8" (weights and activations, on
            FP8 matrix units) or "int8" (weights alone).
        kv_format: of the cached keys and values: "native", "fp8" or "int8", one scale per token and head.
        attention_format: of self-attention: "native" (in `dtype`) or "int8" (int8 queries and keys, FP8 weights and values, which
            the cache keeps so).
        native_layers: numbers of layers whose matrices stay native whatever `linear_format` says; -1 is the last.
        simulate: compute what "fp8" would give in `dtype`, for hardware without it; no faster.
        compile_mode: of `torch.compile`: "default", "max-autotune" or "reduce-overhead", which makes graphs of its own and is the
            compiler's to fuse: with it, knobs `cuda_graphs` and `fused_kernels` are off.
        decode_device: where the autoencoder runs, such as "cuda:1"; None: where the transformer does.
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
    native_layers: tuple[int, ...] = ()
    simulate: bool = False
    compile_mode: CompileMode = "default"
    decode_device: str | None = None
    strength: float = 0.0
    knobs: Knobs = field(default_factory=Knobs)

    def __post_init__(self) -> None:
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
        object.__setattr__(self, "native_layers", tuple(self.native_layers))
        if self.native_layers and self.linear_format == "native":
            raise ConfigError(f"native_layers {self.native_layers} goes with linear_format 'fp8' or 'int8'; it is 'native'")
        if self.positions not in ("absolute", "rebased", None):
            raise unknown_choice("positions", self.positions, ["absolute", "rebased"])
        if self.dtype not in ("auto", *DTYPES):
            raise unknown_choice("dtype", self.dtype, ["auto", *DTYPES])
        for name in ("linear_format", "kv_format"):
            if getattr(self, name) not in FORMATS:
                raise unknown_choice(name, getattr(self, name), FORMATS)
        if self.attention_format not in ATTENTION_FORMATS:
            raise unknown_choice("attention_format", self.attention_format, ATTENTION_FORMATS)
        if self.compile_mode not in COMPILE_MODES:
            raise unknown_choice("compile_mode", self.compile_mode, COMPILE_MODES)
        if self.kv_format != "native" and (self.sparsity or not self.knobs.ring_cache):
            other = f"sparsity {self.sparsity}" if self.sparsity else "knob ring_cache off"
            raise ConfigError(
                f"kv_format {self.kv_format!r} does not go with {other}: use kv_format 'native', or change the other"
            )
        if self.attention_format != "native":
            check_attention_format(self)
        if self.first_block is not None and self.first_block < 1:
            raise ConfigError(f"first_block {self.first_block} is not valid: the first frame block has 1 or more latent frames")


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedConfig:
    """An `EngineConfig` for one model on one device, with nothing left to fill in.

    `knobs` are those in effect; `asked` is what it was made from; `again` has the steps that make given frames anew.
    """

    asked: EngineConfig
    device: torch.device
    decode_device: torch.device
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
    compile_mode: CompileMode
    knobs: Knobs
    knob_states: tuple[KnobState, ...]

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
        ConfigError: the window leaves no room for the model's frame block beside the sink, or `decode_device` is no
            device's name.
        ImplUnavailableError: `decode_device` is not on this machine, or as `check_device`.
    """
    check_device(config, device)
    decode_device = device if config.decode_device is None else resolve_device(config.decode_device)
    own = filled(config, defaults)
    first_block = defaults.frame_block if config.first_block is None else config.first_block
    check_past(config, own, first_block)  # first: it asks for a larger window than a frame block does
    policy = RingPolicy(window=own.window, sink=own.sink)
    policy.check_block(max(first_block - policy.sink, defaults.frame_block))
    check_past_of_format(config, own)
    states = knob_states(config, defaults, device)
    plan = NoiseSchedule(timesteps=own.timesteps, shift=own.shift, sampler=own.sampler)
    return ResolvedConfig(
        asked=config,
        device=device,
        decode_device=decode_device,
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
        compile_mode=config.compile_mode,
        knobs=Knobs(**{state.name: state.on for state in states}),
        knob_states=states,
    )


def knob_states(config: EngineConfig, defaults: ModelDefaults, device: torch.device) -> tuple[KnobState, ...]:
    """Resolve each knob of a configuration for a model on a device: on, or off with the reason.

    Raises: as `resolve` does for `decode_device`.
    """
    place = Place(
        device=device,
        elsewhere=config.decode_device is not None and resolve_device(config.decode_device) != device,
        lora=defaults.lora,
        own_graphs=config.compile_mode == "reduce-overhead" and config.knobs.compile,
        recomputed=defaults.past == "recomputed",
    )
    return tuple(knob_state(config.knobs, each.name, each.metadata["meaning"], place) for each in fields(Knobs))


def dtype_of(config: EngineConfig, device: torch.device) -> torch.dtype:
    """Return the dtype of weights and activations on a device."""
    automatic: DType = "bfloat16" if device.type == "cuda" else "float32"
    return DTYPES[automatic if config.dtype == "auto" else config.dtype]


def check_device(config: EngineConfig, device: torch.device) -> None:
    """Refuse a device that lacks what a configuration needs, whatever the model.

    Raises:
        ImplUnavailableError: FP8 matrix units are not on it and `simulate` is off, or no kernel attends in eight bits there.
    """
    if reason := _without_fp8(config, device):
        other = "preset 'turbo' or linear_format 'native'", "this one with --simulate (what FP8 would give, no faster)"
        raise ImplUnavailableError(config.name, f"it {reason}", other, what="preset")
    if reason := _without_eight(config, device):
        raise ImplUnavailableError(config.name, f"it {reason}", ("attention_format 'native'",), what="preset")


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


def replace_knobs(knobs: Knobs, **changes: bool) -> Knobs:
    """Copy knobs with some changed.

    Raises:
        ConfigError: no knob has that name; names the nearest.
    """
    values = {each.name: getattr(knobs, each.name) for each in fields(Knobs)}
    for name in changes:
        if name not in values:
            raise unknown_choice("knob", name, values)
    return Knobs(**(values | changes))
